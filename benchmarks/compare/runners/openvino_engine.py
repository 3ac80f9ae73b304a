"""OpenVINO GenAI with continuous batching and paged attention, as its documentation advises."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from protocol import run_engine


class OpenvinoEngine:
    def __init__(self, modules: Any, settings: dict[str, Any]) -> None:
        self.genai, self.ov, self.numpy = modules.genai, modules.ov, modules.numpy
        scheduler = self.genai.SchedulerConfig()
        scheduler.cache_size = settings["kv_cache_gib"]
        scheduler.max_num_seqs = 256
        scheduler.max_num_batched_tokens = 2048
        properties = {"INFERENCE_NUM_THREADS": settings["threads"], **settings["engine"]}
        self.pipeline = self.genai.ContinuousBatchingPipeline(
            settings["model"], scheduler, "CPU", properties
        )
        self.has_tokenizer = (Path(settings["model"]) / "openvino_detokenizer.xml").exists()
        self.versions = {
            "openvino": self.ov.__version__,
            "openvino-genai": self.genai.__version__,
        }

    def generate(self, prompts: list[list[int]], outputs: int) -> list[list[int]]:
        config = self.genai.GenerationConfig()
        config.max_new_tokens = outputs
        config.ignore_eos = True
        config.do_sample = False
        inputs = [self.ov.Tensor(self.numpy.array([prompt], dtype="int64")) for prompt in prompts]
        results = self.pipeline.generate(inputs, [config] * len(prompts))
        return [list(result.m_generation_ids[0]) for result in results]

    def text(self, tokens: list[int]) -> str:
        return self.pipeline.get_tokenizer().decode(tokens) if self.has_tokenizer else ""


def load() -> Any:
    import numpy
    import openvino
    import openvino_genai

    return SimpleNamespace(genai=openvino_genai, ov=openvino, numpy=numpy)


if __name__ == "__main__":
    run_engine(load, OpenvinoEngine)
