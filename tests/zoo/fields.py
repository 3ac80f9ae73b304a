"""``python -m tests.zoo.fields``: models with each field of their config.json varied.

One small model has one config; those of people have others.  Each field gets another value, one at
a time: where ``transformers`` then answers otherwise, so must the host, or the model has to be
refused.  Far more engines than a test run has time for, so a command of its own.
"""

from __future__ import annotations

import argparse
import copy
import json
import re
import tempfile
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from tests.zoo import judge, kinds, mixed, pooling, run, text
from tests.zoo.build import Spec, build, make_config
from tests.zoo.media import MediaSpec
from tests.zoo.pooling_specs import PoolingSpec
from tests.zoo.run import Failed, Round, forked, generate
from tests.zoo.tokens import write_tokenizer

SECONDS = 3600  # for one model
Found = tuple[str, str, str, str]  # the model's name, the variation's, state, and words
SEEN = 0.05  # a difference of logits, in their standard deviations, above which a field has effect
PROMPTS = text.prompts()[1:3]
CASES = 2  # of images or sounds

# Fields without effect on an answer, or of which the host asks something else.
LEFT_OUT = re.compile(
    r"architectures|(torch_)?dtype|model_type|auto_map|transformers_version|initializer_range"
    r"|(vocab|hidden|intermediate)_size|head_dim|num_(hidden_layers|attention_heads|key_value_heads)"
    r"|layer_types|use_cache|is_decoder|.*token_(id|index)"
)
OTHERS = {  # than a value that is a word
    "activations": ("silu", "gelu", "gelu_pytorch_tanh", "relu", "relu2", "gelu_new", "gelu_fast"),
    "scores": ("sigmoid", "softmax"),
    "choices": ("greedy", "group_limited_greedy", "noaux_tc"),
    "norms": ("layer_norm", "rms_norm"),
}
FOR_NONE: tuple[Any, ...] = (0.5, 4, True)  # what a field without a value may be
KEPT = ("rope_theta", "partial_rotary_factor", "mrope_section", "mrope_interleaved")
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}
ROTARY: tuple[dict[str, Any], ...] = (
    {"rope_type": "linear", "factor": 4.0},
    {"rope_type": "dynamic", "factor": 4.0},
    YARN,
    {**YARN, "attention_factor": 1.5},
    {**YARN, "mscale": 0.7, "mscale_all_dim": 0.4},
    {**YARN, "truncate": False},
    {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 256,
    },
)


@dataclass(frozen=True)
class Variation:
    """``value`` instead of what stands at ``path`` in a config; words for both."""

    path: tuple[str, ...]
    value: Any

    @property
    def name(self) -> str:
        return f"{'.'.join(self.path)}={json.dumps(self.value)}"

    def of(self, spec: Spec) -> Spec:
        """The Spec with this value in its config."""
        whole = make_config(spec).to_dict()
        config = dict(spec.config)
        inner = config
        for name in self.path[:-1]:
            inner[name] = copy.deepcopy(whole[name] if inner is config else inner[name])
            inner = inner[name]
            whole = whole[name]
        inner[self.path[-1]] = self.value
        return replace(spec, config=config)


def variations(spec: Spec) -> Iterator[list[Variation]]:
    """For each field of the Spec's config, what may be tried in its place: the first with an effect
    counts."""
    from transformers import PretrainedConfig

    common = set(PretrainedConfig().to_dict()) - {"tie_word_embeddings"}
    yield from _of_fields((), make_config(spec).to_dict(), common)


def _of_fields(
    path: tuple[str, ...], config: dict[str, Any], common: Set[str]
) -> Iterator[list[Variation]]:
    for name in sorted(map(str, config)):
        if name in config and name not in common and not LEFT_OUT.fullmatch(name):
            yield from _of_field((*path, name), config[name], common)


