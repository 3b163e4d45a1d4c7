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

}  // namespace

Team* Team::current() { return led; }

void Team::gather(const std::function<void()>& lead) {
  const int64_t threads = std::min<int64_t>(torch::stable::get_num_threads(), kMostParts);
  if (threads == 1 || led != nullptr) return lead();
  Team team(threads);
  std::exception_ptr error;
  // The calling thread has the first part. Others may come late, or never: nothing waits for them.
  torch::stable::parallel_for(0, threads, 1, [&](int64_t begin, int64_t) {
    if (begin > 0) return team.help();
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

void Team::help() {
  for (int turns = 0; !is_over_.load(std::memory_order_acquire);) {
    if (take_part())
      turns = 0;
    else
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
