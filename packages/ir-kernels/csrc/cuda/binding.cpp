// The torch ops of namespace `ir_kernels_c` on CUDA devices. Those that the CPU has too its library
// declares, and this one adds their implementation; the others are declared here. This file checks
// arguments and starts kernels; what is computed stands in the .cu files.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <tuple>

#include "../device.h"
#include "../norm_args.h"
#include "../tensor_rows.h"
#include "launch.h"
#include "on_device.h"

// Tests run the same binding and kernels on the CPU, under another name.
#ifndef IR_LIBRARY
#define IR_LIBRARY ir_kernels_c
#define IR_DISPATCH_KEY CUDA
#endif

namespace ir_kernels::cuda {
namespace {

using torch::headeronly::ScalarType;

int64_t last_size(const Tensor& tensor) { return tensor.size(tensor.dim() - 1); }

Tensor dense(const Tensor& x) { return x.is_contiguous() ? x : torch::stable::contiguous(x); }

std::optional<Tensor> dense(const std::optional<Tensor>& x) {
  return x ? std::optional<Tensor>(dense(*x)) : std::nullopt;
}

Tensor with_rows(const Tensor& x) { return has_rows(x) ? x : torch::stable::contiguous(x); }

// Calls body with x itself, or with a contiguous copy that is copied back afterwards.
template <class Body>
void with_writable_rows(const Tensor& x, const char* name, Body body) {
  if (has_writable_rows(x)) return body(x);
  STD_TORCH_CHECK(!is_expanded(x), "`", name, "` is expanded, so it cannot be written: clone it");
  const Tensor copy = torch::stable::contiguous(x);
  body(copy);
  Tensor target = x;
  torch::stable::copy_(target, copy);
}

void check_same_device(const Tensor& x, const Tensor& other, const char* name) {
  check_device(other, name);
  STD_TORCH_CHECK(other.get_device_index() == x.get_device_index(), "`", name,
                  "` must be on device ", x.get_device_index(), ", not ", other.get_device_index());
}

void check_started(const char* failure, const char* op) {
  STD_TORCH_CHECK(failure == nullptr, "`", op, "` could not be started: ", failure);
}

NormArgs norm_args_of(const Tensor& x, const std::optional<Tensor>& weight, double epsilon,
                      std::optional<int64_t> variance_size) {
  const NormArgs args = norm_args(x, weight, epsilon, variance_size);
  if (weight) check_same_device(x, *weight, "weight");
  return args;
}

Tensor rms_norm(const Tensor& x, const std::optional<Tensor>& weight, double epsilon,
                std::optional<int64_t> variance_size) {
  const std::optional<Tensor> dense_weight = dense(weight);
  NormArgs args = norm_args_of(x, dense_weight, epsilon, variance_size);
  const OnDevice on(x);
  const Tensor source = with_rows(x);
  Tensor out = empty_rows(x, args.hidden);
  args.x = rows_of(source);
  args.out = {out.data_ptr(), 1, args.hidden, 0};
  check_started(launch_rms_norm(args, num_rows(x), on.stream()), "rms_norm");
  return out;
}

void fused_add_rms_norm(const Tensor& x, const Tensor& residual,
                        const std::optional<Tensor>& weight, double epsilon,
                        std::optional<int64_t> variance_size) {
  const std::optional<Tensor> dense_weight = dense(weight);
  NormArgs args = norm_args_of(x, dense_weight, epsilon, variance_size);
  check_same_device(x, residual, "residual");
  STD_TORCH_CHECK(checked_dtype(residual, "residual") == args.dtype && has_same_shape(x, residual),
                  "`x` and `residual` must have the same dtype and shape");
  const OnDevice on(x);
  with_writable_rows(x, "x", [&](const Tensor& x_rows) {
    with_writable_rows(residual, "residual", [&](const Tensor& residual_rows) {
      args.x = rows_of(x_rows);
      args.residual = rows_of(residual_rows);
      check_started(launch_fused_add_rms_norm(args, num_rows(x), on.stream()),
                    "fused_add_rms_norm");
    });
  });
}

Tensor silu_and_mul(const Tensor& x) {
  SiluArgs args{};
  args.dtype = checked_dtype(x, "x");
  STD_TORCH_CHECK(last_size(x) % 2 == 0, "the last dimension of `x` must be even, not ",
                  last_size(x));
  args.size = last_size(x) / 2;
  const OnDevice on(x);
  const Tensor source = with_rows(x);
  Tensor out = empty_rows(x, args.size);
  args.x = rows_of(source);
  args.out = {out.data_ptr(), 1, args.size, 0};
  check_started(launch_silu_and_mul(args, num_rows(x), on.stream()), "silu_and_mul");
  return out;
}

void check_has_elements(const Tensor& x) {
  STD_TORCH_CHECK(last_size(x) > 0, "rows of `x` have no elements, so no scale");
}

std::tuple<Tensor, Tensor> quantize_int8_per_token(const Tensor& x) {
  QuantizeArgs args{};
  args.dtype = checked_dtype(x, "x");
  args.size = last_size(x);
  check_has_elements(x);
  const OnDevice on(x);
  const Tensor source = with_rows(x);
  Tensor q = empty_rows(x, args.size, aoti_torch_dtype_int8());
  Tensor scale = empty_rows(x, 1, aoti_torch_dtype_float32());
  args.x = rows_of(source);
  args.to = {static_cast<int8_t*>(q.data_ptr()), static_cast<float*>(scale.data_ptr()), nullptr};
  check_started(launch_quantize_int8(args, num_rows(x), on.stream()), "quantize_int8_per_token");
  return {q, scale};
}

// All but the scales; q is new.
Fp8Args fp8_args(const Tensor& x, const Tensor& source, const Tensor& q) {
  Fp8Args args{};
  args.dtype = checked_dtype(x, "x");
  args.size = last_size(x);
  args.x = rows_of(source);
  args.q = static_cast<uint8_t*>(q.data_ptr());
  return args;
}

Tensor quantize_fp8_static(const Tensor& x, const Tensor& scale) {
  checked_dtype(x, "x");
  check_same_device(x, scale, "scale");
  STD_TORCH_CHECK(scale.scalar_type() == ScalarType::Float && scale.numel() == 1,
                  "`scale` must be one float32");
  const OnDevice on(x);
  const Tensor source = with_rows(x);
  Tensor q = empty_rows(x, last_size(x), aoti_torch_dtype_float8_e4m3fn());
  Fp8Args args = fp8_args(x, source, q);
  args.given_scale = static_cast<const float*>(scale.data_ptr());
  check_started(launch_quantize_fp8(args, num_rows(x), on.stream()), "quantize_fp8_static");
  return q;
}

std::tuple<Tensor, Tensor> quantize_fp8_per_token(const Tensor& x) {
  checked_dtype(x, "x");
  check_has_elements(x);
  const OnDevice on(x);
  const Tensor source = with_rows(x);
  Tensor q = empty_rows(x, last_size(x), aoti_torch_dtype_float8_e4m3fn());
  Tensor scale = empty_rows(x, 1, aoti_torch_dtype_float32());
  Fp8Args args = fp8_args(x, source, q);
  args.scale = static_cast<float*>(scale.data_ptr());
  check_started(launch_quantize_fp8(args, num_rows(x), on.stream()), "quantize_fp8_per_token");
  return {q, scale};
}

// [T, heads, head size], dense within a head: itself or a copy.
Tensor with_heads(const Tensor& x, const char* name, const Tensor& cache) {
  check_same_device(cache, x, name);
  STD_TORCH_CHECK(x.dim() == 3 && x.size(1) == cache.size(2) && x.size(2) == cache.size(4), "`",
                  name, "` must be [T, ", cache.size(2), ", ", cache.size(4), "]");
  return with_rows(x);
}

Heads heads_of(const Tensor& x) { return {x.data_ptr(), x.size(1), x.stride(0), x.stride(1)}; }

void write_kv_cache(const Tensor& key, const Tensor& value, const Tensor& kv_cache,
                    const Tensor& slot_mapping) {
  CacheWriteArgs args{};
  args.cache_dtype = checked_dtype(kv_cache, "kv_cache");
  STD_TORCH_CHECK(kv_cache.dim() == 5 && kv_cache.size(1) == 2 &&
                      (kv_cache.stride(4) == 1 || kv_cache.size(4) <= 1) && !is_expanded(kv_cache),
                  "`kv_cache` must be [blocks, 2, heads, block size, head size], heads dense");
  args.dtype = checked_dtype(key, "key");
  STD_TORCH_CHECK(checked_dtype(value, "value") == args.dtype,
                  "`key` and `value` must have the same dtype");
  const Tensor key_heads = with_heads(key, "key", kv_cache);
  const Tensor value_heads = with_heads(value, "value", kv_cache);
  check_same_device(kv_cache, slot_mapping, "slot_mapping");
  STD_TORCH_CHECK(slot_mapping.scalar_type() == ScalarType::Long && slot_mapping.dim() == 1 &&
                      slot_mapping.size(0) == key.size(0) && value.size(0) == key.size(0),
                  "`slot_mapping` must be int64, one for each of ", key.size(0),
                  " keys and values");
  const OnDevice on(kv_cache);
  const Tensor slots = dense(slot_mapping);
  args.key = heads_of(key_heads);
  args.value = heads_of(value_heads);
  args.head_size = kv_cache.size(4);
  args.cache = kv_cache.data_ptr();
  args.num_blocks = kv_cache.size(0);
  args.block_size = kv_cache.size(3);
  args.block_stride = kv_cache.stride(0);
  args.value_offset = kv_cache.stride(1);
  args.head_stride = kv_cache.stride(2);
  args.slot_stride = kv_cache.stride(3);
  args.slots = static_cast<const int64_t*>(slots.data_ptr());
  check_started(launch_cache_write(args, key.size(0), on.stream()), "write_kv_cache");
}

}  // namespace
}  // namespace ir_kernels::cuda

