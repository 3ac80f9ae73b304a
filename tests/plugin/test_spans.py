"""Images whose tokens see each other: how a step is cut for the kernel, and where it may end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.multimodal.inputs import PlaceholderRange

from cpu_backend.attention import whole_prompts
from cpu_backend.attention.spans import Pieces, cut, whole
from cpu_backend.errors import ConfigError
from cpu_backend.host import whole_images


def pieces(
    starts: list[int], lengths: list[int], ranges: dict[int, list[tuple[int, int]]]
) -> Pieces | None:
    table = torch.arange(len(lengths), dtype=torch.int32)[:, None] + 10
    return cut(torch.tensor(starts), torch.tensor(lengths), table, ranges)


def test_a_step_without_a_span_is_not_cut() -> None:
    assert pieces([0, 3, 4], [3, 20], {}) is None
    # Spans that lie before this step's queries, after them, or are one token long.
    assert pieces([0, 3, 4], [9, 20], {0: [(0, 5), (9, 12), (7, 7)], 1: [(3, 18)]}) is None


def test_a_request_is_cut_where_a_span_begins_and_ends() -> None:
    found = pieces([0, 10, 11], [10, 7], {0: [(6, 7), (2, 4)], 1: [(0, 3)]})
    assert found is not None
    assert found.query_start_loc.tolist() == [0, 2, 5, 6, 8, 10, 11]
    assert found.seq_lens.tolist() == [2, 5, 6, 8, 10, 7]
    assert found.dynamic_causal.tolist() == [True, False, True, False, True, True]
    assert found.block_table.flatten().tolist() == [10, 10, 10, 10, 10, 11]


def test_the_rest_of_a_span_that_the_prefix_cache_holds_in_part() -> None:
    found = pieces([0, 4], [12], {0: [(3, 9)]})
    assert found is not None
    assert found.query_start_loc.tolist() == [0, 2, 4]
    assert found.seq_lens.tolist() == [10, 12]
    assert found.dynamic_causal.tolist() == [False, True]


def test_no_step_ends_within_a_span() -> None:
    spans = [(5, 10), (10, 14)]
    assert [whole(0, n, spans) for n in (4, 5, 6, 9, 10, 11, 13, 14, 20)] == [
        4, 5, 5, 5, 10, 10, 10, 14, 20,
    ]  # fmt: skip
    assert whole(5, 3, spans) == 0
    assert whole(7, 2, spans) == 0
    assert whole(7, 3, spans) == 3


def test_other_models_that_read_prompts_in_both_directions_are_refused() -> None:
    config = SimpleNamespace(model_type="new")
    model = SimpleNamespace(architecture="Xyz", hf_config=config)
    layer = SimpleNamespace(non_causal=True)
    with pytest.raises(ConfigError, match=r"^Xyz reads prompts in both .*, and is not among"):
        whole_prompts.check(model, layer)
    whole_prompts.check(model, SimpleNamespace(non_causal=False))
    config.model_type = "hrm_text"
    whole_prompts.check(model, layer)


def test_a_video_is_cut_between_its_frames() -> None:
    """Where a step has room for a frame and not for all of them: the host alone would wait."""
    is_embed = torch.tensor([False, True, True, False, True, True])
    place = PlaceholderRange(offset=2, length=6, is_embed=is_embed)
    request = SimpleNamespace(mm_features=[SimpleNamespace(mm_position=place)])
    config = SimpleNamespace(disable_chunked_mm_input=True)

    def host(scheduler: Any, _: Any, computed: int, new: int) -> tuple[Any, int]:
        waits = scheduler.scheduler_config.disable_chunked_mm_input and computed + new < 8
        return [], 0 if waits else new

    hf_config = SimpleNamespace(model_type="molmo2")
    model = SimpleNamespace(is_mm_prefix_lm=True, hf_config=hf_config)
    scheduler = SimpleNamespace(
        scheduler_config=config, vllm_config=SimpleNamespace(model_config=model)
    )
    schedule = whole_images.schedule(host)
    assert schedule(scheduler, request, 0, 7)[1] == 6  # the second frame begins there
    assert schedule(scheduler, request, 6, 7)[1] == 7
    assert config.disable_chunked_mm_input
