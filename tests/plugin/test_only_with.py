"""Models that the host answers wrongly are refused by their classes (cpu_backend/only_with.py)."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from cpu_backend import only_with
from cpu_backend.errors import ConfigError
from cpu_backend.host import source


def test_classes_that_an_older_host_computes_wrongly(monkeypatch: pytest.MonkeyPatch) -> None:
    model = SimpleNamespace(
        architecture="K2HorizonForCausalLM", hf_config=SimpleNamespace(), runner_type="generate"
    )
    only_with.check(model)
    monkeypatch.setattr(source.host(), "release", (0, 30))
    with pytest.raises(ConfigError, match="wrongly by this release of vLLM"):
        only_with.check(model)
    model.architecture = "LlamaForCausalLM"
    only_with.check(model)


def test_videos_that_an_older_host_computes_wrongly(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {"image": 999, "video": 999}
    model = SimpleNamespace(
        architecture="Qwen2_5_VLForConditionalGeneration",
        hf_config=SimpleNamespace(),
        runner_type="generate",
        multimodal_config=SimpleNamespace(get_limit_per_prompt=limits.get),
    )
    only_with.check(model)
    monkeypatch.setattr(source.host(), "release", (0, 30))
    with pytest.raises(ConfigError, match=r"--limit-mm-per-prompt\.video 0, or install vLLM 0\.31"):
        only_with.check(model)
    limits["video"] = 0
    only_with.check(model)
