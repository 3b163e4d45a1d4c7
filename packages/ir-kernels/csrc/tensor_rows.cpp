#include "tensor_rows.h"

#include <array>

#include "device.h"

namespace ir_kernels {

using torch::headeronly::ScalarType;

Dtype checked_dtype(const Tensor& tensor, const char* name) {
  check_device(tensor, name);
  STD_TORCH_CHECK(tensor.dim() > 0, "`", name, "` must have at least one dimension");
  switch (tensor.scalar_type()) {
    case ScalarType::Float: return Dtype::f32;
    case ScalarType::BFloat16: return Dtype::bf16;
    case ScalarType::Half: return Dtype::f16;
    default: STD_TORCH_CHECK(false, "`", name, "` must be float32, bfloat16 or float16");
  }
}

int64_t num_rows(const Tensor& tensor) {
  int64_t rows = 1;
  const auto sizes = tensor.sizes();
  for (int64_t i = 0; i + 1 < static_cast<int64_t>(sizes.size()); ++i) rows *= sizes[i];
  return rows;
}

bool has_rows(const Tensor& tensor) {
  const int64_t rank = tensor.dim();
  if (rank > 3) return tensor.is_contiguous();
  return tensor.stride(rank - 1) == 1 || tensor.size(rank - 1) <= 1;
}

bool has_writable_rows(const Tensor& tensor) {
  if (tensor.is_contiguous()) return true;
  if (!has_rows(tensor)) return false;
  int64_t extent = 1;  // of all inner dimensions together
  const auto sizes = tensor.sizes();
  const auto strides = tensor.strides();
  for (int64_t i = tensor.dim() - 1; i >= 0; --i) {
    if (sizes[i] <= 1) continue;
    if (strides[i] < extent) return false;
    extent += (sizes[i] - 1) * strides[i];
  }
  return true;
}

bool is_expanded(const Tensor& tensor) {
  const auto sizes = tensor.sizes();
  const auto strides = tensor.strides();
  for (size_t i = 0; i < sizes.size(); ++i)
    if (sizes[i] > 1 && strides[i] == 0) return true;
  return false;
}

Rows rows_of(const Tensor& tensor) {
  const int64_t rank = tensor.dim();
  const auto sizes = tensor.sizes();
  const auto strides = tensor.strides();
  void* data = tensor.data_ptr();
  if (rank == 2) return {data, 1, strides[0], 0};
  if (rank == 3) return {data, sizes[1], strides[0], strides[1]};
  return {data, 1, sizes[rank - 1], 0};
}

Tensor empty_rows(const Tensor& x, int64_t last) {
  int32_t dtype;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(x.get(), &dtype));
  return empty_rows(x, last, dtype);
}

Tensor empty_rows(const Tensor& x, int64_t last, int32_t dtype) {
  std::array<int64_t, 64> sizes;  // torch's own limit on dimensions
  std::array<int64_t, 64> strides;
  const int64_t rank = x.dim();
  const auto x_sizes = x.sizes();
  int64_t stride = 1;
  for (int64_t i = rank - 1; i >= 0; --i) {
    sizes[i] = i == rank - 1 ? last : x_sizes[i];
    strides[i] = stride;
    stride *= sizes[i] > 1 ? sizes[i] : 1;
  }
  return new_tensor(x, sizes.data(), strides.data(), rank, dtype);
}

bool has_same_shape(const Tensor& a, const Tensor& b) {
  const auto a_sizes = a.sizes();
  const auto b_sizes = b.sizes();
  bool same = a_sizes.size() == b_sizes.size();
  for (size_t i = 0; same && i < a_sizes.size(); ++i) same = a_sizes[i] == b_sizes[i];
  return same;
}

}  // namespace ir_kernels
