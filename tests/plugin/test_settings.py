"""The host's settings: each known, and none taken that is passed over without a word."""

from __future__ import annotations

import dataclasses
import logging
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from vllm.engine.arg_utils import AsyncEngineArgs

from cpu_backend.errors import ConfigError
from cpu_backend.serving import settings

HERE = str(Path(__file__).parent)  # any folder


def _arguments(**options: Any) -> Any:
    return AsyncEngineArgs(HERE, **options)


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(settings.logger, "propagate", True)
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
    caplog.set_level(logging.INFO, "vllm.cpu_backend")
    return caplog


def test_every_setting_of_the_host_is_known_once() -> None:
    known = settings.known()
    assert [name for name, times in Counter(known).items() if times > 1] == []
    assert {field.name for field in dataclasses.fields(AsyncEngineArgs)} - set(known) == set()
    assert set(settings.DEVICES) <= set(known)


def test_settings_as_the_host_has_them_say_nothing(log: pytest.LogCaptureFixture) -> None:
    settings.look(_arguments())
    assert log.text == ""


def test_what_changes_nothing_is_said_and_put_back(log: pytest.LogCaptureFixture) -> None:
    arguments = _arguments(
        moe_backend="triton",
        attention_config={"flash_attn_version": 3},
        swa_bounded_replay=False,
        enable_layerwise_nvtx_tracing=True,  # which ends an engine without CUDA
        compilation_config={"cudagraph_capture_sizes": [1, 2]},
    )
    settings.look(arguments)
    reason = "change nothing: this backend has its own kernels"
    assert f"--attention-config.flash_attn_version 3, --moe-backend triton {reason}" in log.text
    assert "--no-swa-bounded-replay changes nothing" in log.text
    assert "--compilation-config.cudagraph_capture_sizes changes nothing" in log.text
    log.clear()
    settings.look(arguments)
    assert log.text == ""


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ({"enable_eplb": True}, r"--enable-eplb is not supported .* \(experts stay"),
        (
            {"enable_trace_replay": True},
            r"--enable-trace-replay .* needs Triton\): leave it",
        ),
        ({"decode_context_parallel_size": 2}, "--decode-context-parallel-size 2 is not supported"),
        ({"mm_processor_device": "cuda"}, "--mm-processor-device cuda needs a GPU"),
        ({"pt_load_map_location": {"cuda:1": "cuda:0"}}, "--pt-load-map-location needs a GPU"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_cannot_be_done_is_refused(option: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        settings.look(_arguments(**option))


def test_what_is_switched_off_need_not_be_supported() -> None:
    settings.look(_arguments(enable_batch_sharded_sampling=False))


def test_a_setting_that_is_new_in_the_host_is_warned_of(log: pytest.LogCaptureFixture) -> None:
    @dataclasses.dataclass
    class Later(AsyncEngineArgs):
        warp_speed: int = 0

    settings.look(Later(HERE, warp_speed=9))
    assert "nobody has tried --warp-speed 9 of this vLLM" in log.text
