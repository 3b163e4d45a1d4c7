// The sum over ranks for the compiler's baseline.
#define IR_LANES 4
#define IR_SUM_PARTS sum_parts_portable
#include "shm_sum.inc"
