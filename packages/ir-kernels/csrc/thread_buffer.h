// Memory that a thread keeps from call to call: fresh pages would cost more than the product.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

namespace ir_kernels {

class ThreadBuffer {
 public:
  void* at_least(int64_t bytes) {
    if (bytes <= size_) return data_.get();
    data_.reset();
    size_ = 0;
    data_.reset(std::aligned_alloc(64, (bytes + 63) / 64 * 64));
    if (data_ == nullptr) throw std::bad_alloc();
    size_ = bytes;
    return data_.get();
  }

 private:
  struct Free {
    void operator()(void* data) const { std::free(data); }
  };
  std::unique_ptr<void, Free> data_;
  int64_t size_ = 0;
};

}  // namespace ir_kernels
