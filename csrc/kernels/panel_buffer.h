// Panels side by side, as a page of keys or values has them, and products with a part of them.
#pragma once

#include "kernels/tiles/integer_panel_matrix.h"

namespace CPU_BACKEND_NAMESPACE {

// `depth` rows of `columns` columns as panels one after the other, the last one as narrow as what
// is left; both are multiples of 16.
template <class T>
struct PanelBuffer {
  T* at;
  int64_t depth, columns;

  // Of the panel that holds a column.
  CPU_BACKEND_INLINE int64_t first(int64_t column) const {
    return column / kPanelWidth * kPanelWidth;
  }
  CPU_BACKEND_INLINE int64_t width(int64_t column) const {
    const int64_t left = columns - first(column);
    return left < kPanelWidth ? left : kPanelWidth;
  }
  CPU_BACKEND_INLINE int64_t offset(int64_t k, int64_t column) const {
    return first(column) * depth + panel_offset<T>(k, column - first(column), width(column));
  }
};

// f(column, done, now) for the `count` columns from `column` on, those of one panel at a time:
// `now` of them behind the `done` ones before; both arguments are multiples of 16.
template <class T, class F>
CPU_BACKEND_INLINE void for_each_panel(const PanelBuffer<T>& b, int64_t column, int64_t count,
                                       F f) {
  for (int64_t done = 0, now; done < count; done += now) {
    const int64_t at = column + done;
    const int64_t in_panel = b.first(at) + b.width(at) - at;
    now = count - done < in_panel ? count - done : in_panel;
    f(at, done, now);
  }
}

// c[rows][count] (+)= a[rows][depth] * rows k, k + 1, ... and columns `column`, ... of b; column is
// a multiple of 16, count one of kWholeColumns<T>.  Meanwhile the same part of the buffer
// at `next`, if any, is fetched into L2, but for panels from column `next_columns` on.
template <class A, class T>
void multiply_columns(int64_t rows, int64_t count, const A* a, int64_t a_stride,
                      const PanelBuffer<T>& b, int64_t k, int64_t column, int64_t depth, float* c,
                      int64_t c_stride, bool accumulate, const T* next, int64_t next_columns) {
  for_each_panel(b, column, count, [&](int64_t at, int64_t done, int64_t now) CPU_BACKEND_LAMBDA {
    const int64_t offset = b.offset(k, at);
    multiply_panel(rows, now, a, a_stride, b.at + offset, b.width(at), depth, c + done, c_stride,
                   accumulate, next && at < next_columns ? next + offset : nullptr);
  });
}

#if defined(CPU_BACKEND_TILES)
// The same for integers and codes, in tiles that are set up once for some rows and numbers.
static inline void multiply_columns(int64_t rows, int64_t count, const int16_t* a, int64_t a_stride,
                                    const PanelBuffer<int8_t>& b, int64_t k, int64_t column,
                                    int64_t depth, float* c, int64_t c_stride, bool accumulate,
                                    const int8_t* next, int64_t next_columns) {
  for (int64_t row = 0; row < rows; row += kTileRows)
    for (int64_t begin = 0; begin < depth; begin += kMaxIntegerDepth) {
      const int64_t now_rows = rows - row < kTileRows ? rows - row : kTileRows;
      const int64_t deep = depth - begin < kMaxIntegerDepth ? depth - begin : kMaxIntegerDepth;
      const bool add = accumulate || begin > 0;
      Tiles tiles(now_rows, now_rows, kColumnsOfTile, integer_part(deep) / 4);
      for_each_panel(
          b, column, count, [&](int64_t at, int64_t done, int64_t now) CPU_BACKEND_LAMBDA {
            const int64_t offset = b.offset(k + begin, at);
            const bool fetch = next && row == 0 && at < next_columns;
            const IntegerProduct of{a + row * a_stride,
                                    a_stride,
                                    b.at + offset,
                                    b.width(at),
                                    0,
                                    c + row * c_stride + done,
                                    c_stride,
                                    fetch ? next + offset : nullptr};
            tiles.set_columns(now < kColumnsOfTile ? now : kColumnsOfTile);
            if (now > kColumnsOfTile) {
              multiply_integers<kColumnTiles>(tiles, now_rows, now, of, begin, deep, add);
            } else {
              multiply_integers<1>(tiles, now_rows, now, of, begin, deep, add);
            }
          });
    }
}

// The same for bf16, in tiles that are set up once.
static inline void multiply_columns(int64_t rows, int64_t count, const bf16_t* a, int64_t a_stride,
                                    const PanelBuffer<bf16_t>& b, int64_t k, int64_t column,
                                    int64_t depth, float* c, int64_t c_stride, bool accumulate,
                                    const bf16_t* next, int64_t next_columns) {
  for_each_tile_pair(rows, [&](Tiles& tiles, int64_t r, int64_t part) CPU_BACKEND_LAMBDA {
    for_each_panel(b, column, count, [&](int64_t at, int64_t done, int64_t now) CPU_BACKEND_LAMBDA {
      const int64_t offset = b.offset(k, at);
      multiply_part(tiles, part, now,
                    {a + r * a_stride, a_stride, b.at + offset, b.width(at),
                     c + r * c_stride + done, c_stride},
                    depth, accumulate, next && at < next_columns ? next + offset : nullptr);
    });
  });
}
#else
// The same for integers and codes, with several whole panels to a tile of few rows: as many as fit
// the registers.  The only half ones are of 16 columns.
static inline void multiply_columns(int64_t rows, int64_t count, const int16_t* a, int64_t a_stride,
                                    const PanelBuffer<int8_t>& b, int64_t k, int64_t column,
                                    int64_t depth, float* c, int64_t c_stride, bool accumulate,
                                    const int8_t* next, int64_t next_columns) {
  for (int64_t done = 0; done < count;) {
    const int64_t at = column + done, offset = b.offset(k, at);
    const int8_t* const ahead = next && at < next_columns ? next + offset : nullptr;
    const auto product = [&](int64_t row) CPU_BACKEND_LAMBDA {
      return IntegerProduct{a + row * a_stride,
                            a_stride,
                            b.at + offset,
                            b.width(at),
                            kPanelWidth * b.depth,
                            c + row * c_stride + done,
                            c_stride,
                            row == 0 ? ahead : nullptr};
    };
    const int64_t whole = at % kPanelWidth == 0 ? (count - done) / kPanelWidth : 0;
    if (whole >= 4 && rows <= kIntegerRows / 4) {
      multiply_integer_rows<kPanelVecs, 4>(rows, product(0), depth, accumulate);
      done += 4 * kPanelWidth;
    } else if (whole >= 2 && rows <= kIntegerRows / 3) {
      multiply_integer_rows<kPanelVecs, 2>(rows, product(0), depth, accumulate);
      done += 2 * kPanelWidth;
    } else {
      for_each_tile<int16_t, kIntegerRows>(rows, [&](int64_t row, int64_t now) CPU_BACKEND_LAMBDA {
        if constexpr (kPanelWidth > 16)
          if (whole == 0) return multiply_integer_rows<1, 1>(now, product(row), depth, accumulate);
        multiply_integer_rows<kPanelVecs, 1>(now, product(row), depth, accumulate);
      });
      done += whole > 0 ? kPanelWidth : kLanes;
    }
  }
}
#endif

#if defined(CPU_BACKEND_BF16_PAIRS)
// One chain of the widest panel of bf16.
constexpr int64_t kDecoded = kPanelWidth * kChainLength;

// multiply_columns() for fp8, decoded to bf16, which holds it exactly: a chain of a panel at a
// time, in L1, for all rows.  k is even, rows of a are bf16, decoded has room for kDecoded.
template <class Code>
void multiply_decoded(int64_t rows, int64_t count, const bf16_t* a, int64_t a_stride,
                      const PanelBuffer<Code>& b, int64_t k, int64_t column, int64_t depth,
                      float* c, int64_t c_stride, bool accumulate, const Code* next,
                      int64_t next_columns, bf16_t* decoded) {
  static_assert(kPairing<Code> == 2 && kPairing<bf16_t> == 2, "elements lie alike");
  constexpr int kWords = 16 % kPanelWidth == 0 ? kPanelVecs : 1;  // where all panels are whole
  for_each_panel(b, column, count, [&](int64_t at, int64_t done, int64_t now) CPU_BACKEND_LAMBDA {
    const int64_t width = b.width(at), first = b.offset(k, b.first(at));
    const Code* const ahead = next && at < next_columns ? next + first : nullptr;
    for (int64_t i = 0; i < depth; i += kChainLength) {
      const int64_t steps = depth - i < kChainLength ? depth - i : kChainLength;
      const int64_t begin = i * width, size = round_up(steps, 2) * width;
      for (int64_t j = 0; j < size; j += kWords * 2 * kLanes) {
        if (ahead) __builtin_prefetch(ahead + begin + j, 0, 2);
        VecU words[kWords];
        load_bf16_pairs(b.at + first + begin + j, words);
        for (int w = 0; w < kWords; ++w) store_raw(decoded + j + w * 2 * kLanes, words[w]);
      }
      const bf16_t* panel = decoded + panel_offset<bf16_t>(0, at - b.first(at), width);
      multiply_panel(rows, now, a + i, a_stride, panel, width, steps, c + done, c_stride,
                     accumulate || i > 0, static_cast<const bf16_t*>(nullptr));
    }
  });
}
#endif

}  // namespace CPU_BACKEND_NAMESPACE
