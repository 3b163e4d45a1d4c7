// How the binding reads tensors: as rows of a dense last dimension.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <cstdint>

#include "kernels.h"

namespace ir_kernels {

using torch::stable::Tensor;

// The dtype of a tensor of at least one dimension, where `check_device` wants it; anything else is
// an error that names it.
Dtype checked_dtype(const Tensor& tensor, const char* name);

// The product of all dimensions but the last.
int64_t num_rows(const Tensor& tensor);

// Whether `rows_of` can describe the tensor: a dense last dimension, and at most two more unless it
// is contiguous. Otherwise work on a contiguous copy.
bool has_rows(const Tensor& tensor);

// Whether it can, and no two rows overlap, so that rows may be written in any order.
bool has_writable_rows(const Tensor& tensor);

// Whether one element of memory stands for several of the tensor.
bool is_expanded(const Tensor& tensor);

Rows rows_of(const Tensor& tensor);

// A new contiguous tensor of x's shape, dtype and device, its last dimension replaced by `last`.
Tensor empty_rows(const Tensor& x, int64_t last);

// The same with a dtype, one of aoti_torch_dtype_*().
Tensor empty_rows(const Tensor& x, int64_t last, int32_t dtype);

bool has_same_shape(const Tensor& a, const Tensor& b);

}  // namespace ir_kernels
