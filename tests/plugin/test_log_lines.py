"""Lines of the host that are not written, and those beside them that are."""

from __future__ import annotations

import logging

import torch
from vllm.model_executor.models import utils

WORDS = "Attempted to load weight %s with dtype %s into parameter with dtype %s"


def _written(weight: torch.dtype, parameter: torch.dtype) -> bool:
    record = logging.LogRecord("", logging.WARNING, "", 0, WORDS, ("a", weight, parameter), None)
    return bool(utils.logger.filter(record))


def test_casts_to_the_servers_dtype_are_not_of_each_weight() -> None:
    assert not _written(torch.float32, torch.bfloat16)
    assert not _written(torch.bfloat16, torch.float16)


def test_other_casts_are() -> None:
    assert _written(torch.float8_e4m3fn, torch.bfloat16)
    assert _written(torch.float32, torch.int8)
