"""What the zoo's judgement does with few tokens."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from tests.zoo import judge
from tests.zoo.build import Spec, build
from tests.zoo.run import Answer


@pytest.mark.parametrize(
    ("errors", "expected"), [([0.5], 0.5), ([-0.3, 4.0], 0.3), ([0.1] * 98 + [9.0, 9.0], 0.1)]
)
def test_worst_tokens_do_not_count_but_a_lone_one_does(
    errors: list[float], expected: float
) -> None:
    assert judge.rms(torch.tensor(errors), judge.WITHOUT) == pytest.approx(expected)


def test_an_error_that_is_no_number_counts(tmp_path: Path) -> None:
    assert judge.rms(torch.tensor([0.1] * 99 + [math.nan]), judge.WITHOUT) == math.inf
    model = build(Spec("LlamaForCausalLM", "Llama", "llama"), tmp_path)
    exact = judge.prompt_logprobs(model, (1, 2, 3)).tolist()
    for logprobs, expected in ((exact, 0.0), ([exact[0], math.nan], math.inf)):
        answer = Answer((), (), tuple(logprobs), 0, (1, 2, 3))
        assert judge.worst_error(model, {(1, 2, 3): answer}) == pytest.approx(expected, abs=1e-5)
