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

// Dense rows. `residual` becomes the sum of all parts plus `added`, `out` its norm; the rows of
// `norm` are unused.
struct SumNormArgs {
  NormArgs norm;
  const void* const* parts;
  int num_parts;
  const void* added;
  void* residual;
  void* out;
};

// x rows hold gate then up, 2 * size elements; out rows hold size elements.
struct SiluArgs {
  Dtype dtype;
  Rows x;
  Rows out;
  int64_t size;
};

// Where rows go as int8 and a scale each, dense. `row` is a thread's own, for a row as x's type.
struct Int8Rows {
  int8_t* q;
  float* scale;
  void* row;
};

struct QuantizeArgs {
  Dtype dtype;
  Rows x;
  int64_t size;
  Int8Rows to;
};

// fused_add_rms_norm_int8 reads x and residual, and writes their sum into out; else out is unused.
struct NormInt8Args {
  NormArgs norm;
  Int8Rows to;
};

// The rows of out are unused.
struct SiluInt8Args {
  SiluArgs silu;
  Int8Rows to;
};

struct Heads {
  void* data;
  int64_t num_heads;
  int64_t token_stride;
  int64_t head_stride;
};

// Heads that are read, and where what becomes of them goes, dense.
struct TurnedHeads {
  Heads from;
  void* out;
};

// Rows are tokens. Positions have been checked against the cache by the caller.
struct RotaryArgs {
  Dtype dtype;
  TurnedHeads query;
  TurnedHeads key;
  const int64_t* positions;
  int64_t position_stride;
  const float* cos_sin;  // [max_position, 2 * half]: cosines, then sines
  int64_t half;
  int64_t head_size;
  bool is_neox;
};

struct HeadWeight {
  Dtype dtype;       // the heads' or float32
  const void* data;  // [head_size]
};

struct QkNormRopeArgs {
  RotaryArgs rotary;
  HeadWeight query_weight;
  HeadWeight key_weight;
  float epsilon;
};

// Rows of logits; everything else has an element for each row. A block is a multiple of 64 logits;
// a row has at most 1024 blocks of at most 4096.
struct SampleArgs {
  Dtype dtype;
  Rows x;
  int64_t size;
  int64_t block_size;
  const float* temperature;
  const float* log_min_p;  // minus infinity for none
  const int64_t* top_k;
  const double* top_p;
  const int64_t* key;
  const int64_t* position;
  int64_t* ids;
};

// Shapes: T tokens, Hq query heads, H key heads, G = Hq / H, D head size, S block size. A key head's
// rows of queries are numbered token * G + head of its group. All indices have been checked.
struct AttentionArgs {
  Dtype dtype;  // of query, key, value and output
  Dtype cache_dtype;
  Heads query;  // [T, Hq, D]
  Heads key;    // [T, H, D]
  Heads value;
  Heads output;
  void* cache;  // keys; a key's value lies value_offset elements behind it
  int64_t block_stride;
  int64_t value_offset;
  int64_t head_stride;
  int64_t slot_stride;
  int64_t block_size;
  int64_t head_size;
  const int64_t* slots;  // [T], negative for tokens that are not written
  float scale;
  int64_t window;  // keys that a query sees, at most
  bool in_order;   // each row alone, in float32 and in order of the keys
};

// Some rows of a request's queries at each of some key heads, and a range of keys of those they
// see. Of many rows, at one head.
struct AttentionPiece {
  const int32_t* blocks;   // of the request
  int64_t first_token;     // of the request's new tokens, in the batch
  int64_t first_position;  // of that token, in the request
  int64_t head;
  int64_t num_heads;
  int64_t first_row;
  int64_t num_rows;
  int64_t first_key;
  int64_t end_key;
  // Null: write to output. Else [num_heads][num_rows][2 + D]: log2 maximum, sum, weighted sum.
  float* partial;
};

// What an ISA tells before work is divided.
struct AttentionLimits {
  int64_t most_rows;      // of a piece
  int64_t few_rows;       // up to so many a piece costs what its keys' memory costs
  int64_t heads_of_few;   // at most so many key heads in a piece of few rows
  int64_t row_cost;       // more cost, for a key and 16 rows, as many bytes of memory
  int64_t key_alignment;  // of a piece's range of keys
  int64_t scratch_bytes;  // for a thread
};

// x [num_tokens][inner] times the rows of weights in layout `panel16`, plus bias. With 4 bits two
// elements lie in a byte, the even one low: (q - 8) * scale, or q * scale + minimum; with 8 bits a
// signed byte is one: q * scale. `inner` is a multiple of `group_size`, which is one of 16.
struct QuantizedArgs {
  Dtype dtype;  // of x, bias and out
  int bits;
  Rows x;
  int64_t num_tokens;
  int64_t inner;
  int64_t num_outputs;
  int64_t group_size;
  const uint8_t* weight;
  const uint16_t* scale;    // float16, one a group
  const uint16_t* minimum;  // as scale, null for none
  const void* bias;         // [num_outputs], null for none
  void* out;                // [num_tokens][num_outputs]
  void* prepared;           // what `quantized_prepare` makes of x for all threads
  void* scratch;            // each thread's own
};

// In bytes, to be aligned to 64.
struct QuantizedSizes {
  int64_t prepared;
  int64_t scratch;
};

