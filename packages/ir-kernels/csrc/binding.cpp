// The torch ops of namespace `ir_kernels_c`, on the LibTorch stable ABI. This file checks
// arguments and splits rows over threads; what is computed stands in the .inc files.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <optional>
#include <string>

#include "isa_select.h"
#include "kernels.h"
#include "tensor_rows.h"

namespace ir_kernels {
namespace {

// Elements below which a second thread costs more than it saves.
constexpr int64_t kNormGrain = 32768;
constexpr int64_t kSiluGrain = 8192;
constexpr int64_t kRotaryGrain = 16384;

template <class Args>
void run(void (*kernel)(const Args&, int64_t, int64_t), const Args& args, int64_t rows,
         int64_t row_size, int64_t grain) {
  const int64_t rows_per_task = std::max<int64_t>(1, grain / std::max<int64_t>(1, row_size));
  if (rows <= rows_per_task) return kernel(args, 0, rows);
  torch::stable::parallel_for(0, rows, rows_per_task, [&](int64_t begin, int64_t end) {
    kernel(args, begin, end);
  });
}

int64_t last_size(const Tensor& tensor) { return tensor.size(tensor.dim() - 1); }

Tensor dense(const Tensor& x) { return x.is_contiguous() ? x : torch::stable::contiguous(x); }

std::optional<Tensor> dense(const std::optional<Tensor>& x) {
  return x ? std::optional<Tensor>(dense(*x)) : std::nullopt;
}

Tensor with_rows(const Tensor& x) { return has_rows(x) ? x : torch::stable::contiguous(x); }

// Calls body with x itself, or with a contiguous copy that is copied back afterwards.
template <class Body>
void with_writable_rows(const Tensor& x, const char* name, Body body) {
  if (has_writable_rows(x)) return body(x);
  STD_TORCH_CHECK(!is_expanded(x), "`", name, "` is expanded, so it cannot be written: clone it");
  const Tensor copy = torch::stable::contiguous(x);
  body(copy);
  Tensor target = x;
  torch::stable::copy_(target, copy);
}

// How many elements x[..., :variance_size] has, as Python slices.
int64_t clamped(std::optional<int64_t> variance_size, int64_t hidden) {
  const int64_t size = variance_size.value_or(hidden);
  return std::clamp<int64_t>(size < 0 ? size + hidden : size, 0, hidden);
}

// `weight` is dense, and outlives the result.
NormArgs norm_args(const Tensor& x, const std::optional<Tensor>& weight, double epsilon,
                   std::optional<int64_t> variance_size) {
  NormArgs args{};
  args.dtype = checked_dtype(x, "x");
  args.hidden = last_size(x);
  args.variance_size = clamped(variance_size, args.hidden);
  args.epsilon = static_cast<float>(epsilon);
  if (!weight) return args;
  args.weight_dtype = checked_dtype(*weight, "weight");
  STD_TORCH_CHECK(args.weight_dtype == args.dtype || args.weight_dtype == Dtype::f32,
                  "`weight` must have x's dtype or float32");
  STD_TORCH_CHECK(weight->dim() == 1 && weight->size(0) == args.hidden,
                  "`weight` must be a vector of ", args.hidden, " elements");
  args.weight = weight->data_ptr();
  return args;
}

Tensor rms_norm(const Tensor& x, const std::optional<Tensor>& weight, double epsilon,
                std::optional<int64_t> variance_size) {
  const std::optional<Tensor> dense_weight = dense(weight);
  NormArgs args = norm_args(x, dense_weight, epsilon, variance_size);
  const Tensor source = with_rows(x);
  Tensor out = empty_rows(x, args.hidden);
  args.x = rows_of(source);
  args.out = {out.data_ptr(), 1, args.hidden, 0};
  run(kernels().rms_norm, args, num_rows(x), args.hidden, kNormGrain);
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
      run(kernels().fused_add_rms_norm, args, num_rows(x), args.hidden, kNormGrain);
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
  run(kernels().silu_and_mul, args, num_rows(x), args.size, kSiluGrain);
  return out;
}

void check_heads(const Tensor& x, int64_t head_size, const char* name) {
  STD_TORCH_CHECK(head_size > 0, "`head_size` must be positive, not ", head_size);
  const bool fits = x.dim() == 2 ? last_size(x) % head_size == 0 : last_size(x) == head_size;
  STD_TORCH_CHECK((x.dim() == 2 || x.dim() == 3) && fits, "`", name,
                  "` must be [T, heads * ", head_size, "] or [T, heads, ", head_size, "]");
}

Heads heads_of(const Tensor& x, int64_t head_size) {
  const Rows rows = rows_of(x);
  if (x.dim() == 2) return {rows.data, last_size(x) / head_size, rows.outer_stride, head_size};
  return {rows.data, x.size(1), rows.outer_stride, rows.inner_stride};
}

// A position outside the table would be read from wild memory.
void check_positions(const Tensor& positions, int64_t num_tokens, int64_t max_position) {
  STD_TORCH_CHECK(positions.is_cpu() && positions.dim() == 1 && positions.size(0) == num_tokens &&
                      positions.scalar_type() == torch::headeronly::ScalarType::Long,
                  "`positions` must be a CPU vector of ", num_tokens, " int64");
  const int64_t* data = static_cast<const int64_t*>(positions.data_ptr());
  const int64_t stride = positions.stride(0);
  for (int64_t i = 0; i < num_tokens; ++i) {
    const int64_t position = data[i * stride];
    STD_TORCH_CHECK(0 <= position && position < max_position, "`positions[", i, "]` is ", position,
                    ", but `cos_sin_cache` has ", max_position, " rows");
  }
}

void rotary_embedding(const Tensor& query, const Tensor& key, const Tensor& positions,
                      const Tensor& cos_sin_cache, int64_t head_size, bool is_neox) {
  RotaryArgs args{};
  args.dtype = checked_dtype(query, "query");
  check_heads(query, head_size, "query");
  check_heads(key, head_size, "key");
  const int64_t num_tokens = query.size(0);
  STD_TORCH_CHECK(checked_dtype(key, "key") == args.dtype && key.size(0) == num_tokens,
                  "`query` and `key` must have the same dtype and as many tokens");
  STD_TORCH_CHECK(
      checked_dtype(cos_sin_cache, "cos_sin_cache") == Dtype::f32 && cos_sin_cache.dim() == 2,
      "`cos_sin_cache` must be a float32 matrix");
  const Tensor table = dense(cos_sin_cache);
  const int64_t rotated = cos_sin_cache.size(1);
  STD_TORCH_CHECK(rotated % 2 == 0 && rotated <= head_size, "`cos_sin_cache` has ", rotated,
                  " columns: not an even number of at most `head_size` ", head_size);
  check_positions(positions, num_tokens, cos_sin_cache.size(0));
  args.half = rotated / 2;
  args.is_neox = is_neox;
  args.cos_sin = static_cast<const float*>(table.data_ptr());
  args.positions = static_cast<const int64_t*>(positions.data_ptr());
  args.position_stride = positions.stride(0);
  with_writable_rows(query, "query", [&](const Tensor& query_rows) {
    with_writable_rows(key, "key", [&](const Tensor& key_rows) {
      args.query = heads_of(query_rows, head_size);
      args.key = heads_of(key_rows, head_size);
      const int64_t heads = args.query.num_heads + args.key.num_heads;
      run(kernels().rotary_embedding, args, num_tokens, heads * rotated, kRotaryGrain);
    });
  });
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
  m.def(
      "rotary_embedding(Tensor(a!) query, Tensor(b!) key, Tensor positions, "
      "Tensor cos_sin_cache, int head_size, bool is_neox) -> ()");
  m.def("isa() -> str");
  m.def("isas() -> str");
  m.def("set_isa(str name) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(ir_kernels_c, CPU, m) {
  m.impl("rms_norm", TORCH_BOX(&ir_kernels::rms_norm));
  m.impl("fused_add_rms_norm", TORCH_BOX(&ir_kernels::fused_add_rms_norm));
  m.impl("silu_and_mul", TORCH_BOX(&ir_kernels::silu_and_mul));
  m.impl("rotary_embedding", TORCH_BOX(&ir_kernels::rotary_embedding));
}

STABLE_TORCH_LIBRARY_IMPL(ir_kernels_c, CompositeExplicitAutograd, m) {
  m.impl("isa", TORCH_BOX(&ir_kernels::isa));
  m.impl("isas", TORCH_BOX(&ir_kernels::runnable_isas));
  m.impl("set_isa", TORCH_BOX(&ir_kernels::set_isa));
}
