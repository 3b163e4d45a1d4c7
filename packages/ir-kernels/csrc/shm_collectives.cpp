// The torch ops that exchange tensors over shared memory. Tensors larger than a slot go in parts.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "shm_open_segments.h"
#include "shm_reduce.h"
#include "shm_sum.h"
#include "tensor_rows.h"

namespace ir_kernels {
namespace {

// From so many bytes on, three and more ranks share the sum of a part out among themselves, for a
// second step, instead of each forming all of it.
constexpr int64_t kSharedSumBytes = 32768;

struct Segments {
  std::mutex mutex;
  int64_t last = 0;
  std::map<int64_t, std::shared_ptr<OpenSegment>> by_handle;
};

Segments& segments() {
  static Segments all;
  return all;
}

}  // namespace

std::shared_ptr<OpenSegment> segment_of(int64_t handle) {
  Segments& all = segments();
  const std::lock_guard lock(all.mutex);
  const auto found = all.by_handle.find(handle);
  STD_TORCH_CHECK(found != all.by_handle.end(), "the shm segment ", handle, " is closed");
  return found->second;
}

namespace {

int64_t shm_open_segment(const std::string& name, const std::string& axis, int64_t rank,
                         int64_t size, int64_t slot_bytes, double open_timeout_s,
                         double timeout_s, bool has_engine) {
  const ShmOptions options{name,       axis,           static_cast<int>(rank), static_cast<int>(size),
                           slot_bytes, open_timeout_s, timeout_s,
                           has_engine};
  auto opened = std::make_shared<OpenSegment>(options);
  Segments& all = segments();
  const std::lock_guard lock(all.mutex);
  all.by_handle.emplace(++all.last, std::move(opened));
  return all.last;
}

void shm_close_segment(int64_t handle) {
  Segments& all = segments();
  std::shared_ptr<OpenSegment> closed;
  const std::lock_guard lock(all.mutex);
  const auto found = all.by_handle.find(handle);
  if (found == all.by_handle.end()) return;
  closed = std::move(found->second);
  all.by_handle.erase(found);
}

}  // namespace

namespace {

// Of what can be carried: an index of kShmDtypes, and bytes.
struct Element {
  uint32_t dtype;
  int64_t bytes;
};

Element element_of(const Tensor& x) {
  using torch::headeronly::ScalarType;
  STD_TORCH_CHECK(x.is_cpu() && x.dim() > 0, "`x` must be on the CPU, of one dimension or more");
  switch (x.scalar_type()) {
    case ScalarType::Float: return {static_cast<uint32_t>(Dtype::f32), 4};
    case ScalarType::BFloat16: return {static_cast<uint32_t>(Dtype::bf16), 2};
    case ScalarType::Half: return {static_cast<uint32_t>(Dtype::f16), 2};
    case ScalarType::Char: return {3, 1};
    case ScalarType::Float8_e4m3fn: return {4, 1};
    default: STD_TORCH_CHECK(false, "`x` must be float32, bfloat16, float16, int8 or float8_e4m3fn");
  }
}

}  // namespace

Span span_of(const Tensor& x) {
  const Dtype dtype = checked_dtype(x, "x");
  return {dtype, dtype == Dtype::f32 ? 4 : 2, static_cast<const char*>(x.data_ptr()), x.numel()};
}

Descriptor describe(ShmOp op, const Tensor& x, int64_t num_tokens) {
  Descriptor what{};
  what.op = op;
  what.dtype = element_of(x).dtype;
  what.num_tokens = num_tokens;
  what.num_dims = static_cast<uint32_t>(x.dim());
  STD_TORCH_CHECK(what.num_dims <= kMostDims, "`x` has ", x.dim(), " dimensions; at most ",
                  kMostDims, " are supported");
  for (int64_t i = 0; i < x.dim(); ++i) what.sizes[i] = x.size(i);
  return what;
}

namespace {

Tensor dense(const Tensor& x) { return x.is_contiguous() ? x : torch::stable::contiguous(x); }

Tensor empty_with_first(const Tensor& x, int64_t rows) {
  std::vector<int64_t> sizes(x.sizes().begin(), x.sizes().end());
  sizes[0] = rows;
  std::vector<int64_t> strides(sizes.size());
  int64_t stride = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= std::max<int64_t>(1, sizes[i]);
  }
  int32_t dtype;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(x.get(), &dtype));
  AtenTensorHandle handle;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(sizes.size(), sizes.data(),
                                                         strides.data(), dtype,
                                                         aoti_torch_device_type_cpu(), 0, &handle));
  return Tensor(handle);
}

