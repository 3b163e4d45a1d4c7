// How a kernel is started: a block for each row, in rounds where a grid cannot have so many.
#pragma once

#include <cuda_runtime.h>
#include <stdint.h>

#include "launch.h"
#include "packs.cuh"

namespace ir_kernels::cuda {

// Tests have fewer blocks than rows.
#ifndef IR_MAX_BLOCKS
#define IR_MAX_BLOCKS 0x7fffffff
#endif

constexpr int64_t kMaxThreads = 512;
constexpr int64_t kMaxBlocks = IR_MAX_BLOCKS;

// Threads for a row of so many elements: whole warps, and by the row's size alone, so that other
// rows of a batch change no bit of it.
inline int64_t threads_for(int64_t size) {
  const int64_t packs = (size + kPack - 1) / kPack;
  const int64_t warps = (packs + 31) / 32;
  return (warps < 1 ? 1 : warps * 32 > kMaxThreads ? kMaxThreads / 32 : warps) * 32;
}

// Starts kernel(args, num_rows). A kernel takes rows blockIdx.x, blockIdx.x + gridDim.x and so on.
template <class Args>
const char* start(void (*kernel)(Args, int64_t), const Args& args, int64_t num_rows,
                  int64_t threads, Stream stream) {
  if (num_rows == 0) return nullptr;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(num_rows < kMaxBlocks ? num_rows : kMaxBlocks));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.stream = static_cast<cudaStream_t>(stream);
  cudaError_t error = cudaLaunchKernelEx(&config, kernel, args, num_rows);
  const cudaError_t earlier = cudaGetLastError();  // and is no error of the next launch's
  if (error == cudaSuccess) error = earlier;
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

// Whether elements can be moved 16 bytes at a time: eight of any type are a multiple of that.
inline bool is_on_vector(const void* data) {
  return reinterpret_cast<uintptr_t>(data) % kVectorBytes == 0;
}

// The same of all rows, whose elements have so many bytes.
inline bool is_on_vector(const Rows& rows, int64_t element_bytes) {
  return is_on_vector(rows.data) && rows.outer_stride * element_bytes % kVectorBytes == 0 &&
         rows.inner_stride * element_bytes % kVectorBytes == 0;
}

inline int64_t bytes_of(Dtype dtype) { return dtype == Dtype::f32 ? 4 : 2; }

// Calls body(T{}) for the type that a dtype stands for.
template <class Body>
const char* with_type(Dtype dtype, Body body) {
  switch (dtype) {
    case Dtype::f32: return body(float{});
    case Dtype::bf16: return body(__nv_bfloat16{});
    case Dtype::f16: return body(__half{});
  }
  return "unknown dtype";
}

template <bool kValue>
struct Flag {
  static constexpr bool value = kValue;
};

// Calls body(Flag<...>{}), to make a constant of a fact.
template <class Body>
const char* with_flag(bool fact, Body body) {
  return fact ? body(Flag<true>{}) : body(Flag<false>{});
}

}  // namespace ir_kernels::cuda
