// What the kernels use of CUDA, on a CPU: threads of a block are fibers that run in turn, each
// until it waits for others, so that every run is the same. Blocks run one after the other.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#define __device__
#define __global__
#define __shared__ static
#define __launch_bounds__(...)

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};
struct alignas(8) uint2 {
  uint32_t x, y;
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};

using cudaStream_t = void*;
enum cudaError_t { cudaSuccess, cudaErrorInvalidConfiguration };
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes = 0;
  cudaStream_t stream = nullptr;
};

inline dim3 gridDim, blockDim, blockIdx, threadIdx;

namespace emulation {

constexpr unsigned kWarp = 32;
constexpr unsigned kMaxThreads = 1024;
constexpr size_t kStackBytes = 64 << 10;

// Opens once all its members wait.
struct Barrier {
  unsigned waiting = 0;
  unsigned generation = 0;
};

// Begins in its context, and goes on by jumps: those ask nothing of the system.
struct Fiber {
  ucontext_t context;
  jmp_buf resumed;
  std::unique_ptr<char[]> stack{new char[kStackBytes]};
  bool has_begun = false;
  bool has_ended = false;
  uint64_t shuffled = 0;
};

class Block {
 public:
  static Block& current() {
    static Block block;
    return block;
  }

  void run(unsigned threads, const std::function<void()>& body) {
    body_ = &body;
    while (fibers_.size() < threads) fibers_.push_back(std::make_unique<Fiber>());
    whole_ = {};
    warps_.assign((threads + kWarp - 1) / kWarp, {});
    for (unsigned t = 0; t < threads; ++t) prepare(*fibers_[t]);
    for (unsigned live = threads; live > 0;) {
      has_progress_ = false;
      for (unsigned t = 0; t < threads; ++t) {
        if (fibers_[t]->has_ended) continue;
        threadIdx.x = t;
        resume(*fibers_[t]);
        if (fibers_[t]->has_ended) --live, has_progress_ = true;
      }
      if (!has_progress_) fail("threads wait for others that never come");
    }
  }

  void wait_for_block() { wait(whole_, blockDim.x); }
  void wait_for_warp() { wait(warps_[threadIdx.x / kWarp], kWarp); }
  uint64_t& shuffled(unsigned thread) { return fibers_[thread]->shuffled; }

  [[noreturn]] static void fail(const char* words) {
    std::fprintf(stderr, "emulated kernel: %s\n", words);
    std::abort();
  }

 private:
  static void enter() {
    Block& block = current();
    (*block.body_)();
    Fiber& self = *block.fibers_[threadIdx.x];
    self.has_ended = true;
    _longjmp(block.scheduler_, 1);
  }

  static void prepare(Fiber& fiber) {
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = kStackBytes;
    fiber.context.uc_link = nullptr;
    fiber.has_begun = fiber.has_ended = false;
    makecontext(&fiber.context, &Block::enter, 0);
  }

  // Until it ends or waits for others.
  __attribute__((noinline)) void resume(Fiber& fiber) {
    if (_setjmp(scheduler_) != 0) return;
    if (fiber.has_begun) _longjmp(fiber.resumed, 1);
    fiber.has_begun = true;
    setcontext(&fiber.context);
  }

  __attribute__((noinline)) void yield(Fiber& fiber) {
    if (_setjmp(fiber.resumed) == 0) _longjmp(scheduler_, 1);
  }

  void wait(Barrier& barrier, unsigned members) {
    const unsigned generation = barrier.generation;
    has_progress_ = true;
    if (++barrier.waiting == members) {
      barrier.waiting = 0;
      ++barrier.generation;
    }
    Fiber& self = *fibers_[threadIdx.x];
    while (barrier.generation == generation) yield(self);
  }

  const std::function<void()>* body_ = nullptr;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Barrier> warps_;
  Barrier whole_;
  jmp_buf scheduler_;
  bool has_progress_ = false;
};

inline void run_grid(const cudaLaunchConfig_t& config, const std::function<void()>& body) {
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  gridDim = config.gridDim;
  blockDim = config.blockDim;
  for (blockIdx = {0, 0, 0}; blockIdx.x < gridDim.x; ++blockIdx.x)
    Block::current().run(blockDim.x, body);
}

}  // namespace emulation

template <class... Params, class... Given>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Params...),
                               Given&&... given) {
  const unsigned threads = config->blockDim.x;
  if (config->gridDim.x == 0 || threads == 0 || threads > emulation::kMaxThreads)
    return cudaErrorInvalidConfiguration;
  if (threads % emulation::kWarp != 0) emulation::Block::fail("the last warp is not whole");
  emulation::run_grid(*config, [&] { kernel(given...); });
  return cudaSuccess;
}

inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaSuccess ? "no error" : "invalid configuration argument";
}

inline void __syncthreads() { emulation::Block::current().wait_for_block(); }
[[noreturn]] inline void __trap() { emulation::Block::fail("a thread trapped"); }

template <class V>
V __shfl_xor_sync(unsigned, V value, int lanes) {
  static_assert(sizeof(V) <= sizeof(uint64_t));
  emulation::Block& block = emulation::Block::current();
  const unsigned self = threadIdx.x;
  std::memcpy(&block.shuffled(self), &value, sizeof value);
  block.wait_for_warp();
  V other;
  std::memcpy(&other, &block.shuffled(self ^ static_cast<unsigned>(lanes)), sizeof other);
  block.wait_for_warp();
  return other;
}

inline unsigned __float_as_uint(float x) {
  unsigned bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}
inline float __uint_as_float(unsigned bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}
inline int __float2int_rn(float x) { return static_cast<int>(std::nearbyint(x)); }
