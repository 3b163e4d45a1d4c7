// The torch op that sampling uses: argument checks, and rows split over threads.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "isa_select.h"
#include "kernels.h"
#include "tensor_rows.h"

namespace ir_kernels {
namespace {

using torch::headeronly::ScalarType;

// What the kernel keeps of a row: at most so many blocks of at most so many logits.
constexpr int64_t kMostBlocks = 1024;
constexpr int64_t kBlockSize = 256;
constexpr int64_t kMostBlockSize = 4096;

// Logits below which a second thread costs more than it saves.
constexpr int64_t kGrain = 196608;

int64_t block_size_for(int64_t size) {
  int64_t block = kBlockSize;
  while (block * kMostBlocks < size) block *= 2;
  STD_TORCH_CHECK(block <= kMostBlockSize, "`x` has ", size, " logits in a row; at most ",
                  kMostBlocks * kMostBlockSize, " are supported");
  return block;
}

template <class T>
constexpr ScalarType kScalarType = ScalarType::Float;
template <>
constexpr ScalarType kScalarType<double> = ScalarType::Double;
template <>
constexpr ScalarType kScalarType<int64_t> = ScalarType::Long;

// The elements of a vector with one for each row of logits; `holder` keeps them.
template <class T>
const T* dense(const Tensor& tensor, const char* name, int64_t rows, Tensor& holder) {
  const bool fits = tensor.is_cpu() && tensor.scalar_type() == kScalarType<T> &&
                    tensor.dim() == 1 && tensor.size(0) == rows;
  STD_TORCH_CHECK(fits, "`", name, "` must be a vector on the CPU, with the dtype that the op says ",
                  "and an element for each row of `x`, which has ", rows);
  holder = tensor.is_contiguous() ? tensor : torch::stable::contiguous(tensor);
  return static_cast<const T*>(holder.data_ptr());
}

Tensor empty_ids(int64_t size) {
  const int64_t stride = 1;
  AtenTensorHandle handle;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(1, &size, &stride,
                                                         aoti_torch_dtype_int64(),
                                                         aoti_torch_device_type_cpu(), 0, &handle));
  return Tensor(handle);
}

Tensor sample_tokens(const Tensor& x, const Tensor& temperature, const Tensor& min_p,
                     const Tensor& top_k, const Tensor& top_p, const Tensor& key,
                     const Tensor& position) {
  SampleArgs args{};
  args.dtype = checked_dtype(x, "x");
  STD_TORCH_CHECK(x.dim() == 2 && x.size(1) > 0, "`x` must be [rows, logits], with logits");
  const int64_t rows = x.size(0);
  const Tensor source = has_rows(x) ? x : torch::stable::contiguous(x);
  Tensor holders[6];
  args.size = x.size(1);
  args.block_size = block_size_for(args.size);
  args.x = rows_of(source);
  args.temperature = dense<float>(temperature, "temperature", rows, holders[0]);
  const float* shares = dense<float>(min_p, "min_p", rows, holders[1]);
  args.top_k = dense<int64_t>(top_k, "top_k", rows, holders[2]);
  args.top_p = dense<double>(top_p, "top_p", rows, holders[3]);
  args.key = dense<int64_t>(key, "key", rows, holders[4]);
  args.position = dense<int64_t>(position, "position", rows, holders[5]);
  std::vector<float> log_min_p(rows);
  for (int64_t r = 0; r < rows; ++r) log_min_p[r] = std::log(shares[r]);
  args.log_min_p = log_min_p.data();
  const Tensor ids = empty_ids(rows);
  args.ids = static_cast<int64_t*>(ids.data_ptr());
  const auto kernel = kernels().sample_tokens;
  const int64_t rows_per_task = std::max<int64_t>(1, kGrain / args.size);
  if (rows <= rows_per_task) {
    kernel(args, 0, rows);
  } else {
    torch::stable::parallel_for(0, rows, rows_per_task, [&](int64_t begin, int64_t end) {
      kernel(args, begin, end);
    });
  }
  return ids;
}

}  // namespace
}  // namespace ir_kernels

STABLE_TORCH_LIBRARY_FRAGMENT(ir_kernels_c, m) {
  m.def(
      "sample_tokens(Tensor x, Tensor temperature, Tensor min_p, Tensor top_k, Tensor top_p, "
      "Tensor key, Tensor position) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(ir_kernels_c, CPU, m) {
  m.impl("sample_tokens", TORCH_BOX(&ir_kernels::sample_tokens));
}
