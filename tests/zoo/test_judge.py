"""What the zoo's judgement does with few tokens."""

from __future__ import annotations

import pytest
import torch

from tests.zoo import judge


@pytest.mark.parametrize(
    ("errors", "expected"), [([0.5], 0.5), ([-0.3, 4.0], 0.3), ([0.1] * 98 + [9.0, 9.0], 0.1)]
)
def test_worst_tokens_do_not_count_but_a_lone_one_does(
    errors: list[float], expected: float
) -> None:
    assert judge.rms(torch.tensor(errors), judge.WITHOUT) == pytest.approx(expected)
