// What ops are to do, kept as steps that run again and again: a captured graph for a CPU.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "team.h"
#include "thread_buffer.h"

namespace ir_kernels {

using torch::stable::Tensor;

// Memory of tensors that come and go while a tape is recorded. It stays the tape's: nobody else
// gets what was freed, so that steps may read and write it later.
class TapeMemory : public std::enable_shared_from_this<TapeMemory> {
 public:
  // Dense; `dtype` is one of aoti_torch_dtype_*().
  Tensor allocate(const int64_t* sizes, const int64_t* strides, int64_t rank, int32_t dtype);
  bool has(const void* address);
  int64_t num_bytes();
  // Fills what is free or not with bytes that are NaN in every float type.
  void poison();

 private:
  struct Block {
    ThreadBuffer memory;
    int64_t size;
    bool is_free;
  };

  size_t take(int64_t num_bytes);

  std::mutex mutex_;
  std::vector<Block> blocks_;
};

// Steps for up to `tokens` tokens of as many requests: what ops were called for while it was
// recorded, which they did not do. A replay does it, on the first rows of the same memory.
class Tape {
 public:
  using Step = std::function<void(int64_t tokens, int64_t requests)>;

  explicit Tape(int64_t tokens) : tokens_(tokens) {}

  // The tape that this thread records, or null.
  static Tape* recorded();
  static void record(Tape* tape);

  // `weight` is what the step reads once, if there is such a tensor.
  void add(std::initializer_list<const Tensor*> tensors, Step step, const Tensor* weight = nullptr);
  // `work` runs on rows; the recorded call had `rows` of them, as many for each token.
  void add_rows(std::initializer_list<const Tensor*> tensors, int64_t rows,
                std::function<void(int64_t rows)> work, const Tensor* weight = nullptr);
  // Makes the tape useless; it keeps the first reason.
  void refuse(const std::string& reason);

  void replay(int64_t tokens, int64_t requests) const;

  int64_t tokens() const { return tokens_; }
  int64_t num_steps() const { return static_cast<int64_t>(steps_.size()); }
  const std::string& refusal() const { return refusal_; }
  TapeMemory& memory() { return *memory_; }

 private:
  struct Kept {
    Step step;
    Stream ahead;  // the weight of the next step that has one
  };

  const int64_t tokens_;
  std::string refusal_;
  std::vector<Kept> steps_;
  size_t num_announced_ = 0;  // steps whose `ahead` is known
  std::vector<Tensor> kept_;  // what lies in nobody's but torch's memory
  std::shared_ptr<TapeMemory> memory_ = std::make_shared<TapeMemory>();
};

// Calls work(rows), or leaves that to the tape that is recorded. `work` owns what it needs, finds
// all else through pointers into `tensors`, and is right for any smaller number of rows.
template <class Work>
void perform(int64_t rows, std::initializer_list<const Tensor*> tensors, const Work& work,
             const Tensor* weight = nullptr) {
  if (Tape* const tape = Tape::recorded()) return tape->add_rows(tensors, rows, work, weight);
  work(rows);
}

// A contiguous copy, which no tape can hold: `x` of a replay would not be copied.
Tensor copy_dense(const Tensor& x);

}  // namespace ir_kernels
