"""Which replica a prompt goes to: the pure part of the Ray Serve router."""

from __future__ import annotations

import pytest

from cpu_backend.ray_serve.prefix import (
    CHUNK_CHARACTERS,
    CHUNK_TOKENS,
    MAX_CHUNKS,
    PrefixTable,
    chunks_of,
    preference,
)

TEXT = "".join(chr(97 + i * i % 26) for i in range(5 * CHUNK_CHARACTERS))


def chat(*contents: object, **fields: object) -> list[int]:
    messages = [{"role": "user", "content": content} for content in contents]
    return chunks_of({"messages": messages, **fields})


def test_chains_of_a_common_beginning_begin_alike() -> None:
    one, other = chat(TEXT, "yes"), chat(TEXT, "no" * 300)
    assert len(one) >= 5
    assert one[:5] == other[:5]
    assert one != other


def test_a_difference_changes_everything_after_it() -> None:
    one = chunks_of({"prompt": TEXT})
    other = chunks_of({"prompt": "!" + TEXT[1:]})
    assert len(one) == 5
    assert not set(one) & set(other)


def test_every_kind_of_prompt_has_a_chain() -> None:
    assert len(chunks_of({"prompt": [5] * (3 * CHUNK_TOKENS + 1)})) == 3
    assert chunks_of({"prompt": [TEXT, "other"]}) == chunks_of({"prompt": TEXT})
    assert chunks_of({"input": TEXT}) == chunks_of({"prompt": TEXT})
    parts = [{"type": "text", "text": TEXT}]
    assert chat(parts) == chat(TEXT)
    assert chat(TEXT, tools=[{"name": "f"}]) != chat(TEXT)
    assert chat(TEXT, model="a")[:1] != chat(TEXT, model="b")[:1]


@pytest.mark.parametrize("body", [{}, {"prompt": ""}, {"prompt": 5}, {"messages": "x"}, {"a": 1}])
def test_what_has_no_prompt_has_no_chain(body: dict[str, object]) -> None:
    assert chunks_of(body) == []


def test_odd_messages_are_no_error() -> None:
    assert chunks_of({"messages": [None, {}, {"content": [3]}, "x" * 1000]})
    assert chunks_of({"prompt": []}) == []


def test_long_prompts_are_cut() -> None:
    assert len(chunks_of({"prompt": "x" * (MAX_CHUNKS + 9) * CHUNK_CHARACTERS})) == MAX_CHUNKS


def test_table_knows_the_longest_beginning() -> None:
    table = PrefixTable()
    table.keep_only(["a", "b"])
    table.sent("a", [1, 2, 3])
    table.sent("b", [1, 2])
    assert [table.matched(r, [1, 2, 3, 4]) for r in ("a", "b", "c")] == [3, 2, 0]
    assert table.matched("a", [9, 2, 3]) == 0
    table.forget("a")
    assert table.matched("a", [1]) == 0


def test_table_drops_the_least_recently_used_and_ends_before_beginnings() -> None:
    table = PrefixTable()
    table.set_capacity("a", 4 * CHUNK_CHARACTERS // 4)
    table.sent("a", [1, 2, 3])
    table.sent("a", [7, 8])
    assert table.size("a") == 4
    assert table.matched("a", [7, 8]) == 2
    assert table.matched("a", [1, 2, 3]) == 2  # the end went first
    table.sent("a", [1])
    table.sent("a", [9])
    assert table.matched("a", [1, 2]) == 1


def test_replicas_that_left_are_forgotten_and_others_kept() -> None:
    table = PrefixTable()
    table.keep_only(["a", "b"])
    table.sent("a", [1])
    table.sent("b", [1])
    table.keep_only(["b", "c"])
    assert [table.matched(r, [1]) for r in ("a", "b", "c")] == [0, 1, 0]


def test_longest_prefix_wins_until_its_queue_outweighs_it() -> None:
    table = PrefixTable()
    table.sent("a", [1, 2, 3])
    table.sent("b", [1])
    chain = [1, 2, 3, 4]
    assert preference(table, chain, {"a": 0, "b": 0, "c": 0}, 64) == ["a", "b", "c"]
    assert preference(table, chain, {"a": 1, "b": 0, "c": 0}, 64) == ["a", "b", "c"]
    assert preference(table, chain, {"a": 3, "b": 0, "c": 0}, 64) == ["b", "c", "a"]
    assert preference(table, chain, {"a": 1, "b": 0, "c": 0}, 1000) == ["b", "c", "a"]


def test_unknown_prompts_go_to_the_idlest_and_then_to_the_emptiest() -> None:
    table = PrefixTable()
    table.sent("a", [1, 2])
    assert preference(table, [7], {"a": 0, "b": 0, "c": 1}, 64) == ["b", "a", "c"]
    assert preference(table, [], {"a": 0, "b": 3}, 64) == ["a", "b"]
    assert preference(table, [7], {}, 64) == []
