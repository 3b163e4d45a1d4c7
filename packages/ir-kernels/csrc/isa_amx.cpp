// The kernels for AVX-512 with bfloat16 dot products and AMX tiles, which only matrix products use.
#define IR_LANES 16
#define IR_ISA amx
#include "kernels.inc"
