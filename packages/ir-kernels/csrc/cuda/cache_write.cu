// New tokens' keys and values into a paged cache: a block of threads for each token.
#include "blocks.cuh"
#include "grid.cuh"

namespace ir_kernels::cuda {
namespace {

template <bool kAligned, class C, class T>
__device__ void copy_head(C* to, const T* from, int64_t at, int64_t size) {
  store<kAligned>(to + at, load<kAligned>(from + at, size - at), size - at);
}

template <bool kAligned, class T, class C>
__global__ void __launch_bounds__(kMaxThreads)
    write_tokens(CacheWriteArgs args, int64_t num_tokens) {
  const int64_t head_packs = (args.head_size + kPack - 1) / kPack;
  const int64_t num_packs = head_packs * args.key.num_heads;
  for (int64_t token = blockIdx.x; token < num_tokens; token += gridDim.x) {
    const int64_t slot = args.slots[token];
    if (slot < 0) continue;
    if (slot >= args.num_blocks * args.block_size) __trap();
    C* to = static_cast<C*>(args.cache) + slot / args.block_size * args.block_stride +
            slot % args.block_size * args.slot_stride;
    const T* key = static_cast<const T*>(args.key.data) + token * args.key.token_stride;
    const T* value = static_cast<const T*>(args.value.data) + token * args.value.token_stride;
    for (int64_t i = threadIdx.x; i < num_packs; i += blockDim.x) {
      const int64_t head = i / head_packs, at = i % head_packs * kPack;
      C* to_key = to + head * args.head_stride;
      copy_head<kAligned>(to_key, key + head * args.key.head_stride, at, args.head_size);
      copy_head<kAligned>(to_key + args.value_offset, value + head * args.value.head_stride, at,
                          args.head_size);
    }
  }
}

bool is_aligned(const Heads& heads, int64_t bytes) {
  return is_on_vector(Rows{heads.data, 1, heads.token_stride, heads.head_stride}, bytes);
}

bool is_aligned(const CacheWriteArgs& args) {
  const int64_t bytes = bytes_of(args.dtype), cache_bytes = bytes_of(args.cache_dtype);
  return args.head_size % kPack == 0 && is_aligned(args.key, bytes) &&
         is_aligned(args.value, bytes) &&
         is_on_vector(Rows{args.cache, 1, args.block_stride, args.head_stride}, cache_bytes) &&
         is_on_vector(Rows{args.cache, 1, args.slot_stride, args.value_offset}, cache_bytes);
}

}  // namespace

const char* launch_cache_write(const CacheWriteArgs& args, int64_t num_tokens, Stream stream) {
  return with_type(args.dtype, [&](auto x) {
    return with_type(args.cache_dtype, [&](auto cached) {
      return with_flag(is_aligned(args), [&](auto aligned) {
        return start(write_tokens<decltype(aligned)::value, decltype(x), decltype(cached)>, args,
                     num_tokens, threads_for(args.key.num_heads * args.head_size), stream);
      });
    });
  });
}

}  // namespace ir_kernels::cuda
