// The kernels for AVX-512 F, BW, DQ and VL. AVX512-BF16 is not used: its conversion flushes
// denormals to zero, so results would depend on the machine.
#define IR_LANES 16
#define IR_ISA avx512
#include "kernels.inc"
