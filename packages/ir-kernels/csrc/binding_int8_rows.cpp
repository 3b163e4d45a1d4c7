// The torch ops that give rows as int8 and a scale each: alone, and behind a norm or an activation.
// This file checks arguments and shares rows out among threads; the results are new and dense.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <array>
#include <optional>
#include <tuple>

#include "isa_select.h"
#include "kernels.h"
#include "norm_args.h"
#include "tape.h"
#include "team.h"
#include "tensor_rows.h"
#include "thread_buffer.h"

namespace ir_kernels {
namespace {

constexpr int64_t kLargestElement = 4;  // in bytes
// Elements below which a second thread costs more than it saves.
constexpr int64_t kSiluGrain = 8192;

int64_t last_size(const Tensor& tensor) { return tensor.size(tensor.dim() - 1); }

Tensor with_rows(const Tensor& x) { return has_rows(x) ? x : copy_dense(x); }

std::optional<Tensor> dense(const std::optional<Tensor>& x) {
  return !x || x->is_contiguous() ? x : std::optional<Tensor>(copy_dense(*x));
}

struct Quantized {
  Tensor q;
  Tensor scale;
};

// For rows of x that become `size` wide; without elements they would have no largest one.
Quantized quantized_like(const Tensor& x, int64_t size) {
  STD_TORCH_CHECK(size > 0, "rows of `x` have no elements, so no scale");
  return {empty_rows(x, size, aoti_torch_dtype_int8()),
          empty_rows(x, 1, aoti_torch_dtype_float32())};
}

// Runs a kernel on all rows, `size` wide, as share_rows does; each thread has a row of its own.
template <class Args>
void quantize_rows(void (*kernel)(const Args&, int64_t, int64_t), const Args& args, int64_t rows,
                   int64_t size, int64_t grain) {
  static thread_local ThreadBuffer row;
  const auto task = [&](int64_t begin, int64_t end) {
    Args own = args;
    own.to.row = row.at_least(size * kLargestElement);
    kernel(own, begin, end);
  };
  const int64_t rows_per_task = std::max<int64_t>(1, grain / size);
  if (rows <= rows_per_task) return task(0, rows);
  parallel(0, rows, rows_per_task, task);
}

// The same into new tensors; `kernel` is a member of the table, `read` what `args` points into.
template <class Args>
void quantize(void (*KernelTable::*kernel)(const Args&, int64_t, int64_t), Args args,
              const Quantized& to, int64_t size, int64_t grain,
              const std::array<const Tensor*, 4>& read) {
  args.to.q = static_cast<int8_t*>(to.q.data_ptr());
  args.to.scale = static_cast<float*>(to.scale.data_ptr());
  perform(num_rows(to.q), {read[0], read[1], read[2], read[3], &to.q, &to.scale},
          [kernel, args, size, grain](int64_t rows) {
    quantize_rows(kernels().*kernel, args, rows, size, grain);
  });
}

std::tuple<Tensor, Tensor> quantize_int8_per_token(const Tensor& x) {
  QuantizeArgs args{};
  args.dtype = checked_dtype(x, "x");
  args.size = last_size(x);
  const Quantized to = quantized_like(x, args.size);
  const Tensor source = with_rows(x);
  args.x = rows_of(source);
  quantize(&KernelTable::quantize_int8, args, to, args.size, kNormGrain,
           {&source, &source, &source, &source});
  return {to.q, to.scale};
}

std::tuple<Tensor, Tensor> rms_norm_quantize_int8_per_token(const Tensor& x,
                                                            const std::optional<Tensor>& weight,
                                                            double epsilon,
                                                            std::optional<int64_t> variance_size) {
  const std::optional<Tensor> dense_weight = dense(weight);
  NormInt8Args args{};
  args.norm = norm_args(x, dense_weight, epsilon, variance_size);
  const Quantized to = quantized_like(x, args.norm.hidden);
  const Tensor source = with_rows(x);
  args.norm.x = rows_of(source);
  const Tensor& scales = dense_weight ? *dense_weight : source;
  quantize(&KernelTable::rms_norm_int8, args, to, args.norm.hidden, kNormGrain,
           {&source, &scales, &source, &source});
  return {to.q, to.scale};
}

std::tuple<Tensor, Tensor, Tensor> fused_add_rms_norm_quantize_int8_per_token(
    const Tensor& x, const Tensor& residual, const std::optional<Tensor>& weight, double epsilon,
    std::optional<int64_t> variance_size) {
  const std::optional<Tensor> dense_weight = dense(weight);
  NormInt8Args args{};
  args.norm = norm_args(x, dense_weight, epsilon, variance_size);
  const int64_t hidden = args.norm.hidden;
  STD_TORCH_CHECK(
      checked_dtype(residual, "residual") == args.norm.dtype && has_same_shape(x, residual),
      "`x` and `residual` must have the same dtype and shape");
  const Quantized to = quantized_like(x, hidden);
  const Tensor sum = empty_rows(x, hidden);
  const Tensor source = with_rows(x);
  const Tensor added = with_rows(residual);
  args.norm.x = rows_of(source);
  args.norm.residual = rows_of(added);
  args.norm.out = {sum.data_ptr(), 1, hidden, 0};
  const Tensor& scales = dense_weight ? *dense_weight : source;
  quantize(&KernelTable::fused_add_rms_norm_int8, args, to, hidden, kNormGrain,
           {&source, &added, &sum, &scales});
  return {to.q, to.scale, sum};
}

std::tuple<Tensor, Tensor> silu_and_mul_quantize_int8_per_token(const Tensor& x) {
  SiluInt8Args args{};
  args.silu.dtype = checked_dtype(x, "x");
  STD_TORCH_CHECK(last_size(x) % 2 == 0, "the last dimension of `x` must be even, not ",
                  last_size(x));
  args.silu.size = last_size(x) / 2;
  const Quantized to = quantized_like(x, args.silu.size);
  const Tensor source = with_rows(x);
  args.silu.x = rows_of(source);
  quantize(&KernelTable::silu_and_mul_int8, args, to, args.silu.size, kSiluGrain,
           {&source, &source, &source, &source});
  return {to.q, to.scale};
}

}  // namespace
}  // namespace ir_kernels

STABLE_TORCH_LIBRARY_FRAGMENT(ir_kernels_c, m) {
  m.def("quantize_int8_per_token(Tensor x) -> (Tensor, Tensor)");
  m.def(
      "rms_norm_quantize_int8_per_token(Tensor x, Tensor? weight, float epsilon, "
      "int? variance_size=None) -> (Tensor, Tensor)");
  m.def(
      "fused_add_rms_norm_quantize_int8_per_token(Tensor x, Tensor residual, Tensor? weight, "
      "float epsilon, int? variance_size=None) -> (Tensor, Tensor, Tensor)");
  m.def("silu_and_mul_quantize_int8_per_token(Tensor x) -> (Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(ir_kernels_c, CPU, m) {
  m.impl("quantize_int8_per_token", TORCH_BOX(&ir_kernels::quantize_int8_per_token));
  m.impl("rms_norm_quantize_int8_per_token",
         TORCH_BOX(&ir_kernels::rms_norm_quantize_int8_per_token));
  m.impl("fused_add_rms_norm_quantize_int8_per_token",
         TORCH_BOX(&ir_kernels::fused_add_rms_norm_quantize_int8_per_token));
  m.impl("silu_and_mul_quantize_int8_per_token",
         TORCH_BOX(&ir_kernels::silu_and_mul_quantize_int8_per_token));
}
