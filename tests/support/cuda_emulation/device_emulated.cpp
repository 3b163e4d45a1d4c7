// The emulated library takes tensors of the CPU. It declares the ops that the library of the CPU
// declares for the real one.
#include <torch/csrc/stable/library.h>

#include "cuda/on_device.h"
#include "device.h"

namespace ir_kernels {

void check_device(const torch::stable::Tensor& tensor, const char* name) {
  STD_TORCH_CHECK(tensor.is_cpu(), "`", name, "` must be on the emulated device");
}

torch::stable::Tensor new_tensor(const torch::stable::Tensor&, const int64_t* sizes,
                                 const int64_t* strides, int64_t rank, int32_t dtype) {
  AtenTensorHandle handle;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(
      rank, sizes, strides, dtype, aoti_torch_device_type_cpu(), 0, &handle));
  return torch::stable::Tensor(handle);
}

namespace cuda {

OnDevice::OnDevice(const torch::stable::Tensor&) : stream_(nullptr) {}

}  // namespace cuda
}  // namespace ir_kernels

STABLE_TORCH_LIBRARY(ir_kernels_emulated, m) {
  m.def("rms_norm(Tensor x, Tensor? weight, float epsilon, int? variance_size=None) -> Tensor");
  m.def(
      "fused_add_rms_norm(Tensor(a!) x, Tensor(b!) residual, Tensor? weight, float epsilon, "
      "int? variance_size=None) -> ()");
  m.def("silu_and_mul(Tensor x) -> Tensor");
  m.def("quantize_int8_per_token(Tensor x) -> (Tensor, Tensor)");
}
