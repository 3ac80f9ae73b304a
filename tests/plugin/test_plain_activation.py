"""Activations of PyTorch and transformers, replaced in a model by this project's."""

from __future__ import annotations

import pytest
import torch
from transformers.activations import ACT2FN
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.activation import get_act_fn

from cpu_backend import ops
from cpu_backend.layers.activation import replace_plain

ROWS, SIZE = 400, 131  # beyond what one thread takes, and no multiple of a vector


@pytest.fixture(autouse=True)
def library() -> None:
    ops.load()


class Model(torch.nn.Module):
    def __init__(self, act: torch.nn.Module) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Sequential(act)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def made_by_host(name: str) -> torch.nn.Module:
    with set_current_vllm_config(VllmConfig()):
        return get_act_fn(name)


MADE = {
    "torch gelu": torch.nn.GELU,
    "torch gelu tanh": lambda: torch.nn.GELU(approximate="tanh"),
    "torch silu": torch.nn.SiLU,
    "host gelu": lambda: made_by_host("gelu"),
    "host gelu tanh": lambda: made_by_host("gelu_pytorch_tanh"),
    **{
        f"transformers {name}": lambda name=name: ACT2FN[name]
        for name in ("gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "quick_gelu", "silu")
    },
}


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("part", [0, 1], ids=["first half", "second half"])
def test_row_has_the_same_bits_in_any_batch(name: str, part: int, seeded: torch.Generator) -> None:
    model = Model(MADE[name]())
    x = 2 * torch.randn(ROWS, 2 * SIZE, generator=seeded)
    half = x.chunk(2, dim=1)[part]  # strided, as where one projection makes gate and input
    expected = model(half)
    assert replace_plain(model) == 1
    together = model(half)
    torch.testing.assert_close(together, expected, rtol=1e-5, atol=1e-6)
    for size in (1, 3, 50):
        for start in range(0, ROWS, size):
            rows = slice(start, start + size)
            assert torch.equal(model(half[rows]), together[rows])
            assert torch.equal(model(half[rows].contiguous()), together[rows])


def test_other_modules_stay() -> None:
    model = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Tanh(), torch.nn.Linear(2, 2))
    before = list(model)
    assert replace_plain(model) == 0
    assert list(model) == before
