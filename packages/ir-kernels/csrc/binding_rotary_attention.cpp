// The torch op `rotary_paged_attention`: heads are turned, after their norm where they have one, and
// go on to attention within one call.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <tuple>

#include "attention_ops.h"

namespace ir_kernels {
namespace {

void rotary_paged_attention(const Tensor& query, const Tensor& key, const Tensor& value,
                            const Tensor& output, const Tensor& kv_cache,
                            const Tensor& block_table, const Tensor& seq_lens,
                            const Tensor& query_start_loc, const Tensor& slot_mapping,
                            const Tensor& positions, const Tensor& cos_sin_cache, double scale,
                            std::optional<int64_t> sliding_window, bool is_neox,
                            const std::optional<Tensor>& query_weight,
                            const std::optional<Tensor>& key_weight, double epsilon) {
  STD_TORCH_CHECK(query.dim() == 3, "`x_query` must be [T, heads, head size]");
  STD_TORCH_CHECK(query_weight.has_value() == key_weight.has_value(),
                  "`query_weight` and `key_weight` must both be there, or neither");
  const int64_t head_size = query.size(2);
  const auto [turned_query, turned_key] =
      query_weight ? qk_norm_rope(query, key, *query_weight, *key_weight, epsilon, positions,
                                  cos_sin_cache, head_size, is_neox)
                   : rotary_embedding(query, key, positions, cos_sin_cache, head_size, is_neox);
  paged_attention(turned_query, turned_key, value, output, kv_cache, block_table, seq_lens,
                  query_start_loc, slot_mapping, scale, sliding_window, false);
}

}  // namespace
}  // namespace ir_kernels

STABLE_TORCH_LIBRARY_FRAGMENT(ir_kernels_c, m) {
  m.def(
      "rotary_paged_attention(Tensor query, Tensor key, Tensor value, Tensor(a!) output, "
      "Tensor(b!) kv_cache, Tensor block_table, Tensor seq_lens, Tensor query_start_loc, "
      "Tensor slot_mapping, Tensor positions, Tensor cos_sin_cache, float scale, "
      "int? sliding_window, bool is_neox, Tensor? query_weight, Tensor? key_weight, "
      "float epsilon) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(ir_kernels_c, CPU, m) {
  m.impl("rotary_paged_attention", TORCH_BOX(&ir_kernels::rotary_paged_attention));
}
