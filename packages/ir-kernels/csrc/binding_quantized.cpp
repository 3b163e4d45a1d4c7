// The torch ops on quantised weights in layout `panel16`. This file checks arguments and splits
// panels over threads; what is computed stands in the .inc files.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <array>
#include <optional>

#include "isa_select.h"
#include "kernels.h"
#include "share_rows.h"
#include "tape.h"
#include "team.h"
#include "tensor_rows.h"
#include "thread_buffer.h"

namespace ir_kernels {
namespace {

using torch::headeronly::ScalarType;

constexpr int64_t kPanelRows = 16;
// Multiplications, and elements copied, below which a second thread costs more than it saves.
constexpr int64_t kProductGrain = 131072;
constexpr int64_t kCopyGrain = 65536;

int64_t last_size(const Tensor& tensor) { return tensor.size(tensor.dim() - 1); }

Tensor dense(const Tensor& x) { return x.is_contiguous() ? x : copy_dense(x); }

std::optional<Tensor> dense(const std::optional<Tensor>& x) {
  return x ? std::optional<Tensor>(dense(*x)) : std::nullopt;
}

void check_matrix(const Tensor& tensor, const char* name, ScalarType type, const char* type_name,
                  int64_t rows, int64_t columns) {
  STD_TORCH_CHECK(tensor.is_cpu() && tensor.scalar_type() == type && tensor.dim() == 2 &&
                      tensor.size(0) == rows && tensor.size(1) == columns,
                  "`", name, "` must be a CPU ", type_name, " matrix of ", rows, " x ", columns);
}

void check_group_size(int64_t group_size, int64_t inner) {
  STD_TORCH_CHECK(
      group_size == 16 || group_size == 32 || group_size == 64 || group_size == 128,
      "`group_size` must be 16, 32, 64 or 128, not ", group_size);
  STD_TORCH_CHECK(inner % group_size == 0, "rows of ", inner,
                  " elements are not divided by `group_size` ", group_size);
}

// Rows that follow each other at one distance are rows of a matrix.
Rows flat_rows(const Tensor& x) {
  Rows rows = rows_of(x);
  if (rows.inner_rows != 1 && rows.outer_stride == rows.inner_rows * rows.inner_stride)
    return {rows.data, 1, rows.inner_stride, 0};
  return rows;
}

struct QuantizedWeights {
  const Tensor& weight;
  const Tensor& scale;
  const std::optional<Tensor>& minimum;
  const std::optional<Tensor>& bias;
};

// The tensors are dense, and outlive the result.
QuantizedArgs quantized_args(const Tensor& x, const QuantizedWeights& weights, int bits,
                             int64_t group_size) {
  QuantizedArgs args{};
  args.dtype = checked_dtype(x, "x");
  args.bits = bits;
  args.num_tokens = num_rows(x);
  args.inner = last_size(x);
  args.group_size = group_size;
  check_group_size(group_size, args.inner);
  STD_TORCH_CHECK(weights.weight.dim() == 2, "`weight` must be a matrix");
  args.num_outputs = weights.weight.size(0);
  const int64_t groups = args.inner / group_size;
  if (bits == 4)
    check_matrix(weights.weight, "weight", ScalarType::Byte, "uint8", args.num_outputs,
                 args.inner / 2);
  else
    check_matrix(weights.weight, "weight", ScalarType::Char, "int8", args.num_outputs, args.inner);
  args.weight = static_cast<const uint8_t*>(weights.weight.data_ptr());
  check_matrix(weights.scale, "scale", ScalarType::Half, "float16", args.num_outputs, groups);
  args.scale = static_cast<const uint16_t*>(weights.scale.data_ptr());
  if (weights.minimum) {
    check_matrix(*weights.minimum, "minimum", ScalarType::Half, "float16", args.num_outputs,
                 groups);
    args.minimum = static_cast<const uint16_t*>(weights.minimum->data_ptr());
  }
  if (weights.bias) {
    STD_TORCH_CHECK(checked_dtype(*weights.bias, "bias") == args.dtype &&
                        weights.bias->dim() == 1 && weights.bias->size(0) == args.num_outputs,
                    "`bias` must be a vector of ", args.num_outputs, " elements of x's dtype");
    args.bias = weights.bias->data_ptr();
  }
  return args;
}

void prepare(const QuantizedArgs& args) {
  share_rows(kernels().quantized_prepare, args, args.num_tokens, args.inner, kCopyGrain);
}

void multiply(QuantizedArgs args) {
  static thread_local ThreadBuffer prepared;
  static thread_local ThreadBuffer scratch;
  const KernelTable& table = kernels();
  const QuantizedSizes sizes = table.quantized_sizes(args);
  args.prepared = prepared.at_least(sizes.prepared);
  prepare(args);
  const auto task = [&](int64_t begin, int64_t end) {
    QuantizedArgs own = args;
    own.scratch = scratch.at_least(sizes.scratch);
    table.quantized_product(own, begin, end);
  };
  const int64_t panels = (args.num_outputs + kPanelRows - 1) / kPanelRows;
  const int64_t panel_cost = std::max<int64_t>(1, args.inner) * kPanelRows * args.num_tokens;
  const int64_t panels_per_task = std::max<int64_t>(1, kProductGrain / panel_cost);
  if (panels <= panels_per_task) return task(0, panels);
  parallel(0, panels, panels_per_task, task);
}

Tensor linear(const Tensor& x, const QuantizedWeights& weights, int bits, int64_t group_size) {
  QuantizedArgs args = quantized_args(x, weights, bits, group_size);
  const Tensor source = has_rows(x) ? x : copy_dense(x);
  Tensor out = empty_rows(x, args.num_outputs);
  args.x = flat_rows(source);
  args.out = out.data_ptr();
  const Tensor& minimum = weights.minimum ? *weights.minimum : weights.scale;
  perform(args.num_tokens,
          {&source, &weights.weight, &weights.scale, &minimum,
           weights.bias ? &*weights.bias : &weights.scale, &out},
          [args](int64_t rows) {
    QuantizedArgs own = args;
    own.num_tokens = rows;
    if (rows > 0 && own.num_outputs > 0) multiply(own);
  }, &weights.weight);
  return out;
}

Tensor linear_w4a16_panels(const Tensor& x, const Tensor& weight, const Tensor& scale,
                           const std::optional<Tensor>& minimum, const std::optional<Tensor>& bias,
                           int64_t group_size) {
  const Tensor words = dense(weight);
  const Tensor factors = dense(scale);
  const std::optional<Tensor> offsets = dense(minimum);
  const std::optional<Tensor> shift = dense(bias);
  return linear(x, {words, factors, offsets, shift}, 4, group_size);
}

Tensor linear_w8a16_panels(const Tensor& x, const Tensor& weight, const Tensor& scale,
                           const std::optional<Tensor>& bias, int64_t group_size) {
  const Tensor words = dense(weight);
  const Tensor factors = dense(scale);
  const std::optional<Tensor> none;
  const std::optional<Tensor> shift = dense(bias);
  return linear(x, {words, factors, none, shift}, 8, group_size);
}

// An id outside the table would be read from wild memory.
void check_ids(const QuantizedEmbeddingArgs& args, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const int64_t id = args.ids[i * args.id_stride];
    STD_TORCH_CHECK(0 <= id && id < args.num_rows, "`input_ids[", i, "]` is ", id,
                    ", but the table has ", args.num_rows, " rows");
  }
}

Dtype float_dtype(ScalarType type) {
  switch (type) {
    case ScalarType::Float: return Dtype::f32;
    case ScalarType::BFloat16: return Dtype::bf16;
    case ScalarType::Half: return Dtype::f16;
    default: STD_TORCH_CHECK(false, "`dtype` must be float32, bfloat16 or float16");
  }
}

Tensor embedding_w8a16_panels(const Tensor& input_ids, const Tensor& weight, const Tensor& scale,
                              ScalarType dtype, int64_t group_size) {
  QuantizedEmbeddingArgs args{};
  args.dtype = float_dtype(dtype);
  STD_TORCH_CHECK(input_ids.is_cpu() && input_ids.dim() == 1 &&
                      input_ids.scalar_type() == ScalarType::Long,
                  "`input_ids` must be a CPU vector of int64");
  STD_TORCH_CHECK(weight.dim() == 2, "`weight` must be a matrix");
  args.num_rows = weight.size(0);
  args.inner = weight.size(1);
  args.group_size = group_size;
  check_group_size(group_size, args.inner);
  const Tensor words = dense(weight);
  const Tensor factors = dense(scale);
  check_matrix(words, "weight", ScalarType::Char, "int8", args.num_rows, args.inner);
  check_matrix(factors, "scale", ScalarType::Half, "float16", args.num_rows,
               args.inner / group_size);
  args.weight = static_cast<const uint8_t*>(words.data_ptr());
  args.scale = static_cast<const uint16_t*>(factors.data_ptr());
  args.ids = static_cast<const int64_t*>(input_ids.data_ptr());
  args.id_stride = input_ids.stride(0);
  const std::array<int64_t, 2> sizes = {input_ids.size(0), args.inner};
  Tensor out = torch::stable::empty(sizes, dtype);
  args.out = out.data_ptr();
  perform(sizes[0], {&input_ids, &words, &factors, &out}, [args](int64_t rows) {
    check_ids(args, rows);
    share_rows(kernels().quantized_embedding, args, rows, args.inner, kCopyGrain);
  });
  return out;
}

}  // namespace
}  // namespace ir_kernels

STABLE_TORCH_LIBRARY_FRAGMENT(ir_kernels_c, m) {
  m.def(
      "linear_w4a16_panels(Tensor x, Tensor weight, Tensor scale, Tensor? minimum, Tensor? bias, "
      "int group_size) -> Tensor");
  m.def(
      "linear_w8a16_panels(Tensor x, Tensor weight, Tensor scale, Tensor? bias, int group_size) "
      "-> Tensor");
  m.def(
      "embedding_w8a16_panels(Tensor input_ids, Tensor weight, Tensor scale, ScalarType dtype, "
      "int group_size) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(ir_kernels_c, CPU, m) {
  m.impl("linear_w4a16_panels", TORCH_BOX(&ir_kernels::linear_w4a16_panels));
  m.impl("linear_w8a16_panels", TORCH_BOX(&ir_kernels::linear_w8a16_panels));
  m.impl("embedding_w8a16_panels", TORCH_BOX(&ir_kernels::embedding_w8a16_panels));
}
