// The kernels for AVX-512 with its bfloat16 dot product, which only matrix products use: they
// promise no bits. Elementwise kernels are those of plain AVX-512.
#define IR_LANES 16
#define IR_ISA avx512_bf16
#include "kernels.inc"
