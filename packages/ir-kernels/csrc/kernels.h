// The boundary between the torch binding and the kernels: plain structs, no torch, no std.
// Every ISA provides one `KernelTable`; a kernel works on rows [begin, end) and knows no threads.
#pragma once

#include <stdint.h>

namespace ir_kernels {

enum class Dtype { f32, bf16, f16 };

// Rows of a strided tensor whose last dimension is dense. Strides count elements; row r starts at
// (r / inner_rows) * outer_stride + (r % inner_rows) * inner_stride.
struct Rows {
  void* data;
  int64_t inner_rows;
  int64_t outer_stride;
  int64_t inner_stride;
};

// Shapes: H = hidden size. rms_norm reads x and writes out. fused_add_rms_norm overwrites x with
// the norm and residual with the sum; out is unused.
struct NormArgs {
  Dtype dtype;
  Dtype weight_dtype;
  Rows x;
  Rows residual;
  Rows out;
  const void* weight;  // [H], null for no weight
  int64_t hidden;
  int64_t variance_size;  // statistics over the first so many elements, 0..H
  float epsilon;
};

// x rows hold gate then up, 2 * size elements; out rows hold size elements.
struct SiluArgs {
  Dtype dtype;
  Rows x;
  Rows out;
  int64_t size;
};

struct Heads {
  void* data;
  int64_t num_heads;
  int64_t token_stride;
  int64_t head_stride;
};

// Rows are tokens. Positions have been checked against the cache by the caller.
struct RotaryArgs {
  Dtype dtype;
  Heads query;
  Heads key;
  const int64_t* positions;
  int64_t position_stride;
  const float* cos_sin;  // [max_position, 2 * half]: cosines, then sines
  int64_t half;
  bool is_neox;
};

struct KernelTable {
  const char* isa;
  void (*rms_norm)(const NormArgs&, int64_t begin, int64_t end);
  void (*fused_add_rms_norm)(const NormArgs&, int64_t begin, int64_t end);
  void (*silu_and_mul)(const SiluArgs&, int64_t begin, int64_t end);
  void (*rotary_embedding)(const RotaryArgs&, int64_t begin, int64_t end);
};

extern const KernelTable portable_kernels;
#if defined(__x86_64__)
extern const KernelTable avx2_kernels;
extern const KernelTable avx512_kernels;
#endif

}  // namespace ir_kernels