// Shapes: x [num_tokens][inner] of int8; weight [num_outputs][inner] of int8 in panels of 16 rows,
// units of four elements; x_scale [num_tokens] and weight_scale [num_outputs]; out dense.
struct Int8Args {
  Dtype dtype;  // of bias and out
  Rows x;
  const float* x_scale;
  const uint8_t* weight;
  const float* weight_scale;
  const void* bias;  // [num_outputs], null for none
  void* out;         // [num_tokens][num_outputs]
  int64_t num_tokens;
  int64_t inner;
  int64_t num_outputs;
  void* prepared;  // what `int8_prepare` makes of x for all threads
  void* scratch;   // each thread's own
};

// Bytes of `prepared` and of `scratch`.
struct Int8Sizes {
  int64_t prepared;
  int64_t scratch;
};

// Rows of 8-bit weights in panels, as `dtype`. Ids have been checked against `num_rows`.
struct QuantizedEmbeddingArgs {
  Dtype dtype;
  const int64_t* ids;
  int64_t id_stride;
  int64_t inner;
  int64_t num_rows;
  int64_t group_size;
  const uint8_t* weight;
  const uint16_t* scale;
  void* out;  // [ids][inner]
};

struct Range {
  int64_t begin;
  int64_t end;
};

// Shapes: x [num_tokens][inner], rows x_stride elements apart; weight [num_outputs][inner] in panels
// of 16 rows; bias [num_outputs] or null; out [num_tokens][num_outputs], dense. All of one dtype.
struct LinearArgs {
  Dtype dtype;
  const void* x;
  int64_t x_stride;
  const void* weight;
  const void* bias;
  void* out;
  int64_t num_tokens;
  int64_t inner;
  int64_t num_outputs;
  int64_t token_block;  // tokens that a kernel works on at once, a multiple of 32
  bool in_order;        // each output is summed alone and in order of the inputs
};

// Memory that a call of `linear` needs, in bytes: for each token of a block kLinearSumBytes and a
// float32 for each element of its row of x, rounded up to 64 bytes; kLinearPanelBytes more.
constexpr int64_t kLinearChunk = 640;  // elements of a row that are multiplied in one go
constexpr int64_t kLinearSumBytes = 32 * 4;
constexpr int64_t kLinearPanelBytes = kLinearChunk * 16 * 4;

// Rows are ids, which have been checked; weight [num_rows] of row_bytes in panels of 16 rows.
struct EmbeddingArgs {
  const int64_t* ids;
  int64_t id_stride;
  const void* weight;
  int64_t num_rows;
  int64_t row_bytes;
  void* out;  // dense
};

struct KernelTable {
  const char* isa;
  void (*rms_norm)(const NormArgs&, int64_t begin, int64_t end);
  void (*fused_add_rms_norm)(const NormArgs&, int64_t begin, int64_t end);
  void (*sum_add_rms_norm)(const SumNormArgs&, int64_t begin, int64_t end);
  void (*silu_and_mul)(const SiluArgs&, int64_t begin, int64_t end);
  void (*quantize_int8)(const QuantizeArgs&, int64_t begin, int64_t end);
  void (*rms_norm_int8)(const NormInt8Args&, int64_t begin, int64_t end);
  void (*fused_add_rms_norm_int8)(const NormInt8Args&, int64_t begin, int64_t end);
  void (*silu_and_mul_int8)(const SiluInt8Args&, int64_t begin, int64_t end);
  void (*rotary_embedding)(const RotaryArgs&, int64_t begin, int64_t end);
  void (*qk_norm_rope)(const QkNormRopeArgs&, int64_t begin, int64_t end);
  void (*embedding)(const EmbeddingArgs&, int64_t begin, int64_t end);
  void (*linear)(const LinearArgs&, Range panels, Range tokens, void* memory);
  void (*sample_tokens)(const SampleArgs&, int64_t begin, int64_t end);
  void (*attention_write)(const AttentionArgs&, int64_t begin, int64_t end);  // rows are tokens
  AttentionLimits (*attention_limits)(const AttentionArgs&);
  // `next` is what this thread does after, or null.
  void (*attention_piece)(const AttentionArgs&, const AttentionPiece&, const AttentionPiece* next,
                          void* scratch);
  // Finishes what num_parts pieces left in `partial`, one behind the other.
  void (*attention_merge)(const AttentionArgs&, const AttentionPiece&, int64_t num_parts,
                          void* scratch);
  QuantizedSizes (*quantized_sizes)(const QuantizedArgs&);
  void (*quantized_prepare)(const QuantizedArgs&, int64_t begin, int64_t end);  // tokens
  void (*quantized_product)(const QuantizedArgs&, int64_t begin, int64_t end);  // panels
  void (*quantized_embedding)(const QuantizedEmbeddingArgs&, int64_t begin, int64_t end);
  Int8Sizes (*int8_sizes)(const Int8Args&);
  void (*int8_prepare)(const Int8Args&, int64_t begin, int64_t end);  // tokens
  void (*int8_product)(const Int8Args&, int64_t begin, int64_t end);  // panels
};

extern const KernelTable portable_kernels;
#if defined(__x86_64__)
extern const KernelTable avx2_kernels;
extern const KernelTable avx512_kernels;
extern const KernelTable avx512_bf16_kernels;
extern const KernelTable amx_kernels;
#endif

}  // namespace ir_kernels
