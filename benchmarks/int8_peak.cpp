// How many 8-bit multiply-adds per second one core of an x86 CPU can do, in registers alone: the
// yardstick of the int8 products.  Prints one number.  Compile with -O2 -march=native.
#include <immintrin.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

// Twelve independent sums, so that latency is hidden and 16 registers suffice.
#define REPEAT(f) f(0) f(1) f(2) f(3) f(4) f(5) f(6) f(7) f(8) f(9) f(10) f(11)

int main(int argc, char**) {
  constexpr long kLoops = 2000000;
  double best = 1e9;
#if defined(__AVX512VNNI__)
  constexpr double kProducts = 64.0;
  __m512i sum[12] = {};
  __m512i a = _mm512_set1_epi8(static_cast<char>(argc)), b = a;
#define STEP(i) sum[i] = _mm512_dpbusd_epi32(sum[i], a, b);
#elif defined(__AVX512BW__)
  constexpr double kProducts = 64.0;
  __m512i sum[12] = {};
  __m512i a = _mm512_set1_epi8(static_cast<char>(argc)), b = a;
  const __m512i ones = _mm512_set1_epi16(1);
#define STEP(i) \
  sum[i] = _mm512_add_epi32(sum[i], _mm512_madd_epi16(_mm512_maddubs_epi16(a, b), ones));
#else
  constexpr double kProducts = 32.0;
  __m256i sum[12] = {};
  __m256i a = _mm256_set1_epi8(static_cast<char>(argc)), b = a;
  const __m256i ones = _mm256_set1_epi16(1);
#define STEP(i) \
  sum[i] = _mm256_add_epi32(sum[i], _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), ones));
#endif
  for (int run = 0; run < 5; ++run) {
    const auto start = std::chrono::steady_clock::now();
    for (long i = 0; i < kLoops; ++i) {
      asm volatile("" : "+x"(a), "+x"(b));  // the products are not the same every time
      REPEAT(STEP)
    }
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    best = std::min(best, seconds.count());
  }
  auto total = sum[0];
  for (const auto& each : sum) total = total ^ each;
  volatile long long sink = total[0];
  (void)sink;
  std::printf("%g\n", 2.0 * kProducts * 12 * kLoops / best);
}
