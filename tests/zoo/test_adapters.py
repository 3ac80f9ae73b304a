"""An adapter beside a quantized model; the other schemes and models by hand."""

from __future__ import annotations

import json
import subprocess
import sys


def test_of_a_quantized_model() -> None:
    command = [sys.executable, "-m", "tests.zoo.adapters", "Qwen3ForCausalLM", "--scheme", "awq"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert json.loads(done.stdout) == ["Qwen3ForCausalLM", "right", ""], done.stderr[-2000:]
