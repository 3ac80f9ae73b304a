// Products of blocks of two rows and two columns in vectors of 16 bytes: BFMMLA, USMMLA.
//
// Lanes 0 and 1 of a product are column 0 with rows 0 and 1, lanes 2 and 3 column 1: unsigned
// bytes, which are codes, come first.  An operand holds two words of k of its first row (or
// column), then two of its second.
#pragma once

#include "isa/bf16_pairs.h"
#include "isa/dot.h"

#if defined(CPU_BACKEND_BLOCKS)

namespace CPU_BACKEND_NAMESPACE {

// Lanes of a, numbered from 0, and of b, from 4.
template <int k0, int k1, int k2, int k3, class V>
CPU_BACKEND_INLINE V lanes_of(V a, V b) {
  const auto lane = [&](int i) CPU_BACKEND_LAMBDA { return i < 4 ? a[i] : b[i - 4]; };
  return V{lane(k0), lane(k1), lane(k2), lane(k3)};
}

// Two words from each of two rows.
CPU_BACKEND_INLINE VecU load_block(const void* row0, const void* row1) {
  typedef uint64_t Halves __attribute__((vector_size(16)));
  uint64_t first, second;
  __builtin_memcpy(&first, row0, sizeof first);
  __builtin_memcpy(&second, row1, sizeof second);
  return (VecU)Halves{first, second};
}

// Four columns of two words each, as two operands.
struct ColumnBlocks {
  VecU of[2];

  CPU_BACKEND_INLINE ColumnBlocks(VecU first, VecU second)
      : of{lanes_of<0, 4, 1, 5>(first, second), lanes_of<2, 6, 3, 7>(first, second)} {}
};

// Blocks of columns 0 and 1 and of columns 2 and 3 become two rows of four columns.
template <class V>
CPU_BACKEND_INLINE void blocks_to_rows(V& left, V& right) {
  const V row0 = lanes_of<0, 2, 4, 6>(left, right);
  right = lanes_of<1, 3, 5, 7>(left, right);
  left = row0;
}

#if defined(CPU_BACKEND_EMULATE_BLOCKS)
// Of an operand, for each lane of the product, the first or second word that it takes.
template <int kWord>
CPU_BACKEND_INLINE VecU words_of_rows(VecU rows) {
  return lanes_of<kWord, 2 + kWord, kWord, 2 + kWord>(rows, rows);
}
template <int kWord>
CPU_BACKEND_INLINE VecU words_of_columns(VecU columns) {
  return lanes_of<kWord, kWord, 2 + kWord, 2 + kWord>(columns, columns);
}
#endif

// What dot_pairs() of the first words and then of the second ones gives, bit for bit (Arm
// Architecture Reference Manual, BFMatMulAdd): so single rows may go by vectors.
CPU_BACKEND_INLINE Vec dot_blocks(Vec acc, VecU rows, VecU columns) {
#if defined(CPU_BACKEND_EMULATE_BLOCKS)
  acc = dot_pairs(acc, words_of_rows<0>(rows), words_of_columns<0>(columns));
  return dot_pairs(acc, words_of_rows<1>(rows), words_of_columns<1>(columns));
#else
  return (Vec)vbfmmlaq_f32((float32x4_t)acc, (bfloat16x8_t)columns, (bfloat16x8_t)rows);
#endif
}

// The same of quads: bytes of rows, signed or not, and unsigned ones of columns; modulo 2^32.
template <bool kSigned>
CPU_BACKEND_INLINE VecU dot_blocks(VecU sum, VecU rows, VecU columns) {
#if defined(CPU_BACKEND_EMULATE_BLOCKS)
  sum = dot_bytes<kSigned>(sum, words_of_rows<0>(rows), words_of_columns<0>(columns));
  return dot_bytes<kSigned>(sum, words_of_rows<1>(rows), words_of_columns<1>(columns));
#else
  const uint8x16_t codes = (uint8x16_t)columns;
  if constexpr (kSigned) return (VecU)vusmmlaq_s32((int32x4_t)sum, codes, (int8x16_t)rows);
  return (VecU)vmmlaq_u32((uint32x4_t)sum, codes, (uint8x16_t)rows);
#endif
}

// The same of signed bytes on both sides.
CPU_BACKEND_INLINE VecI dot_signed_blocks(VecI sum, VecI rows, VecI columns) {
#if defined(CPU_BACKEND_EMULATE_BLOCKS)
  const VecU x = (VecU)rows, y = (VecU)columns;
  const VecU first = dot_bytes<true, true>((VecU)sum, words_of_rows<0>(x), words_of_columns<0>(y));
  return (VecI)dot_bytes<true, true>(first, words_of_rows<1>(x), words_of_columns<1>(y));
#else
  return (VecI)vmmlaq_s32((int32x4_t)sum, (int8x16_t)columns, (int8x16_t)rows);
#endif
}

}  // namespace CPU_BACKEND_NAMESPACE

#endif
