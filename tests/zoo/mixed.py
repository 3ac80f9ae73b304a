"""Images and sounds beside text: alone, together, in chunks and from the prefix cache."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from tests import tools
from tests.zoo import judge
from tests.zoo.build import build
from tests.zoo.elsewhere import run_engine
from tests.zoo.judge import HOST, REFUSED, RIGHT, WRONG, Outcome
from tests.zoo.media import Case, MediaSpec, with_others
from tests.zoo.run import Answer, Failed, Round, generate
from tests.zoo.text import ENGINES, FP32, GREEDY, SCORED, rounds
from tests.zoo.tokens import write_tokenizer

COMPARED = ("alone", "together", "chunks", "prefix cache", "recorded", "eager")
PLURALS = {"image": "images", "vision_chunk": "images", "video": "videos", "audio": "sounds"}
FIXED = ("alone", "together", "recorded", "eager")
KINDS = ("token_type_ids", "mm_token_type_ids", "moe_mm_token_type_ids")  # of tokens, text's are 0
AT_ONCE = 1024  # tokens of a step where a prompt has to be read in one


class Reference(torch.nn.Module):
    """``transformers``' model before one case: tokens [1, n] in, logits out."""

    def __init__(self, model: Any, case: Case, processor: Any) -> None:
        super().__init__()
        self.model = model
        # This one's forward alone lets images see themselves in layers without a window too.
        self.as_generated = model.config.model_type == "gemma4_unified"
        self.reads_whole_prompts = model.config.model_type == "paligemma"
        self.case = case
        self.inputs = case.inputs(processor)
        self.config = model.config

    def prompt(self) -> tuple[int, ...]:
        """The case's tokens as the processor says them."""
        return tuple(self.inputs[self.case.ids][0].tolist())

    def forward(self, ids: torch.Tensor) -> Any:
        """``ids``: the case's tokens and what follows them."""
        dtype = next(self.model.parameters()).dtype
        given = {
            name: value.to(dtype) if torch.is_tensor(value) and value.is_floating_point() else value
            for name, value in self.inputs.items()
        }
        longer = ids.shape[1] - given[self.case.ids].shape[1]
        for name in ("attention_mask", *KINDS):
            if name in given:
                fill = int(name == "attention_mask" or self.reads_whole_prompts)
                given[name] = torch.nn.functional.pad(given[name], (0, longer), value=fill)
        if "told_ids" in given:  # what stands for the host's tokens of the prompt
            told = given.pop("told_ids")
            ids = torch.cat([told, ids[:, told.shape[1] :]], 1)
        if self.as_generated:
            given["attention_mask"] = self._masks(ids, given)
        return self.model(**{**given, self.case.ids: ids})

    def _masks(self, ids: torch.Tensor, given: dict[str, Any]) -> Any:
        """Those with which ``transformers`` generates."""
        return self.model.create_masks_for_generate(
            config=self.config,
            inputs_embeds=self.model.get_input_embeddings()(ids),
            attention_mask=given["attention_mask"],
            past_key_values=None,
            position_ids=torch.arange(ids.shape[1])[None],
            mm_token_type_ids=given.get("mm_token_type_ids"),
        )


def examine(
    spec: MediaSpec,
    folder: Path,
    served: Callable[[torch.nn.Module], tuple[Path, Any]] | None = None,
) -> Outcome:
    """Build the model, run every engine, compare.  Runs in a process of its own.

    served: makes of the model what engines are given instead of ``folder``, and its processor.
    """
    engines = _engines(spec)
    if missing := [tools.sentence(need) for need in spec.needs if not tools.is_there(need)]:
        return Outcome(REFUSED, "; ".join(missing))
    if spec.refused:
        write_tokenizer(folder)
        return judge.refusal(spec, folder, generate, engines["recorded"], [])
    processor = spec.processor(folder)
    model = build(spec, folder)
    path, processor = served(model) if served else (folder, processor)
    sent = [*rounds(spec.cases), *_more_rounds(spec)]
    cases = spec.requests
    scored = [Round((case,), SCORED) for case in cases if case not in spec.cases[3:]]
    try:
        answers = {
            name: run_engine(generate, path, options, sent + scored, spec.media.union(spec.without))
            for name, options in engines.items()
        }
    except Failed as failed:
        return judge.failure(failed, spec.host, spec.note)
    greedy = {name: by_round[: len(sent)] for name, by_round in answers.items()}
    faults = judge.differences(sent, greedy, cached=spec.cached)
    references = [Reference(model, case, processor) for case in cases]
    first = dict(zip(_cases(sent), _answers(greedy[FP32[0]]), strict=True))
    faults += _token_faults(references, [first[case] for case in cases])
    scores = {name: _answers(by_round[len(sent) :]) for name, by_round in answers.items()}
    references = [reference for reference in references if reference.case not in spec.cases[3:]]
    faults += _blind_faults(model, processor, references, scores[FP32[0]])
    faults += _score_faults(references, scores)
    compared, dtypes = COMPARED if spec.cached else FIXED, ("fp32", "bf16")
    state = RIGHT if not faults else HOST if spec.host else WRONG
    notes = [f"with {_plural(spec.media)}"]
    notes += [f"without {_plural(spec.without)}"] if spec.without else []
    notes += [f"needs {' and '.join(spec.needs)}"] if spec.needs else []
    notes += [spec.note] if spec.note else []
    return Outcome(state, "; ".join([*notes, *faults]), dtypes, compared)


