// The kernels for AVX2 with F16C.
#define IR_LANES 8
#define IR_ISA avx2
#include "kernels.inc"
