// silu_and_mul: x / (1 + exp(-x)) * up in float32, rounded once.
#include "blocks.cuh"
#include "grid.cuh"

namespace ir_kernels::cuda {
namespace {

template <bool kAligned, class T>
__global__ void __launch_bounds__(kMaxThreads) silu_rows(SiluArgs args, int64_t num_rows) {
  for (int64_t r = blockIdx.x; r < num_rows; r += gridDim.x) {
    const T* gate = row_of<T>(args.x, r);
    T* out = row_of<T>(args.out, r);
    for_each_pack(args.size, [&](int64_t at, int) {
      const int64_t left = args.size - at;
      Pack pack = load<kAligned>(gate + at, left);
      const Pack up = load<kAligned>(gate + args.size + at, left);
#pragma unroll
      for (int i = 0; i < kPack; ++i)
        pack.v[i] = pack.v[i] / (expf(-pack.v[i]) + 1.0f) * up.v[i];
      store<kAligned>(out + at, pack, left);
    });
  }
}

bool is_aligned(const SiluArgs& args) {
  const int64_t bytes = bytes_of(args.dtype);
  return args.size % kPack == 0 && is_on_vector(args.x, bytes) && is_on_vector(args.out, bytes);
}

}  // namespace

const char* launch_silu_and_mul(const SiluArgs& args, int64_t num_rows, Stream stream) {
  return with_type(args.dtype, [&](auto x) {
    return with_flag(is_aligned(args), [&](auto aligned) {
      return start(silu_rows<decltype(aligned)::value, decltype(x)>, args, num_rows,
                   threads_for(args.size), stream);
    });
  });
}

}  // namespace ir_kernels::cuda
