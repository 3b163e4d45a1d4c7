// Sums over ranks: element by element, in order of parts, in float32, rounded once.
#pragma once

#include <stdint.h>

#include "kernels.h"

namespace ir_kernels {

// out[i] = parts[0][i] + parts[1][i] + …; `out` overlaps no part.
using SumParts = void(Dtype dtype, void* out, const void* const* parts, int num_parts,
                      int64_t count);

extern SumParts sum_parts_portable;
#if defined(__x86_64__)
extern SumParts sum_parts_avx2;
extern SumParts sum_parts_avx512;
#endif

// That of the ISA whose kernels run. All give the same bits.
SumParts* sum_parts();

}  // namespace ir_kernels
