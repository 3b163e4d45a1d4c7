// The kernels for the compiler's baseline: SSE2 on x86-64, NEON on aarch64.
#define IR_LANES 4
#define IR_ISA portable
#include "kernels.inc"
