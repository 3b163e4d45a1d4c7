#include "shm_segment.h"

#if defined(__linux__)
#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <new>
#include <stdexcept>

namespace ir_kernels {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kMagic = 0x69722d73686d2d31;  // "ir-shm-1"
constexpr int64_t kPage = 4096;
constexpr int64_t kLeastSlotBytes = 64 * kMostRanks;  // a cache line for each rank
// With a core for each rank a wait rarely outlasts this many pauses, some 100 microseconds; without,
// the one waited for may need this very core.
constexpr int kLongSpins = 5000;
constexpr int kShortSpins = 50;
// Messages come steps of milliseconds apart, and the engine is one more than there are cores for: an
// order and replies of 1 KB, 2 ranks on 2 cores, take 40 us with up to 50 pauses, 48 with 150, 87
// with 600.
constexpr int kMessageSpins = kShortSpins;
// Between looks at whether the one waited for still lives.
constexpr long kSliceNs = 50'000'000;
constexpr int kOpen = O_RDWR | O_CLOEXEC | O_NOFOLLOW;

static_assert(std::atomic<uint32_t>::is_always_lock_free);

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Returns when the word is woken, is no longer `value`, or after a slice.
void futex_wait(std::atomic<uint32_t>& word, uint32_t value, long slice_ns = kSliceNs) {
  const timespec slice{0, slice_ns};
  syscall(SYS_futex, &word, FUTEX_WAIT, value, &slice, nullptr, 0);
}

void futex_wake(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// When a process began, in ticks since boot; 0 if there is none or it only waits to be reaped.
uint64_t start_of(int pid) {
  const std::string path = "/proc/" + std::to_string(pid) + "/stat";
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  char text[1024];
  const ssize_t size = read(file, text, sizeof text - 1);
  close(file);
  if (size <= 0) return 0;
  text[size] = 0;
  const char* at = std::strrchr(text, ')');  // the name before it may hold anything
  if (at == nullptr || at[1] == 0 || at[2] == 'Z' || at[2] == 'X') return 0;
  at += 2;
  for (int field = 3; field < 22; ++field) {  // the state is field 3
    at = std::strchr(at, ' ');
    if (at == nullptr) return 0;
    ++at;
  }
  return std::strtoull(at, nullptr, 10);
}

int num_cores() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

std::string described(const Descriptor& what) {
  std::string text = std::string("`") + kShmOps[what.op] + "` of " + kShmDtypes[what.dtype] + " [";
  for (uint32_t i = 0; i < what.num_dims; ++i)
    text += (i == 0 ? "" : ", ") + std::to_string(what.sizes[i]);
  text += "]";
  return what.num_tokens < 0 ? text : text + " to " + std::to_string(what.num_tokens) + " rows";
}

std::string seconds(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%g s", value);
  return text;
}

int64_t rounded_up(int64_t value, int64_t to) { return (value + to - 1) / to * to; }

}  // namespace

struct ShmSegment::Header {
  std::atomic<uint64_t> magic;  // written last
  uint32_t size;
  uint32_t descriptor_bytes;
  int64_t slot_bytes;
  std::atomic<uint32_t> broken;  // 1: a rank writes the reason; 2: it is there
  char reason[1024];
};

struct alignas(128) ShmSegment::Seat {
  std::atomic<uint32_t> posted;  // the last step that this rank came to
  std::atomic<uint32_t> waiters;
  std::atomic<uint32_t> is_taken;
  std::atomic<uint32_t> has_left;
  int32_t pid;
  uint64_t start;
  Descriptor what[2];
  int64_t message_bytes[2];
};

ShmSegment::ShmSegment(const ShmOptions& options) : options_(options) {
  if (options.size < 2 || options.size > kMostRanks || options.rank < 0 ||
      options.rank >= options.size)
    throw std::runtime_error(subject() + ": a segment takes 2 to " + std::to_string(kMostRanks) +
                             " ranks, counted from 0");
  if (options.name.rfind('/') != 0 || options.name.size() < 2)
    throw std::runtime_error(subject() + ": the segment is named `" + options.name +
                             "`; a name starts with its only slash");
  if (options.slot_bytes < kLeastSlotBytes || !(options.timeout_s > 0) ||
      !(options.open_timeout_s > 0))
    throw std::runtime_error(subject() + ": slots have at least " +
                             std::to_string(kLeastSlotBytes) +
                             " bytes, and timeouts are positive");
  options_.slot_bytes = rounded_up(options.slot_bytes, kPage);
  spins_ = num_cores() >= options.size ? kLongSpins : kShortSpins;
  num_bytes_ = rounded_up(sizeof(Header), kPage) +
               rounded_up(static_cast<int64_t>(sizeof(Seat)) * options.size, kPage) +
               2 * options_.slot_bytes * options.size;
  is_visible_ = std::make_unique<bool[]>(options.size);
  taken_ = std::make_unique<uint32_t[]>(options.size);
  try {
    options.rank == 0 ? create() : attach();
    take_seat();
    wait_for_seats();
  } catch (...) {
    if (has_made_) unlink(path().c_str());
    if (memory_ != nullptr) munmap(memory_, num_bytes_);
    throw;
  }
  if (has_made_) unlink(path().c_str());
}

ShmSegment::~ShmSegment() {
  Seat& mine = seat(options_.rank);
  if (mine.pid == getpid()) {  // a forked child has a copy of this object, but no part in the group
    mine.has_left.store(1);
    futex_wake(mine.posted);
  }
  munmap(memory_, num_bytes_);
}

void ShmSegment::begin(Descriptor& what) {
  what.sequence = ++sequence_;
  what.part = 0;
  check_whole(what);
}

char* ShmSegment::next_slot() const { return slot_at(options_.rank, step_ + 1); }

const char* ShmSegment::slot(int rank) const { return slot_at(rank, step_); }

void ShmSegment::exchange(Descriptor& what) {
  ++step_;
  post(what);
  for (int r = 0; r < options_.size; ++r)
    if (r != options_.rank) wait_for(r, what);
  for (int r = 0; r < options_.size; ++r)
    if (r != options_.rank) check_same(r, what);
  ++what.part;
}

void ShmSegment::post_message(const void* data, int64_t num_bytes) {
  check_unbroken();
  if (num_bytes < 0 || num_bytes > options_.slot_bytes)
    throw std::runtime_error(subject() + ": a message of " + std::to_string(num_bytes) +
                             " bytes does not fit in a slot of " +
                             std::to_string(options_.slot_bytes));
  if (num_bytes > 0) std::memcpy(next_slot(), data, num_bytes);
  ++step_;
  seat(options_.rank).message_bytes[step_ % 2] = num_bytes;
  announce_step();
}

bool ShmSegment::wait_for_messages(int first, int last, double timeout_s,
                                   const std::string& late) {
  if (first < 0 || first > last || last > options_.size)
    throw std::runtime_error(subject() + ": a wait for ranks " + std::to_string(first) +
                             " to before " + std::to_string(last));
  check_unbroken();
  const auto begin = Clock::now();
  for (int r = first; r < last; ++r) {
    for (int i = 0; i < kMessageSpins && !has_message(r); ++i) pause_briefly();
    while (!has_message(r)) {
      const double waited = std::chrono::duration<double>(Clock::now() - begin).count();
      const bool is_late = waited >= timeout_s;
      // Of all that are yet to come: the one waited for may itself wait for one that is gone.
      std::string failure = gone_before_message(r, last, waited * 1e9 > kSliceNs / 2);
      if (failure.empty() && is_late) failure = late_for_message(r, last, late);
      if (!failure.empty()) break_off(failure);
      check_unbroken();
      if (is_late) return false;
      wait_slice(r, timeout_s - waited);
    }
  }
  return true;
}

ShmSegment::Message ShmSegment::take_message(int rank) {
  const uint32_t number = ++taken_[rank];
  const int64_t num_bytes = seat(rank).message_bytes[number % 2];
  if (num_bytes < 0 || num_bytes > options_.slot_bytes)  // memory that others write to
    throw std::runtime_error(subject() + ": " + name_of(rank) + " sent a message of " +
                             std::to_string(num_bytes) + " bytes");
  return {slot_at(rank, number), num_bytes};
}

void ShmSegment::break_off(const std::string& reason) {
  uint32_t whole = 0;
  if (header().broken.compare_exchange_strong(whole, 1)) {
    std::snprintf(header().reason, sizeof header().reason, "%s (told by %s)", reason.c_str(),
                  name_of(options_.rank).c_str());
    header().broken.store(2, std::memory_order_release);
  }
  for (int r = 0; r < options_.size; ++r) futex_wake(seat(r).posted);
}

ShmSegment::Header& ShmSegment::header() const { return *reinterpret_cast<Header*>(memory_); }

ShmSegment::Seat& ShmSegment::seat(int rank) const {
  return reinterpret_cast<Seat*>(memory_ + rounded_up(sizeof(Header), kPage))[rank];
}

char* ShmSegment::slot_at(int rank, uint32_t step) const {
  const int64_t from_end = 2 * (options_.size - rank) - static_cast<int64_t>(step % 2);
  return memory_ + num_bytes_ - from_end * options_.slot_bytes;
}

void ShmSegment::map(int file) {
  void* memory = mmap(nullptr, num_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  const int error = errno;
  close(file);
  if (memory == MAP_FAILED)
    throw std::runtime_error(subject() + ": the segment cannot be mapped: " + strerror(error));
  memory_ = static_cast<char*>(memory);
}

void ShmSegment::create() {
  const int file = open(path().c_str(), kOpen | O_CREAT | O_EXCL, 0600);
  if (file < 0)
    throw std::runtime_error(subject() + ": the segment cannot be made: " + strerror(errno));
  has_made_ = true;
  // Memory that is missing must be an error now, not a bus error at some later write.
  const int error = posix_fallocate(file, 0, num_bytes_);
  if (error != 0) {
    close(file);
    throw std::runtime_error(subject() + ": shared memory has no " + std::to_string(num_bytes_) +
                             " bytes left (" + strerror(error) + "); give /dev/shm more");
  }
  map(file);
  Header& head = *new (memory_) Header{};
  for (int r = 0; r < options_.size; ++r) new (&seat(r)) Seat{};
  head.size = options_.size;
  head.descriptor_bytes = sizeof(Descriptor);
  head.slot_bytes = options_.slot_bytes;
  head.magic.store(kMagic, std::memory_order_release);
}

void ShmSegment::attach() {
  const auto deadline = Clock::now() + std::chrono::duration<double>(options_.open_timeout_s);
  const auto wait = [&](const char* reason) {
    if (Clock::now() > deadline)
      throw std::runtime_error(subject() + ": " + reason + " within " +
                               seconds(options_.open_timeout_s));
    const timespec moment{0, 1'000'000};
    nanosleep(&moment, nullptr);
  };
  int file = -1;
  while ((file = open(path().c_str(), kOpen)) < 0) {
    if (errno != ENOENT)
      throw std::runtime_error(subject() + ": the segment cannot be opened: " + strerror(errno));
    wait("rank 0 did not make the segment");
  }
  struct stat facts {};
  while (fstat(file, &facts) == 0 && facts.st_size == 0) {
    try {
      wait("rank 0 did not fill the segment");
    } catch (...) {
      close(file);
      throw;
    }
  }
  if (facts.st_uid != geteuid() || (facts.st_mode & 0777) != 0600 || facts.st_size != num_bytes_) {
    close(file);
    throw std::runtime_error(subject() + ": the segment is another user's, or was made with other "
                                         "numbers of ranks or bytes; all ranks must have the same");
  }
  map(file);
  while (header().magic.load(std::memory_order_acquire) != kMagic)
    wait("rank 0 did not fill the segment");
  if (header().size != static_cast<uint32_t>(options_.size) ||
      header().slot_bytes != options_.slot_bytes ||
      header().descriptor_bytes != sizeof(Descriptor))
    throw std::runtime_error(subject() + ": rank 0 made the segment for " +
                             std::to_string(header().size) + " ranks with slots of " +
                             std::to_string(header().slot_bytes) + " bytes");
}

void ShmSegment::take_seat() {
  Seat& mine = seat(options_.rank);
  uint32_t free = 0;
  if (!mine.is_taken.compare_exchange_strong(free, 1))
    throw std::runtime_error(subject() + ": another process has this rank's place");
  mine.pid = getpid();
  mine.start = start_of(mine.pid);
  mine.is_taken.store(2, std::memory_order_release);
}

void ShmSegment::wait_for_seats() {
  const auto deadline = Clock::now() + std::chrono::duration<double>(options_.open_timeout_s);
  for (int r = 0; r < options_.size; ++r) {
    while (seat(r).is_taken.load(std::memory_order_acquire) != 2) {
      if (Clock::now() > deadline)
        throw std::runtime_error(subject() + ": " + name_of(r) +
                                 " did not open the segment within " +
                                 seconds(options_.open_timeout_s));
      const timespec moment{0, 1'000'000};
      nanosleep(&moment, nullptr);
    }
    is_visible_[r] = seat(r).start != 0 && start_of(seat(r).pid) == seat(r).start;
  }
}

void ShmSegment::post(const Descriptor& what) {
  Seat& mine = seat(options_.rank);
  mine.what[step_ % 2] = what;
  announce_step();
}

void ShmSegment::announce_step() {
  Seat& mine = seat(options_.rank);
  // Sequentially consistent, as the waiter's count and second look are: one of the two sees.
  mine.posted.store(step_);
  if (mine.waiters.load() != 0) futex_wake(mine.posted);
}

void ShmSegment::wait_for(int rank, const Descriptor& what) {
  std::atomic<uint32_t>& posted = seat(rank).posted;
  const auto has_come = [&](uint32_t step) { return static_cast<int32_t>(step - step_) >= 0; };
  for (int i = 0; i < spins_; ++i) {
    if (has_come(posted.load(std::memory_order_acquire))) return;
    pause_briefly();
  }
  const auto begin = Clock::now();
  const auto deadline = begin + std::chrono::duration<double>(options_.timeout_s);
  std::atomic<uint32_t>& waiters = seat(rank).waiters;
  const std::string name = "rank " + std::to_string(rank);
  for (;;) {
    check_whole(what);
    const bool has_left = seat(rank).has_left.load() != 0;
    const auto now = Clock::now();
    const bool is_gone = has_left || (now - begin > std::chrono::nanoseconds(kSliceNs) / 2 &&
                                      has_died(rank));
    const uint32_t step = posted.load();  // after the looks: what it posted before it went counts
    if (has_come(step)) return;
    if (is_gone) fail(what, name + (has_left ? " has left the group" : " has died"));
    if (now > deadline) fail(what, name + " did not come within " + seconds(options_.timeout_s));
    waiters.fetch_add(1);
    futex_wait(posted, step);
    waiters.fetch_sub(1);
  }
}

void ShmSegment::check_same(int rank, const Descriptor& what) {
  const Descriptor& theirs = seat(rank).what[step_ % 2];
  if (std::memcmp(&theirs, &what, sizeof what) == 0) return;
  fail(what, "rank " + std::to_string(rank) + " came with " + described(theirs) + " as its #" +
                 std::to_string(theirs.sequence) + ", rank " + std::to_string(options_.rank) +
                 " with " + described(what));
}

void ShmSegment::check_whole(const Descriptor& what) const {
  const std::string reason = broken_reason();
  if (reason.empty()) return;
  throw std::runtime_error("#" + std::to_string(what.sequence) + ": the group is broken since " +
                           reason);
}

void ShmSegment::check_unbroken() const {
  const std::string reason = broken_reason();
  if (!reason.empty()) throw std::runtime_error("the channel is broken: " + reason);
}

std::string ShmSegment::broken_reason() const {
  const std::atomic<uint32_t>& broken = header().broken;
  if (broken.load(std::memory_order_acquire) == 0) return "";
  for (int i = 0; i < 1000 && broken.load(std::memory_order_acquire) == 1; ++i) sched_yield();
  return broken.load(std::memory_order_acquire) == 2 ? header().reason
                                                     : "a failure of which no more is known";
}

bool ShmSegment::has_message(int rank) const {
  return seat(rank).posted.load(std::memory_order_acquire) != taken_[rank];
}

std::string ShmSegment::gone_before_message(int first, int last, bool looks_for_deaths) const {
  for (int r = first; r < last; ++r) {
    const bool has_left = seat(r).has_left.load() != 0;
    const bool is_gone = has_left || (looks_for_deaths && has_died(r));
    if (is_gone && !has_message(r))  // after the looks: what it posted before it went counts
      return name_of(r) + (has_left ? " has left" : " has died");
  }
  return "";
}

std::string ShmSegment::late_for_message(int first, int last, const std::string& late) const {
  if (late.empty()) return "";
  std::string names;
  for (int r = first; r < last; ++r)
    if (!has_message(r)) names += (names.empty() ? "" : " and ") + name_of(r);
  return names.empty() ? "" : names + " " + late;
}

void ShmSegment::wait_slice(int rank, double left_s) {
  Seat& theirs = seat(rank);
  const double left_ns = left_s * 1e9;
  theirs.waiters.fetch_add(1);
  futex_wait(theirs.posted, taken_[rank],
             left_ns < kSliceNs ? std::max(1L, static_cast<long>(left_ns)) : kSliceNs);
  theirs.waiters.fetch_sub(1);
}

bool ShmSegment::has_died(int rank) const {
  return is_visible_[rank] && start_of(seat(rank).pid) != seat(rank).start;
}

void ShmSegment::fail(const Descriptor& what, const std::string& reason) {
  const std::string message = "#" + std::to_string(what.sequence) + ": " + reason;
  uint32_t whole = 0;
  if (header().broken.compare_exchange_strong(whole, 1)) {
    std::snprintf(header().reason, sizeof header().reason, "`%s` %s (told by rank %d)",
                  kShmOps[what.op], message.c_str(), options_.rank);
    header().broken.store(2, std::memory_order_release);
  }
  for (int r = 0; r < options_.size; ++r) futex_wake(seat(r).posted);
  throw std::runtime_error(message);
}

// What shm_open would open; it stands in a library of its own before glibc 2.34.
std::string ShmSegment::path() const { return "/dev/shm" + options_.name; }

std::string ShmSegment::subject() const {
  if (options_.has_engine)
    return "the channel of the engine and " + std::to_string(options_.size - 1) + " ranks, " +
           name_of(options_.rank);
  return "`shm` over axis `" + options_.axis + "`, rank " + std::to_string(options_.rank) + " of " +
         std::to_string(options_.size);
}

std::string ShmSegment::name_of(int rank) const {
  const bool is_engine = options_.has_engine && rank == options_.size - 1;
  return is_engine ? "the engine" : "rank " + std::to_string(rank);
}

}  // namespace ir_kernels

#else

#include <stdexcept>

namespace ir_kernels {

struct ShmSegment::Header {};
struct ShmSegment::Seat {};

ShmSegment::ShmSegment(const ShmOptions& options) : options_(options) {
  throw std::runtime_error("shm needs Linux");
}
ShmSegment::~ShmSegment() = default;
void ShmSegment::begin(Descriptor&) {}
char* ShmSegment::next_slot() const { return nullptr; }
void ShmSegment::exchange(Descriptor&) {}
const char* ShmSegment::slot(int) const { return nullptr; }
void ShmSegment::post_message(const void*, int64_t) {}
bool ShmSegment::wait_for_messages(int, int, double, const std::string&) { return false; }
ShmSegment::Message ShmSegment::take_message(int) { return {nullptr, 0}; }
void ShmSegment::break_off(const std::string&) {}

}  // namespace ir_kernels

#endif