def _plural(media: Iterable[str]) -> str:
    return ", ".join(sorted({PLURALS[kind] for kind in media}))


def options(spec: MediaSpec) -> dict[str, Any]:
    """What every engine is told of the model; in chunks that it allows."""
    return {"max_num_batched_tokens": spec.chunk, **own_options(spec)}


def own_options(spec: MediaSpec) -> dict[str, Any]:
    """The same without that; as many media in a prompt as the cases have."""
    media = [[medium.kind for medium in case.media] for case in spec.requests]
    limits = {
        kind: max((some.count(kind) for some in media), default=0)
        for kind in ("image", "audio", "video")
    }
    if spec.fixed:
        limits = dict.fromkeys(spec.media, 1)
    step = {"max_num_batched_tokens": AT_ONCE} if spec.fixed else {}
    limited = {"limit_mm_per_prompt": limits, **step}
    return {"skip_tokenizer_init": False, **limited, **spec.options}


def _engines(spec: MediaSpec) -> dict[str, dict[str, Any]]:
    """Those of text."""
    return {
        name: {**common, **(own_options(spec) if name == "eager" else options(spec))}
        for name, common in ENGINES.items()
    }


def prompt_logprobs(model: Any, case: Case, processor: Any) -> torch.Tensor:
    """Log-probabilities [tokens - 1] of the case's tokens from the second on."""
    reference = Reference(model, case, processor)
    return judge.prompt_logprobs(reference, reference.prompt())


def _more_rounds(spec: MediaSpec) -> list[Round]:
    """Requests with further kinds of media alone, together, and beside all others."""
    if not spec.more:
        return []
    alone = [(case,) for case in spec.more]
    sent = [*alone, spec.more, spec.requests, spec.more, *alone]
    return [Round(asked, GREEDY) for asked in sent]


def _cases(sent: list[Round]) -> list[Case]:
    return [case for asked in sent for case in asked.prompts]


def _answers(by_round: list[list[Answer]]) -> list[Answer]:
    return [answer for found in by_round for answer in found]


def _token_faults(references: list[Reference], answers: list[Answer]) -> list[str]:
    """Prompts that the host reads otherwise than transformers' processor, and tokens that the model
    would not choose."""
    for reference, answer in zip(references, answers, strict=True):
        if answer.prompt != reference.prompt():
            return [f"the host's prompt has other tokens: {answer.prompt[:60]}"]
    gap, letters = max(
        (float(judge.gaps(reference, answer.prompt, answer.tokens).max()), len(reference.case))
        for reference, answer in zip(references, answers, strict=True)
    )
    if gap < judge.TIE:
        return []
    return [f"{letters} letters alone: a token {gap:.2f} deviations below the best"]


def _blind_faults(
    model: Any, processor: Any, references: Sequence[Reference], scored: list[Answer]
) -> list[str]:
    """Log-probabilities that fit other media as well prove nothing."""
    for case, answer in zip((r.case for r in references), scored, strict=True):
        other = Reference(model, with_others(case), processor)
        if judge.worst_error(other, {answer.prompt: answer}) < judge.TIE:
            kinds = " and ".join(medium.kind for medium in case.media)
            return [f"{len(case)} letters, {kinds}: others give the same, so this proves little"]
    return []


def _score_faults(references: list[Reference], scores: dict[str, list[Answer]]) -> list[str]:
    """Log-probabilities of prompts that are off; in bf16 last, because that rounds the model."""
    faults = []
    for name in FP32:
        error = max(
            judge.worst_error(reference, {answer.prompt: answer})
            for reference, answer in zip(references, scores[name], strict=True)
        )
        if not error < judge.FP32_ERROR:
            faults.append(f"{name}: log-probabilities of a prompt are {error:.3f} deviations off")
    errors = [
        judge.bf16_errors(reference, {answer.prompt: answer})
        for reference, answer in zip(references, scores["bf16"], strict=True)
    ]
    ours, theirs = (math.hypot(*found) for found in zip(*errors, strict=True))
    if not ours <= judge.BF16_FACTOR * theirs:
        faults.append(f"bf16: error {ours:.3g}, transformers' {theirs:.3g}")
    return faults
