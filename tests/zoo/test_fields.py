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
VERSIONS = (("MiniCPMO", "4.5"), ("MiniCPMV", "2.6"), ("MiniCPMV", "4.0"))


@pytest.mark.slow
@pytest.mark.parametrize("name", FIELDS)
def test_another_value_is_right_or_refused(name: str) -> None:
    assert _states(name, "--only", FIELDS[name]) <= {RIGHT, REFUSED}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "version"), VERSIONS)
def test_another_text_model_of_a_class_is_right(name: str, version: str) -> None:
    assert _states(name, "--value", f'version="{version}"') == {RIGHT}


def _states(*arguments: str) -> set[str]:
    command = [sys.executable, "-m", "tests.zoo.fields", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('["')]
    assert found, done.stderr[-2000:]
    print(found)
    return {state for _, _, state, _ in found}
