// How the binding shares the rows of a kernel out among threads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "team.h"

namespace ir_kernels {

// Runs a kernel on all rows; a thread's share has at least `grain` elements, but whole rows.
template <class Args>
void share_rows(void (*kernel)(const Args&, int64_t, int64_t), const Args& args, int64_t rows,
                int64_t row_size, int64_t grain) {
  const int64_t rows_per_task = std::max<int64_t>(1, grain / std::max<int64_t>(1, row_size));
  if (rows <= rows_per_task) return kernel(args, 0, rows);
  parallel(0, rows, rows_per_task, [&](int64_t begin, int64_t end) {
    kernel(args, begin, end);
  });
}

}  // namespace ir_kernels
