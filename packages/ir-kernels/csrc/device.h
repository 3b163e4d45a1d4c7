// Where the tensors of a library's ops must lie: each library has a definition of its own.
#pragma once

#include <torch/csrc/stable/tensor.h>

namespace ir_kernels {

// An error that names the tensor unless it lies on the library's kind of device.
void check_device(const torch::stable::Tensor& tensor, const char* name);

// A new tensor on the device of `like`; `dtype` is one of aoti_torch_dtype_*().
torch::stable::Tensor new_tensor(const torch::stable::Tensor& like, const int64_t* sizes,
                                 const int64_t* strides, int64_t rank, int32_t dtype);

}  // namespace ir_kernels
