// Arguments of the norm kernels from those of the torch ops, on whatever device they run.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <optional>

#include "kernels.h"

namespace ir_kernels {

// Elements below which a second thread costs more than it saves.
constexpr int64_t kNormGrain = 32768;

// All but the rows. `weight` is dense, and outlives the result; one that does not fit is an error.
NormArgs norm_args(const torch::stable::Tensor& x,
                   const std::optional<torch::stable::Tensor>& weight, double epsilon,
                   std::optional<int64_t> variance_size);

}  // namespace ir_kernels
