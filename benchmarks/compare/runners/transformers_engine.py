"""transformers, eager, with the key-value cache of its `generate`."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

from protocol import run_engine


class TransformersEngine:
    def __init__(self, modules: Any, settings: dict[str, Any]) -> None:
        self.torch = modules.torch
        self.torch.set_num_threads(settings["threads"])
        self.model = modules.transformers.AutoModelForCausalLM.from_pretrained(
            settings["model"], dtype=getattr(self.torch, settings["dtype"])
        )
        # Without an end token nothing ends early.
        self.model.generation_config.eos_token_id = None
        self.model.generation_config.pad_token_id = 0
        self.tokenizer = None
        if os.path.exists(os.path.join(settings["model"], "tokenizer.json")):
            self.tokenizer = modules.transformers.AutoTokenizer.from_pretrained(settings["model"])
        self.versions = {
            "transformers": modules.transformers.__version__,
            "torch": self.torch.__version__,
        }

    def generate(self, prompts: list[list[int]], outputs: int) -> list[list[int]]:
        tokens = self.torch.tensor(prompts)
        with self.torch.inference_mode():
            result = self.model.generate(
                tokens,
                attention_mask=self.torch.ones_like(tokens),
                max_new_tokens=outputs,
                do_sample=False,
            )
        return result[:, tokens.shape[1] :].tolist()

    def text(self, tokens: list[int]) -> str:
        return self.tokenizer.decode(tokens) if self.tokenizer else ""


def load() -> Any:
    import torch
    import transformers

    return SimpleNamespace(torch=torch, transformers=transformers)


if __name__ == "__main__":
    run_engine(load, TransformersEngine)
