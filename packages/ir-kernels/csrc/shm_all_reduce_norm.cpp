// all_reduce, residual add and norm as one op: rows are added and normed from where the ranks left
// their parts. The bits are those of the two ops one after the other.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <optional>
#include <tuple>

#include "isa_select.h"
#include "norm_args.h"
#include "share_rows.h"
#include "shm_open_segments.h"
#include "shm_reduce.h"
#include "tensor_rows.h"

namespace ir_kernels {
namespace {

Tensor dense(const Tensor& x) { return x.is_contiguous() ? x : torch::stable::contiguous(x); }

// What the rows of one call are made of and become; all are dense.
struct NormedRows {
  Span x;
  NormArgs norm;
  const char* added;
  char* residual;
  char* out;

  int64_t row_bytes() const { return norm.hidden * x.element_bytes; }

  // Of rows from `begin` on.
  NormedRows from(int64_t begin) const {
    const int64_t offset = begin * row_bytes();
    return {x, norm, added + offset, residual + offset, out + offset};
  }

  // So many rows, from what lies in `parts`.
  void finish(const void* const* parts, int num_parts, int64_t rows) const {
    const SumNormArgs args{norm, parts, num_parts, added, residual, out};
    share_rows(kernels().sum_add_rms_norm, args, rows, norm.hidden, kNormGrain);
  }
};

// From what lies in the ranks' slots, `offset` bytes in.
void finish_slots(const ShmSegment& segment, const NormedRows& mine, int64_t offset, int64_t rows) {
  const void* parts[kMostRanks];
  for (int r = 0; r < segment.size(); ++r) parts[r] = segment.slot(r) + offset;
  mine.finish(parts, segment.size(), rows);
}

// Each rank finishes some of the rows in its slot, norms before residuals, and copies the others'.
// Three and more ranks' shares take no more than the part did.
void finish_shared(ShmSegment& segment, Descriptor& what, const NormedRows& part, int64_t rows) {
  const int64_t share = (rows + segment.size() - 1) / segment.size();
  const int64_t bytes = share * part.row_bytes();
  const auto length = [&](int r) { return std::clamp<int64_t>(rows - r * share, 0, share); };
  const int mine = segment.rank();
  NormedRows here = part.from(std::min(mine * share, rows));
  here.out = segment.next_slot();
  here.residual = here.out + bytes;
  finish_slots(segment, here, mine * bytes, length(mine));
  segment.exchange(what);
  for (int r = 0; r < segment.size(); ++r) {
    if (length(r) == 0) break;
    std::memcpy(part.out + r * bytes, segment.slot(r), length(r) * part.row_bytes());
    std::memcpy(part.residual + r * bytes, segment.slot(r) + bytes, length(r) * part.row_bytes());
  }
}

// Rows that a slot holds.
void norm_part(ShmSegment& segment, Descriptor& what, const NormedRows& all, int64_t begin,
               int64_t rows) {
  hand_over(segment, what, all.x, begin * all.norm.hidden, rows * all.norm.hidden);
  const NormedRows part = all.from(begin);
  if (rows >= segment.size() && shares_sum(segment, rows * all.row_bytes()))
    return finish_shared(segment, what, part, rows);
  finish_slots(segment, part, 0, rows);
}

// Rows that are longer than a slot.
void norm_long_rows(ShmSegment& segment, Descriptor& what, const NormedRows& all, int64_t rows) {
  const int64_t most = segment.slot_bytes() / all.x.element_bytes;
  for (int64_t begin = 0; begin < all.x.count; begin += most)
    reduce_part(segment, what, all.x, begin, std::min(most, all.x.count - begin),
                all.out + begin * all.x.element_bytes);
  const void* sum = all.out;
  all.finish(&sum, 1, rows);
}

void norm_rows(ShmSegment& segment, Descriptor& what, const NormedRows& all, int64_t rows) {
  if (all.row_bytes() > segment.slot_bytes() && rows > 0)
    return norm_long_rows(segment, what, all, rows);
  const int64_t most =
      std::max<int64_t>(1, segment.slot_bytes() / std::max<int64_t>(1, all.row_bytes()));
  int64_t begin = 0;
  do {
    norm_part(segment, what, all, begin, std::min(most, rows - begin));
    begin += most;
  } while (begin < rows);
}

std::tuple<Tensor, Tensor> shm_all_reduce_add_rms_norm(int64_t handle, const Tensor& x,
                                                       const Tensor& x_residual,
                                                       const std::optional<Tensor>& weight,
                                                       double epsilon,
                                                       std::optional<int64_t> variance_size) {
  Descriptor what = describe(kAllReduceAddRmsNorm, x);
  const auto opened = segment_of(handle);
  STD_TORCH_CHECK(checked_dtype(x_residual, "x_residual") == checked_dtype(x, "x") &&
                      has_same_shape(x, x_residual),
                  "`x` and `x_residual` must have the same dtype and shape");
  const Tensor source = dense(x);
  const Tensor added = dense(x_residual);
  const std::optional<Tensor> dense_weight =
      weight ? std::optional<Tensor>(dense(*weight)) : std::nullopt;
  const NormArgs norm = norm_args(x, dense_weight, epsilon, variance_size);
  const Tensor normed = empty_rows(x, norm.hidden);
  const Tensor residual = empty_rows(x, norm.hidden);
  const NormedRows all{span_of(source), norm, static_cast<const char*>(added.data_ptr()),
                       static_cast<char*>(residual.data_ptr()),
                       static_cast<char*>(normed.data_ptr())};
  const std::lock_guard lock(opened->mutex);
  opened->segment.begin(what);
  norm_rows(opened->segment, what, all, num_rows(x));
  return {normed, residual};
}

}  // namespace
}  // namespace ir_kernels

STABLE_TORCH_LIBRARY_FRAGMENT(ir_kernels_c, m) {
  m.def(
      "shm_all_reduce_add_rms_norm(int handle, Tensor x, Tensor x_residual, Tensor? weight, "
      "float epsilon, int? variance_size=None) -> (Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(ir_kernels_c, CPU, m) {
  m.impl("shm_all_reduce_add_rms_norm", TORCH_BOX(&ir_kernels::shm_all_reduce_add_rms_norm));
}