void copy(char* to, const char* from, int64_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);  // no bytes may lie at null
}

// out = the ranks' sum of the `count` elements that lie `offset` elements into their slots.
void sum_slots(const ShmSegment& segment, const Span& x, char* out, int64_t offset, int64_t count) {
  if (count <= 0) return;
  const void* parts[kMostRanks];
  for (int r = 0; r < segment.size(); ++r)
    parts[r] = segment.slot(r) + offset * x.element_bytes;
  sum_parts()(x.dtype, out, parts, segment.size(), count);
}

}  // namespace

bool shares_sum(const ShmSegment& segment, int64_t bytes) {
  return segment.size() > 2 && bytes >= kSharedSumBytes;
}

void hand_over(ShmSegment& segment, Descriptor& what, const Span& x, int64_t begin, int64_t count) {
  copy(segment.next_slot(), x.data + begin * x.element_bytes, count * x.element_bytes);
  segment.exchange(what);
}

void reduce_part(ShmSegment& segment, Descriptor& what, const Span& x, int64_t begin, int64_t count,
                 char* out) {
  hand_over(segment, what, x, begin, count);
  if (!shares_sum(segment, count * x.element_bytes))
    return sum_slots(segment, x, out, 0, count);
  // Stretches of whole cache lines, so that no two ranks write to one.
  const int64_t stretch = ((count + segment.size() - 1) / segment.size() + 31) / 32 * 32;
  const auto length = [&](int r) {
    return std::clamp<int64_t>(count - r * stretch, 0, stretch);
  };
  const int mine = segment.rank();
  sum_slots(segment, x, segment.next_slot(), mine * stretch, length(mine));
  segment.exchange(what);
  for (int r = 0; r < segment.size(); ++r)
    copy(out + r * stretch * x.element_bytes, segment.slot(r), length(r) * x.element_bytes);
}