STABLE_TORCH_LIBRARY_FRAGMENT(IR_LIBRARY, m) {
  m.def("quantize_fp8_static(Tensor x, Tensor scale) -> Tensor");
  m.def("quantize_fp8_per_token(Tensor x) -> (Tensor, Tensor)");
  m.def("write_kv_cache(Tensor key, Tensor value, Tensor(a!) kv_cache, Tensor slot_mapping) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(IR_LIBRARY, IR_DISPATCH_KEY, m) {
  m.impl("rms_norm", TORCH_BOX(&ir_kernels::cuda::rms_norm));
  m.impl("fused_add_rms_norm", TORCH_BOX(&ir_kernels::cuda::fused_add_rms_norm));
  m.impl("silu_and_mul", TORCH_BOX(&ir_kernels::cuda::silu_and_mul));
  m.impl("quantize_int8_per_token", TORCH_BOX(&ir_kernels::cuda::quantize_int8_per_token));
  m.impl("quantize_fp8_static", TORCH_BOX(&ir_kernels::cuda::quantize_fp8_static));
  m.impl("quantize_fp8_per_token", TORCH_BOX(&ir_kernels::cuda::quantize_fp8_per_token));
  m.impl("write_kv_cache", TORCH_BOX(&ir_kernels::cuda::write_kv_cache));
}
