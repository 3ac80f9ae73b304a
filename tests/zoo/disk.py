"""``python -m tests.zoo.disk [NAMES]``: prompts that come from the disk.

One engine answers as always, a second one stores its prompts, a third one finds them: all answers
must be the same bit for bit, in fp32, alone and together, and where the host keeps prefixes the
third one must have read some.  One JSON line per model.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from cpu_backend import envs
from tests.zoo import audio, images, judge, kinds, ranks, rounding, run, text
from tests.zoo.build import Spec
from tests.zoo.run import Answer, Failed


def examine(spec: Spec, options: dict[str, Any]) -> tuple[str, str]:
    """State and words.  Runs in a process of its own."""
    with tempfile.TemporaryDirectory() as name:
        model = Path(name, "model")
        model.mkdir()
        asked = rounding.subject(spec, model)
        sent = asked.rounds()
        options = {**text.ENGINES["recorded"], **asked.options, **options}

        def answers() -> list[list[Answer]]:
            found: list[list[Answer]] = run.forked(
                run.generate, model, options, sent, seconds=2 * run.SECONDS
            )
            return found

        try:
            found = {"recorded": answers()}
            os.environ[envs.DISK_CACHE.name] = str(Path(name, "pages"))
            found |= {"storing": answers(), "from the disk": answers()}
        except Failed as failed:
            outcome = judge.failure(failed, spec.host)
            return outcome.state, f"{outcome.note} {outcome.where[-500:]}"
        faults = judge.differences(sent, found, cached=False)
        if asked.cached and not any(answer.cached for [answer] in found["from the disk"][:3]):
            faults.append("nothing came from the disk")
        return (judge.WRONG if faults else judge.RIGHT), "; ".join(faults)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.zoo.disk", description=__doc__)
    parser.add_argument("names", nargs="*", help="architectures; all that run if none is named")
    parser.add_argument("--way", choices=ranks.WAYS, help="over two ranks")
    arguments = parser.parse_args()
    run.prepare()
    specs = (*text.SPECS, *images.SPECS, *audio.SPECS)
    names = arguments.names or [s.name for s in specs if not s.refused and not s.host]
    options = ranks.WAYS[arguments.way] if arguments.way else {}
    faulty = False
    for name in names:
        _, spec = kinds.find(name)
        try:
            found = run.forked(examine, spec, options, seconds=4 * run.SECONDS)
        except Failed as failed:
            found = judge.ENDED, f"the zoo itself: {failed}"[:300]
        print(json.dumps([name, *found]), flush=True)
        faulty |= found[0] in (judge.WRONG, judge.ENDED)
    return int(faulty)


if __name__ == "__main__":
    raise SystemExit(main())
