// The codes of a quantized KV cache by their definition: scalar, one row of one token and head.
#pragma once

#include "harness.h"

namespace cpu_backend::test {

constexpr KvType kQuantizedKv[] = {KvType::kFp8E4M3, KvType::kFp8E5M2, KvType::kInt8};
inline const char* name_of(KvType type) {
  switch (type) {
    case KvType::kFp8E4M3:
      return "e4m3";
    case KvType::kFp8E5M2:
      return "e5m2";
    case KvType::kInt8:
      return "int8";
    case KvType::kActivations:
      break;
  }
  return "plain";
}

// Bytes of one page of one head, whose keys and values have so many channels together.
inline int64_t page_bytes(KvType type, DType activations, int64_t block_size, int64_t channels) {
  const int64_t element = type == KvType::kActivations ? bytes_of(activations) : 1;
  return block_size * (channels * element + (type == KvType::kInt8 ? 8 : 0));
}

// max|x| / 127, NaN where a number is not finite.
inline float int8_scale_of(const std::vector<float>& x) {
  float largest = 0.0f;
  for (float v : x) {
    if (!std::isfinite(v)) return std::nanf("");
    largest = std::max(largest, std::fabs(v));
  }
  return largest / 127.0f;
}

inline uint32_t code_of(KvType type, float x, float scale) {
  const float y = x / scale;
  if (type == KvType::kFp8E4M3) return static_cast<uint32_t>(round_to_fp8(y));
  if (type == KvType::kFp8E5M2) return static_cast<uint32_t>(round_to_e5m2(y));
  return static_cast<uint8_t>(round_to_int8(scale == 0.0f ? 0.0f : y));
}

inline float value_of(KvType type, uint32_t code) {
  if (type == KvType::kFp8E4M3) return to_float(static_cast<fp8_t>(code));
  if (type == KvType::kFp8E5M2) return to_float(static_cast<e5m2_t>(code));
  return to_float(static_cast<int8_t>(static_cast<uint8_t>(code)));
}

}  // namespace cpu_backend::test
