"""A small Qwen3-MoE in NVFP4, in both layouts, beside transformers with what the numbers stand for.

Every matrix has a global scale of its own, also where the host merges some (q, k and v).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.conftest import mostly_slow
from tests.e2e import engine
from tests.e2e.conftest import Quantize
from tests.e2e.mixture import write_dequantized, write_qwen

# The host refuses Model Optimizer's in fp32.
LAYOUTS = {
    "nvfp4-of-each": "float32",
    "nvfp4a16-of-each": "float32",
    "modelopt-nvfp4-of-each": "float16",
}
# Of half of the tokens, in standard deviations; at some of the others rounding chooses other
# experts, and those behind them read that.
ERROR = {"float32": 1e-3, "float16": 1e-2}


@pytest.fixture(scope="module")
def short(prompts: list[list[int]]) -> list[list[int]]:
    return [ids for ids in prompts if 2 <= len(ids) <= 200]


@pytest.fixture(scope="module")
def checkpoint(
    quantize: Quantize, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """``checkpoint(scheme)``: the path of the model in it."""
    folder = tmp_path_factory.mktemp("qwen")
    write_qwen(folder / "plain")
    return lambda scheme: quantize(scheme, folder / "plain", folder / scheme)


@pytest.fixture(scope="module")
def wanted(
    checkpoint: Callable[[str], Path],
    short: list[list[int]],
    tmp_path_factory: pytest.TempPathFactory,
) -> torch.Tensor:
    """Log-probabilities of the tokens of all prompts in turn, by transformers in fp32."""
    folder = tmp_path_factory.mktemp("stands for") / "plain"
    dequantized = write_dequantized(checkpoint("nvfp4-of-each"), folder)
    model = AutoModelForCausalLM.from_pretrained(dequantized, dtype=torch.float32)
    result = []
    for ids in short:
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0, :-1]
        chosen = logits.log_softmax(-1).gather(1, torch.tensor(ids)[1:, None])
        result.append(chosen[:, 0])
    return torch.cat(result)


def ask(
    model: Path, dtype: str, prompts: list[list[int]], **options: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same by this backend, prompts together and each alone."""
    options = {"max_model_len": 512, "skip_tokenizer_init": True, **options}
    job = {
        "engine": {"model": str(model), "dtype": dtype, **options},
        "batches": [prompts, *[[ids] for ids in prompts]],
        "sampling": {"max_tokens": 1, "prompt_logprobs": 0, "detokenize": False},
    }
    together, *alone = engine.run(job)

    def logprobs(results: Iterable[dict[str, Any]]) -> torch.Tensor:
        return torch.tensor([value for read in results for value in read["prompt_logprobs"]])

    return logprobs(together), logprobs(result for [result] in alone)


@pytest.mark.parametrize("scheme", mostly_slow(LAYOUTS, "nvfp4-of-each", "modelopt-nvfp4-of-each"))
@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param({"tensor_parallel_size": 2}, marks=pytest.mark.slow),
        pytest.param(
            {"tensor_parallel_size": 2, "enable_expert_parallel": True}, marks=pytest.mark.slow
        ),
    ],
    ids=["one rank", "halves of experts", "half of the experts"],
)
def test_it_says_what_transformers_say(
    options: dict[str, Any],
    scheme: str,
    checkpoint: Callable[[str], Path],
    short: list[list[int]],
    wanted: torch.Tensor,
) -> None:
    together, alone = ask(checkpoint(scheme), LAYOUTS[scheme], short, **options)
    assert torch.equal(together, alone)
    error = ((together - wanted).abs() / wanted.std()).median().item()
    print(f"error {error:.2g}")
    assert error <= ERROR[LAYOUTS[scheme]]


@pytest.mark.slow
def test_a_slice_that_cuts_a_group_is_refused(quantize: Quantize, tmp_path: Path) -> None:
    write_qwen(tmp_path / "plain", num_hidden_layers=1, moe_intermediate_size=48)
    model = quantize("nvfp4", tmp_path / "plain", tmp_path / "nvfp4")
    said = r"model.layers.0.mlp.experts[a-z_.]* cannot be loaded: this rank would have 24 channels"
    with pytest.raises(AssertionError, match=said):
        ask(model, "float32", [], tensor_parallel_size=2)
