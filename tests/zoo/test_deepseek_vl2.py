"""What is too small a difference for the zoo to see (host/deepseek_vl2.py)."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import gelu

from cpu_backend import host
from tests.zoo import deepseek_vl2


@pytest.mark.needs("torchvision", "timm")
def test_the_encoder_has_gelu_by_tanh(monkeypatch: pytest.MonkeyPatch) -> None:
    import timm
    from vllm.model_executor.models import deepseek_vl2 as theirs

    host.prepare_model()
    monkeypatch.setattr(timm, "create_model", timm.create_model)  # to be put back
    deepseek_vl2._make_host_small()
    monkeypatch.setattr(theirs, "get_tensor_model_parallel_world_size", lambda: 1)
    encoder = theirs.DeepseekVLV2ForCausalLM._init_vision_module(None, None, None)
    x = torch.linspace(-4, 4, 100)
    assert len(encoder.blocks) == deepseek_vl2.SIGLIP["num_hidden_layers"]
    for block in encoder.blocks:
        torch.testing.assert_close(block.mlp.act(x), gelu(x, approximate="tanh"), atol=0, rtol=0)
