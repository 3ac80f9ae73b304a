"""Text models with the shape of published ones and random weights, and what they have to multiply.

A checkpoint of one is given to every engine of a comparison, so all compute the same model.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.compare.environments import run_step
from benchmarks.compare.models import CONVERT
from benchmarks.turns import OURS


@dataclass(frozen=True)
class Weights:
    """Numbers of them: of linear layers, of the experts of all mixtures, and of the output."""

    linear: int
    experts: int
    head: int
    chosen: float  # of the experts, by one token

    def multiplied(self) -> float:
        """By one token of a prompt, which needs no logits."""
        return self.linear + self.chosen * self.experts

    def read(self, tokens: int) -> float:
        """In a step of so many tokens, which choose their experts by chance."""
        return self.linear + (1 - (1 - self.chosen) ** tokens) * self.experts + self.head


def weights_of(config: dict[str, Any]) -> Weights:
    """Counted on the model of ``transformers``, without memory."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    made = AutoConfig.for_model(**config)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(made)
    experts = sum(
        p.numel() for n, p in model.named_parameters() if p.dim() == 3 and "conv" not in n
    )
    linear = sum(
        module.weight.numel()
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and name != "lm_head"
    )
    of = config.get("num_local_experts") or config.get("n_routed_experts") or 1
    chosen = config.get("num_experts_per_tok", 0) / of
    return Weights(linear, experts, made.vocab_size * made.hidden_size, chosen)


def write_checkpoint(config: dict[str, Any], folder: Path) -> Path:
    """One with random weights in bf16; SetupError where ``transformers`` cannot make it."""
    script = str(CONVERT / "random_checkpoint.py")
    run_step([str(OURS), script, json.dumps(config), str(folder)], folder.with_suffix(".log"))
    return folder
