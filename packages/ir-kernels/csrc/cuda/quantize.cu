// Rows as int8 or float8_e4m3fn: in float32, times the reciprocal of the scale, to nearest even.
#include <cuda_fp8.h>

#include "blocks.cuh"
#include "grid.cuh"

namespace ir_kernels::cuda {
namespace {

constexpr float kLargestInt8 = 127.0f;
constexpr float kLargestFp8 = 448.0f;
constexpr float kSmallestScale = 0x1p-126f;  // its reciprocal is finite

// A row, of which the first packs stay in registers once they were read.
template <bool kAligned, class T>
struct ReadRow {
  const T* x;
  int64_t size;
  Pack held[kHeld];

  // Of all threads' packs; NaN is the largest of magnitudes.
  __device__ float largest_magnitude() {
    float largest = 0.0f;
    for_each_pack(size, [&](int64_t at, int k) {
      const Pack pack = load<kAligned>(x + at, size - at);
      if (k < kHeld) held[k] = pack;
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        const float magnitude = fabsf(pack.v[i]);
        if (__float_as_uint(magnitude) > __float_as_uint(largest)) largest = magnitude;
      }
    });
    return largest_of_block(largest);
  }

  __device__ Pack again(int64_t at, int k) const {
    return k < kHeld ? held[k] : load<kAligned>(x + at, size - at);
  }
};

// Never subnormal; keeps NaN.
__device__ float scale_for(float largest, float largest_number) {
  const float share = largest / largest_number;
  return share < kSmallestScale ? kSmallestScale : share;
}

// What is larger than 448 saturates, infinities too.
__device__ uint8_t to_fp8(float x) {
  return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3);
}

template <bool kAligned>
__device__ void store_fp8(uint8_t* q, const Pack& x, float inverse, int64_t left) {
  uint8_t bytes[kPack];
#pragma unroll
  for (int i = 0; i < kPack; ++i) bytes[i] = to_fp8(x.v[i] * inverse);
  store_bytes<kAligned>(q, bytes, left);
}

// A row that holds NaN or an infinity has such a scale, and zeros.
template <bool kAligned, class T>
__global__ void __launch_bounds__(kMaxThreads) int8_rows(QuantizeArgs args, int64_t num_rows) {
  for (int64_t r = blockIdx.x; r < num_rows; r += gridDim.x) {
    ReadRow<kAligned, T> row{row_of<T>(args.x, r), args.size, {}};
    const float scale = scale_for(row.largest_magnitude(), kLargestInt8);
    const bool is_finite = scale < INFINITY;
    const float inverse = 1.0f / scale;
    uint8_t* q = reinterpret_cast<uint8_t*>(args.to.q) + r * args.size;
    if (threadIdx.x == 0) args.to.scale[r] = scale;
    for_each_pack(args.size, [&](int64_t at, int k) {
      const Pack pack = row.again(at, k);
      uint8_t bytes[kPack];
#pragma unroll
      for (int i = 0; i < kPack; ++i)
        bytes[i] = is_finite ? static_cast<uint8_t>(__float2int_rn(pack.v[i] * inverse)) : 0;
      store_bytes<kAligned>(q + at, bytes, args.size - at);
    });
  }
}

template <bool kAligned, class T>
__global__ void __launch_bounds__(kMaxThreads) fp8_rows(Fp8Args args, int64_t num_rows) {
  for (int64_t r = blockIdx.x; r < num_rows; r += gridDim.x) {
    ReadRow<kAligned, T> row{row_of<T>(args.x, r), args.size, {}};
    const float scale = scale_for(row.largest_magnitude(), kLargestFp8);
    const float inverse = 1.0f / scale;
    uint8_t* q = args.q + r * args.size;
    if (threadIdx.x == 0) args.scale[r] = scale;
    for_each_pack(args.size, [&](int64_t at, int k) {
      store_fp8<kAligned>(q + at, row.again(at, k), inverse, args.size - at);
    });
  }
}

template <bool kAligned, class T>
__global__ void __launch_bounds__(kMaxThreads) scaled_fp8_rows(Fp8Args args, int64_t num_rows) {
  const float inverse = 1.0f / *args.given_scale;
  for (int64_t r = blockIdx.x; r < num_rows; r += gridDim.x) {
    const T* x = row_of<T>(args.x, r);
    uint8_t* q = args.q + r * args.size;
    for_each_pack(args.size, [&](int64_t at, int) {
      const int64_t left = args.size - at;
      store_fp8<kAligned>(q + at, load<kAligned>(x + at, left), inverse, left);
    });
  }
}

bool is_aligned(Dtype dtype, const Rows& x, int64_t size, const void* q) {
  return size % kPack == 0 && is_on_vector(x, bytes_of(dtype)) && is_on_vector(q);
}

}  // namespace

const char* launch_quantize_int8(const QuantizeArgs& args, int64_t num_rows, Stream stream) {
  return with_type(args.dtype, [&](auto x) {
    return with_flag(is_aligned(args.dtype, args.x, args.size, args.to.q), [&](auto aligned) {
      return start(int8_rows<decltype(aligned)::value, decltype(x)>, args, num_rows,
                   threads_for(args.size), stream);
    });
  });
}

const char* launch_quantize_fp8(const Fp8Args& args, int64_t num_rows, Stream stream) {
  return with_type(args.dtype, [&](auto x) {
    return with_flag(is_aligned(args.dtype, args.x, args.size, args.q), [&](auto aligned) {
      constexpr bool kAligned = decltype(aligned)::value;
      using T = decltype(x);
      const auto kernel = args.scale ? fp8_rows<kAligned, T> : scaled_fp8_rows<kAligned, T>;
      return start(kernel, args, num_rows, threads_for(args.size), stream);
    });
  });
}

}  // namespace ir_kernels::cuda
