// The library of CUDA takes tensors of NVIDIA GPUs, and makes them where theirs are.
#define USE_CUDA  // the shim declares what only a torch for CUDA has
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/library.h>

#include "../device.h"
#include "on_device.h"

// Weak, so that a torch without CUDA, which has no tensors for the ops, can load them all the same.
extern "C" __attribute__((weak)) AOTITorchError aoti_torch_get_current_cuda_stream(int32_t, void**);

namespace ir_kernels {

void check_device(const torch::stable::Tensor& tensor, const char* name) {
  STD_TORCH_CHECK(tensor.is_cuda(), "`", name, "` must be on a CUDA device");
}

torch::stable::Tensor new_tensor(const torch::stable::Tensor& like, const int64_t* sizes,
                                 const int64_t* strides, int64_t rank, int32_t dtype) {
  AtenTensorHandle handle;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(rank, sizes, strides, dtype,
                                                         aoti_torch_device_type_cuda(),
                                                         like.get_device_index(), &handle));
  return torch::stable::Tensor(handle);
}

namespace cuda {

OnDevice::OnDevice(const torch::stable::Tensor& tensor)
    : guard_(tensor.get_device_index()), stream_(nullptr) {
  STD_TORCH_CHECK(aoti_torch_get_current_cuda_stream != nullptr, "this torch has no CUDA streams");
  STABLE_TORCH_ERROR_CODE_CHECK(
      aoti_torch_get_current_cuda_stream(tensor.get_device_index(), &stream_));
}

}  // namespace cuda
}  // namespace ir_kernels
