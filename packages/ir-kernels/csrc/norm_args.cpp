#include "norm_args.h"

#include <torch/csrc/stable/library.h>

#include <algorithm>

#include "tensor_rows.h"

namespace ir_kernels {
namespace {

// How many elements x[..., :variance_size] has, as Python slices.
int64_t clamped(std::optional<int64_t> variance_size, int64_t hidden) {
  const int64_t size = variance_size.value_or(hidden);
  return std::clamp<int64_t>(size < 0 ? size + hidden : size, 0, hidden);
}

}  // namespace

NormArgs norm_args(const Tensor& x, const std::optional<Tensor>& weight, double epsilon,
                   std::optional<int64_t> variance_size) {
  NormArgs args{};
  args.dtype = checked_dtype(x, "x");
  args.hidden = x.size(x.dim() - 1);
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

}  // namespace ir_kernels
