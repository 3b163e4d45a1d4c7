// float8_e4m3fn and the conversion to it.
#pragma once

#include "cuda_runtime.h"

enum __nv_saturation_t { __NV_NOSAT, __NV_SATFINITE };
enum __nv_fp8_interpretation_t { __NV_E4M3, __NV_E5M2 };

inline uint8_t __nv_cvt_float_to_fp8(float x, __nv_saturation_t saturation,
                                     __nv_fp8_interpretation_t interpretation) {
  if (saturation != __NV_SATFINITE || interpretation != __NV_E4M3)
    emulation::Block::fail("a conversion to fp8 that is not emulated");
  const int sign = std::signbit(x) ? 0x80 : 0;
  if (std::isnan(x)) return 0x7f;
  const double magnitude = std::fmin(std::fabs(x), 448.0f);
  if (magnitude < 0x1p-6) return sign | static_cast<int>(std::nearbyint(magnitude * 0x1p9));
  const int exponent = std::ilogb(magnitude);
  const int eighths = static_cast<int>(std::nearbyint(std::ldexp(magnitude, 3 - exponent)));
  return sign | (((exponent + 7) << 3) + eighths - 8);
}
