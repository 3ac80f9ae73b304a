// Attention over the paged cache, from plan to output, against plain softmax attention.
#include "attention_case.h"

namespace cpu_backend::test {
namespace {

void test_attention_head_sizes() {
  for_each_target_and_emulated([](const KernelTable& table) {
    for (DType type : kTypes) {
      for (int head_dim : {16, 32, 48, 64, 80, 96, 112, 128, 192, 256, 512}) {
        Case c;
        c.type = type;
        c.head_dim = head_dim;
        if (kEmulated && head_dim > 128) c.requests = {{1, 20}, {3, 3}};
        check_case(table, c);
      }
    }
  });
}
const Registration a("attention/test_attention_head_sizes", test_attention_head_sizes);

// Latent attention: values narrower than keys, one head of both for all queries.
void test_attention_with_narrow_values() {
  constexpr int kShapes[][2] = {{32, 16}, {80, 48}, {128, 80}, {336, 256}, {576, 512}};
  for_each_target_and_emulated([&](const KernelTable& table) {
    int turn = 0;
    for (KvType kv : {KvType::kActivations, KvType::kFp8E4M3, KvType::kInt8}) {
      for (DType type : kTypes) {
        for (const auto& [key_dim, value_dim] : kShapes) {
          Case c;
          c.type = type;
          c.kv = kv;
          c.head_dim = key_dim;
          c.narrow = value_dim;
          c.num_heads = turn % 3 == 0 ? 16 : 5;
          c.num_kv_heads = turn % 4 == 3 ? c.num_heads : 1;
          c.block_size = turn++ % 2 ? 48 : 128;
          c.requests = {{1, 40}, {7, 7}, {5, 50}, {1, 1030}};
          if (kEmulated || key_dim > 256) c.requests = {{1, 20}, {3, 3}};
          check_case(table, c);
        }
      }
    }
  });
}
const Registration h("attention/test_attention_with_narrow_values",
                     test_attention_with_narrow_values);

void test_attention_groups_and_blocks() {
  for_each_target_and_emulated([](const KernelTable& table) {
    for (DType type : kTypes) {
      for (int kv_heads : {1, 2, 6}) {  // shared by all, by three, by none
        for (int block_size : {16, 32, 48, 128}) {
          Case c;
          c.type = type;
          c.num_heads = 6;
          c.num_kv_heads = kv_heads;
          c.block_size = block_size;
          c.head_dim = 16;
          c.requests = {{1, 1}, {1, 16}, {9, 33}, {1, 49}, {13, 13}};
          check_case(table, c);
        }
      }
    }
  });
}
const Registration b("attention/test_attention_groups_and_blocks",
                     test_attention_groups_and_blocks);

void test_attention_masks_and_scores() {
  for_each_target_and_emulated([](const KernelTable& table) {
    for (DType type : kTypes) {
      for (int causal : {0, 1, 2, 3}) {
        for (int window : {0, 1, 5, 16, 17, 40}) {
          for (int extra = 0; extra < (kEmulated ? 2 : 5); ++extra) {
            Case c;
            c.type = type;
            c.head_dim = 16;
            c.block_size = 16;
            c.requests = {{1, 70}, {20, 20}, {11, 61}};
            c.causal = causal;
            c.window = window;
            const int kind = kEmulated ? (extra == 0 ? 0 : 1 + (window + causal) % 4) : extra;
            c.softcap = kind == 1 || kind == 4 ? 1.5f : 0.0f;
            c.alibi = kind == 2 || kind == 4;
            c.sinks = kind == 3 || kind == 4;
            check_case(table, c);
          }
        }
      }
    }
  });
}
const Registration d("attention/test_attention_masks_and_scores", test_attention_masks_and_scores);

// Contexts over several partitions: split over threads, merged again.
void test_attention_long_contexts() {
  for_each_target_and_emulated([](const KernelTable& table) {
    for (DType type : kTypes) {
      for (int window : {0, 600}) {
        for (bool extras : {false, true}) {
          if (kEmulated && extras != (window > 0)) continue;
          Case c;
          c.type = type;
          c.head_dim = 16;
          c.num_heads = 2;
          c.num_kv_heads = 1;
          c.block_size = 48;  // does not divide a partition
          c.requests = {{1, 1100}, {14, 1030}, {1, 513}, {3, 3}, {1, 512}};
          c.window = window;
          c.sinks = c.alibi = extras;
          check_case(table, c);
        }
      }
    }
  });
}
const Registration e("attention/test_attention_long_contexts", test_attention_long_contexts);

// Every head size with every kind of codes, then every mask and score option and long contexts.
void test_attention_over_codes() {
  for_each_target_and_emulated([](const KernelTable& table) {
    int turn = 0;
    for (KvType kv : kQuantizedKv) {
      for (int head_dim : {16, 32, 48, 64, 80, 96, 112, 128, 192, 256, 512}) {
        Case c;
        c.type = kTypes[turn++ % 3];
        c.kv = kv;
        c.head_dim = head_dim;
        c.num_heads = 2 * (turn % 4 + 1);
        c.block_size = turn % 5 == 0 ? 128 : 16 * (turn % 5);
        if (kEmulated && head_dim > 128) c.requests = {{1, 20}, {3, 3}};
        check_case(table, c);
      }
      for (int causal : {0, 1, 2}) {
        for (int window : {0, 5, 17, 40}) {
          for (int kind = 0; kind < (kEmulated ? 1 : 3); ++kind) {
            Case c;
            c.type = kTypes[turn++ % 3];
            c.kv = kv;
            c.head_dim = 16;
            c.block_size = 16;
            c.requests = {{1, 70}, {20, 20}, {11, 61}};
            c.causal = causal;
            c.window = window;
            c.softcap = turn % 2 ? 1.5f : 0.0f;
            c.alibi = c.sinks = turn % 5 < 2;
            check_case(table, c);
          }
        }
      }
      for (int window : {0, 600}) {
        Case c;
        c.type = kTypes[turn++ % 3];
        c.kv = kv;
        c.head_dim = 16;
        c.num_heads = 2;
        c.num_kv_heads = 1;
        c.block_size = 48;
        c.requests = {{1, 1100}, {14, 1030}, {1, 513}, {3, 3}, {1, 512}};
        c.window = window;
        check_case(table, c);
      }
    }
  });
}
const Registration g("attention/test_attention_over_codes", test_attention_over_codes);

// Sums of integers as large as they come, in pages longer than one of them, and scales of zero.
void test_attention_over_int8_at_its_limits() {
  for_each_target_and_emulated([](const KernelTable& table) {
    for (float all : {2.0f, -2.0f, 0.0f}) {
      for (const auto& [head_dim, block_size] : {std::pair{512, 16}, {528, 32}, {16, 1040}}) {
        if (kEmulated && all < 0.0f) continue;
        Case c;
        c.kv = KvType::kInt8;
        c.all = all;
        c.head_dim = head_dim;
        c.block_size = block_size;
        c.requests = {{1, 1}, {3, 600}};
        check_case(table, c);
      }
    }
  });
}
const Registration i("attention/test_attention_over_int8_at_its_limits",
                     test_attention_over_int8_at_its_limits);

// Every bit of the integers counts, also of a page's last tokens, behind which it is not zero.
void test_attention_over_int8_multiplies_whole_numbers() {
  for_each_target_and_emulated([](const KernelTable& table) {
    for (int tokens = 1; tokens <= 50; tokens += kEmulated && tokens > 17 ? 7 : 1) {
      Case c;
      c.kv = KvType::kInt8;
      c.integers = integers_of_word(table) == 2 ? 32767 : 127 * 256 + 127;
      c.num_heads = 1 + tokens % 8;
      c.num_kv_heads = 1;
      c.head_dim = tokens % 3 ? 64 : 48;
      c.block_size = tokens % 2 ? 16 : 48;
      c.requests = {{1, tokens}};
      check_case(table, c);
    }
  });
}
const Registration k("attention/test_attention_over_int8_multiplies_whole_numbers",
                     test_attention_over_int8_multiplies_whole_numbers);

// Tiles of every number of rows and panels; a token's bits are those that it has in a longer chunk.
void test_attention_over_int8_in_every_tile() {
  for_each_target_and_emulated([](const KernelTable& table) {
    for (int heads = 1; heads <= (kEmulated ? 4 : 13); ++heads) {
      for (int head_dim : {16, 48, 64, 80, 112, 144}) {
        Case c;
        c.type = kTypes[heads % 3];
        c.kv = KvType::kInt8;
        c.num_heads = heads;
        c.num_kv_heads = 1;
        c.head_dim = head_dim;
        c.block_size = head_dim == 64 ? 128 : 48;
        c.one_query = true;
        c.requests = {{1, 140}};
        check_case(table, c);
        Step alone(c, all_of(c));
        const Buffer last = alone.run(table, 1);
        for (int chunk : {2, 3, 29}) {
          c.requests = {{chunk, 140}};
          Step step(c, all_of(c));
          const Buffer out = step.run(table, 1);
          bool same = true;
          for (int64_t column = 0; column < out.columns(); ++column)
            same = same && out.bits(chunk - 1, column) == last.bits(0, column);
          expect(same, "%s: a chunk of %d changes the result", label_of(c).c_str(), chunk);
        }
      }
    }
  });
}
const Registration j("attention/test_attention_over_int8_in_every_tile",
                     test_attention_over_int8_in_every_tile);

constexpr KvType kAllKv[] = {KvType::kActivations, KvType::kFp8E4M3, KvType::kFp8E5M2,
                             KvType::kInt8};

void test_attention_does_not_depend_on_the_batch() {
  for_each_target_and_emulated([](const KernelTable& table) {
    for (int turn = 0; turn < 6; ++turn) {
      const DType type = kTypes[turn % 3];
      Case c;
      c.type = type;
      c.kv = turn < 3 ? kAllKv[0] : kAllKv[turn - 2];
      c.head_dim = 32;
      c.requests = {{1, 700}, {9, 40}, {1, 33}, {26, 26}};
      c.sinks = true;
      Step batch(c, all_of(c));
      const Buffer together = batch.run(table, 4);
      for (const std::vector<size_t>& pick :
           {std::vector<size_t>{0}, {1}, {2}, {3}, {3, 2, 1, 0}, {2, 0}}) {
        Step some(c, pick);
        const Buffer out = some.run(table, 4);
        for (size_t i = 0; i < pick.size(); ++i)
          for (int t = 0; t < c.requests[pick[i]].query_len; ++t)
            for (int64_t column = 0; column < out.columns(); ++column)
              if (!expect(out.bits(some.first_token(i) + t, column) ==
                              together.bits(batch.first_token(pick[i]) + t, column),
                          "%s: token %d of request %zu depends on its batch", name_of(type), t,
                          pick[i]))
                return;
      }
    }
  });
}
const Registration f("attention/test_attention_does_not_depend_on_the_batch",
                     test_attention_does_not_depend_on_the_batch);

}  // namespace
}  // namespace cpu_backend::test
