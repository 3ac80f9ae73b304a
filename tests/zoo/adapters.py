"""``python -m tests.zoo.adapters``: models of text with a LoRA adapter of each linear layer.

Prompts with the adapter and without it, in one batch, have to be answered as ``transformers``
answers with the adapter merged into its weights and without it, or the model refuses adapters.
With ``--scheme`` the model is quantized, and ``transformers`` computes with the numbers of that.
"""

from __future__ import annotations

import argparse
import copy
import json
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from examples import quantize_model
from tests.features import adapters
from tests.zoo import gguf_files, judge, kinds, run, text
from tests.zoo.build import Spec, build
from tests.zoo.run import Answer, Failed, forked

# Routers, heads, and what is no projection of a token's state.
LEFT_OUT = re.compile(r"(^|\.)(lm_head|embed_out|gate|router|shared_expert_gate|conv1d)$|experts\.")
SEEN = 0.5  # deviations by which the adapter has to change a log-probability
PROMPTS = text.prompts()[1:3]


def _int4(weight: torch.Tensor) -> torch.Tensor:
    codes, scales = quantize_model.symmetric(weight, 4, 32, torch.bfloat16)
    return codes * scales.float().repeat_interleave(32, 1)


def _fp8(weight: torch.Tensor) -> torch.Tensor:
    written = quantize_model.fp8(1, 0).write(quantize_model.Layer("", weight, (0.0, 0.0)))
    return written["weight"].float() * written["weight_scale"]


def _awq(weight: torch.Tensor) -> torch.Tensor:
    codes, scales, zeros = quantize_model.asymmetric(weight, 4, 32, torch.float16)
    numbers = (codes.unflatten(1, (-1, 32)).float() - zeros.unsqueeze(-1)) * scales.unsqueeze(-1)
    return numbers.flatten(1).float()


# Each with the numbers that a weight has in it.
SCHEMES: dict[str, tuple[Any, Callable[[torch.Tensor], torch.Tensor]]] = {
    "awq": (quantize_model.awq(32), _awq),
    "fp8": (quantize_model.fp8(1, 0), _fp8),
    "w4a16": (quantize_model.packed(4, 32), _int4),
}


GGUF = "gguf"  # not quantized


def quantize(model: torch.nn.Module, folder: Path, scheme: str) -> Path:
    """The checkpoint in ``folder`` quantized, and ``model`` with the same numbers; or in a file,
    whose tokenizer is then in the folder."""
    if scheme == GGUF:
        return gguf_files.converted(folder, "F32")[0]
    written, numbers = SCHEMES[scheme]
    target = folder.with_name(scheme)
    quantize_model.quantize(written, folder, target)
    for name, layer in model.named_modules():
        kept = any(part in name for part in quantize_model.KEPT)
        if name.rpartition(".")[2] in quantize_model.PROJECTIONS and not kept:
            layer.weight.data = numbers(layer.weight.data)
    return target


def write(model: torch.nn.Module, folder: Path) -> Path:
    """An adapter of random numbers for the linear layers of ``model``, in ``folder``."""
    layers = {
        name: (layer.in_features, layer.out_features)
        for name, layer in model.named_modules()
        if isinstance(layer, torch.nn.Linear) and not LEFT_OUT.search(name)
    }
    adapters.write_for(layers, folder, seed=20)
    return folder


def generate(folder: Path, adapter: Path, ranks: dict[str, int]) -> list[Answer]:
    """To each prompt with the adapter, then to each without it, asked at once."""
    from vllm import LLM, SamplingParams
    from vllm.lora.request import LoRARequest

    options = {**text.ENGINES["bf16"], "dtype": "float32"}
    llm = LLM(
        str(folder),
        tokenizer=str(folder.parent) if folder.suffix == ".gguf" else None,
        skip_tokenizer_init=True,
        enable_lora=True,
        max_lora_rank=8,
        enable_prefix_caching=False,
        **options,
        **ranks,
    )
    run.keep(llm)
    sampling = SamplingParams(detokenize=False, **dict(text.SCORED))
    request = LoRARequest("random", 1, str(adapter))
    asked = [run.request(prompt) for prompt in (*PROMPTS, *PROMPTS)]
    uses = [request] * len(PROMPTS) + [None] * len(PROMPTS)
    outputs = llm.generate(asked, sampling, lora_request=uses, use_tqdm=False)
    run.check_replay(llm)
    return [run.answer(output) for output in outputs]


def examine(spec: Spec, scheme: str, ranks: dict[str, int]) -> tuple[str, str]:
    """State and words.  Runs in a process of its own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "model"
        folder.mkdir()
        model = build(gguf_files.granted(spec) if scheme == GGUF else spec, folder)
        if scheme:
            folder = quantize(model, folder, scheme)
        adapter = write(model, Path(name) / "adapter")
        try:
            answers = forked(generate, folder, adapter, ranks)
        except Failed as failed:
            outcome = judge.failure(failed)
            return outcome.state, outcome.note
        merged = adapters.merge(copy.deepcopy(model), adapter)
    having = dict(zip(PROMPTS, answers[: len(PROMPTS)], strict=True))
    lacking = dict(zip(PROMPTS, answers[len(PROMPTS) :], strict=True))
    if judge.worst_error(merged, lacking) < SEEN:
        return judge.ENDED, "the adapter changes nothing: this is no test"
    errors = {
        "with it": judge.worst_error(merged, having),
        "without it": judge.worst_error(model, lacking),
    }
    faults = [f"{way}: {off:.3f} deviations off" for way, off in errors.items() if off > judge.TIE]
    return (judge.WRONG if faults else judge.RIGHT), "; ".join(faults)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.zoo.adapters", description=__doc__)
    parser.add_argument("names", nargs="*", help="architectures; all that run if none is named")
    parser.add_argument("--scheme", choices=(*SCHEMES, GGUF), default="")
    for way in ("tensor", "pipeline"):
        parser.add_argument(f"--{way}-parallel-size", type=int, default=1)
    arguments = parser.parse_args()
    ranks = {name: n for name, n in vars(arguments).items() if name.endswith("_size")}
    run.prepare()
    names = arguments.names or [s.name for s in text.SPECS if not s.refused and not s.host]
    wrong = 0
    for name in names:
        _, spec = kinds.find(name)
        try:
            state, words = forked(examine, spec, arguments.scheme, ranks)
        except Failed as failed:
            state, words = judge.ENDED, f"the zoo itself: {failed}"[:300]
        print(json.dumps([name, state, words]), flush=True)
        wrong += state == judge.WRONG
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())
