"""From records to figures: medians, spread, ratios within rounds, shares, and what failed."""

from __future__ import annotations

import pytest

from benchmarks.compare.summary import (
    FIXED_METRICS,
    Metric,
    Summary,
    common_prefix,
    summarize,
)
from tests.benchmarks.compare_records import record

DECODE = "decode:2:3"
RATE = Metric(DECODE, "", 1)
STARTUP = FIXED_METRICS[0]


def summary_of(*records: dict[str, object]) -> Summary:
    return summarize("model", records)


def test_value_of_a_round_is_the_median_of_its_repetitions() -> None:
    cell = summary_of(record("a", 1, {DECODE: [1.0, 50.0, 9.0]})).cells[DECODE, "float32", "a"]
    assert cell.values == {1: 9.0}


def test_figure_is_median_and_range_of_rounds() -> None:
    rounds = [record("a", number, {DECODE: [value]}) for number, value in ((1, 3), (2, 8), (3, 4))]
    cell = summary_of(*rounds).cells[DECODE, "float32", "a"]
    assert (cell.median, cell.spread) == (4, (3, 8))


def test_share_is_of_the_better_probe() -> None:
    cell = summary_of(record("a", 1, {DECODE: [50]}, bytes_per_s=(20_000.0, 40_000.0))).cells[
        DECODE, "float32", "a"
    ]
    assert cell.share == pytest.approx(0.5)
    assert cell.bound == pytest.approx(100)


def test_share_is_taken_per_round_before_the_median() -> None:
    rounds = [
        record("a", 1, {DECODE: [50]}, bytes_per_s=(40_000.0, 40_000.0)),
        record("a", 2, {DECODE: [5]}, bytes_per_s=(4_000.0, 4_000.0)),
        record("a", 3, {DECODE: [4]}, bytes_per_s=(4_000.0, 4_000.0)),
    ]
    # Of the medians, 5 of 10 would be the same by chance; of the rounds it is 50, 50 and 40 %.
    shares = summary_of(*rounds).cells[DECODE, "float32", "a"].shares
    assert shares == pytest.approx({1: 0.5, 2: 0.5, 3: 0.4})


def test_ratio_pairs_values_of_one_round() -> None:
    """The machine halves its speed in round 2: the ratio stays what it was."""
    summary = summary_of(
        record("ours", 1, {DECODE: [30]}),
        record("peer", 1, {DECODE: [10]}),
        record("ours", 2, {DECODE: [15]}),
        record("peer", 2, {DECODE: [5]}),
        record("ours", 3, {DECODE: [100]}),
    )
    ratio = summary.ratio(RATE, "float32", "ours", "peer", "float32")
    assert ratio is not None
    assert (ratio.median, ratio.low, ratio.high, ratio.rounds) == (3, 3, 3, 2)


def test_ratio_of_less_is_better_turns_round() -> None:
    summary = summary_of(
        record("ours", 1, {}, first_token_s=2.0), record("peer", 1, {}, first_token_s=10.0)
    )
    ratio = summary.ratio(STARTUP, "float32", "ours", "peer", "float32")
    assert ratio is not None
    assert ratio.median == 5


@pytest.mark.parametrize("number", [2, None])
def test_no_ratio_without_a_common_round(number: int | None) -> None:
    records = [record("ours", 1, {DECODE: [1]})]
    if number is not None:
        records.append(record("peer", number, {DECODE: [1]}))
    assert summary_of(*records).ratio(RATE, "float32", "ours", "peer", "float32") is None


def test_best_peer_is_of_any_wide_type_and_never_ours() -> None:
    summary = summary_of(
        record("ours", 1, {DECODE: [99]}),
        record("ours-avx2", 1, {DECODE: [98]}),
        record("a", 1, {DECODE: [10]}, dtype="bfloat16"),
        record("b", 1, {DECODE: [20]}, dtype="float16"),
        record("c", 1, {DECODE: [90]}, dtype="int8"),
    )
    assert summary.best_peer(RATE, "ours") == ("b", "float16")
    assert summary.best_peer(Metric("prompt:3", "", 1), "ours") is None


