"""Which of the host's classes may be made on a CPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from vllm.model_executor.models.registry import _VLLM_MODELS

from cpu_backend import architectures
from cpu_backend.architectures import COMPARED
from cpu_backend.errors import ConfigError
from cpu_backend.host import model_inspection
from cpu_backend.host.model_classes import FOR_GPUS

OF_GPUS = [name for name, (module, _) in _VLLM_MODELS.items() if module.startswith(FOR_GPUS)]


class Model:
    """What the host has before it imports a class."""

    def inspect_model_cls(self) -> str:
        return "imported"


def test_classes_for_gpus_are_refused_before_they_are_imported() -> None:
    inspect: Any = model_inspection.inspect(lambda architecture, model: None)
    refused = [name for name in OF_GPUS if name not in COMPARED]
    assert "HYV4ForCausalLM" in refused
    for name in refused:
        with pytest.raises(ConfigError, match=rf"^{name} is written for GPUs in this vLLM, .*\.$"):
            inspect(name, Model())
    for name in ("LlamaForCausalLM", "NobodysForCausalLM", *set(OF_GPUS) & COMPARED.keys()):
        assert inspect(name, Model()) == "imported"


@pytest.mark.parametrize("name", architectures.NOT_ON_CPUS)
def test_a_class_that_the_host_has_and_cannot_compute_rightly_is_refused(name: str) -> None:
    assert name in _VLLM_MODELS
    with pytest.raises(ConfigError, match=rf"^{name} .*: choose another model\.$"):
        architectures.check(SimpleNamespace(architecture=name))


def test_ling_2_5_is_not_read_as_ling_3(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(architectures.only_with, "check", lambda model: None)
    for module, refused in (
        ("transformers.models.bailing_hybrid.configuration_bailing_hybrid", True),
        ("transformers_modules.ling.configuration_bailing_moe_v2_5", False),
    ):
        config = type("Config", (), {"__module__": module, "model_type": "bailing_hybrid"})()
        model = SimpleNamespace(architecture="BailingMoeV2_5ForCausalLM", hf_config=config)
        monkeypatch.setattr(architectures, "check_layers", lambda model: None)
        if refused:
            with pytest.raises(ConfigError, match="add --trust-remote-code"):
                architectures.check(model)
        else:
            architectures.check(model)


def test_a_minicpmv_of_no_version_is_not_among_those_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[str] = []
    for name in ("only_with.check", "check_layers"):
        monkeypatch.setattr(f"cpu_backend.architectures.{name}", lambda model: None)
    monkeypatch.setattr(architectures, "_warn", said.append)
    for config in ({"version": 2.6}, {}):
        config = SimpleNamespace(model_type="minicpmv", **config)
        model = SimpleNamespace(architecture="MiniCPMV", hf_config=config)
        architectures.check(model)
    assert said == ["MiniCPMV before version 2.6"]
