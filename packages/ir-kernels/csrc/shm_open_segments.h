// The shared-memory segments that this process has open, by handle; shm_collectives.cpp opens them.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>

#include "shm_segment.h"

namespace ir_kernels {

// One collective at a time: threads of a rank take turns, in an order the program must make sure of.
struct OpenSegment {
  explicit OpenSegment(const ShmOptions& options) : segment(options) {}
  ShmSegment segment;
  std::mutex mutex;
};

// Throws if the handle is none, or closed. Who holds the result keeps the segment open.
std::shared_ptr<OpenSegment> segment_of(int64_t handle);

}  // namespace ir_kernels
