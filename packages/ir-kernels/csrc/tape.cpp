#include "tape.h"

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "team.h"

namespace ir_kernels {
namespace {

thread_local Tape* recording = nullptr;

// Keeps the memory while a tensor lies in it.
struct Lease {
  std::shared_ptr<TapeMemory> memory;
  std::function<void()> end;
};

void end_lease(void*, void* lease) {
  const std::unique_ptr<Lease> ended(static_cast<Lease*>(lease));
  ended->end();
}

}  // namespace

Tensor TapeMemory::allocate(const int64_t* sizes, const int64_t* strides, int64_t rank,
                            int32_t dtype) {
  int64_t num_bytes = static_cast<int64_t>(aoti_torch_dtype_element_size(dtype));
  for (int64_t i = 0; i < rank; ++i) num_bytes *= sizes[i];
  size_t index;
  void* data;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    index = take(num_bytes);
    data = blocks_[index].memory.at_least(blocks_[index].size);
  }
  auto lease = std::make_unique<Lease>();
  lease->memory = shared_from_this();
  lease->end = [this, index] {
    const std::lock_guard<std::mutex> lock(mutex_);
    blocks_[index].is_free = true;
  };
  AtenTensorHandle handle;
  STABLE_TORCH_ERROR_CODE_CHECK(torch_from_blob(
      data, rank, sizes, strides, 0, dtype, aoti_torch_device_type_cpu(), -1, &handle,
      aoti_torch_layout_strided(), nullptr, 0, &end_lease, lease.get()));
  lease.release();
  return Tensor(handle);
}

size_t TapeMemory::take(int64_t num_bytes) {
  size_t best = blocks_.size();
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const bool fits = blocks_[i].is_free && blocks_[i].size >= num_bytes;
    if (fits && (best == blocks_.size() || blocks_[i].size < blocks_[best].size)) best = i;
  }
  if (best == blocks_.size())
    blocks_.push_back({ThreadBuffer(), std::max<int64_t>(1, num_bytes), true});
  blocks_[best].is_free = false;
  return best;
}

bool TapeMemory::has(const void* address) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::any_of(blocks_.begin(), blocks_.end(), [&](Block& block) {
    const char* const begin = static_cast<const char*>(block.memory.at_least(block.size));
    return begin <= address && address < begin + block.size;
  });
}

int64_t TapeMemory::num_bytes() {
  const std::lock_guard<std::mutex> lock(mutex_);
  int64_t sum = 0;
  for (const Block& block : blocks_) sum += block.size;
  return sum;
}

void TapeMemory::poison() {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (Block& block : blocks_) std::memset(block.memory.at_least(block.size), 0xff, block.size);
}

Tape* Tape::recorded() { return recording; }

void Tape::record(Tape* tape) { recording = tape; }

void Tape::add(std::initializer_list<const Tensor*> tensors, Step step, const Tensor* weight) {
  for (const Tensor* tensor : tensors)
    if (!memory_->has(tensor->data_ptr())) kept_.push_back(*tensor);
  if (weight != nullptr) {
    const Stream stream = {static_cast<const char*>(weight->data_ptr()),
                           weight->numel() * static_cast<int64_t>(weight->element_size())};
    for (; num_announced_ < steps_.size(); ++num_announced_) steps_[num_announced_].ahead = stream;
  }
  steps_.push_back({std::move(step), {}});
}

void Tape::add_rows(std::initializer_list<const Tensor*> tensors, int64_t rows,
                    std::function<void(int64_t rows)> work, const Tensor* weight) {
  if (rows % tokens_ != 0)
    return refuse("it works on " + std::to_string(rows) +
                  " rows, which are not as many for each of " + std::to_string(tokens_) + " tokens");
  const int64_t rows_of_token = rows / tokens_;
  add(tensors,
      [rows_of_token, work = std::move(work)](int64_t tokens, int64_t) {
        work(tokens * rows_of_token);
      },
      weight);
}

void Tape::refuse(const std::string& reason) {
  if (refusal_.empty()) refusal_ = reason;
}

void Tape::replay(int64_t tokens, int64_t requests) const {
  Team::gather([&] {
    Team* const team = Team::current();
    for (const Kept& kept : steps_) {
      if (team != nullptr) team->announce(kept.ahead);
      kept.step(tokens, requests);
    }
  });
}

