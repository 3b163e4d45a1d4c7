#include "attention_plan.h"

#include <algorithm>

namespace ir_kernels {
namespace {

// A share below this costs more to hand to another thread than it takes.
constexpr int64_t kLeastShare = 64 << 10;
// Above this, a thread's part is divided further, so that one that is held up gives some away.
constexpr int64_t kLargeShare = 1 << 20;
constexpr int64_t kSharesPerThread = 4;

int64_t element_bytes(Dtype dtype) { return dtype == Dtype::f32 ? 4 : 2; }

int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

int64_t size_of_part(const AttentionPiece& piece, int64_t head_size) {
  return piece.num_heads * piece.num_rows * (2 + head_size);
}

class Planner {
 public:
  Planner(const AttentionArgs& args, const AttentionLimits& limits, AttentionPlan& plan)
      : args_(args), limits_(limits), plan_(plan) {}

  // Calls body(a piece of all keys that a block of rows sees) for all blocks.
  template <class Body>
  void for_row_blocks(const std::vector<AttentionRequest>& requests, Body body) const {
    const int64_t group = args_.query.num_heads / args_.key.num_heads;
    for (const AttentionRequest& request : requests) {
      AttentionPiece piece{};
      piece.blocks = request.blocks;
      piece.first_token = request.first_token;
      piece.first_position = request.length - request.num_tokens;
      const int64_t num_rows = request.num_tokens * group;
      const int64_t num_blocks = (num_rows + limits_.most_rows - 1) / limits_.most_rows;
      const int64_t height =
          args_.in_order ? limits_.few_rows
                         : round_up((num_rows + num_blocks - 1) / num_blocks, 32);
      const int64_t num_heads =
          std::min(height, num_rows) <= limits_.few_rows ? limits_.heads_of_few : 1;
      for (int64_t head = 0; head < args_.key.num_heads; head += num_heads)
        for (int64_t row = 0; row < num_rows; row += height) {
          piece.head = head;
          piece.num_heads = std::min(num_heads, args_.key.num_heads - head);
          piece.first_row = row;
          piece.num_rows = std::min(height, num_rows - row);
          const int64_t oldest = piece.first_position + row / group;
          piece.first_key = std::max<int64_t>(0, oldest + 1 - args_.window);
          piece.end_key = piece.first_position + (row + piece.num_rows - 1) / group + 1;
          body(piece);
        }
    }
  }

  int64_t cost_of_key(const AttentionPiece& piece) const {
    const int64_t read = 2 * args_.head_size * element_bytes(args_.cache_dtype);
    if (piece.num_rows <= limits_.few_rows) return read * piece.num_heads;
    return read + (piece.num_rows + 15) / 16 * limits_.row_cost;
  }

  int64_t cost_of(const AttentionPiece& piece) const {
    return cost_of_key(piece) * (piece.end_key - piece.first_key);
  }

  void divide(const std::vector<AttentionRequest>& requests, int64_t num_shares) {
    num_shares_ = num_shares;
    plan_.shares.push_back(0);
    for_row_blocks(requests, [&](const AttentionPiece& block) { add(block); });
    while (plan_.num_shares() < num_shares_) end_share();
  }

 private:
  int64_t share_end() const {
    return static_cast<int64_t>(static_cast<double>(plan_.cost) * plan_.shares.size() /
                                num_shares_);
  }

  bool is_last_share() const {
    return static_cast<int64_t>(plan_.shares.size()) >= num_shares_;
  }

  void end_share() { plan_.shares.push_back(static_cast<int64_t>(plan_.pieces.size())); }

  // Adds a block of rows, cut where shares end.
  void add(const AttentionPiece& block) {
    const int64_t first = static_cast<int64_t>(plan_.pieces.size());
    const int64_t key_cost = cost_of_key(block);
    AttentionPiece rest = block;
    while (!is_last_share() && done_ + cost_of(rest) > share_end()) {
      const int64_t cut = cut_of(rest, key_cost);
      if (cut > rest.first_key) {
        AttentionPiece piece = rest;
        piece.end_key = cut;
        push(piece);
        rest.first_key = cut;
      }
      end_share();
      if (rest.first_key == rest.end_key) break;
    }
    if (rest.first_key < rest.end_key) push(rest);
    const int64_t count = static_cast<int64_t>(plan_.pieces.size()) - first;
    if (count < 2) return;
    plan_.joins.push_back({first, count, plan_.num_partial_floats});
    plan_.num_partial_floats += count * size_of_part(block, args_.head_size);
  }

  void push(const AttentionPiece& piece) {
    plan_.pieces.push_back(piece);
    done_ += cost_of(piece);
  }

  // Where the share ends among the keys; at either end if hardly anything would be cut off, or if
  // nothing may be.
  int64_t cut_of(const AttentionPiece& rest, int64_t key_cost) const {
    if (args_.in_order) {
      const int64_t middle = (rest.end_key - rest.first_key) / 2;
      return share_end() - done_ < middle * key_cost ? rest.first_key : rest.end_key;
    }
    const int64_t alignment = limits_.key_alignment;
    const int64_t share = plan_.cost / num_shares_;
    const int64_t least = std::max(alignment / 2, share / 8 / key_cost);
    const int64_t exact = rest.first_key + std::max<int64_t>(0, share_end() - done_) / key_cost;
    const int64_t cut = (exact + alignment / 2) / alignment * alignment;
    if (cut < rest.first_key + least) return rest.first_key;
    return cut > rest.end_key - least ? rest.end_key : cut;
  }

  const AttentionArgs& args_;
  const AttentionLimits& limits_;
  AttentionPlan& plan_;
  int64_t num_shares_ = 1;
  int64_t done_ = 0;
};

int64_t choose_shares(int64_t cost, int64_t num_threads) {
  if (cost > kLargeShare * num_threads)
    return std::min(num_threads * kSharesPerThread, 2 * cost / kLargeShare);
  return std::clamp<int64_t>(cost / kLeastShare, 1, num_threads);
}

}  // namespace

void AttentionPlan::place_partials(float* at, int64_t head_size) {
  for (const AttentionJoin& join : joins)
    for (int64_t i = 0; i < join.num_pieces; ++i) {
      AttentionPiece& piece = pieces[join.first_piece + i];
      piece.partial = at + join.offset + i * size_of_part(piece, head_size);
    }
}

void plan_attention(const AttentionArgs& args, const AttentionLimits& limits,
                    const std::vector<AttentionRequest>& requests, int64_t num_threads,
                    AttentionPlan& plan) {
  plan.pieces.clear();
  plan.shares.clear();
  plan.joins.clear();
  plan.num_partial_floats = 0;
  plan.cost = 0;
  Planner planner(args, limits, plan);
  planner.for_row_blocks(requests,
                         [&](const AttentionPiece& block) { plan.cost += planner.cost_of(block); });
  planner.divide(requests, num_threads > 1 ? choose_shares(plan.cost, num_threads) : 1);
}

}  // namespace ir_kernels