def test_best_peer_of_less_is_better_is_the_least() -> None:
    summary = summary_of(
        record("a", 1, {}, first_token_s=9.0), record("b", 1, {}, first_token_s=3.0)
    )
    assert summary.best_peer(STARTUP, "ours") == ("b", "float32")


def test_least_disturbed_try_of_a_round_counts() -> None:
    summary = summary_of(
        record("a", 1, {DECODE: [10]}, other_cores=0.5, first_token_s=9.0, gib=2.0),
        record("a", 1, {DECODE: [30]}, other_cores=0.1, first_token_s=3.0),
        record("a", 1, {DECODE: [20]}, other_cores=0.2, first_token_s=5.0),
        record("a", 2, {DECODE: [11]}, other_cores=0.9),
    )
    cell = summary.cells[DECODE, "float32", "a"]
    assert cell.values == {1: 30, 2: 11}
    assert cell.shares == pytest.approx({1: 0.3, 2: 0.11})
    assert cell.other_cores == {1: 0.1, 2: 0.9}
    assert summary.cells["first_token", "float32", "a"].values == {1: 3.0, 2: 2.0}
    assert summary.cells["memory", "float32", "a"].values[1] == 2.0


def test_resumed_round_has_the_later_start_and_the_highest_peak() -> None:
    """The second process of the round did the rest of the works, as undisturbed as the first."""
    summary = summary_of(
        record("a", 1, {DECODE: [1]}, gib=1.0, first_token_s=2.0),
        record("a", 1, {"prompt:4": [2]}, gib=3.0, first_token_s=4.0),
    )
    assert summary.cells["first_token", "float32", "a"].values == {1: 4.0}
    assert summary.cells["memory", "float32", "a"].values == {1: 3.0}
    assert summary.cells["pss", "float32", "a"].values == {1: 1.5}
    assert summary.cells[DECODE, "float32", "a"].values == {1: 1}
    assert summary.cells["prompt:4", "float32", "a"].values == {1: 2}


def test_servers_have_figures_of_their_own() -> None:
    summary = summary_of(
        record("a", 1, {}, first_token_s=1.0),
        record("a", 1, {"http:2:2:2": [3]}, is_server=True, first_token_s=7.0, gib=2),
    )
    assert summary.cells["first_token", "float32", "a"].values == {1: 1.0}
    assert summary.cells["server_first_token", "float32", "a"].values == {1: 7.0}
    assert summary.cells["server_memory", "float32", "a"].values == {1: 2.0}
    # A server is constructed with its imports, which is another thing.
    assert summary.cells["construct", "float32", "a"].values == {1: 1.0}


def test_failures_keep_their_reason_until_a_later_try_succeeds() -> None:
    failed = record("a", 1, {}, failures={DECODE: "took over 5 s", "prompt:4": "no"})
    assert summary_of(failed).failures == {
        ("a", "float32", DECODE): "took over 5 s",
        ("a", "float32", "prompt:4"): "no",
    }
    again = record("a", 1, {DECODE: [1]})
    assert summary_of(failed, again).failures == {("a", "float32", "prompt:4"): "no"}


def test_process_that_never_started_leaves_only_its_failures() -> None:
    failed = record("a", 1, {}, failures={DECODE: "no"})
    for key in ("startup", "greedy", "memory_bytes"):
        del failed[key]
    summary = summary_of(failed)
    assert summary.cells == {}
    assert summary.failures == {("a", "float32", DECODE): "no"}


def test_other_models_do_not_mix() -> None:
    other = {**record("a", 1, {DECODE: [1]}), "model": "other"}
    assert summary_of(other, record("b", 1, {DECODE: [2]})).peers == ["b"]


def test_metrics_come_in_the_order_of_the_works() -> None:
    works = {"http:1:2:3": [1.0], "batch:1:2:3": [1.0], "prompt:9": [1.0], DECODE: [1.0]}
    keys = [metric.key for metric in summary_of(record("a", 1, works)).metrics]
    assert keys[:4] == [DECODE, "prompt:9", "batch:1:2:3", "http:1:2:3"]


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [([], [], 0), ([1, 2], [1, 2], 2), ([1, 2, 3], [1, 9, 3], 1), ([1], [1, 2], 1)],
)
def test_common_prefix(a: list[int], b: list[int], expected: int) -> None:
    assert common_prefix(a, b) == expected
