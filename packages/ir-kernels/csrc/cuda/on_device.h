// The device that a kernel runs on and the stream that it is started in: those of a tensor.
#pragma once

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/tensor.h>

#include <optional>

#include "launch.h"

namespace ir_kernels::cuda {

// While it lives, the tensor's device is the current one; `stream` is torch's current one of it.
class OnDevice {
 public:
  explicit OnDevice(const torch::stable::Tensor& tensor);
  Stream stream() const { return stream_; }

 private:
  std::optional<torch::stable::accelerator::DeviceGuard> guard_;
  Stream stream_;
};

}  // namespace ir_kernels::cuda
