// Ops that another op is made of: what they take, return and refuse is theirs.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <optional>
#include <tuple>

namespace ir_kernels {

using torch::stable::Tensor;

std::tuple<Tensor, Tensor> rotary_embedding(const Tensor& query, const Tensor& key,
                                            const Tensor& positions, const Tensor& cos_sin_cache,
                                            int64_t head_size, bool is_neox);

std::tuple<Tensor, Tensor> qk_norm_rope(const Tensor& query, const Tensor& key,
                                        const Tensor& query_weight, const Tensor& key_weight,
                                        double epsilon, const Tensor& positions,
                                        const Tensor& cos_sin_cache, int64_t head_size,
                                        bool is_neox);

void paged_attention(const Tensor& query, const Tensor& key, const Tensor& value,
                     const Tensor& output, const Tensor& kv_cache, const Tensor& block_table,
                     const Tensor& seq_lens, const Tensor& query_start_loc,
                     const Tensor& slot_mapping, double scale,
                     std::optional<int64_t> sliding_window, bool in_order);

}  // namespace ir_kernels
