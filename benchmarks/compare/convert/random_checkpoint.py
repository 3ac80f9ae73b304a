"""Writes a Llama checkpoint of random bf16 weights: CONFIG OUT, the config being JSON text.

For measuring a shape whose weights cannot be had: speed does not depend on the values, and as they
are the same for every peer their greedy tokens can still be compared. Seeded normal numbers of
variance initializer_range squared; runs where transformers and torch are.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM


def main() -> None:
    text, out = sys.argv[1], Path(sys.argv[2])
    torch.manual_seed(0)
    config = AutoConfig.for_model(**json.loads(text))
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(out)
    # As given: save_pretrained writes it in the form of its own version.
    (out / "config.json").write_text(text)


if __name__ == "__main__":
    main()
