// rms_norm and fused_add_rms_norm. Statistics are float32; the normalised value is rounded to the
// weight's type, multiplied, rounded to that type again and stored in x's type.
#include "blocks.cuh"
#include "grid.cuh"

namespace ir_kernels::cuda {
namespace {

// Of the first `size` elements.
__device__ float sum_of_squares(const Pack& x, int64_t size) {
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < kPack; ++i)
    if (i < size) squares += x.v[i] * x.v[i];
  return squares;
}

template <bool kAligned, class W>
__device__ Pack normalised(Pack x, float scale, const W* weight, int64_t at, int64_t left) {
  const Pack factor = load<kAligned>(weight + at, left);
#pragma unroll
  for (int i = 0; i < kPack; ++i)
    x.v[i] = round_to<W>(round_to<W>(x.v[i] * scale) * factor.v[i]);
  return x;
}

template <bool kAligned>
__device__ Pack normalised(Pack x, float scale, const None*, int64_t, int64_t) {
#pragma unroll
  for (int i = 0; i < kPack; ++i) x.v[i] *= scale;
  return x;
}

// x + residual, rounded once: the residual from now on, and what is normalised.
template <bool kAligned, class T>
__device__ Pack add_to(T* residual, const T* x, int64_t left) {
  const Pack other = load<kAligned>(x, left);
  Pack sum = load<kAligned>(residual, left);
#pragma unroll
  for (int i = 0; i < kPack; ++i) sum.v[i] = round_to<T>(other.v[i] + sum.v[i]);
  store<kAligned>(residual, sum, left);
  return sum;
}

template <bool kAligned, bool kAdds, class T, class W>
__global__ void __launch_bounds__(kMaxThreads) norm_rows(NormArgs args, int64_t num_rows) {
  const int64_t size = args.hidden;
  const W* weight = static_cast<const W*>(args.weight);
  for (int64_t r = blockIdx.x; r < num_rows; r += gridDim.x) {
    const T* x = row_of<T>(args.x, r);
    T* source = row_of<T>(kAdds ? args.residual : args.x, r);
    T* out = row_of<T>(kAdds ? args.x : args.out, r);
    Pack held[kHeld];
    float squares = 0.0f;
    for_each_pack(size, [&](int64_t at, int k) {
      const Pack pack = kAdds ? add_to<kAligned>(source + at, x + at, size - at)
                              : load<kAligned>(source + at, size - at);
      if (k < kHeld) held[k] = pack;
      squares += sum_of_squares(pack, args.variance_size - at);
    });
    const float mean = sum_over_block(squares) / static_cast<float>(args.variance_size);
    const float scale = 1.0f / sqrtf(mean + args.epsilon);
    for_each_pack(size, [&](int64_t at, int k) {
      const Pack pack = k < kHeld ? held[k] : load<kAligned>(source + at, size - at);
      const Pack normal = normalised<kAligned>(pack, scale, weight, at, size - at);
      store<kAligned>(out + at, normal, size - at);
    });
  }
}

// Calls body(W{}) for the weight's type: absent, x's, or float.
template <class T, class Body>
const char* with_weight_type(const NormArgs& args, Body body) {
  if (args.weight == nullptr) return body(None{});
  if (args.weight_dtype == args.dtype) return body(T{});
  return body(float{});
}

template <bool kAdds>
bool is_aligned(const NormArgs& args) {
  const int64_t bytes = bytes_of(args.dtype);
  return args.hidden % kPack == 0 && is_on_vector(args.weight) && is_on_vector(args.x, bytes) &&
         is_on_vector(kAdds ? args.residual : args.out, bytes);
}

template <bool kAdds>
const char* launch(const NormArgs& args, int64_t num_rows, Stream stream) {
  return with_type(args.dtype, [&](auto x) {
    using T = decltype(x);
    return with_weight_type<T>(args, [&](auto weight) {
      using W = decltype(weight);
      return with_flag(is_aligned<kAdds>(args), [&](auto aligned) {
        return start(norm_rows<decltype(aligned)::value, kAdds, T, W>, args, num_rows,
                     threads_for(args.hidden), stream);
      });
    });
  });
}

}  // namespace

const char* launch_rms_norm(const NormArgs& args, int64_t num_rows, Stream stream) {
  return launch<false>(args, num_rows, stream);
}

const char* launch_fused_add_rms_norm(const NormArgs& args, int64_t num_rows, Stream stream) {
  return launch<true>(args, num_rows, stream);
}

}  // namespace ir_kernels::cuda
