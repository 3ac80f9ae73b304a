"""``python -m tests.zoo.adapters``: models of text with LoRA adapters of their layers.

Prompts with either of two adapters and without one, in one batch and alone, have to be answered as
``transformers`` answers with the adapter merged into its weights and without it, or the model
refuses adapters.  With ``--scheme`` the model is quantized, and ``transformers`` computes with the
numbers of that.  ``--of`` says which layers adapters have: linear layers (dense), those and each
expert's (experts), those and all experts' as one tensor (stacked), routers, or each expert's and
routers (all).  Models that see get no pictures here, and their towers no adapters.
"""

from __future__ import annotations

import argparse
import copy
import json
import operator
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from examples import quantize_model
from tests.features import adapters
from tests.zoo import expert_adapters, gguf_files, judge, kinds, media, run, text
from tests.zoo.build import Spec, build
from tests.zoo.run import Answer, Failed, Prompt, forked

# Routers, indexers, heads, each expert's, and what is no projection of a token's state.
LEFT_OUT = re.compile(
    r"(^|\.)(lm_head|embed_out|gate|router|shared_expert_gate|conv1d)$"
    r"|experts\.(\d|$)|indexer\.(wk|weights_proj)$|vision|visual|audio|multi_modal_projector"
)
KINDS = ("dense", "experts", "stacked", "routers", "all")
SEEN = 0.1  # deviations by which the adapter has to change a log-probability
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
    with torch.no_grad():
        for view in expert_adapters.one_by_one(model, folder).values():
            weight = view(model)
            weight.copy_(numbers(weight))
    return target


def layers_of(model: torch.nn.Module, spec: Spec, folder: Path, of: str) -> expert_adapters.Weights:
    """What gives the weights that an adapter adds to, by their published names."""
    if of == "routers":
        return expert_adapters.routers(model, folder)
    weights: expert_adapters.Weights = {}
    for name, layer in model.named_modules():
        if isinstance(layer, torch.nn.Linear) and not LEFT_OUT.search(name):
            published = f"{name}.weight"
            for pattern, replacement in spec.published:
                published = re.sub(pattern, replacement, published)
            if "|" not in published and not LEFT_OUT.search(published[: -len(".weight")]):
                weights[published.removesuffix(".weight")] = operator.methodcaller(
                    "get_parameter", f"{name}.weight"
                )
    if of in ("experts", "all"):
        weights |= expert_adapters.one_by_one(model, folder)
    if of == "stacked":
        weights |= expert_adapters.stacked(model)
    if of == "all":
        weights |= expert_adapters.routers(model, folder)
    return weights


def write(
    model: torch.nn.Module, weights: expert_adapters.Weights, folder: Path, seed: int
) -> Path:
    """An adapter of random numbers for ``weights`` of ``model``, in ``folder``."""
    shapes = {name: tuple(weight(model).shape) for name, weight in weights.items()}
    layers = {name: (size[1], size[0]) for name, size in shapes.items() if len(size) == 2}
    stacked = {name: (n, i, o) for name, (n, o, i) in _of_three(shapes)}
    adapters.write_for(layers, folder, seed, stacked)
    return folder


def _of_three(shapes: dict[str, tuple[int, ...]]) -> list[tuple[str, tuple[int, int, int]]]:
    return [(name, (*size,)) for name, size in shapes.items() if len(size) == 3]  # type: ignore[misc]


