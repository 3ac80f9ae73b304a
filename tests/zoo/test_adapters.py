"""Adapters of a quantized model and of a mixture; the other schemes and models by hand."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "arguments",
    [
        ("Qwen3ForCausalLM", "--scheme", "awq"),
        ("DeepseekV2ForCausalLM", "--of", "all"),
    ],
    ids=["quantized", "mixture"],
)
def test_beside_merged_weights(arguments: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "tests.zoo.adapters", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert json.loads(done.stdout) == [arguments[0], "right", ""], done.stderr[-2000:]
