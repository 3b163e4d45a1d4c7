// Elements as they lie in memory, eight at a time, and as kernels compute with them: float. A
// thread holds the same elements wherever a row starts: alignment changes speed and no bit.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdint.h>

#include "../kernels.h"

namespace ir_kernels::cuda {

constexpr int kPack = 8;
constexpr int kVectorBytes = 16;

struct Pack {
  float v[kPack];
};

struct None {};  // the element type of an absent weight

__device__ inline float widen(float x) { return x; }
__device__ inline float widen(__half x) { return __half2float(x); }
__device__ inline float widen(__nv_bfloat16 x) { return __bfloat162float(x); }

// To the nearest, ties to even.
template <class T>
__device__ T narrow(float x);
template <>
__device__ inline float narrow<float>(float x) {
  return x;
}
template <>
__device__ inline __half narrow<__half>(float x) {
  return __float2half_rn(x);
}
template <>
__device__ inline __nv_bfloat16 narrow<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}

template <class T>
__device__ float round_to(float x) {
  return widen(narrow<T>(x));
}

// The first element of a row.
template <class T>
__device__ T* row_of(const Rows& rows, int64_t r) {
  return static_cast<T*>(rows.data) + r / rows.inner_rows * rows.outer_stride +
         r % rows.inner_rows * rows.inner_stride;
}

// Elements as they lie in memory, to be moved 16 bytes at a time.
template <class T>
struct alignas(kVectorBytes) Stored {
  static constexpr int kVectors = kPack * sizeof(T) < kVectorBytes
                                      ? 1
                                      : static_cast<int>(kPack * sizeof(T) / kVectorBytes);
  T v[kPack];
};

// Up to eight elements at p, of which `left` are there; those that are not are zero. Aligned: all
// are there, and p is a multiple of 16 bytes.
template <bool kAligned, class T>
__device__ Pack load(const T* p, int64_t left) {
  Pack pack;
  if constexpr (kAligned) {
    Stored<T> stored;
#pragma unroll
    for (int i = 0; i < Stored<T>::kVectors; ++i)
      reinterpret_cast<uint4*>(stored.v)[i] = reinterpret_cast<const uint4*>(p)[i];
#pragma unroll
    for (int i = 0; i < kPack; ++i) pack.v[i] = widen(stored.v[i]);
  } else {
#pragma unroll
    for (int i = 0; i < kPack; ++i) pack.v[i] = i < left ? widen(p[i]) : 0.0f;
  }
  return pack;
}

template <bool kAligned, class T>
__device__ void store(T* p, const Pack& pack, int64_t left) {
  if constexpr (kAligned) {
    Stored<T> stored;
#pragma unroll
    for (int i = 0; i < kPack; ++i) stored.v[i] = narrow<T>(pack.v[i]);
#pragma unroll
    for (int i = 0; i < Stored<T>::kVectors; ++i)
      reinterpret_cast<uint4*>(p)[i] = reinterpret_cast<const uint4*>(stored.v)[i];
  } else {
#pragma unroll
    for (int i = 0; i < kPack; ++i)
      if (i < left) p[i] = narrow<T>(pack.v[i]);
  }
}

// The same for elements of a byte each: eight bytes at once, wherever p is a multiple of eight.
template <bool kAligned>
__device__ void store_bytes(uint8_t* p, const uint8_t (&bytes)[kPack], int64_t left) {
  if constexpr (kAligned) {
    uint2 both = {0, 0};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      both.x |= static_cast<uint32_t>(bytes[i]) << (8 * i);
      both.y |= static_cast<uint32_t>(bytes[i + 4]) << (8 * i);
    }
    *reinterpret_cast<uint2*>(p) = both;
  } else {
#pragma unroll
    for (int i = 0; i < kPack; ++i)
      if (i < left) p[i] = bytes[i];
  }
}

}  // namespace ir_kernels::cuda
