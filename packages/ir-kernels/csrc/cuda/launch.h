// The boundary between the torch binding and the CUDA kernels: plain structs, no torch, no CUDA.
// Each function starts its kernel on rows [0, num_rows) in a stream of the current device, and
// returns null, or CUDA's words for why nothing was started. It waits for nothing.
#pragma once

#include "../kernels.h"

namespace ir_kernels::cuda {

using Stream = void*;  // a cudaStream_t

// x rows of `size` elements as float8_e4m3fn, dense. Of the scales, one is null: a given one serves
// all rows, else each row's own is written.
struct Fp8Args {
  Dtype dtype;
  Rows x;
  int64_t size;
  uint8_t* q;
  const float* given_scale;
  float* scale;
};

// Rows are tokens; a head's elements are dense. A slot is block * block_size + offset; a negative
// one is not written, and one past `num_blocks` stops the kernel with an error.
struct CacheWriteArgs {
  Dtype dtype;  // of key and value
  Dtype cache_dtype;
  Heads key;
  Heads value;
  int64_t head_size;
  void* cache;  // keys; a key's value lies value_offset elements behind it
  int64_t num_blocks;
  int64_t block_size;
  int64_t block_stride;
  int64_t value_offset;
  int64_t head_stride;
  int64_t slot_stride;
  const int64_t* slots;
};

const char* launch_rms_norm(const NormArgs& args, int64_t num_rows, Stream stream);
const char* launch_fused_add_rms_norm(const NormArgs& args, int64_t num_rows, Stream stream);
const char* launch_silu_and_mul(const SiluArgs& args, int64_t num_rows, Stream stream);
// `to.row` is unused.
const char* launch_quantize_int8(const QuantizeArgs& args, int64_t num_rows, Stream stream);
const char* launch_quantize_fp8(const Fp8Args& args, int64_t num_rows, Stream stream);
const char* launch_cache_write(const CacheWriteArgs& args, int64_t num_tokens, Stream stream);

}  // namespace ir_kernels::cuda
