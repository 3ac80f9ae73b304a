"""Biases of a checkpoint that a model passes over."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from cpu_backend.errors import ConfigError
from cpu_backend.layers.whole_weights import Biases

CHECKPOINT = {
    "a.bias": torch.ones(4),
    "a.weight": torch.ones(4, 3),
    "b.bias": torch.zeros(4),
    "b.weight_packed": torch.ones(4, 3),
}


def load(take: Callable[[str], bool]) -> None:
    """A model that copies or slices what ``take`` names, and looks at no other."""
    model = torch.nn.Module()
    biases = Biases()
    for name, tensor in biases.watch(iter(CHECKPOINT.items())):
        if take(name):
            copy = torch.empty_like(CHECKPOINT[name]).copy_(tensor)
            joined = torch.cat([tensor[:2], tensor.narrow(0, 2, 2)])
            assert type(copy) is type(joined) is torch.Tensor
            assert torch.equal(copy, CHECKPOINT[name])
            assert torch.equal(joined, copy)
    biases.check(model)


def test_a_bias_without_a_place() -> None:
    with pytest.raises(ConfigError, match=r"Module has no place for a\.bias, one of 1 such biases"):
        load(lambda name: name != "a.bias")


@pytest.mark.parametrize(
    "take",
    [
        lambda name: True,
        lambda name: not name.startswith("a."),
        lambda name: name != "b.bias",
        lambda name: False,
    ],
    ids=["all", "a layer left out", "zeros left out", "nothing"],
)
def test_what_makes_no_difference(take: Callable[[str], bool]) -> None:
    load(take)
