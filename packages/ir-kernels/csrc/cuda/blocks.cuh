// A block of threads on a row: who takes which elements, and what all make of theirs together.
#pragma once

#include <cuda_runtime.h>
#include <stdint.h>

#include "packs.cuh"

namespace ir_kernels::cuda {

constexpr int kWarp = 32;
constexpr unsigned kWholeWarp = 0xffffffffu;
// Packs of a row that a thread keeps in registers between two passes; what is beyond is read again.
constexpr int kHeld = 2;

// Calls body(element, index) with the first element of each of the thread's packs, in order; the
// index is a constant of the compiler's for those that are held, and kHeld for the others.
template <class Body>
__device__ void for_each_pack(int64_t size, Body body) {
  const int64_t first = static_cast<int64_t>(threadIdx.x) * kPack;
  const int64_t step = static_cast<int64_t>(blockDim.x) * kPack;
#pragma unroll
  for (int k = 0; k < kHeld; ++k)
    if (first + k * step < size) body(first + k * step, k);
  for (int64_t at = first + kHeld * step; at < size; at += step) body(at, kHeld);
}

// What `both` makes of the values of all threads of a block, in one order; every thread has it.
template <class V, class Both>
__device__ V combine_block(V value, V neutral, Both both) {
  __shared__ V of_warps[kWarp];
#pragma unroll
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2)
    value = both(value, __shfl_xor_sync(kWholeWarp, value, lanes));
  const int lane = threadIdx.x % kWarp;
  if (lane == 0) of_warps[threadIdx.x / kWarp] = value;
  __syncthreads();
  value = lane < blockDim.x / kWarp ? of_warps[lane] : neutral;
#pragma unroll
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2)
    value = both(value, __shfl_xor_sync(kWholeWarp, value, lanes));
  __syncthreads();  // before the next row's values
  return value;
}

__device__ inline float sum_over_block(float value) {
  return combine_block(value, 0.0f, [](float a, float b) { return a + b; });
}

// Of magnitudes, which are compared by their bits: there NaN is larger than infinity.
__device__ inline float largest_of_block(float magnitude) {
  const unsigned bits = combine_block(__float_as_uint(magnitude), 0u,
                                      [](unsigned a, unsigned b) { return a < b ? b : a; });
  return __uint_as_float(bits);
}

}  // namespace ir_kernels::cuda
