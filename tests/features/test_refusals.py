"""What cannot work is refused in one sentence before an engine starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cpu_backend.errors import ConfigError


def _configure(model: str | Path, **options: Any) -> Any:
    from vllm.engine.arg_utils import EngineArgs

    return EngineArgs(str(model), device="cpu", max_model_len=512, **options).create_engine_config()


NGRAM = {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 3}


@pytest.mark.parametrize("draft", ["ngram", "model"])
def test_speculative_decoding(model_path: str, draft: str) -> None:
    speculative = NGRAM if draft == "ngram" else {"model": model_path, "num_speculative_tokens": 2}
    with pytest.raises(ConfigError, match=r"speculative decoding .* --speculative-config"):
        _configure(model_path, speculative_config=speculative)


def test_profilers_of_a_gpu(model_path: str) -> None:
    with pytest.raises(ConfigError, match=r"cuda profiler needs a GPU: choose .* torch"):
        _configure(model_path, profiler_config={"profiler": "cuda"})


def test_a_library_for_structured_outputs_that_does_not_load(model_path: str) -> None:
    name = "lm-format-enforcer"
    with pytest.raises(ConfigError, match=rf"{name} .* choose xgrammar or guidance"):
        _configure(model_path, structured_outputs_config={"backend": name})


def test_adapters_of_mixtures(model_path: str, tmp_path: Path) -> None:
    config = json.loads((Path(model_path) / "config.json").read_text())
    config |= {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).symlink_to(Path(model_path) / name)
    assert not _configure(tmp_path, load_format="dummy").lora_config
    with pytest.raises(ConfigError, match=r"LoRA .* mixtures of experts .* merged into"):
        _configure(tmp_path, load_format="dummy", enable_lora=True)


def test_async_scheduling_is_switched_off_and_said(
    model_path: str, caplog: pytest.LogCaptureFixture
) -> None:
    config = _configure(model_path, async_scheduling=True)
    assert config.scheduler_config.async_scheduling is False
    assert "async scheduling is off" in caplog.text