def _of_field(path: tuple[str, ...], value: Any, common: Set[str]) -> Iterator[list[Variation]]:
    if path[-1] == "rope_parameters" and isinstance(value, dict) and "rope_theta" in value:
        kept = {name: value[name] for name in KEPT if name in value}
        for rotary in ROTARY:
            yield [Variation(path, {**kept, **rotary})]
    if isinstance(value, dict):
        yield from _of_fields(path, value, common)
    elif others := [Variation(path, other) for other in _others(value)]:
        yield others


def _others(value: Any) -> list[Any]:
    """Values of the same kind."""
    if value is None:
        return list(FOR_NONE)
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return sorted({value + 1, 2 * value, value // 2, value - 1} - {value, -1, -2})
    if isinstance(value, float):
        return [0.5] if value == 0 else [0.05] if abs(value) < 1e-3 else [value / 2, value * 2]
    if isinstance(value, str):
        kinds = [words for words in OTHERS.values() if value in words]
        return [word for words in kinds for word in words if word != value]
    if isinstance(value, list | tuple) and value and all(type(x) is type(value[0]) for x in value):
        return [[other, *value[1:]] for other in _others(value[0])]
    return []


@dataclass(frozen=True)
class Kind:
    """How models of one kind are asked.

    prepare(spec, folder): writes what an engine needs beside the model, makes the processor.
    reference(model, spec, processor): what ``transformers`` answers, as one tensor.
    error(model, spec, processor, folder): how far the host is off, in words, and whether too far;
    raises Failed if its engine ends.
    """

    prepare: Callable[[Any, Path], Any]
    reference: Callable[[Any, Any, Any], torch.Tensor]
    error: Callable[[Any, Any, Any, Path], tuple[str, bool]]


def _of_text(model: Any, spec: Spec, processor: Any) -> torch.Tensor:
    return torch.cat([judge._logits(model, prompt) for prompt in PROMPTS])


def _error_of_text(model: Any, spec: Spec, processor: Any, folder: Path) -> tuple[str, bool]:
    options = text.ENGINES["eager"]
    found = forked(generate, folder, options, [Round((p,), text.SCORED) for p in PROMPTS])
    answers = {prompt: answer for prompt, (answer,) in zip(PROMPTS, found, strict=True)}
    return _judged(judge.worst_error(model, answers))


def _judged(error: float) -> tuple[str, bool]:
    return f"{error:.3f} deviations off", not error < judge.TIE


def _of_media(model: Any, spec: MediaSpec, processor: Any) -> torch.Tensor:
    references = [mixed.Reference(model, case, processor) for case in spec.cases[:CASES]]
    return torch.cat([judge._logits(one, one.prompt()) for one in references])


def _error_of_media(model: Any, spec: MediaSpec, processor: Any, folder: Path) -> tuple[str, bool]:
    options = {**text.ENGINES["eager"], **mixed.own_options(spec)}
    cases = spec.cases[:CASES]
    found = forked(generate, folder, options, [Round((case,), text.SCORED) for case in cases])
    errors = [
        judge.worst_error(mixed.Reference(model, case, processor), {answer.prompt: answer})
        for case, (answer,) in zip(cases, found, strict=True)
    ]
    return _judged(max(errors))


def _of_pooling(model: Any, spec: PoolingSpec, processor: Any) -> torch.Tensor:
    asked = pooling.prompts(spec)[:4]
    return torch.cat([pooling.expected(model, spec, p, processor).flatten() for p in asked])


def _error_of_pooling(
    model: Any, spec: PoolingSpec, processor: Any, folder: Path
) -> tuple[str, bool]:
    found = pooling.answers(folder, spec, "float32")
    faults = pooling.wrong_numbers(model, spec, processor, found)
    return (faults[0], True) if faults else ("", False)


MEDIA = Kind(lambda spec, folder: spec.processor(folder), _of_media, _error_of_media)
KINDS = {
    "text": Kind(lambda spec, folder: None, _of_text, _error_of_text),
    "images": MEDIA,
    "audio": MEDIA,
    "pooling": Kind(
        lambda spec, folder: (spec.processor or write_tokenizer)(folder),
        _of_pooling,
        _error_of_pooling,
    ),
}


@dataclass(frozen=True)
class Built:
    """What a model of ``transformers`` answers, what weights it has, and its config.json."""

    answer: torch.Tensor
    shapes: dict[str, Any]
    config: str


@torch.no_grad()
def _built(kind: Kind, spec: Spec) -> Built:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        processor = kind.prepare(spec, folder)
        model = build(spec, folder)
        config = (folder / "config.json").read_text()
    shapes = {name: weight.shape for name, weight in model.state_dict().items()}
    return Built(kind.reference(model, spec, processor), shapes, config)


def effective(kind: Kind, spec: Spec, only: str) -> list[Variation]:
    """The variations with ``only`` in their name with which ``transformers`` answers otherwise, one
    for each field.  Runs in a process of its own."""
    base = _built(kind, spec)
    return [
        found
        for candidates in variations(spec)
        if (
            found := next(
                (v for v in candidates if only in v.name and _has_effect(kind, spec, v, base)), None
            )
        )
    ]


def _has_effect(kind: Kind, spec: Spec, variation: Variation, base: Built) -> bool:
    try:
        found = _built(kind, variation.of(spec))
    except Exception:  # no model of transformers has this value
        return False
    if found.config == base.config:  # published ones do not have this field
        return False
    if found.shapes != base.shapes:  # a size, or whether there are such weights at all
        return isinstance(variation.value, bool)
    if found.answer.shape != base.answer.shape or not found.answer.isfinite().all():
        return False
    difference = (found.answer - base.answer).abs() / base.answer.std()
    return bool(difference.max() > SEEN)


def examine(kind: Kind, spec: Spec, variation: Variation) -> tuple[str, str]:
    """State and words of the host's answers with it.  Runs in a process of its own."""
    varied = variation.of(spec)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        processor = kind.prepare(varied, folder)
        model = build(varied, folder)
        try:
            words, wrong = kind.error(model, varied, processor, folder)
        except Failed as failed:
            outcome = judge.failure(failed)
            return outcome.state, outcome.note
    return judge.WRONG if wrong else judge.RIGHT, words


def examine_all(name: str, only: str = "", value: Variation | None = None) -> Iterator[Found]:
    """What comes of the fields of one model, or of those whose variation has ``only`` in it, or of
    this ``value``, with which there may be other weights."""
    kind, spec = kinds.find(name)
    try:
        tried = [value] if value else forked(effective, KINDS[kind], spec, only, seconds=SECONDS)
    except Failed as failed:
        yield name, "", judge.ENDED, f"the zoo itself: {failed}"[:300]
        return
    for variation in tried:
        try:
            state, words = forked(examine, KINDS[kind], spec, variation)
        except Failed as failed:
            state, words = judge.ENDED, f"the zoo itself: {failed}"[:300]
        yield name, variation.name, state, words


def _variation(said: str) -> Variation:
    path, _, value = said.partition("=")
    return Variation(tuple(path.split(".")), json.loads(value))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.zoo.fields", description=__doc__)
    parser.add_argument("names", nargs="*", help="architectures; all that run if none is named")
    parser.add_argument("--kind", nargs="*", default=sorted(KINDS), choices=sorted(KINDS))
    parser.add_argument("--only", default="", help="words of a variation, such as a field's name")
    parser.add_argument("--value", type=_variation, help="PATH=JSON: try this one alone")
    parser.add_argument("--to", type=Path, help="append what was found to this file")
    arguments = parser.parse_args()
    run.prepare()
    names = arguments.names or [
        spec.name
        for name in arguments.kind
        for spec in kinds.KINDS[name].SPECS
        if not spec.refused and not spec.host
    ]
    wrong = 0
    for name in names:
        for found in examine_all(name, arguments.only, arguments.value):
            print(json.dumps(found), flush=True)
            wrong += found[2] == judge.WRONG
            if arguments.to:
                with arguments.to.open("a") as file:
                    print(json.dumps(found), file=file)
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())
