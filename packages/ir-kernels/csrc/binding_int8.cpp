// The torch op that multiplies bytes by bytes in layout `panel16`. This file checks arguments and
// splits panels over threads; what is computed stands in int8_product.inc.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "isa_select.h"
#include "kernels.h"
#include "share_rows.h"
#include "tape.h"
#include "tensor_rows.h"
#include "thread_buffer.h"

namespace ir_kernels {
namespace {

using torch::headeronly::ScalarType;

constexpr int64_t kPanelRows = 16;
// Multiplications, and elements copied, below which a second thread costs more than it saves.
constexpr int64_t kProductGrain = 524288;
constexpr int64_t kCopyGrain = 65536;
constexpr int64_t kMaxInner = (1 << 17) - 1;  // longer sums may leave int32

Tensor dense(const Tensor& x) { return x.is_contiguous() ? x : copy_dense(x); }

void check_type(const Tensor& tensor, const char* name, ScalarType type, const char* type_name) {
  STD_TORCH_CHECK(tensor.is_cpu() && tensor.scalar_type() == type && tensor.dim() > 0, "`", name,
                  "` must be a CPU tensor of ", type_name);
}

Dtype float_dtype(ScalarType type) {
  switch (type) {
    case ScalarType::Float: return Dtype::f32;
    case ScalarType::BFloat16: return Dtype::bf16;
    case ScalarType::Half: return Dtype::f16;
    default: STD_TORCH_CHECK(false, "`dtype` must be float32, bfloat16 or float16");
  }
}

void multiply(Int8Args args) {
  static thread_local ThreadBuffer prepared;
  static thread_local ThreadBuffer scratch;
  const KernelTable& table = kernels();
  const Int8Sizes sizes = table.int8_sizes(args);
  args.prepared = prepared.at_least(sizes.prepared);
  share_rows(table.int8_prepare, args, args.num_tokens, args.inner, kCopyGrain);
  const auto task = [&](int64_t begin, int64_t end) {
    Int8Args own = args;
    own.scratch = scratch.at_least(sizes.scratch);
    table.int8_product(own, begin, end);
  };
  const int64_t panels = (args.num_outputs + kPanelRows - 1) / kPanelRows;
  const int64_t panel_cost = std::max<int64_t>(1, args.inner) * kPanelRows * args.num_tokens;
  const int64_t panels_per_task = std::max<int64_t>(1, kProductGrain / panel_cost);
  if (panels <= panels_per_task) return task(0, panels);
  parallel(0, panels, panels_per_task, task);
}

Tensor linear_w8a8_panels(const Tensor& x, const Tensor& x_scale, const Tensor& weight,
                          const Tensor& weight_scale, ScalarType dtype,
                          const std::optional<Tensor>& bias) {
  check_type(x, "x", ScalarType::Char, "int8");
  check_type(x_scale, "x_scale", ScalarType::Float, "float32");
  check_type(weight, "weight", ScalarType::Char, "int8");
  check_type(weight_scale, "weight_scale", ScalarType::Float, "float32");
  Int8Args args{};
  args.dtype = float_dtype(dtype);
  args.num_tokens = num_rows(x);
  args.inner = x.size(x.dim() - 1);
  args.num_outputs = weight.size(0);
  STD_TORCH_CHECK(weight.dim() == 2 && weight.size(1) == args.inner && args.inner <= kMaxInner,
                  "`weight` must be a matrix of rows of ", args.inner, ", at most ", kMaxInner);
  STD_TORCH_CHECK(x_scale.size(x_scale.dim() - 1) == 1 && num_rows(x_scale) == args.num_tokens,
                  "`x_scale` must have one element for each row of `x`");
  STD_TORCH_CHECK(weight_scale.dim() == 1 && weight_scale.size(0) == args.num_outputs,
                  "`weight_scale` must be a vector of ", args.num_outputs, " elements");
  const Tensor source = has_rows(x) ? x : copy_dense(x);
  const Tensor row_scales = dense(x_scale);
  const Tensor words = dense(weight);
  const Tensor scales = dense(weight_scale);
  const std::optional<Tensor> shift = bias ? std::optional<Tensor>(dense(*bias)) : std::nullopt;
  if (shift) {
    STD_TORCH_CHECK(shift->is_cpu() && shift->scalar_type() == dtype && shift->dim() == 1 &&
                        shift->size(0) == args.num_outputs,
                    "`bias` must be a vector of ", args.num_outputs, " elements of `dtype`");
    args.bias = shift->data_ptr();
  }
  std::vector<int64_t> sizes(x.sizes().begin(), x.sizes().end());
  sizes.back() = args.num_outputs;
  Tensor out = torch::stable::empty(sizes, dtype);
  args.x = rows_of(source);
  args.x_scale = static_cast<const float*>(row_scales.data_ptr());
  args.weight = static_cast<const uint8_t*>(words.data_ptr());
  args.weight_scale = static_cast<const float*>(scales.data_ptr());
  args.out = out.data_ptr();
  perform(args.num_tokens,
          {&source, &row_scales, &words, &scales, shift ? &*shift : &words, &out},
          [args](int64_t rows) {
    Int8Args own = args;
    own.num_tokens = rows;
    if (rows > 0 && own.num_outputs > 0) multiply(own);
  }, &words);
  return out;
}

}  // namespace
}  // namespace ir_kernels

STABLE_TORCH_LIBRARY_FRAGMENT(ir_kernels_c, m) {
  m.def(
      "linear_w8a8_panels(Tensor x, Tensor x_scale, Tensor weight, Tensor weight_scale, "
      "ScalarType dtype, Tensor? bias) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(ir_kernels_c, CPU, m) {
  m.impl("linear_w8a8_panels", TORCH_BOX(&ir_kernels::linear_w8a8_panels));
}
