// The ops that read weights in panels of 16 rows: `linear_panels` and `embedding_panels`. This file
// checks arguments and shares the work out among threads.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "isa_select.h"
#include "kernels.h"
#include "tape.h"
#include "team.h"
#include "tensor_rows.h"

namespace ir_kernels {
namespace {

constexpr int64_t kPanelRows = 16;
// Work below which a second thread costs more than it saves, in bytes that pass by meanwhile.
constexpr int64_t kLinearGrain = 128 << 10;
constexpr int64_t kEmbeddingGrain = 32 << 10;
// Of x's rows, so many bytes stay in the second cache while the weight streams by.
constexpr int64_t kTokenBlockBytes = 1 << 20;
constexpr int64_t kMostTokensOfBlock = 512;

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t element_size(Dtype dtype) { return dtype == Dtype::f32 ? 4 : 2; }

// x with a dense last dimension and one distance between neighbouring rows.
Tensor with_even_rows(const Tensor& x) {
  const int64_t rank = x.dim();
  const bool is_even = rank <= 2 || (rank == 3 && (x.size(0) <= 1 || x.size(1) <= 1 ||
                                                   x.stride(0) == x.size(1) * x.stride(1)));
  return x.is_contiguous() || (is_even && has_rows(x)) ? x : copy_dense(x);
}

int64_t row_stride(const Tensor& x) {
  const int64_t rank = x.dim();
  if (x.is_contiguous() || rank == 1) return x.size(rank - 1);
  return rank == 3 && x.size(1) <= 1 ? x.stride(0) : x.stride(rank - 2);
}

// Memory that a thread keeps from call to call, so that its pages are touched once.
void* scratch(int64_t size) {
  thread_local std::vector<std::array<std::byte, 64>> lines;
  const size_t num_lines = static_cast<size_t>(divide_up(size, 64)) + 1;
  if (lines.size() < num_lines) lines = std::vector<std::array<std::byte, 64>>(num_lines);
  const auto address = reinterpret_cast<uintptr_t>(lines.data());
  return reinterpret_cast<void*>((address + 63) / 64 * 64);
}

// How a product is cut: `units` of neighbouring panels for each of `splits` ranges of tokens.
struct LinearShares {
  int64_t panels;
  int64_t panels_per_unit;
  int64_t units;
  int64_t splits;
  int64_t tokens_per_split;
  int64_t grain;
};

LinearShares shares_of(const LinearArgs& args) {
  LinearShares shares{};
  shares.panels = divide_up(args.num_outputs, kPanelRows);
  shares.panels_per_unit = args.num_tokens > 16 ? 2 : 1;
  shares.units = divide_up(shares.panels, shares.panels_per_unit);
  const int64_t wanted = 4 * num_threads();
  const int64_t splits = std::min(divide_up(args.num_tokens, 64), divide_up(wanted, shares.units));
  shares.tokens_per_split = divide_up(divide_up(args.num_tokens, splits), 32) * 32;
  shares.splits = divide_up(args.num_tokens, shares.tokens_per_split);
  const int64_t tokens = std::min(args.num_tokens, shares.tokens_per_split);
  const int64_t weights = shares.panels_per_unit * kPanelRows * args.inner;
  const int64_t cost = weights * element_size(args.dtype) + weights * tokens / 8;
  shares.grain = divide_up(kLinearGrain, std::max<int64_t>(1, cost));
  return shares;
}

int64_t scratch_size(const LinearArgs& args) {
  const int64_t row = divide_up(args.inner * 4, 64) * 64;
  return args.token_block * (kLinearSumBytes + row) + kLinearPanelBytes;
}

void run_linear(const LinearArgs& args) {
  if (args.num_tokens == 0 || args.num_outputs == 0) return;
  const LinearShares shares = shares_of(args);
  const auto kernel = kernels().linear;
  parallel(0, shares.units * shares.splits, shares.grain, [&](int64_t begin, int64_t end) {
    void* memory = scratch(scratch_size(args));
    while (begin < end) {
      const int64_t split = begin / shares.units;
      const int64_t first = begin % shares.units;
      const int64_t last = std::min(shares.units, first + end - begin);
      const Range panels = {first * shares.panels_per_unit,
                            std::min(shares.panels, last * shares.panels_per_unit)};
      const int64_t token = split * shares.tokens_per_split;
      const Range tokens = {token, std::min(args.num_tokens, token + shares.tokens_per_split)};
      kernel(args, panels, tokens, memory);
      begin += last - first;
    }
  });
}

void check_weight(const Tensor& weight) {
  checked_dtype(weight, "weight");
  STD_TORCH_CHECK(weight.dim() == 2 && weight.is_contiguous(),
                  "`weight` must be a contiguous matrix, packed in layout `panel16`");
}

Tensor linear_panels(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
                     bool in_order) {
  LinearArgs args{};
  args.in_order = in_order;
  args.dtype = checked_dtype(x, "x");
  check_weight(weight);
  args.inner = x.size(x.dim() - 1);
  args.num_outputs = weight.size(0);
  STD_TORCH_CHECK(checked_dtype(weight, "weight") == args.dtype,
                  "`x` and `weight` must have the same dtype");
  STD_TORCH_CHECK(weight.size(1) == args.inner, "`weight` has ", weight.size(1),
                  " columns, but a row of `x` has ", args.inner, " elements");
  std::optional<Tensor> dense_bias;
  if (bias) {
    STD_TORCH_CHECK(checked_dtype(*bias, "bias") == args.dtype && bias->dim() == 1 &&
                        bias->size(0) == args.num_outputs,
                    "`bias` must be a vector of ", args.num_outputs, " elements of x's dtype");
    dense_bias = bias->is_contiguous() ? *bias : copy_dense(*bias);
    args.bias = dense_bias->data_ptr();
  }
  const Tensor source = with_even_rows(x);
  Tensor out = empty_rows(x, args.num_outputs);
  args.x = source.data_ptr();
  args.x_stride = row_stride(source);
  args.weight = weight.data_ptr();
  args.out = out.data_ptr();
  const int64_t row_bytes = std::max<int64_t>(1, args.inner * element_size(args.dtype));
  args.token_block = std::clamp<int64_t>(kTokenBlockBytes / row_bytes / 32 * 32, 32,
                                         kMostTokensOfBlock);
  perform(num_rows(x), {&source, &weight, dense_bias ? &*dense_bias : &weight, &out},
          [args](int64_t rows) {
    LinearArgs own = args;
    own.num_tokens = rows;
    run_linear(own);
  }, &weight);
  return out;
}

void check_ids(const EmbeddingArgs& args, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const int64_t id = args.ids[i * args.id_stride];
    STD_TORCH_CHECK(0 <= id && id < args.num_rows, "`input_ids[", i, "]` is ", id,
                    ", but `weight` has ", args.num_rows, " rows");
  }
}

void run_embedding(const EmbeddingArgs& args, int64_t count) {
  check_ids(args, count);
  const int64_t rows_per_task =
      std::max<int64_t>(1, kEmbeddingGrain / std::max<int64_t>(1, args.row_bytes));
  const auto kernel = kernels().embedding;
  parallel(0, count, rows_per_task,
           [&](int64_t begin, int64_t end) { kernel(args, begin, end); });
}

Tensor embedding_panels(const Tensor& input_ids, const Tensor& weight) {
  check_weight(weight);
  STD_TORCH_CHECK(input_ids.is_cpu() && input_ids.dim() == 1 &&
                      input_ids.scalar_type() == torch::headeronly::ScalarType::Long,
                  "`input_ids` must be a CPU vector of int64");
  const std::array<int64_t, 2> sizes = {input_ids.size(0), weight.size(1)};
  Tensor out = torch::stable::new_empty(weight, {sizes.data(), sizes.size()});
  EmbeddingArgs args{};
  args.ids = static_cast<const int64_t*>(input_ids.data_ptr());
  args.id_stride = input_ids.stride(0);
  args.weight = weight.data_ptr();
  args.num_rows = weight.size(0);
  args.row_bytes = weight.size(1) * element_size(checked_dtype(weight, "weight"));
  args.out = out.data_ptr();
  perform(sizes[0], {&input_ids, &weight, &out},
          [args](int64_t rows) { run_embedding(args, rows); });
  return out;
}

}  // namespace
}  // namespace ir_kernels

STABLE_TORCH_LIBRARY_FRAGMENT(ir_kernels_c, m) {
  m.def("linear_panels(Tensor x, Tensor weight, Tensor? bias, bool in_order=False) -> Tensor");
  m.def("embedding_panels(Tensor input_ids, Tensor weight) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(ir_kernels_c, CPU, m) {
  m.impl("linear_panels", TORCH_BOX(&ir_kernels::linear_panels));
  m.impl("embedding_panels", TORCH_BOX(&ir_kernels::embedding_panels));
}
