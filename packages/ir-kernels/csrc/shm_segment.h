// A shared-memory segment through which the ranks of one machine exchange slots of bytes, in step.
//
// A step: a rank fills its slot, posts the number of the step with a descriptor of what it takes
// part in, and waits until all have posted. Slots alternate: whoever has posted step n has read all
// of step n - 1, so when all have, the slots of step n - 1 are free for step n + 1.
//
// A segment serves either steps or messages, which wait for nobody. Of those each rank has a row of
// its own, in the same two slots: message n + 2 may be posted once all readers have message n. An
// engine that posts, is answered by every rank, and takes all answers before it posts again makes
// sure of that on both sides, and even message n + 1 then meets no reader of message n.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace ir_kernels {

constexpr int kMostDims = 8;
constexpr int kMostRanks = 64;

// What ranks must agree on, without padding: it is compared as bytes.
struct Descriptor {
  uint64_t sequence;  // of the collective in its group
  uint32_t part;      // of the collective
  uint32_t op;        // index of a name in kShmOps
  uint32_t dtype;     // index of a name in kShmDtypes
  uint32_t num_dims;
  int64_t num_tokens;  // -1 for ops without
  int64_t sizes[kMostDims];
};

constexpr const char* kShmOps[] = {"all_reduce", "reduce_scatter", "all_gather",
                                  "all_reduce_add_rms_norm"};
// Those of Dtype, then what is carried but never added up.
constexpr const char* kShmDtypes[] = {"float32", "bfloat16", "float16", "int8", "float8_e4m3fn"};

struct ShmOptions {
  std::string name;  // of the segment, as for shm_open; random, from the launcher
  std::string axis;  // for messages
  int rank;
  int size;
  int64_t slot_bytes;
  double open_timeout_s;  // until all ranks are there
  double timeout_s;       // of a step
  bool has_engine = false;  // the last rank is none, but the engine that gives the others orders
};

class ShmSegment {
 public:
  // Rank 0 makes the segment, with mode 0600; all wait for each other, then its name is removed.
  // Throws std::runtime_error where it cannot be, or a rank does not come; names axis and rank.
  explicit ShmSegment(const ShmOptions& options);
  ~ShmSegment();
  ShmSegment(const ShmSegment&) = delete;
  ShmSegment& operator=(const ShmSegment&) = delete;

  int rank() const { return options_.rank; }
  int size() const { return options_.size; }
  int64_t slot_bytes() const { return options_.slot_bytes; }

  // Starts a collective; `what` gets its number.
  void begin(Descriptor& what);

  // Where this rank's bytes of the next step go.
  char* next_slot() const;

  // Makes the step; afterwards `slot(r)` holds rank r's bytes until the step after the next.
  // Throws std::runtime_error if a rank does not come or brings something else, with the number of
  // the collective; the group is then broken for all ranks, and every later call throws.
  void exchange(Descriptor& what);

  const char* slot(int rank) const;

  // A message, where it lies until its sender posts the one after the next.
  struct Message {
    const char* data;
    int64_t num_bytes;
  };

  // Posts a message of at most `slot_bytes()`, and waits for nobody.
  // Throws std::runtime_error, as the other calls about messages do, if the segment is broken.
  void post_message(const void* data, int64_t num_bytes);

  // Waits until each rank from `first` to before `last` has a message that was not taken; the
  // timeout may be infinite. Breaks the segment and throws if one has died or left without. At the
  // timeout it does the same to those that `late` is then said of, and returns false if that is "".
  bool wait_for_messages(int first, int last, double timeout_s, const std::string& late);

  // The message that was waited for.
  Message take_message(int rank);

  // Breaks the segment for all ranks, from any thread; what waits for messages throws `reason`. The
  // first reason stays.
  void break_off(const std::string& reason);

 private:
  struct Header;
  struct Seat;

  Header& header() const;
  Seat& seat(int rank) const;
  char* slot_at(int rank, uint32_t step) const;
  void map(int file);
  void create();
  void attach();
  void take_seat();
  void wait_for_seats();
  void post(const Descriptor& what);
  void announce_step();
  void wait_for(int rank, const Descriptor& what);
  void check_same(int rank, const Descriptor& what);
  void check_whole(const Descriptor& what) const;
  void check_unbroken() const;
  std::string broken_reason() const;
  bool has_message(int rank) const;
  std::string gone_before_message(int first, int last, bool looks_for_deaths) const;
  std::string late_for_message(int first, int last, const std::string& late) const;
  void wait_slice(int rank, double left_s);
  bool has_died(int rank) const;
  [[noreturn]] void fail(const Descriptor& what, const std::string& reason);
  std::string path() const;
  std::string subject() const;
  std::string name_of(int rank) const;

  ShmOptions options_;
  char* memory_ = nullptr;
  int64_t num_bytes_ = 0;
  bool has_made_ = false;  // whether the name is this rank's to remove
  uint64_t sequence_ = 0;
  uint32_t step_ = 0;
  int spins_ = 0;
  std::unique_ptr<uint32_t[]> taken_;   // the last message taken of each rank
  std::unique_ptr<bool[]> is_visible_;  // whether /proc shows a rank's process here
};

}  // namespace ir_kernels
