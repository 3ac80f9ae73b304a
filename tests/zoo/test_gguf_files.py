"""GGUF files of llama.cpp's converter: a model of each kind of change that it makes; all of them by
hand (``tests.zoo.gguf_files``, ``tests.zoo.gguf_pooling``)."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cpu_backend.gguf import architectures

DOCS = Path(__file__).resolve().parents[2] / "docs/gguf.md"
# Latent matrices of two tensors, norms around 0 and windows, a layer that only drafts tokens,
# experts with biases, values shorter than keys in layers of two kinds, a hybrid with experts
# without a gate.
MODELS = (
    "DeepseekV3ForCausalLM",
    "Gemma3ForCausalLM",
    "Glm4MoeForCausalLM",
    "GptOssForCausalLM",
    "MiMoV2FlashForCausalLM",
    "NemotronHForCausalLM",
)
EMBEDDER, RERANKER = "BertModel", "Qwen3ForCausalLM"


def states(module: str, *names: str) -> dict[str, str]:
    command = [sys.executable, "-m", f"tests.zoo.{module}", *names]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('["')]
    assert {line[0] for line in lines} == set(names), done.stderr[-2000:]
    return {line[0]: line[1] if line[1] == "right" else line[2] for line in lines}


@pytest.mark.slow
def test_models_answer_as_their_checkpoints() -> None:
    assert states("gguf_files", *MODELS) == dict.fromkeys(MODELS, "right")


@pytest.mark.slow
def test_embeddings_and_scores_are_those_of_the_checkpoint() -> None:
    names = EMBEDDER, RERANKER
    assert states("gguf_pooling", *names) == dict.fromkeys(names, "right")


def test_the_documentation_names_every_architecture() -> None:
    section = DOCS.read_text().split("## Which models")[1].split("**How this was compared.**")[0]
    assert set(re.findall(r"`([\w-]+)`", section)) == set(architectures.KNOWN)
