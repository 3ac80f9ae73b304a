"""The host's registries take this backend's layers, and small helpers of packing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cpu_backend import platform
from cpu_backend.errors import ConfigError
from cpu_backend.host import experts, quantized_kernels
from cpu_backend.host.bases import MoEActivation
from cpu_backend.layers.quantization import packing
from cpu_backend.layers.quantization.gptq import ChannelGroups, CpuGPTQConfig, order_of_channels
from tests.ops.test_quant_linear import packed_stream


def test_every_registry_of_the_host_names_this_backend_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from vllm.model_executor.kernels import linear as host
    from vllm.platforms import PlatformEnum

    for name in quantized_kernels.REGISTRIES:
        monkeypatch.setattr(host, name, {PlatformEnum.CPU: ["the host's"]})
    quantized_kernels.register(host)
    for name in quantized_kernels.REGISTRIES:
        ours, *others = getattr(host, name)[PlatformEnum.CPU]
        assert ours.__module__.startswith("cpu_backend."), name
        assert others == ["the host's"]
    assert host._POSSIBLE_KERNELS[PlatformEnum.CPU][0].__name__ == "CpuWeightOnlyLinear"


def test_a_quantized_model_brings_this_backends_readers() -> None:
    from vllm.model_executor.layers.quantization import get_quantization_config

    platform.CpuBackendPlatform.verify_quantization("gptq")
    for name in ("gptq", "auto_gptq", "gptq_marlin"):
        assert get_quantization_config(name) is CpuGPTQConfig
    for name in ("awq", "auto_awq", "awq_marlin"):
        assert get_quantization_config(name).__name__ == "CpuAWQConfig"


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 8])
def test_unpack_rows_reads_a_stream_of_bits(bits: int, seeded: torch.Generator) -> None:
    codes = torch.randint(0, 2**bits, (5, 77), generator=seeded)
    assert torch.equal(packing.unpack_rows(packed_stream(codes, bits), bits, 77), codes)


def test_order_of_channels() -> None:
    in_order = torch.tensor([0, 0, 0, 1, 1, 1, 2], dtype=torch.int32)
    assert order_of_channels(in_order, 3) == (3, None)
    size, channels = order_of_channels(torch.tensor([2, 0, 2, 2, 0, 3], dtype=torch.int32), 4)
    assert size == 3
    assert channels is not None
    assert channels.view(4, 3).tolist() == [[1, 4, -1], [-1, -1, -1], [0, 2, 3], [5, -1, -1]]


def test_merged_layers_must_order_their_channels_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.model_executor import parameter

    monkeypatch.setattr(parameter, "get_tensor_model_parallel_rank", lambda: 0)
    monkeypatch.setattr(parameter, "get_tensor_model_parallel_world_size", lambda: 1)

    def groups(*of: int) -> torch.Tensor:
        return torch.tensor(of, dtype=torch.int32)

    shared = ChannelGroups(data=groups(0, 0, 1, 1), input_dim=0, weight_loader=print)
    shared.load_qkv_weight(groups(1, 0, 0, 1), shard_id="q")
    shared.load_qkv_weight(groups(1, 0, 0, 1), shard_id="k")
    with pytest.raises(ConfigError, match="orders the channels of layers that are merged here"):
        shared.load_qkv_weight(groups(0, 1, 0, 1), shard_id="v")


def gptq(**changes: Any) -> CpuGPTQConfig:
    config = {"bits": 4, "group_size": 64, "desc_act": False, "sym": True}
    return CpuGPTQConfig.from_config(config | changes)


def test_gptq_settings() -> None:
    assert not gptq().desc_act
    assert gptq(desc_act=True).desc_act
    # One group per column: the order of channels means nothing.
    assert not gptq(desc_act=True, group_size=-1).desc_act
    assert gptq().zeros_are_stored_less_one
    assert not gptq(checkpoint_format="gptq_v2").zeros_are_stored_less_one
    with pytest.raises(ConfigError, match="GPTQ checkpoints of 5 bits are not known"):
        gptq(bits=5)


def test_the_order_of_channels_is_loaded_only_where_it_matters() -> None:
    name = "model.layers.0.mlp.up_proj.g_idx"

    def kept(config: CpuGPTQConfig) -> list[str]:
        return [n for n, _ in config.get_checkpoint_weight_mapper().apply([(name, torch.ones(1))])]

    assert kept(gptq()) == []
    assert kept(gptq(desc_act=True)) == [name]
    assert kept(gptq(dynamic={"+:.*up_proj": {"desc_act": True}})) == [name]


def test_activations_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    assert packing.weight_only_activations().kind == "int16"
    monkeypatch.setenv("CPU_BACKEND_ACTIVATIONS", "int8")
    assert packing.weight_only_activations().kind == "int8"
    monkeypatch.setenv("CPU_BACKEND_ACTIVATIONS", "int4")
    with pytest.raises(ConfigError, match="CPU_BACKEND_ACTIVATIONS=int4 is not known: use int16"):
        packing.weight_only_activations()


def test_experts_whose_activation_is_not_known_are_refused_by_name() -> None:
    """Before the host looks for a kernel, which it reports without the reason."""
    choose = experts.choose(lambda layer: pytest.fail("the host was asked"))
    with pytest.raises(ConfigError, match="whose activation is relu2 are not supported"):
        choose(SimpleNamespace(activation=MoEActivation.RELU2))
