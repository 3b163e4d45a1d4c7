#include "shm_sum.h"

#include <cstring>

#include "isa_select.h"

// The build defines IR_BUILT_<isa> for each ISA that its compiler knows.
namespace ir_kernels {

SumParts* sum_parts() {
  [[maybe_unused]] const char* isa = kernels().isa;
#if defined(__x86_64__)
#if defined(IR_BUILT_avx512)
  if (std::strncmp(isa, "avx512", 6) == 0 || std::strcmp(isa, "amx") == 0) return sum_parts_avx512;
#endif
#if defined(IR_BUILT_avx2)
  if (std::strcmp(isa, "portable") != 0) return sum_parts_avx2;
#endif
#endif
  return sum_parts_portable;
}

}  // namespace ir_kernels
