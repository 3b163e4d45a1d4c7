// Threads that stay together while many short kernels run one after the other.
#pragma once

#include <torch/csrc/stable/ops.h>

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>

namespace ir_kernels {

// Bytes that will be read once, from memory.
struct Stream {
  const char* data = nullptr;
  int64_t size = 0;
};

// A parallel region of the thread library costs some microseconds, to wake the others and to wait
// for them. Members of a team spin between two shares of work, and take some hundred nanoseconds.
class Team {
 public:
  // Calls `lead` on this thread; what it hands to `parallel` is shared with the other threads.
  static void gather(const std::function<void()>& lead);

  // The team that this thread leads, or null.
  static Team* current();

  int64_t size() const { return size_; }

  // What a later kernel reads, which members without work fetch; it outlives the team.
  void announce(const Stream& ahead) { ahead_.store(&ahead, std::memory_order_release); }

  // Calls body(first, last) on parts of [begin, end), each of at least `grain`, and returns when
  // all are done. A member that is late takes none: the others do its part.
  template <class Body>
  void share(int64_t begin, int64_t end, int64_t grain, const Body& body) {
    run({[](const void* own, int64_t first, int64_t last) {
           (*static_cast<const Body*>(own))(first, last);
         },
         &body, begin, end, 0},
        grain);
  }

 private:
  struct Work {
    void (*call)(const void* body, int64_t first, int64_t last);
    const void* body;
    int64_t begin;
    int64_t end;
    int64_t part;  // elements of each call, but the last
  };

  static constexpr Stream kNothing{};

  explicit Team(int64_t size) : size_(size) {}

  void run(Work work, int64_t grain);
  void help(int64_t member);
  bool take_part();

  const int64_t size_;
  Work work_{};
  std::exception_ptr error_;
  std::atomic<bool> has_error_{false};
  // Of the present work: round << 32 | parts that were taken << 16 | parts. Whoever adds to it has
  // taken a part, and the work stays what it is until that part is done.
  alignas(64) std::atomic<uint64_t> ticket_{0};
  std::atomic<bool> is_over_{false};
  std::atomic<const Stream*> ahead_{&kNothing};
  alignas(64) std::atomic<uint64_t> num_done_{0};
};

// What torch::stable::parallel_for does, by the team of a replay where there is one.
template <class Body>
void parallel(int64_t begin, int64_t end, int64_t grain, const Body& body) {
  if (Team* const team = Team::current()) return team->share(begin, end, grain, body);
  torch::stable::parallel_for(begin, end, grain, body);
}

// Threads that `parallel` has.
inline int64_t num_threads() {
  const Team* const team = Team::current();
  return team != nullptr ? team->size()
                         : static_cast<int64_t>(torch::stable::get_num_threads());
}

}  // namespace ir_kernels
