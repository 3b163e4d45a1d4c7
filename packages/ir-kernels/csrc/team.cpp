#include "team.h"

#include <algorithm>
#include <thread>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ir_kernels {
namespace {

constexpr uint64_t kRound = uint64_t{1} << 32;
constexpr uint64_t kTaken = uint64_t{1} << 16;
constexpr int64_t kMostParts = kTaken - 1;
// Turns after which a thread that waits lets others have its core: longer than most kernels.
constexpr int kPatience = 4096;

thread_local Team* led = nullptr;

uint64_t parts_of(uint64_t ticket) { return ticket % kTaken; }
uint64_t taken_of(uint64_t ticket) { return ticket / kTaken % kTaken; }

void relax(int& turns) {
  if (++turns % kPatience == 0) return std::this_thread::yield();
#if defined(__x86_64__)
  _mm_pause();
#endif
}

constexpr int64_t kLine = 64;
// What a member fetches before it looks for work again.
constexpr int64_t kChunk = 8 * kLine;
// What it fetches of one kernel's part, at most: it has to stay in a cache of its own.
constexpr int64_t kMostChunks = (64 << 10) / kChunk;

// Fetches the beginnings of the parts that a team will read of a stream: one part, and the member's
// share of the leader's, who has no time to. In teams of more than two another member may come to
// read that part; it then finds it in a cache.
class Fetcher {
 public:
  Fetcher(int64_t member, int64_t team) : member_(member), team_(team) {}

  // The next chunk of `stream`; false when enough is fetched.
  bool fetch(const Stream& stream) {
    if (stream.data != data_) {
      data_ = stream.data;
      num_chunks_ = 0;
    }
    const int64_t part = stream.size / team_;
    if (num_chunks_ >= kMostChunks || num_chunks_ * kChunk >= part) return false;
    const int64_t at = num_chunks_ * kChunk;
    fetch_chunk(stream.data + member_ * part + at);
    if (num_chunks_ % (team_ - 1) == member_ - 1) fetch_chunk(stream.data + at);
    ++num_chunks_;
    return true;
  }

 private:
  static void fetch_chunk(const char* data) {
    for (int64_t i = 0; i < kChunk; i += kLine) __builtin_prefetch(data + i, 0, 2);
  }

  const int64_t member_;
  const int64_t team_;
  const char* data_ = nullptr;
  int64_t num_chunks_ = 0;
};

}  // namespace

Team* Team::current() { return led; }

void Team::gather(const std::function<void()>& lead) {
  const int64_t threads = std::min<int64_t>(torch::stable::get_num_threads(), kMostParts);
  if (threads == 1 || led != nullptr) return lead();
  Team team(threads);
  std::exception_ptr error;
  // The calling thread has the first part. Others may come late, or never: nothing waits for them.
  torch::stable::parallel_for(0, threads, 1, [&](int64_t begin, int64_t) {
    if (begin > 0) return team.help(begin);
    led = &team;
    try {
      lead();
    } catch (...) {
      error = std::current_exception();  // it may not pass through the thread library
    }
    led = nullptr;
    team.is_over_.store(true, std::memory_order_release);
  });
  if (error) std::rethrow_exception(error);
}

void Team::run(Work work, int64_t grain) {
  const int64_t count = work.end - work.begin;
  if (count <= 0) return;
  const int64_t wanted = (count + std::max<int64_t>(1, grain) - 1) / std::max<int64_t>(1, grain);
  const int64_t threads = std::min(size_, wanted);
  if (threads == 1) return work.call(work.body, work.begin, work.end);
  work.part = (count + threads - 1) / threads;
  const uint64_t parts = static_cast<uint64_t>((count + work.part - 1) / work.part);
  work_ = work;
  num_done_.store(0, std::memory_order_relaxed);
  const uint64_t round = ticket_.load(std::memory_order_relaxed) / kRound + 1;
  ticket_.store(round * kRound + parts, std::memory_order_release);
  while (take_part()) {
  }
  for (int turns = 0; num_done_.load(std::memory_order_acquire) < parts;) relax(turns);
  if (has_error_.exchange(false)) std::rethrow_exception(std::exchange(error_, nullptr));
}

void Team::help(int64_t member) {
  Fetcher fetcher(member, size_);
  for (int turns = 0; !is_over_.load(std::memory_order_acquire);) {
    if (take_part())
      turns = 0;
    else if (!fetcher.fetch(*ahead_.load(std::memory_order_acquire)))
      relax(turns);
  }
}

bool Team::take_part() {
  uint64_t ticket = ticket_.load(std::memory_order_acquire);
  do {
    if (taken_of(ticket) >= parts_of(ticket)) return false;
  } while (!ticket_.compare_exchange_weak(ticket, ticket + kTaken, std::memory_order_acq_rel));
  const int64_t first = work_.begin + static_cast<int64_t>(taken_of(ticket)) * work_.part;
  try {
    work_.call(work_.body, first, std::min(work_.end, first + work_.part));
  } catch (...) {
    if (!has_error_.exchange(true)) error_ = std::current_exception();
  }
  num_done_.fetch_add(1, std::memory_order_acq_rel);
  return true;
}

}  // namespace ir_kernels
