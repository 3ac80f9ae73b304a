"""What pictures and sounds may take of the memory."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.config.multimodal import MultiModalConfig

from cpu_backend import platform
from cpu_backend.runtime import memory
from cpu_backend.worker.media_memory import MediaBytes, media_bytes

GIB = 1 << 30
BUDGET = SimpleNamespace(
    encoder_cache_size=2048, mm_max_toks_per_item={"image": 1000, "video": 4000}
)


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.visual = torch.nn.ModuleList([torch.nn.Linear(8, 24), torch.nn.Linear(24, 8)])
        self.language_model = torch.nn.Linear(8, 100)

    def get_mm_mapping(self) -> Any:
        return SimpleNamespace(tower_model=["visual."])


def config(gib: float = 0.5, processes: int = 1, max_model_len: int = 8192) -> Any:
    return SimpleNamespace(
        model_config=SimpleNamespace(
            multimodal_config=MultiModalConfig(mm_processor_cache_gb=gib),
            dtype=torch.bfloat16,
            max_model_len=max_model_len,
            get_inputs_embeds_size=lambda: 64,
        ),
        parallel_config=SimpleNamespace(_api_process_count=processes),
    )


def test_all_that_media_may_take() -> None:
    taken = media_bytes(config(), BUDGET, Model(), 1)
    assert taken == MediaBytes(GIB // 2, 2 * 2048 * 64 * 2, 4 * 4000 * 3 * 24 * 2)
    assert taken.total == sum((taken.processed, taken.encoded, taken.tower))
    assert "0.50 processed (--mm-processor-cache-gb)" in str(taken)


def test_what_is_kept_in_several_processes_is_shared_by_the_ranks() -> None:
    assert media_bytes(config(processes=3), BUDGET, Model(), 2).processed == 3 * GIB // 4


def test_a_prompt_bounds_its_media() -> None:
    assert media_bytes(config(max_model_len=500), BUDGET, Model(), 1).tower == 4 * 500 * 3 * 24 * 2


def test_models_without_media_or_towers() -> None:
    assert media_bytes(config(), None, Model(), 1).total == 0
    assert media_bytes(config(0), BUDGET, torch.nn.Linear(8, 8), 1).processed == 0
    assert media_bytes(config(0), BUDGET, torch.nn.Linear(8, 8), 1).tower == 0


@pytest.mark.parametrize(
    ("given", "total", "expected"), [(4, 24, 1.5), (4, 512, 4), (3, 24, 3), (0, 24, 0)]
)
def test_the_default_is_a_share_of_the_memory(
    given: float, total: int, expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = memory.MemoryStatus(total * GIB, total * GIB, "machine")
    monkeypatch.setattr(memory, "read_memory_status", lambda: status)
    media = MultiModalConfig(mm_processor_cache_gb=given)
    platform._set_media_cache(media)
    platform._set_media_cache(media)  # every configuration of the host is looked at again
    assert media.mm_processor_cache_gb == expected
    platform._set_media_cache(None)
