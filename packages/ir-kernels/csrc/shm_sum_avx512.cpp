// The sum over ranks for AVX-512.
#define IR_LANES 16
#define IR_SUM_PARTS sum_parts_avx512
#include "shm_sum.inc"
