// The library of the CPU takes tensors of the CPU; while a tape is recorded, results lie in its
// memory.
#include <torch/csrc/stable/library.h>

#include "device.h"
#include "tape.h"

namespace ir_kernels {

void check_device(const Tensor& tensor, const char* name) {
  STD_TORCH_CHECK(tensor.is_cpu(), "`", name, "` must be on the CPU");
}

Tensor new_tensor(const Tensor&, const int64_t* sizes, const int64_t* strides, int64_t rank,
                  int32_t dtype) {
  if (Tape* const tape = Tape::recorded())
    return tape->memory().allocate(sizes, strides, rank, dtype);
  AtenTensorHandle handle;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(
      rank, sizes, strides, dtype, aoti_torch_device_type_cpu(), 0, &handle));
  return Tensor(handle);
}

}  // namespace ir_kernels
