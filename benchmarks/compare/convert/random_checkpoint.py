"""Writes a Llama checkpoint of random bf16 weights: CONFIG.json OUT.

For measuring a shape whose weights cannot be had: speed does not depend on the values, and as they
are the same for every peer their greedy tokens can still be compared. Seeded normal numbers of
variance initializer_range squared; runs where transformers and torch are.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM


def main() -> None:
    source, out = Path(sys.argv[1]), Path(sys.argv[2])
    staged = out.with_name(out.name + "-config")
    staged.mkdir(exist_ok=True)
    (staged / "config.json").write_text(source.read_text())
    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(staged)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(out)
    # As given: save_pretrained writes it in the form of its own version.
    (out / "config.json").write_text(source.read_text())
    (staged / "config.json").unlink()
    staged.rmdir()


if __name__ == "__main__":
    main()
