// The torch ops that pass messages over shared memory: an engine's orders, and the ranks' replies.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <cstring>
#include <string>
#include <vector>

#include "shm_open_segments.h"
#include "tensor_rows.h"

namespace ir_kernels {
namespace {

Tensor copied(const ShmSegment::Message& message) {
  const int64_t stride = 1;
  AtenTensorHandle handle;
  STABLE_TORCH_ERROR_CODE_CHECK(
      aoti_torch_empty_strided(1, &message.num_bytes, &stride, aoti_torch_dtype_uint8(),
                               aoti_torch_device_type_cpu(), 0, &handle));
  const Tensor copy(handle);
  if (message.num_bytes > 0) std::memcpy(copy.data_ptr(), message.data, message.num_bytes);
  return copy;
}

void shm_post(int64_t handle, const Tensor& message) {
  int32_t dtype;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(message.get(), &dtype));
  STD_TORCH_CHECK(dtype == aoti_torch_dtype_uint8() && message.dim() == 1 &&
                      message.is_contiguous(),
                  "`message` must be a contiguous row of uint8");
  const auto opened = segment_of(handle);
  const std::lock_guard lock(opened->mutex);
  opened->segment.post_message(message.data_ptr(), message.numel());
}

// Of each rank from `first` to before `last`, the next message. If time is up, the segment breaks
// with what `late` says of those that did not come; with nothing to say, none is returned of any.
std::vector<Tensor> shm_receive(int64_t handle, int64_t first, int64_t last, double timeout_s,
                                const std::string& late) {
  const auto opened = segment_of(handle);
  const std::lock_guard lock(opened->mutex);
  ShmSegment& segment = opened->segment;
  std::vector<Tensor> messages;
  if (!segment.wait_for_messages(static_cast<int>(first), static_cast<int>(last), timeout_s,
                                 late))
    return messages;
  for (int r = static_cast<int>(first); r < last; ++r)
    messages.push_back(copied(segment.take_message(r)));
  return messages;
}

// Takes no turn: it is for those who would wait for theirs in vain.
void shm_break(int64_t handle, const std::string& reason) {
  segment_of(handle)->segment.break_off(reason);
}

}  // namespace
}  // namespace ir_kernels

STABLE_TORCH_LIBRARY_FRAGMENT(ir_kernels_c, m) {
  m.def("shm_post(int handle, Tensor message) -> ()");
  m.def("shm_receive(int handle, int first, int last, float timeout_s, str late) -> Tensor[]");
  m.def("shm_break(int handle, str reason) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(ir_kernels_c, CPU, m) {
  m.impl("shm_post", TORCH_BOX(&ir_kernels::shm_post));
}

STABLE_TORCH_LIBRARY_IMPL(ir_kernels_c, CompositeExplicitAutograd, m) {
  m.impl("shm_receive", TORCH_BOX(&ir_kernels::shm_receive));
  m.impl("shm_break", TORCH_BOX(&ir_kernels::shm_break));
}