Tensor copy_dense(const Tensor& x) {
  if (Tape* const tape = Tape::recorded())
    tape->refuse("it copies an argument that does not lie as its kernel reads");
  return torch::stable::contiguous(x);
}

namespace {

// Tapes by the number that Python has for them.
struct Shelf {
  std::mutex mutex;
  std::map<int64_t, std::shared_ptr<Tape>> tapes;
  int64_t last = 0;
};

Shelf& shelf() {
  static Shelf* const kept = new Shelf;  // never destroyed: its tensors would outlive torch
  return *kept;
}

std::shared_ptr<Tape> find(int64_t number) {
  const std::lock_guard<std::mutex> lock(shelf().mutex);
  const auto found = shelf().tapes.find(number);
  STD_TORCH_CHECK(found != shelf().tapes.end(), "there is no tape ", number);
  return found->second;
}

int64_t tape_begin(int64_t tokens) {
  STD_TORCH_CHECK(tokens > 0, "a tape is for at least one token, not ", tokens);
  STD_TORCH_CHECK(recording == nullptr, "this thread records a tape already");
  const auto tape = std::make_shared<Tape>(tokens);
  const std::lock_guard<std::mutex> lock(shelf().mutex);
  shelf().tapes[++shelf().last] = tape;
  Tape::record(tape.get());
  return shelf().last;
}

void tape_end(int64_t number) {
  STD_TORCH_CHECK(recording == find(number).get(), "this thread does not record tape ", number);
  Tape::record(nullptr);
}

void tape_replay(int64_t number, int64_t tokens, int64_t requests) {
  const std::shared_ptr<Tape> tape = find(number);
  STD_TORCH_CHECK(recording == nullptr, "a tape cannot be replayed while one is recorded");
  STD_TORCH_CHECK(tape->refusal().empty(), "tape ", number, " is of no use: ", tape->refusal());
  STD_TORCH_CHECK(0 < tokens && tokens <= tape->tokens(), "tape ", number, " is for up to ",
                  tape->tokens(), " tokens, not ", tokens);
  STD_TORCH_CHECK(0 < requests && requests <= tokens, "`requests` must be from 1 to ", tokens,
                  ", not ", requests);
  tape->replay(tokens, requests);
}

void tape_drop(int64_t number) {
  std::shared_ptr<Tape> dropped;  // ends outside of the lock
  const std::lock_guard<std::mutex> lock(shelf().mutex);
  const auto found = shelf().tapes.find(number);
  if (found == shelf().tapes.end()) return;
  if (recording == found->second.get()) Tape::record(nullptr);
  dropped = std::move(found->second);
  shelf().tapes.erase(found);
}

int64_t tape_steps(int64_t number) { return find(number)->num_steps(); }
int64_t tape_bytes(int64_t number) { return find(number)->memory().num_bytes(); }
std::string tape_refusal(int64_t number) { return find(number)->refusal(); }
void tape_poison(int64_t number) { find(number)->memory().poison(); }

}  // namespace
}  // namespace ir_kernels

STABLE_TORCH_LIBRARY_FRAGMENT(ir_kernels_c, m) {
  m.def("tape_begin(int tokens) -> int");
  m.def("tape_end(int tape) -> ()");
  m.def("tape_replay(int tape, int tokens, int requests) -> ()");
  m.def("tape_drop(int tape) -> ()");
  m.def("tape_steps(int tape) -> int");
  m.def("tape_bytes(int tape) -> int");
  m.def("tape_refusal(int tape) -> str");
  m.def("tape_poison(int tape) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(ir_kernels_c, CompositeExplicitAutograd, m) {
  m.impl("tape_begin", TORCH_BOX(&ir_kernels::tape_begin));
  m.impl("tape_end", TORCH_BOX(&ir_kernels::tape_end));
  m.impl("tape_replay", TORCH_BOX(&ir_kernels::tape_replay));
  m.impl("tape_drop", TORCH_BOX(&ir_kernels::tape_drop));
  m.impl("tape_steps", TORCH_BOX(&ir_kernels::tape_steps));
  m.impl("tape_bytes", TORCH_BOX(&ir_kernels::tape_bytes));
  m.impl("tape_refusal", TORCH_BOX(&ir_kernels::tape_refusal));
  m.impl("tape_poison", TORCH_BOX(&ir_kernels::tape_poison));
}
