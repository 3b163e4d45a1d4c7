// How the attention of a batch is divided: into pieces of about equal cost, of which a thread takes
// a share at a time. Knows costs and ranges; reads no query, key or value.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels.h"

namespace ir_kernels {

// New tokens of one request, and all its keys.
struct AttentionRequest {
  const int32_t* blocks;
  int64_t first_token;
  int64_t num_tokens;
  int64_t length;
};

// Pieces that lie behind each other and make up the same rows.
struct AttentionJoin {
  int64_t first_piece;
  int64_t num_pieces;
  int64_t offset;  // of the first one's partial results, in floats
};

struct AttentionPlan {
  std::vector<AttentionPiece> pieces;
  std::vector<int64_t> shares;  // the first piece of each, then how many pieces there are
  std::vector<AttentionJoin> joins;
  int64_t num_partial_floats = 0;
  int64_t cost = 0;  // in bytes of memory that take as long to read

  int64_t num_shares() const { return static_cast<int64_t>(shares.size()) - 1; }

  // Where partial results go: room for num_partial_floats.
  void place_partials(float* at, int64_t head_size);
};

// Makes a plan for so many threads, in the memory of the last one. Row blocks are divided by keys
// only where a share ends inside one, so a plan for one thread divides none.
void plan_attention(const AttentionArgs& args, const AttentionLimits& limits,
                    const std::vector<AttentionRequest>& requests, int64_t num_threads,
                    AttentionPlan& plan);

}  // namespace ir_kernels
