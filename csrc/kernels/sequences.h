// Going through the sequences of a step.
#pragma once

#include "core/view.h"
#include "isa/vec.h"

namespace CPU_BACKEND_NAMESPACE {

// One sequence's tokens [begin, end) and the first slot of its state; `continued`: what the slot
// holds counts.  accepted: see Sequences, 0 where only the last state is left.
struct Sequence {
  int64_t begin, end, slot, accepted;
  const int32_t* slots;  // the row of as many as it may have tokens, where accepted is not 0
  bool is_null, continued;

  // Where the state before token t of the sequence is, and where the one after it goes.
  CPU_BACKEND_INLINE int64_t source(int64_t t) const {
    return accepted ? slots[t > 0 ? t - 1 : accepted - 1] : slot;
  }
  CPU_BACKEND_INLINE int64_t target(int64_t t) const { return accepted ? slots[t] : slot; }
};

CPU_BACKEND_INLINE Sequence sequence_of(const Sequences& of, int64_t i) {
  Sequence s;
  s.begin = of.starts ? of.starts[i] : i * of.length;
  s.end = of.starts ? of.starts[i + 1] : s.begin + of.length;
  s.slots = of.slots ? of.slots + i * of.slot_stride : nullptr;
  s.slot = s.slots ? s.slots[0] : i;
  s.accepted = of.accepted ? of.accepted[i] : 0;
  s.is_null = of.slots && s.slot == of.null_slot;
  s.continued = of.continued ? of.continued[i] != 0 : of.all_continued;
  return s;
}

// The end of the last sequence: tokens from there on belong to none.
CPU_BACKEND_INLINE int64_t sequences_end(const Sequences& of) {
  return of.starts ? of.starts[of.count] : of.count * of.length;
}

// n <= kLanes elements that lie `stride` apart; the other lanes load as zero.
template <class T>
CPU_BACKEND_INLINE Vec load_strided(const T* p, int64_t stride, int n) {
  if (stride == 1) return load_n(p, n);
  T tmp[kLanes] = {};
  for (int i = 0; i < n; ++i) tmp[i] = p[i * stride];
  return load(tmp);
}
template <class T>
CPU_BACKEND_INLINE void store_strided(T* p, int64_t stride, Vec v, int n) {
  if (stride == 1) return store_n(p, v, n);
  T tmp[kLanes];
  store(tmp, v);
  for (int i = 0; i < n; ++i) p[i * stride] = tmp[i];
}

// v as a state keeps it.
template <class S>
CPU_BACKEND_INLINE Vec kept(Vec v) {
  S rounded[kLanes];
  store(rounded, v);
  return load(rounded);
}
template <>
CPU_BACKEND_INLINE Vec kept<float>(Vec v) {
  return v;
}

}  // namespace CPU_BACKEND_NAMESPACE
