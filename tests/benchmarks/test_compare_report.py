"""The tables and the picture: what a reader finds in them."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET

import pytest

from benchmarks.compare.__main__ import as_json
from benchmarks.compare.chart import PLOT, svg
from benchmarks.compare.peers import OURS
from benchmarks.compare.report import markdown
from benchmarks.compare.summary import Summary, summarize
from tests.benchmarks.compare_records import record

DECODE = "decode:2:3"
MACHINE = {"model": "A CPU", "architecture": "x86_64", "cpus": [0, 1], "flags": ["avx2"]}
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def summary() -> Summary:
    return summarize(
        "model",
        [
            record(OURS, 1, {DECODE: [60]}),
            record("transformers", 1, {DECODE: [30]}, tokens=(1, 2, 9)),
            record(OURS, 2, {DECODE: [80]}, other_cores=0.25),
            record("transformers", 2, {DECODE: [20]}, tokens=(1, 2, 9)),
            record("llama-cpp", 1, {DECODE: [90]}, dtype="bfloat16"),
            record("openvino", 1, {}, failures={DECODE: "took | over", "prompt:4": "took | over"}),
        ],
    )


def rows(page: str, head: str) -> list[list[str]]:
    """The cells of the first table after a heading."""
    lines = page[page.index(head) :].splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("|"))
    table = []
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        cells = line.replace("\\|", "\0").strip("|").split("|")
        table.append([cell.strip().replace("\0", "|") for cell in cells])
    return table


def test_every_table_has_as_many_cells_in_each_row(summary: Summary) -> None:
    page = markdown([summary], MACHINE, {})
    heads = [line for line in page.splitlines() if line.startswith(("#", "**"))]
    tables = [rows(page, head) for head in heads if "\n|" in page[page.index(head) :][:200]]
    assert len(tables) > 5
    for table in tables:
        assert {len(row) for row in table} == {len(table[0])}


def test_ratio_table_sets_us_against_each_peer_and_the_best(summary: Summary) -> None:
    table = rows(markdown([summary], MACHINE, {}), "### Times better than each peer")
    assert table[0] == [
        *("", "type", "transformers", "llama-cpp", "openvino"),
        "best peer in any 16- or 32-bit type",
    ]
    assert table[2] == [
        *("one request, 2 tokens in, 3 out: decode tokens/s", "fp32"),
        *("3.00x (2.00-4.00)", "", "", "0.67x llama-cpp bf16"),
    ]


def test_figures_have_median_range_share_and_ratio(summary: Summary) -> None:
    table = rows(markdown([summary], MACHINE, {}), "**one request, 2 tokens in, 3 out")
    assert table[2:] == [
        [OURS, "fp32", "70 (60-80)", "70%", "0.25", ""],
        ["transformers", "fp32", "25 (20-30)", "25%", "0.00", "3.00x (2.00-4.00)"],
        # Half the bytes: the bound is 200 tokens/s.
        ["llama-cpp", "bf16", "90 (90-90)", "45%", "0.00", ""],
    ]


def test_greedy_tokens_are_compared_with_transformers_in_fp32(summary: Summary) -> None:
    table = rows(markdown([summary], MACHINE, {}), "### Greedy tokens")
    assert table[0][2] == "tokens equal to transformers fp32"
    assert [OURS, "fp32", "2 of 3", "a | b"] in table
    assert ["transformers", "fp32", "3 of 3", "a | b"] in table


def test_failures_are_told_with_their_reason(summary: Summary) -> None:
    page = markdown([summary], MACHINE, {"vllm-cpu bfloat16": "no network"})
    assert rows(page, "### Not measured")[2:] == [
        ["openvino", "fp32", f"{DECODE}, prompt:4", "took | over"]
    ]
    assert "- vllm-cpu bfloat16: no network" in page


def test_page_without_records_is_written() -> None:
    assert "A CPU, x86_64, 2 cores; avx2." in markdown([], MACHINE, {})


def test_json_has_every_figure(summary: Summary) -> None:
    figures = json.loads(json.dumps(as_json(summary)))["figures"]
    (found,) = [f for f in figures if f["peer"] == OURS and f["metric"] == DECODE]
    assert found["median"] == 70
    assert found["rounds"] == {"1": 60, "2": 80}
    assert found["share_of_bound"] == pytest.approx(0.7)


def test_picture_shows_bars_in_proportion_best_first(summary: Summary) -> None:
    root = ET.fromstring(svg(summary, "caption"))
    texts = [element.text or "" for element in root.iter(f"{SVG}text")]
    start = texts.index("one request, 2 tokens in, 3 out: decode tokens/s")
    assert texts[start + 1 : start + 8] == [
        "more is better",
        *("llama-cpp bf16", "90 · 45% of bound"),
        *(f"{OURS} fp32", "70 · 70% of bound"),
        *("transformers fp32", "25 · 25% of bound"),
    ]
    bars = [float(rect.get("width", "0")) for rect in root.iter(f"{SVG}rect")][1:7]
    # The longest is llama.cpp's bound, 200; then each bound (light) and figure (coloured).
    expected = [200, 90, 100, 70, 100, 25]
    assert bars == pytest.approx([PLOT * value / 200 for value in expected], abs=0.06)


def test_picture_escapes_what_it_is_given(summary: Summary) -> None:
    texts = [element.text for element in ET.fromstring(svg(summary, "<a & b>")).iter()]
    assert "<a & b>" in texts
