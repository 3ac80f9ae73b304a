"""Some fields of config.json with which the host answered wrongly, or on which it depends."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.zoo.judge import REFUSED, RIGHT

FIELDS = {
    "FalconH1ForCausalLM": "mamba_rms_norm",
    "GptOssForCausalLM": "attention_bias",
    "DeepseekV3ForCausalLM": "tie_word_embeddings",
    "GemmaForCausalLM": "attention_bias",
    "PhiMoEForCausalLM": "lm_head_bias",
    "Qwen3MoeForCausalLM": "rope_parameters",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FIELDS)
def test_another_value_is_right_or_refused(name: str) -> None:
    command = [sys.executable, "-m", "tests.zoo.fields", name, "--only", FIELDS[name]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('["')]
    assert found, done.stderr[-2000:]
    assert {state for _, _, state, _ in found} <= {RIGHT, REFUSED}, found
