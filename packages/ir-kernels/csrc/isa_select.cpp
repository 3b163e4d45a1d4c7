#include "isa_select.h"

#include <atomic>
#include <vector>

namespace ir_kernels {
namespace {

std::vector<const KernelTable*> runnable_tables() {
  std::vector<const KernelTable*> tables;
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("f16c");
  if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    tables.push_back(&avx512_kernels);
  if (avx2) tables.push_back(&avx2_kernels);
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
