// What ranks do together, one lane (thread) at a time.
//
// Every rank calls the same functions in the same order with the same lengths; a lane is used by
// one thread at a time.  All return false once the group has failed (Group::failure says why).
//
// Numerics  sums run in fp32 in the order of ranks 0, 1, 2, ... and are rounded once, so every rank
//           gets the same bits, on every run.
#pragma once

#include "collectives/group.h"

namespace cpu_backend::collectives {

// data[count] of every rank becomes the sum over ranks, in place.
bool all_reduce(Group& group, int lane, DType type, char* data, int64_t count);

// Rank r's input[bytes] goes to output + r * stride on every rank.
bool all_gather(Group& group, int lane, const char* input, int64_t bytes, char* output,
                int64_t stride);

// Rank r's input[bytes] goes to outputs[r] on rank `to`; the others' `outputs` is not looked at.
// They may be done before `to` is, and must not leave the group before the next meeting.
bool gather(Group& group, int lane, const char* input, int64_t bytes, char* const* outputs, int to);

// A message: returns when it lies in the mailbox, or what does not fit has been taken out.
bool send(Group& group, int to, const char* data, int64_t bytes);
// The next message of that rank, with the length it was sent with.
bool receive(Group& group, int from, char* data, int64_t bytes);

}  // namespace cpu_backend::collectives
