// What the bindings of reductions over a segment share; shm_collectives.cpp has it.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <cstdint>

#include "kernels.h"
#include "shm_segment.h"

namespace ir_kernels {

using torch::stable::Tensor;

// Index of a name in kShmOps.
enum ShmOp : uint32_t { kAllReduce, kReduceScatter, kAllGather, kAllReduceAddRmsNorm };

// Elements that lie in a row, and what they are.
struct Span {
  Dtype dtype;
  int64_t element_bytes;
  const char* data;
  int64_t count;
};

// Of a contiguous tensor.
Span span_of(const Tensor& x);

// What a rank comes with; a tensor that no collective carries is an error.
Descriptor describe(ShmOp op, const Tensor& x, int64_t num_tokens = -1);

// Whether ranks share the sum of so many bytes out among themselves, instead of each forming all.
bool shares_sum(const ShmSegment& segment, int64_t bytes);

// Gives the ranks `count` elements of x from `begin` on, which a slot must hold.
void hand_over(ShmSegment& segment, Descriptor& what, const Span& x, int64_t begin, int64_t count);

// The same, and out = the ranks' sum.
void reduce_part(ShmSegment& segment, Descriptor& what, const Span& x, int64_t begin, int64_t count,
                 char* out);

}  // namespace ir_kernels
