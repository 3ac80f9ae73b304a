"""What models give is in one tensor for a recording, and comes out of it as it was."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from vllm.sequence import IntermediateTensors

from cpu_backend.worker.step_outputs import Outputs


def _stage(generator: torch.Generator) -> dict[str, torch.Tensor]:
    return {
        "hidden_states": torch.randn(5, 8, generator=generator).bfloat16(),
        "residual": torch.randn(5, 3, 4, generator=generator),
    }


def test_tensors_for_the_next_stage(seeded: torch.Generator) -> None:
    """By name, of any shape, none of them a view that cannot be sent."""
    outputs, given = Outputs(), _stage(seeded)
    found = outputs.parted(outputs.joined(IntermediateTensors(given)))
    assert list(found.tensors) == list(given)
    for name, tensor in given.items():
        assert torch.equal(found[name].to(tensor.dtype), tensor)
        assert found[name].is_contiguous()


def test_states_of_layers_before(seeded: torch.Generator) -> None:
    outputs, (last, other) = Outputs(), torch.randn(2, 5, 8, generator=seeded).unbind()
    found, others = outputs.parted(outputs.joined((last, [other, last])))
    assert torch.equal(found, last)
    assert len(others) == 2
    assert torch.equal(others[0], other)


@pytest.mark.parametrize("output", [torch.ones(5, 8), (torch.ones(5, 8), torch.ones(5))])
def test_what_is_one_tensor_or_unknown_stays(output: Any) -> None:
    outputs = Outputs()
    assert outputs.joined(output) is output
    assert outputs.parted(output) is output
