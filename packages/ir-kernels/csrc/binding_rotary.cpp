// The ops that turn query and key heads: `rotary_embedding` and `qk_norm_rope`. This file checks
// arguments and shares tokens out among threads; the results are new and dense.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <tuple>

#include "attention_ops.h"
#include "isa_select.h"
#include "kernels.h"
#include "share_rows.h"
#include "tape.h"
#include "tensor_rows.h"

namespace ir_kernels {
namespace {

// Elements below which a second thread costs more than it saves.
constexpr int64_t kGrain = 16384;

int64_t last_size(const Tensor& tensor) { return tensor.size(tensor.dim() - 1); }

Tensor dense(const Tensor& x) { return x.is_contiguous() ? x : copy_dense(x); }

// Query or key: what is read, which has dense heads, and what is written. Keeps both.
struct Side {
  Tensor source;
  Tensor out;
  TurnedHeads heads;
};

void check_heads(const Tensor& x, int64_t head_size, const char* name) {
  STD_TORCH_CHECK(head_size > 0, "`head_size` must be positive, not ", head_size);
  const bool fits = (x.dim() == 2 && last_size(x) % head_size == 0) ||
                    (x.dim() == 3 && last_size(x) == head_size);
  STD_TORCH_CHECK(fits, "`", name, "` must be [T, heads * ", head_size, "] or [T, heads, ",
                  head_size, "]");
}

Heads heads_of(const Tensor& x, int64_t head_size) {
  const Rows rows = rows_of(x);
  if (x.dim() == 2) return {rows.data, last_size(x) / head_size, rows.outer_stride, head_size};
  return {rows.data, x.size(1), rows.outer_stride, rows.inner_stride};
}

Side side_of(const Tensor& x, int64_t head_size, const char* name) {
  check_heads(x, head_size, name);
  const Tensor source = has_rows(x) ? x : copy_dense(x);
  const Tensor out = empty_rows(x, last_size(x));
  return {source, out, {heads_of(source, head_size), out.data_ptr()}};
}

// A position outside the table would be read from wild memory.
void check_positions(const RotaryArgs& args, int64_t num_tokens, int64_t max_position) {
  for (int64_t i = 0; i < num_tokens; ++i) {
    const int64_t position = args.positions[i * args.position_stride];
    STD_TORCH_CHECK(0 <= position && position < max_position, "`positions[", i, "]` is ", position,
                    ", but `cos_sin_cache` has ", max_position, " rows");
  }
}

// `table` is `cos_sin_cache`, dense, and outlives the result, as do the sides.
RotaryArgs rotary_args(const Side& query, const Side& key, const Tensor& positions,
                       const Tensor& table, int64_t head_size, bool is_neox) {
  RotaryArgs args{};
  const int64_t num_tokens = query.source.size(0);
  args.dtype = checked_dtype(query.source, "query");
  STD_TORCH_CHECK(
      checked_dtype(key.source, "key") == args.dtype && key.source.size(0) == num_tokens,
      "`query` and `key` must have the same dtype and as many tokens");
  STD_TORCH_CHECK(checked_dtype(table, "cos_sin_cache") == Dtype::f32 && table.dim() == 2,
                  "`cos_sin_cache` must be a float32 matrix");
  const int64_t rotated = table.size(1);
  STD_TORCH_CHECK(rotated % 2 == 0 && rotated <= head_size, "`cos_sin_cache` has ", rotated,
                  " columns: not an even number of at most `head_size` ", head_size);
  STD_TORCH_CHECK(positions.is_cpu() && positions.dim() == 1 && positions.size(0) == num_tokens &&
                      positions.scalar_type() == torch::headeronly::ScalarType::Long,
                  "`positions` must be a CPU vector of ", num_tokens, " int64");
  args.query = query.heads;
  args.key = key.heads;
  args.positions = static_cast<const int64_t*>(positions.data_ptr());
  args.position_stride = positions.stride(0);
  args.cos_sin = static_cast<const float*>(table.data_ptr());
  args.half = rotated / 2;
  args.head_size = head_size;
  args.is_neox = is_neox;
  return args;
}

int64_t token_size(const RotaryArgs& args) {
  return (args.query.from.num_heads + args.key.from.num_heads) * args.head_size;
}

}  // namespace

std::tuple<Tensor, Tensor> rotary_embedding(const Tensor& query, const Tensor& key,
                                            const Tensor& positions, const Tensor& cos_sin_cache,
                                            int64_t head_size, bool is_neox) {
  const Tensor table = dense(cos_sin_cache);
  const Side q = side_of(query, head_size, "query");
  const Side k = side_of(key, head_size, "key");
  const RotaryArgs args = rotary_args(q, k, positions, table, head_size, is_neox);
  const int64_t max_position = table.size(0);
  perform(query.size(0), {&q.source, &k.source, &positions, &table, &q.out, &k.out},
          [args, max_position](int64_t tokens) {
    check_positions(args, tokens, max_position);
    share_rows(kernels().rotary_embedding, args, tokens, token_size(args), kGrain);
  });
  return {q.out, k.out};
}

namespace {

// `weight` is dense, and outlives the result.
HeadWeight weight_of(const Tensor& weight, Dtype dtype, int64_t head_size, const char* name) {
  const Dtype own = checked_dtype(weight, name);
  STD_TORCH_CHECK(own == dtype || own == Dtype::f32, "`", name,
                  "` must have the dtype of the heads or float32");
  STD_TORCH_CHECK(weight.dim() == 1 && weight.size(0) == head_size, "`", name,
                  "` must be a vector of ", head_size, " elements");
  return {own, weight.data_ptr()};
}

}  // namespace

std::tuple<Tensor, Tensor> qk_norm_rope(const Tensor& query, const Tensor& key,
                                        const Tensor& query_weight, const Tensor& key_weight,
                                        double epsilon, const Tensor& positions,
                                        const Tensor& cos_sin_cache, int64_t head_size,
                                        bool is_neox) {
  const Tensor table = dense(cos_sin_cache);
  const Tensor weights[] = {dense(query_weight), dense(key_weight)};
  const Side q = side_of(query, head_size, "query");
  const Side k = side_of(key, head_size, "key");
  QkNormRopeArgs args{};
  args.rotary = rotary_args(q, k, positions, table, head_size, is_neox);
  args.query_weight = weight_of(weights[0], args.rotary.dtype, head_size, "query_weight");
  args.key_weight = weight_of(weights[1], args.rotary.dtype, head_size, "key_weight");
  args.epsilon = static_cast<float>(epsilon);
  const int64_t max_position = table.size(0);
  perform(query.size(0),
          {&q.source, &k.source, &weights[0], &weights[1], &positions, &table, &q.out, &k.out},
          [args, max_position](int64_t tokens) {
    check_positions(args.rotary, tokens, max_position);
    share_rows(kernels().qk_norm_rope, args, tokens, token_size(args.rotary), kGrain);
  });
  return {q.out, k.out};
}

}  // namespace ir_kernels

STABLE_TORCH_LIBRARY_FRAGMENT(ir_kernels_c, m) {
  m.def(
      "rotary_embedding(Tensor query, Tensor key, Tensor positions, Tensor cos_sin_cache, "
      "int head_size, bool is_neox) -> (Tensor, Tensor)");
  m.def(
      "qk_norm_rope(Tensor query, Tensor key, Tensor query_weight, Tensor key_weight, "
      "float epsilon, Tensor positions, Tensor cos_sin_cache, int head_size, bool is_neox) "
      "-> (Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(ir_kernels_c, CPU, m) {
  m.impl("rotary_embedding", TORCH_BOX(&ir_kernels::rotary_embedding));
  m.impl("qk_norm_rope", TORCH_BOX(&ir_kernels::qk_norm_rope));
}
