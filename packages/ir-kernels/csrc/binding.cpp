// The torch ops of namespace `ir_kernels_c`, on the LibTorch stable ABI: those over rows. This file
// checks arguments and shares rows out among threads; what is computed stands in the .inc files.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <string>

#include "isa_select.h"
#include "kernels.h"
#include "norm_args.h"
#include "share_rows.h"
#include "tape.h"
#include "tensor_rows.h"

namespace ir_kernels {
namespace {

// Elements below which a second thread costs more than it saves.
constexpr int64_t kSiluGrain = 8192;

int64_t last_size(const Tensor& tensor) { return tensor.size(tensor.dim() - 1); }

Tensor dense(const Tensor& x) { return x.is_contiguous() ? x : copy_dense(x); }

std::optional<Tensor> dense(const std::optional<Tensor>& x) {
  return x ? std::optional<Tensor>(dense(*x)) : std::nullopt;
}

Tensor with_rows(const Tensor& x) { return has_rows(x) ? x : copy_dense(x); }

// Calls body with x itself, or with a contiguous copy that is copied back afterwards.
template <class Body>
void with_writable_rows(const Tensor& x, const char* name, Body body) {
  if (has_writable_rows(x)) return body(x);
  STD_TORCH_CHECK(!is_expanded(x), "`", name, "` is expanded, so it cannot be written: clone it");
  const Tensor copy = copy_dense(x);
  body(copy);
  Tensor target = x;
  torch::stable::copy_(target, copy);
}

Tensor rms_norm(const Tensor& x, const std::optional<Tensor>& weight, double epsilon,
                std::optional<int64_t> variance_size) {
  const std::optional<Tensor> dense_weight = dense(weight);
  NormArgs args = norm_args(x, dense_weight, epsilon, variance_size);
  const Tensor source = with_rows(x);
  Tensor out = empty_rows(x, args.hidden);
  args.x = rows_of(source);
  args.out = {out.data_ptr(), 1, args.hidden, 0};
  const Tensor& scales = dense_weight ? *dense_weight : source;
  perform(num_rows(x), {&source, &scales, &out}, [args](int64_t rows) {
    share_rows(kernels().rms_norm, args, rows, args.hidden, kNormGrain);
  });
  return out;
}

void fused_add_rms_norm(const Tensor& x, const Tensor& residual,
                        const std::optional<Tensor>& weight, double epsilon,
                        std::optional<int64_t> variance_size) {
  const std::optional<Tensor> dense_weight = dense(weight);
  NormArgs args = norm_args(x, dense_weight, epsilon, variance_size);
  STD_TORCH_CHECK(checked_dtype(residual, "residual") == args.dtype && has_same_shape(x, residual),
                  "`x` and `residual` must have the same dtype and shape");
  with_writable_rows(x, "x", [&](const Tensor& x_rows) {
    with_writable_rows(residual, "residual", [&](const Tensor& residual_rows) {
      args.x = rows_of(x_rows);
      args.residual = rows_of(residual_rows);
      const Tensor& scales = dense_weight ? *dense_weight : x_rows;
      perform(num_rows(x), {&x_rows, &residual_rows, &scales}, [args](int64_t rows) {
        share_rows(kernels().fused_add_rms_norm, args, rows, args.hidden, kNormGrain);
      });
    });
  });
}

Tensor silu_and_mul(const Tensor& x) {
  SiluArgs args{};
  args.dtype = checked_dtype(x, "x");
  STD_TORCH_CHECK(last_size(x) % 2 == 0, "the last dimension of `x` must be even, not ",
                  last_size(x));
  args.size = last_size(x) / 2;
  const Tensor source = with_rows(x);
  Tensor out = empty_rows(x, args.size);
  args.x = rows_of(source);
  args.out = {out.data_ptr(), 1, args.size, 0};
  perform(num_rows(x), {&source, &out}, [args](int64_t rows) {
    share_rows(kernels().silu_and_mul, args, rows, args.size, kSiluGrain);
  });
  return out;
}

std::string isa() { return kernels().isa; }

void set_isa(const std::string& name) {
  STD_TORCH_CHECK(select_isa(name), "this machine runs ", runnable_isas(), "; not `", name, "`");
}

}  // namespace
}  // namespace ir_kernels

STABLE_TORCH_LIBRARY(ir_kernels_c, m) {
  m.def("rms_norm(Tensor x, Tensor? weight, float epsilon, int? variance_size=None) -> Tensor");
  m.def(
      "fused_add_rms_norm(Tensor(a!) x, Tensor(b!) residual, Tensor? weight, float epsilon, "
      "int? variance_size=None) -> ()");
  m.def("silu_and_mul(Tensor x) -> Tensor");
  m.def("isa() -> str");
  m.def("isas() -> str");
  m.def("set_isa(str name) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(ir_kernels_c, CPU, m) {
  m.impl("rms_norm", TORCH_BOX(&ir_kernels::rms_norm));
  m.impl("fused_add_rms_norm", TORCH_BOX(&ir_kernels::fused_add_rms_norm));
  m.impl("silu_and_mul", TORCH_BOX(&ir_kernels::silu_and_mul));
}

STABLE_TORCH_LIBRARY_IMPL(ir_kernels_c, CompositeExplicitAutograd, m) {
  m.impl("isa", TORCH_BOX(&ir_kernels::isa));
  m.impl("isas", TORCH_BOX(&ir_kernels::runnable_isas));
  m.impl("set_isa", TORCH_BOX(&ir_kernels::set_isa));
}
