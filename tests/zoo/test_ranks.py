"""Models over two ranks: those that needed a mend, and those that are refused; all of them by hand,
as formats."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.layers import vocab_parallel_embedding

from cpu_backend import architectures, host
from cpu_backend.errors import ConfigError

HALVES = ("Gemma3nForCausalLM", "MiniMaxM2ForCausalLM", "NemotronHForCausalLM")
LATENTS = ("DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM")
# Embeddings per layer, weights of another stage, a residual of None, a stage without attention.
STAGES = ("Gemma4ForCausalLM", "GPT2LMHeadModel", "MiniCPMForCausalLM", "OlmoHybridForCausalLM")


def states(names: tuple[str, ...], *ways: str) -> dict[str, dict[str, tuple[str, str]]]:
    """What ``python -m tests.zoo.ranks`` finds."""
    command = [sys.executable, "-m", "tests.zoo.ranks", *names]
    command += [word for way in ways for word in ("--way", way)]
    done = subprocess.run(command, capture_output=True, text=True)
    found = dict(json.loads(line) for line in done.stdout.splitlines() if line.startswith('["'))
    assert found.keys() == set(names), done.stderr[-2000:]
    return found


def test_halves_answer_as_one_rank_or_are_refused() -> None:
    refused = "ModernBertModel"
    found = states((*HALVES, refused), "tp", "ep")
    assert {name: {state for state, _ in ways.values()} for name, ways in found.items()} == {
        **{name: {"right"} for name in HALVES},
        refused: {"refused"},
    }


@pytest.mark.slow
def test_latent_attention_in_halves_answers_as_one_rank() -> None:
    found = states(LATENTS, "tp")
    assert {name: ways["tp"][0] for name, ways in found.items()} == dict.fromkeys(LATENTS, "right")


def test_stages_answer_as_one_rank_or_are_refused() -> None:
    refused = [name for name in architectures.WITHOUT_STAGES if name.endswith("ForCausalLM")]
    found = states((*STAGES, *refused), "pp")
    assert {name: ways["pp"][0] for name, ways in found.items()} == {
        **dict.fromkeys(STAGES, "right"),
        **dict.fromkeys(refused, "refused"),
    }


def test_a_head_that_the_model_pads_is_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    host.prepare_model()
    for name, value in (("world_size", 2), ("rank", 0)):
        name = f"get_tensor_model_parallel_{name}"
        monkeypatch.setattr(vocab_parallel_embedding, name, lambda value=value: value)
    with set_current_vllm_config(VllmConfig()):
        vocab_parallel_embedding.ParallelLMHead(1008, 64)
        with pytest.raises(ConfigError, match="logits for 8 tokens besides its 1000, which ranks"):
            vocab_parallel_embedding.ParallelLMHead(1008, 64, org_num_embeddings=1000)