namespace {

Tensor shm_all_reduce(int64_t handle, const Tensor& x) {
  Descriptor what = describe(kAllReduce, x);
  const auto opened = segment_of(handle);
  const Tensor source = dense(x);
  const Span span = span_of(source);
  const Tensor out = empty_with_first(x, x.size(0));
  const std::lock_guard lock(opened->mutex);
  ShmSegment& segment = opened->segment;
  const int64_t most = segment.slot_bytes() / span.element_bytes;
  segment.begin(what);
  int64_t begin = 0;
  do {
    reduce_part(segment, what, span, begin, std::min(most, span.count - begin),
                static_cast<char*>(out.data_ptr()) + begin * span.element_bytes);
    begin += most;
  } while (begin < span.count);
  return out;
}

// A slot is divided among the ranks that rows go to, so that in each step all of them get some.
Tensor shm_reduce_scatter(int64_t handle, const Tensor& x) {
  Descriptor what = describe(kReduceScatter, x);
  const auto opened = segment_of(handle);
  const Tensor source = dense(x);
  const Span span = span_of(source);
  const std::lock_guard lock(opened->mutex);
  ShmSegment& segment = opened->segment;
  const int64_t rows = (x.size(0) + segment.size() - 1) / segment.size();
  const Tensor out = empty_with_first(x, rows);
  const int64_t share = out.numel();  // elements that go to one rank
  const int64_t most = segment.slot_bytes() / segment.size() / 64 * 64 / span.element_bytes;
  segment.begin(what);
  int64_t begin = 0;
  do {
    const auto length = [&](int r) {
      const int64_t there = std::min(share, span.count - r * share) - begin;
      return std::clamp<int64_t>(there, 0, most);
    };
    char* slot = segment.next_slot();
    for (int r = 0; r < segment.size(); ++r)
      copy(slot + r * most * span.element_bytes,
           span.data + (r * share + begin) * span.element_bytes, length(r) * span.element_bytes);
    segment.exchange(what);
    const int mine = segment.rank();
    char* to = static_cast<char*>(out.data_ptr()) + begin * span.element_bytes;
    sum_slots(segment, span, to, mine * most, length(mine));
    const int64_t padding = std::min(most, share - begin) - length(mine);
    if (padding > 0)
      std::memset(to + length(mine) * span.element_bytes, 0, padding * span.element_bytes);
    begin += most;
  } while (begin < share);
  return out;
}

Tensor shm_all_gather(int64_t handle, const Tensor& x, int64_t num_tokens) {
  Descriptor what = describe(kAllGather, x, num_tokens);
  const auto opened = segment_of(handle);
  const Tensor source = dense(x);
  const int64_t element_bytes = element_of(x).bytes, own = source.numel();
  const char* const data = static_cast<const char*>(source.data_ptr());
  const std::lock_guard lock(opened->mutex);
  ShmSegment& segment = opened->segment;
  STD_TORCH_CHECK(num_tokens >= 0 && num_tokens <= segment.size() * x.size(0), "`num_tokens` is ",
                  num_tokens, ", and ", segment.size(), " ranks have ", x.size(0), " rows each");
  const Tensor out = empty_with_first(x, num_tokens);
  const int64_t wanted = out.numel();
  const int64_t most = segment.slot_bytes() / element_bytes;
  segment.begin(what);
  int64_t begin = 0;
  do {
    const int64_t count = std::min(most, own - begin);
    copy(segment.next_slot(), data + begin * element_bytes, count * element_bytes);
    segment.exchange(what);
    for (int r = 0; r < segment.size(); ++r) {
      const int64_t at = r * own + begin;
      const int64_t kept = std::clamp<int64_t>(wanted - at, 0, count);
      copy(static_cast<char*>(out.data_ptr()) + at * element_bytes, segment.slot(r),
           kept * element_bytes);
    }
    begin += most;
  } while (begin < own);
  return out;
}

}  // namespace
}  // namespace ir_kernels

STABLE_TORCH_LIBRARY_FRAGMENT(ir_kernels_c, m) {
  m.def(
      "shm_open(str name, str axis, int rank, int size, int slot_bytes, float open_timeout_s, "
      "float timeout_s, bool has_engine=False) -> int");
  m.def("shm_close(int handle) -> ()");
  m.def("shm_all_reduce(int handle, Tensor x) -> Tensor");
  m.def("shm_reduce_scatter(int handle, Tensor x) -> Tensor");
  m.def("shm_all_gather(int handle, Tensor x, int num_tokens) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(ir_kernels_c, CPU, m) {
  m.impl("shm_all_reduce", TORCH_BOX(&ir_kernels::shm_all_reduce));
  m.impl("shm_reduce_scatter", TORCH_BOX(&ir_kernels::shm_reduce_scatter));
  m.impl("shm_all_gather", TORCH_BOX(&ir_kernels::shm_all_gather));
}

STABLE_TORCH_LIBRARY_IMPL(ir_kernels_c, CompositeExplicitAutograd, m) {
  m.impl("shm_open", TORCH_BOX(&ir_kernels::shm_open_segment));
  m.impl("shm_close", TORCH_BOX(&ir_kernels::shm_close_segment));
}
