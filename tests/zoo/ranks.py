"""``python -m tests.zoo.ranks [NAMES]``: models of text over two ranks of this machine.

Cut into halves (``-tp 2``), mixtures also into halves of their experts, and into stages
(``-pp 2``): in fp32 each answers as ``transformers`` does, alone and together the same bit for bit,
or refuses in a sentence.  One JSON line per model.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from tests.zoo import judge, kinds, run, text
from tests.zoo.build import Spec, build
from tests.zoo.run import Failed, Round

WAYS: dict[str, dict[str, Any]] = {
    "tp": {"tensor_parallel_size": 2},
    "ep": {"tensor_parallel_size": 2, "enable_expert_parallel": True},
    "pp": {"pipeline_parallel_size": 2, "enforce_eager": True},  # stages record nothing
}


def examine(spec: Spec, ways: list[str]) -> dict[str, tuple[str, str]]:
    """State and words by way.  Runs in a process of its own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = build(spec, folder)
        mixture = judge.left_out(model) == judge.WITHOUT_OF_MIXTURES
        return {way: _examine(folder, model, WAYS[way]) for way in ways if mixture or way != "ep"}


def _examine(folder: Path, model: Any, options: dict[str, Any]) -> tuple[str, str]:
    prompts = text.prompts()
    sent = text.rounds(prompts)
    scored = [Round((prompt,), text.SCORED) for prompt in prompts[:3]]
    options = {**text.ENGINES["recorded"], **options}
    try:
        answers = run.forked(run.generate, folder, options, sent + scored)
    except Failed as failed:
        if failed.kind == "ConfigError":  # the host's may be two sentences
            return judge.REFUSED, failed.message
        outcome = judge.failure(failed)
        last = [line for line in outcome.where.splitlines() if "Error" in line][-1:]
        return outcome.state, "; ".join([outcome.note, *last])
    greedy, found = answers[: len(sent)], [answer for [answer] in answers[len(sent) :]]
    faults = judge.differences(sent, {"recorded": greedy}, cached=False)
    error = judge.worst_error(model, dict(zip(prompts, found, strict=False)))
    if error > judge.FP32_ERROR:
        faults.append(f"log-probabilities {error:.3g} deviations off")
    for asked, answered in zip(sent, greedy, strict=True):
        for prompt, answer in zip(asked.prompts, answered, strict=True):
            if (gap := float(judge.gaps(model, prompt, answer.tokens).max())) > judge.TIE:
                faults.append(f"a token {gap:.3g} deviations below the best")
    return (judge.WRONG if faults else judge.RIGHT), "; ".join(faults[:3])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.zoo.ranks", description=__doc__)
    parser.add_argument("names", nargs="*", help="architectures; all that run if none is named")
    parser.add_argument("--way", action="append", choices=WAYS, help="every one if none is named")
    arguments = parser.parse_args()
    run.prepare()
    names = arguments.names or [s.name for s in text.SPECS if not s.refused and not s.host]
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
