"""``python -m tests.zoo.ranks [NAMES]``: models over two ranks of this machine.

Cut into halves (``-tp 2``), mixtures also into halves of their experts, and into stages
(``-pp 2``): in fp32 each reads prompts as ``transformers`` does and answers as one rank does, alone
and together the same bit for bit, or refuses in a sentence.  One JSON line per model.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.zoo import audio, images, judge, kinds, pooling, rounding, run, text
from tests.zoo.build import Spec, build
from tests.zoo.run import Failed, Round

WAYS: dict[str, dict[str, Any]] = {
    "tp": {"tensor_parallel_size": 2},
    "ep": {"tensor_parallel_size": 2, "enable_expert_parallel": True},
    "pp": {"pipeline_parallel_size": 2},
}


def examine(spec: Spec, ways: list[str]) -> dict[str, tuple[str, str]]:
    """State and words by way.  Runs in a process of its own."""
    found = {}
    with tempfile.TemporaryDirectory() as name:
        is_pooling = isinstance(spec, pooling.PoolingSpec)
        faults_of, mixture = (_pooling if is_pooling else _generating)(spec, Path(name))
        for way in (way for way in ways if mixture or way != "ep"):
            try:
                faults = faults_of(WAYS[way])
                found[way] = (judge.WRONG if faults else judge.RIGHT), "; ".join(faults)
            except Failed as failed:
                found[way] = _failure(failed)
    return found


# What is wrong with engines that are cut so, and whether experts may be cut.
Faults = tuple[Callable[[dict[str, Any]], list[str]], bool]


def _generating(spec: Spec, folder: Path) -> Faults:
    asked = rounding.subject(spec, folder)
    sent = asked.rounds()
    scored = [Round((prompt,), text.SCORED) for prompt in asked.scored]
    options = {**text.ENGINES["recorded"], **asked.options}
    alone = run.forked(run.generate, folder, options, sent)
    exact = asked.all_logprobs(asked.model)

    def faults_of(way: dict[str, Any]) -> list[str]:
        answers = run.forked(run.generate, folder, options | way, sent + scored)
        greedy = answers[: len(sent)]
        faults = judge.differences(sent, {"recorded": greedy}, cached=False)
        tokens, expected = ([a.tokens for r in rounds for a in r] for rounds in (greedy, alone))
        if different := sum(a != b for a, b in zip(tokens, expected, strict=True)):
            faults.append(f"{different} answers are not those of one rank")
        ours = [value for [answer] in answers[len(sent) :] for value in answer.prompt_logprobs]
        error = float(((torch.tensor(ours) - exact).abs() / exact.std()).max())
        if error > judge.FP32_ERROR:
            faults.append(f"log-probabilities {error:.3g} deviations off")
        return faults

    return faults_of, judge.left_out(asked.model) == judge.WITHOUT_OF_MIXTURES


def _pooling(spec: Any, folder: Path) -> Faults:
    processor = (spec.processor or pooling.write_tokenizer)(folder)
    model = build(spec, folder)

    def faults_of(way: dict[str, Any]) -> list[str]:
        ours = pooling.answers(folder, spec, "float32", None, way)
        return pooling.wrong_numbers(model, spec, processor, ours)

    return faults_of, False


def _failure(failed: Failed) -> tuple[str, str]:
    if failed.kind == "ConfigError":  # the host's may be two sentences
        return judge.REFUSED, failed.message
    outcome = judge.failure(failed)
    last = [line for line in outcome.where.splitlines() if "Error" in line][-1:]
    return outcome.state, "; ".join([outcome.note, *last])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.zoo.ranks", description=__doc__)
    parser.add_argument("names", nargs="*", help="architectures; all that run if none is named")
    parser.add_argument("--way", action="append", choices=WAYS, help="every one if none is named")
    arguments = parser.parse_args()
    run.prepare()
    specs = (*text.SPECS, *images.SPECS, *audio.SPECS, *pooling.SPECS)
    names = arguments.names or [s.name for s in specs if not s.refused and not s.host]
    faulty = False
    for name in names:
        _, spec = kinds.find(name)
        try:
            found = run.forked(examine, spec, arguments.way or list(WAYS), seconds=3 * run.SECONDS)
        except Failed as failed:
            found = {"": (judge.ENDED, f"the zoo itself: {failed}"[:300])}
        print(json.dumps([name, found]), flush=True)
        faulty |= any(state in (judge.WRONG, judge.ENDED) for state, _ in found.values())
    return int(faulty)


if __name__ == "__main__":
    raise SystemExit(main())
