#include "isa_select.h"

#include <atomic>
#include <vector>

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

// The build defines IR_BUILT_<isa> for each ISA that its compiler knows.
namespace ir_kernels {
namespace {

#if defined(__x86_64__)

struct Cpuid {
  unsigned eax, ebx, ecx, edx;
};

// All zeros where the CPU has no such leaf.
[[maybe_unused]] Cpuid cpuid(unsigned leaf, unsigned subleaf) {
  Cpuid is{};
  __get_cpuid_count(leaf, subleaf, &is.eax, &is.ebx, &is.ecx, &is.edx);
  return is;
}

[[maybe_unused]] bool runs_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c");
}

[[maybe_unused]] bool runs_avx512() {
  return runs_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

[[maybe_unused]] bool runs_avx512_bf16() {
  return runs_avx512() && __builtin_cpu_supports("avx512vnni") &&
         (cpuid(7, 1).eax >> 5 & 1) != 0;
}

// A process must ask Linux for the state that tiles need; kernels before 5.16 and some sandboxes
// refuse, and other systems have no such request. Granted once, it holds for every thread.
[[maybe_unused]] bool may_use_tiles() {
#if defined(__linux__) && defined(SYS_arch_prctl)
  constexpr long kRequestPermission = 0x1023;
  constexpr long kTileData = 18;
  static const bool granted = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return granted;
#else
  return false;
#endif
}

[[maybe_unused]] bool runs_amx() {
  const unsigned features = cpuid(7, 0).edx;
  const bool bf16 = (features >> 22 & 1) != 0;
  const bool tile = (features >> 24 & 1) != 0;
  return runs_avx512_bf16() && bf16 && tile && may_use_tiles();
}

#endif

std::vector<const KernelTable*> runnable_tables() {
  std::vector<const KernelTable*> tables;
#if defined(__x86_64__)
  __builtin_cpu_init();
#if defined(IR_BUILT_amx)
  if (runs_amx()) tables.push_back(&amx_kernels);
#endif
#if defined(IR_BUILT_avx512_bf16)
  if (runs_avx512_bf16()) tables.push_back(&avx512_bf16_kernels);
#endif
#if defined(IR_BUILT_avx512)
  if (runs_avx512()) tables.push_back(&avx512_kernels);
#endif
#if defined(IR_BUILT_avx2)
  if (runs_avx2()) tables.push_back(&avx2_kernels);
#endif
#endif
  tables.push_back(&portable_kernels);
  return tables;
}

std::atomic<const KernelTable*>& active() {
  static std::atomic<const KernelTable*> table{runnable_tables().front()};
  return table;
}

}  // namespace

const KernelTable& kernels() { return *active().load(std::memory_order_relaxed); }

std::string runnable_isas() {
  std::string names;
  for (const KernelTable* table : runnable_tables())
    names += (names.empty() ? "" : ",") + std::string(table->isa);
  return names;
}

bool select_isa(const std::string& name) {
  for (const KernelTable* table : runnable_tables()) {
    if (name != table->isa) continue;
    active().store(table, std::memory_order_relaxed);
    return true;
  }
  return false;
}

}  // namespace ir_kernels
