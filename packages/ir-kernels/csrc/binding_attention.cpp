// The torch op `paged_attention`: checks every index that memory is reached by, then divides the
// work over threads. What is computed stands in attention*.inc.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "attention_ops.h"
#include "attention_plan.h"
#include "isa_select.h"
#include "kernels.h"
#include "tape.h"
#include "team.h"
#include "tensor_rows.h"

namespace ir_kernels {
namespace {

using torch::headeronly::ScalarType;

// Elements below which a second thread costs more than it saves.
constexpr int64_t kWriteGrain = 32768;

// Memory that grows and stays, so that a call touches no fresh pages. Aligned to cache lines.
class Workspace {
 public:
  char* at_least(int64_t bytes) {
    if (bytes > size_) {
      memory_.reset(static_cast<char*>(std::aligned_alloc(64, bytes)));
      size_ = memory_ ? bytes : 0;
      STD_TORCH_CHECK(memory_ != nullptr, "no memory for ", bytes, " bytes of attention's scratch");
    }
    return memory_.get();
  }

 private:
  struct Free {
    void operator()(char* memory) const { std::free(memory); }
  };
  std::unique_ptr<char, Free> memory_;
  int64_t size_ = 0;
};

// What a thread that calls the op keeps between calls.
struct Caller {
  std::vector<AttentionRequest> requests;
  AttentionPlan plan;
  Workspace scratch;
};

Caller& caller() {
  static thread_local Caller kept;
  return kept;
}

Tensor with_rows(const Tensor& x) { return has_rows(x) ? x : copy_dense(x); }

// Calls body with x itself, or with a contiguous copy that is copied back afterwards.
template <class Body>
void with_written(const Tensor& x, const char* name, Body body) {
  STD_TORCH_CHECK(!is_expanded(x), "`", name, "` is expanded, so it cannot be written: clone it");
  const int64_t last = x.dim() - 1;
  if (x.stride(last) == 1 || x.size(last) <= 1) return body(x);
  const Tensor copy = copy_dense(x);
  body(copy);
  Tensor target = x;
  torch::stable::copy_(target, copy);
}

Tensor checked_indices(const Tensor& x, const char* name, ScalarType dtype, int64_t rank,
                       int64_t size) {
  const char* const type = dtype == ScalarType::Long ? "int64" : "int32";
  STD_TORCH_CHECK(x.is_cpu() && x.scalar_type() == dtype && x.dim() == rank && x.size(0) == size,
                  "`", name, "` must be a CPU tensor of ", type, " and ", rank,
                  rank == 1 ? " dimension" : " dimensions", " whose first has ", size);
  return x.is_contiguous() ? x : copy_dense(x);
}

Heads heads_of(const Tensor& x) {
  return {x.data_ptr(), x.size(1), x.stride(0), x.stride(1)};
}

Dtype checked_heads(const Tensor& x, const char* name, int64_t num_tokens, int64_t head_size) {
  const Dtype dtype = checked_dtype(x, name);
  STD_TORCH_CHECK(x.dim() == 3 && x.size(0) == num_tokens && x.size(2) == head_size, "`", name,
                  "` must be [", num_tokens, ", heads, ", head_size, "]");
  return dtype;
}

struct Cpu {  // all arguments, each dense where the kernels need it
  Tensor query, key, value, output, cache, table, lengths, starts, slots;
};

// Everything but what the index tensors hold.
AttentionArgs checked_args(const Cpu& on, double scale, std::optional<int64_t> sliding_window,
                           bool in_order) {
  AttentionArgs args{};
  args.in_order = in_order;
  STD_TORCH_CHECK(on.query.dim() == 3, "`x_query` must be [T, heads, head size]");
  const int64_t num_tokens = on.query.size(0);
  args.head_size = on.query.size(2);
  args.dtype = checked_heads(on.query, "x_query", num_tokens, args.head_size);
  const bool one_dtype =
      checked_heads(on.key, "x_key", num_tokens, args.head_size) == args.dtype &&
      checked_heads(on.value, "x_value", num_tokens, args.head_size) == args.dtype &&
      checked_heads(on.output, "output", num_tokens, args.head_size) == args.dtype;
  STD_TORCH_CHECK(one_dtype, "`x_query`, `x_key`, `x_value` and `output` must have one dtype");
  args.query = heads_of(on.query);
  args.key = heads_of(on.key);
  args.value = heads_of(on.value);
  args.output = heads_of(on.output);
  const int64_t num_heads = args.query.num_heads, num_key_heads = args.key.num_heads;
  STD_TORCH_CHECK(args.head_size > 0 && num_key_heads > 0 && num_heads > 0 &&
                      num_heads % num_key_heads == 0,
                  "`x_query` has ", num_heads, " heads of ", args.head_size, ", and `x_key` ",
                  num_key_heads, ": not a positive multiple");
  STD_TORCH_CHECK(
      args.value.num_heads == num_key_heads && args.output.num_heads == num_heads,
      "`x_value` must have as many heads as `x_key`, and `output` as many as `x_query`");
  args.cache_dtype = checked_dtype(on.cache, "kv_cache");
  STD_TORCH_CHECK(on.cache.dim() == 5 && on.cache.size(1) == 2 &&
                      on.cache.size(2) == num_key_heads && on.cache.size(3) > 0 &&
                      on.cache.size(4) == args.head_size,
                  "`kv_cache` must be [blocks, 2, ", num_key_heads, ", block size, ",
                  args.head_size, "]");
  args.cache = on.cache.data_ptr();
  args.block_stride = on.cache.stride(0);
  args.value_offset = on.cache.stride(1);
  args.head_stride = on.cache.stride(2);
  args.slot_stride = on.cache.stride(3);
  args.block_size = on.cache.size(3);
  args.slots = static_cast<const int64_t*>(on.slots.data_ptr());
  args.scale = static_cast<float>(scale);
  STD_TORCH_CHECK(sliding_window.value_or(1) > 0, "`sliding_window` must be positive, not ",
                  sliding_window.value_or(1));
  constexpr int64_t kUnlimited = std::numeric_limits<int32_t>::max();
  args.window = std::min(sliding_window.value_or(kUnlimited), kUnlimited);
  return args;
}

void check_slots(const AttentionArgs& args, int64_t num_tokens, int64_t num_blocks) {
  const int64_t num_slots = num_blocks * args.block_size;
  int64_t most = -1;
  for (int64_t i = 0; i < num_tokens; ++i) most = std::max(most, args.slots[i]);
  if (most < num_slots) return;
  const int64_t at = std::max_element(args.slots, args.slots + num_tokens) - args.slots;
  STD_TORCH_CHECK(false, "`slot_mapping[", at, "]` is ", most, ", but `kv_cache` has ", num_slots,
                  " slots");
}

void check_blocks(const AttentionArgs& args, const AttentionRequest& request, int64_t index,
                  int64_t num_blocks) {
  const int64_t oldest = request.length - request.num_tokens + 1 - args.window;
  const int64_t first = std::max<int64_t>(0, oldest) / args.block_size;
  const int64_t end = (request.length + args.block_size - 1) / args.block_size;
  uint32_t most = 0;  // a negative block is a large one
  for (int64_t i = first; i < end; ++i)
    most = std::max(most, static_cast<uint32_t>(request.blocks[i]));
  if (most < num_blocks) return;
  for (int64_t i = first; i < end; ++i)
    STD_TORCH_CHECK(static_cast<uint32_t>(request.blocks[i]) < num_blocks, "`block_table[", index,
                    ", ", i, "]` is ", request.blocks[i], ", but `kv_cache` has ", num_blocks,
                    " blocks");
}

// Where requests are described: [requests][columns] blocks, lengths, and [requests + 1] starts.
struct Indices {
  const int32_t* table;
  const int32_t* lengths;
  const int32_t* starts;
  int64_t columns;
  int64_t num_blocks;  // that the cache has
};

Indices indices_of(const Cpu& on) {
  return {static_cast<const int32_t*>(on.table.data_ptr()),
          static_cast<const int32_t*>(on.lengths.data_ptr()),
          static_cast<const int32_t*>(on.starts.data_ptr()), on.table.size(1), on.cache.size(0)};
}

// The requests that have anything to compute, every index that they use being in bounds.
void read_requests(const Indices& indices, const AttentionArgs& args, int64_t num_tokens,
                   int64_t num_requests, std::vector<AttentionRequest>& requests) {
  const auto [table, lengths, starts, columns, num_blocks] = indices;
  requests.clear();
  STD_TORCH_CHECK(starts[0] >= 0, "`query_start_loc[0]` is ", starts[0], ": negative");
  for (int64_t i = 0; i < num_requests; ++i) {
    const int64_t first = starts[i], end = starts[i + 1], length = lengths[i];
    STD_TORCH_CHECK(first <= end && end <= num_tokens, "`query_start_loc[", i + 1, "]` is ", end,
                    ": not between ", first, ", where the request starts, and ", num_tokens,
                    ", the number of tokens");
    STD_TORCH_CHECK(0 <= length && length <= columns * args.block_size, "`seq_lens[", i, "]` is ",
                    length, ": not between 0 and the ", columns * args.block_size,
                    " keys that `block_table` has blocks for");
    if (length == 0 || first == end) continue;
    STD_TORCH_CHECK(end - first <= length, "`seq_lens[", i, "]` is ", length,
                    ", less than the request's ", end - first, " new tokens");
    requests.push_back({table + i * columns, first, end - first, length});
    check_blocks(args, requests.back(), i, num_blocks);
  }
}

// Each token as a request of its own that sees the same keys.
void part_tokens(std::vector<AttentionRequest>& requests) {
  std::vector<AttentionRequest> parted;
  for (const AttentionRequest& request : requests)
    for (int64_t i = 0; i < request.num_tokens; ++i)
      parted.push_back({request.blocks, request.first_token + i, 1,
                        request.length - request.num_tokens + i + 1});
  requests = std::move(parted);
}

void write_cache(const KernelTable& table, const AttentionArgs& args, int64_t num_tokens) {
  const int64_t row_size = 2 * args.key.num_heads * args.head_size;
  const int64_t grain = std::max<int64_t>(1, kWriteGrain / row_size);
  if (num_tokens <= grain) return table.attention_write(args, 0, num_tokens);
  parallel(0, num_tokens, grain, [&](int64_t begin, int64_t end) {
    table.attention_write(args, begin, end);
  });
}

// Calls body(number, a thread's scratch) for [0, count), which threads take one by one.
template <class Body>
void share_out(int64_t count, int64_t num_threads, char* scratch, int64_t scratch_bytes,
               Body body) {
  const int64_t workers = std::min(count, num_threads);
  if (workers <= 1) {
    for (int64_t i = 0; i < count; ++i) body(i, scratch);
    return;
  }
  std::atomic<int64_t> next{0};
  parallel(0, workers, 1, [&](int64_t begin, int64_t) {
    for (int64_t i = next++; i < count; i = next++) body(i, scratch + begin * scratch_bytes);
  });
}

void attend(const KernelTable& table, const AttentionArgs& args, Caller& kept) {
  const AttentionLimits limits = table.attention_limits(args);
  const int64_t num_threads = ir_kernels::num_threads();
  AttentionPlan& plan = kept.plan;
  plan_attention(args, limits, kept.requests, num_threads, plan);
  const int64_t scratch_bytes = (limits.scratch_bytes + 63) / 64 * 64;
  const int64_t partial_bytes = plan.num_partial_floats * static_cast<int64_t>(sizeof(float));
  const int64_t all_scratch = num_threads * scratch_bytes;
  char* const scratch = kept.scratch.at_least(all_scratch + (partial_bytes + 63) / 64 * 64);
  plan.place_partials(reinterpret_cast<float*>(scratch + all_scratch), args.head_size);
  share_out(plan.num_shares(), num_threads, scratch, scratch_bytes,
            [&](int64_t share, char* memory) {
    const AttentionPiece* const end = plan.pieces.data() + plan.shares[share + 1];
    for (const AttentionPiece* at = plan.pieces.data() + plan.shares[share]; at < end; ++at)
      table.attention_piece(args, *at, at + 1 < end ? at + 1 : nullptr, memory);
  });
  for (const AttentionJoin& join : plan.joins)
    table.attention_merge(args, plan.pieces[join.first_piece], join.num_pieces, scratch);
}

void run_attention(const AttentionArgs& args, const Indices& indices, int64_t num_tokens,
                   int64_t num_requests) {
  Caller& kept = caller();
  check_slots(args, num_tokens, indices.num_blocks);
  read_requests(indices, args, num_tokens, num_requests, kept.requests);
  if (args.in_order) part_tokens(kept.requests);
  const KernelTable& table = kernels();
  write_cache(table, args, num_tokens);
  if (!kept.requests.empty()) attend(table, args, kept);
}

}  // namespace

void paged_attention(const Tensor& query, const Tensor& key, const Tensor& value,
                     const Tensor& output, const Tensor& kv_cache, const Tensor& block_table,
                     const Tensor& seq_lens, const Tensor& query_start_loc,
                     const Tensor& slot_mapping, double scale,
                     std::optional<int64_t> sliding_window, bool in_order) {
  STD_TORCH_CHECK(seq_lens.dim() == 1, "`seq_lens` must be a vector");
  const int64_t num_tokens = query.dim() > 0 ? query.size(0) : 0;
  const int64_t num_requests = seq_lens.size(0);
  Cpu on{with_rows(query), with_rows(key), with_rows(value), output, kv_cache,
         checked_indices(block_table, "block_table", ScalarType::Int, 2, num_requests),
         checked_indices(seq_lens, "seq_lens", ScalarType::Int, 1, num_requests),
         checked_indices(query_start_loc, "query_start_loc", ScalarType::Int, 1, num_requests + 1),
         checked_indices(slot_mapping, "slot_mapping", ScalarType::Long, 1, num_tokens)};
  with_written(output, "output", [&](const Tensor& output_rows) {
    with_written(kv_cache, "kv_cache", [&](const Tensor& cache_rows) {
      on.output = output_rows;
      on.cache = cache_rows;
      const AttentionArgs args = checked_args(on, scale, sliding_window, in_order);
      const Indices indices = indices_of(on);
      Tape* const tape = Tape::recorded();
      if (tape == nullptr) return run_attention(args, indices, num_tokens, num_requests);
      if (num_tokens != tape->tokens() || num_requests != tape->tokens())
        return tape->refuse("attention has another number of tokens or requests than the tape");
      tape->add({&on.query, &on.key, &on.value, &on.output, &on.cache, &on.table, &on.lengths,
                 &on.starts, &on.slots},
                [args, indices](int64_t tokens, int64_t requests) {
        run_attention(args, indices, tokens, requests);
      });
    });
  });
}

}  // namespace ir_kernels

STABLE_TORCH_LIBRARY_FRAGMENT(ir_kernels_c, m) {
  m.def(
      "paged_attention(Tensor query, Tensor key, Tensor value, Tensor(a!) output, "
      "Tensor(b!) kv_cache, Tensor block_table, Tensor seq_lens, Tensor query_start_loc, "
      "Tensor slot_mapping, float scale, int? sliding_window, bool in_order=False) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(ir_kernels_c, CPU, m) {
  m.impl("paged_attention", TORCH_BOX(&ir_kernels::paged_attention));
}