def generate(
    folder: Path, paths: list[Path], options: dict[str, Any], stacked: bool = False
) -> list[dict[Prompt, list[Answer]]]:
    """To each prompt with each adapter and without one: asked at once, then alone."""
    from vllm import LLM, SamplingParams
    from vllm.lora.request import LoRARequest

    llm = LLM(
        str(folder),
        tokenizer=str(folder.parent) if folder.suffix == ".gguf" else None,
        skip_tokenizer_init=not (folder / "tokenizer_config.json").exists(),
        enable_lora=True,
        max_lora_rank=8,
        max_loras=len(paths),
        enable_prefix_caching=False,
        **{**text.ENGINES["bf16"], "dtype": "float32", **options},
    )
    run.keep(llm)
    sampling = SamplingParams(detokenize=False, **dict(text.SCORED))
    named = {"is_3d_lora_weight": True} if stacked else {}
    uses = [LoRARequest(path.name, n, str(path), **named) for n, path in enumerate(paths, 1)]
    asked = [(use, prompt) for prompt in PROMPTS for use in (*uses, None)]
    rounds = [asked, *([one] for one in asked[: len(paths) + 1])]
    answers: list[dict[Prompt, list[Answer]]] = [{} for _ in range(len(paths) + 1)]
    for together in rounds:
        outputs = llm.generate(
            [run.request(prompt) for _, prompt in together],
            sampling,
            lora_request=[use for use, _ in together],
            use_tqdm=False,
        )
        for (use, prompt), output in zip(together, outputs, strict=True):
            place = use.lora_int_id if use else 0
            answers[place].setdefault(prompt, []).append(run.answer(output))
    run.check_replay(llm)
    return answers


def examine(spec: Spec, scheme: str, of: str, options: dict[str, Any]) -> tuple[str, str]:
    """State and words.  Runs in a process of its own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "model"
        folder.mkdir()
        model = build(gguf_files.granted(spec) if scheme == GGUF else spec, folder)
        if isinstance(spec, media.MediaSpec):
            spec.processor(folder)
        weights = layers_of(model, spec, folder, of)
        if not weights:
            return judge.RIGHT, "there is nothing to add to"
        if scheme:
            folder = quantize(model, folder, scheme)
        paths = [write(model, weights, Path(name) / f"adapter{n}", n) for n in (20, 21)]
        try:
            answers = forked(generate, folder, paths, options, of == "stacked")
        except Failed as failed:
            outcome = judge.failure(failed)
            return outcome.state, outcome.note
        faults = faults_of(model, answers[0], "without one")
        for path, given in zip(paths, answers[1:], strict=True):
            merged = adapters.merge(copy.deepcopy(model), path, weights)
            lacking = {prompt: found[0] for prompt, found in answers[0].items()}
            if judge.worst_error(merged, lacking) < SEEN:
                return judge.ENDED, "the adapter changes nothing: this is no test"
            faults += faults_of(merged, given, f"with {path.name}")
    return (judge.WRONG if faults else judge.RIGHT), "; ".join(faults)


def faults_of(model: Any, given: dict[Prompt, list[Answer]], way: str) -> list[str]:
    """Of answers to each prompt, first beside others."""
    faults = []
    for when, found in (("together", lambda a: a[0]), ("alone", lambda a: a[-1])):
        off = judge.worst_error(model, {prompt: found(each) for prompt, each in given.items()})
        if off > judge.FP32_ERROR:
            faults.append(f"{way}, {when}: {off:.3f} deviations off")
    return faults


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.zoo.adapters", description=__doc__)
    parser.add_argument("names", nargs="*", help="architectures; all that run if none is named")
    parser.add_argument("--scheme", choices=(*SCHEMES, GGUF), default="")
    parser.add_argument("--of", choices=KINDS, default="dense")
    for way in ("tensor", "pipeline"):
        parser.add_argument(f"--{way}-parallel-size", type=int, default=1)
    parser.add_argument("--quantization")
    for flag in ("enable-expert-parallel", "fully-sharded-loras", "enable-mixed-moe-lora-format"):
        parser.add_argument(f"--{flag}", action="store_true")
    options = vars(parser.parse_args())
    names, scheme, of = (options.pop(name) for name in ("names", "scheme", "of"))
    options = {name: value for name, value in options.items() if value}
    run.prepare()
    names = names or [s.name for s in text.SPECS if not s.refused and not s.host]
    wrong = 0
    for name in names:
        _, spec = kinds.find(name)
        try:
            state, words = forked(examine, spec, scheme, of, options)
        except Failed as failed:
            state, words = judge.ENDED, f"the zoo itself: {failed}"[:300]
        print(json.dumps([name, state, words]), flush=True)
        wrong += state == judge.WRONG
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())
