"""Fixtures of the feature tests: one offline engine, one server, and what transformers computes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.e2e.server import Server
from tests.features import adapters
from tests.features.offline import Offline

os.environ["HF_HUB_OFFLINE"] = "1"

TEMPLATE = Path(__file__).with_name("tools.jinja")


@pytest.fixture(scope="session")
def tokenizer(model_path: str) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model_path, local_files_only=True)


@pytest.fixture(scope="session")
def load_reference(model_path: str) -> Callable[[], Any]:
    """A fresh fp32 copy of the model in transformers."""

    def load() -> Any:
        from transformers import AutoModelForCausalLM

        return AutoModelForCausalLM.from_pretrained(
            model_path, dtype=torch.float32, local_files_only=True
        )

    return load


@pytest.fixture(scope="session")
def reference_logprobs(load_reference: Callable[[], Any]) -> Callable[[list[int]], torch.Tensor]:
    """``reference_logprobs(ids)`` [tokens, vocabulary]: of what follows each token."""
    model = load_reference()

    def compute(ids: list[int]) -> torch.Tensor:
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0]
        return torch.log_softmax(logits.float(), dim=-1)

    return compute


@pytest.fixture(scope="module")
def engine(model_path: str) -> Iterator[Offline]:
    """fp32, steps recorded, no more than four requests and 256 tokens at once."""
    with Offline(
        model_path,
        dtype="float32",
        max_model_len=1024,
        max_num_seqs=4,
        max_num_batched_tokens=256,
        scheduling_policy="priority",
        disable_log_stats=False,
    ) as running:
        yield running


@pytest.fixture(scope="session")
def adapter_folders(model_path: str, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two different adapters."""
    config = json.loads((Path(model_path) / "config.json").read_text())
    folder = tmp_path_factory.mktemp("adapters")
    return [adapters.write(folder / name, config, seed) for seed, name in enumerate("ab", 1)]


@pytest.fixture(scope="module")
def profile_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("profile")


@pytest.fixture(scope="module")
def server(
    model_path: str,
    adapter_folders: list[Path],
    profile_folder: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Server]:
    """One server with everything that can be had together."""
    arguments = {
        "--dtype": "float32",
        "--max-model-len": "1024",
        "--max-num-seqs": "4",
        "--scheduling-policy": "priority",
        "--tool-call-parser": "hermes",
        "--chat-template": str(TEMPLATE),
        "--reasoning-parser": "granite",
        # The model does not think by itself: a regular expression makes it.
        "--structured-outputs-config": json.dumps({"enable_in_reasoning": True}),
        "--profiler-config": json.dumps(
            {
                "profiler": "torch",
                "torch_profiler_dir": str(profile_folder),
                "torch_profiler_with_stack": False,
            }
        ),
        "--max-loras": "2",
        "--max-lora-rank": "8",
    }
    modules = [f"{path.name}={path}" for path in adapter_folders]
    flags = ["--enable-auto-tool-choice", "--async-scheduling", "--enable-lora"]
    flags += ["--enable-sleep-mode", "--lora-modules", *modules]
    options = [word for pair in arguments.items() for word in pair]
    log = tmp_path_factory.mktemp("server") / "log"
    running = Server(model_path, log, *options, *flags)
    running.environ = {"VLLM_SERVER_DEV_MODE": "1"}  # /sleep, /collective_rpc, ...
    with running:
        yield running
