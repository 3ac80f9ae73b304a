"""Fixtures of the end-to-end tests: the demo model's forms and what transformers makes of it."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from cpu_backend.demo_model import fetch
from examples import quantize_model
from tests.e2e import other_tools
from tests.e2e.engine import NEW_TOKENS
from tests.features.offline import Offline

os.environ["HF_HUB_OFFLINE"] = "1"

PROMPT_LENGTHS = (1, 2, 7, 16, 17, 33, 64, 127, 128, 129, 500, 2000)


@pytest.fixture(scope="session")
def prompts() -> list[list[int]]:
    """A dozen prompts of 1 to 2,000 tokens, from a fixed seed."""
    generator = random.Random(20)
    return [[generator.randrange(100, 49000) for _ in range(n)] for n in PROMPT_LENGTHS]


@pytest.fixture(scope="session")
def reference(model_path: str) -> Any:
    """``reference(dtype)``: the model in transformers."""
    from transformers import AutoModelForCausalLM

    return partial(AutoModelForCausalLM.from_pretrained, model_path, local_files_only=True)


def greedy_tokens(model: Any, prompts: list[list[int]]) -> list[list[int]]:
    """What a model of transformers adds to each prompt."""
    with torch.no_grad():
        return [
            model.generate(
                torch.tensor([ids]),
                attention_mask=torch.ones(1, len(ids), dtype=torch.long),
                max_new_tokens=NEW_TOKENS,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
            )[0, len(ids) :].tolist()
            for ids in prompts
        ]


@pytest.fixture(scope="session")
def expected(reference: Any, prompts: list[list[int]]) -> list[list[int]]:
    """Greedy fp32 tokens of transformers for each prompt."""
    return greedy_tokens(reference(dtype=torch.float32), prompts)


@pytest.fixture(scope="session")
def gguf_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of which the demo model is the dequantized copy: Q4_1, and Q8_0 for the table."""
    folder = tmp_path_factory.mktemp("gguf")
    return fetch.fetch_gguf(folder, folder / "LICENSE")


Quantize = Callable[[str, Path, Path], Path]


@pytest.fixture(scope="session")
def quantize() -> Quantize:
    """``quantize(scheme, source, target)``: ``target``, a checkpoint as the script or another tool
    writes it."""
    schemes = quantize_model.SCHEMES | other_tools.schemes(quantize_model.SCHEMES)

    def write(scheme: str, source: Path, target: Path) -> Path:
        quantize_model.quantize(schemes[scheme], source, target)
        return target

    return write


Start = Callable[..., Offline]


@pytest.fixture(scope="module")
def start() -> Iterator[Start]:
    """``start(model, **options)``: an engine in the place of the one that was started before."""
    running: list[Offline] = []

    def start(model: str | Path, **options: Any) -> Offline:
        if running:
            running[0].start(str(model), **options)
        else:
            running.append(Offline(str(model), **options))
        return running[0]

    yield start
    for each in running:
        each.__exit__(None, None, None)
