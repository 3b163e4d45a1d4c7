// The sum over ranks for AVX2 with F16C.
#define IR_LANES 8
#define IR_SUM_PARTS sum_parts_avx2
#include "shm_sum.inc"
