"""How long a text request waits for a picture of another: encoded between steps, and within one.

``python -m benchmarks.media_wait [TOWER] [--rounds 5]``, with torchvision as for
``make image-models-test`` (docs/testing.md)

The towers are those of ``benchmarks.towers``, bf16, random weights.  One engine in this process
answers a long text; then another request comes with a picture.  Both ways take turns.  Reported, in
seconds of the clock with all cores: the longest time between two tokens of the text until the first
token of the other request, that token's own, and the median time between tokens without a picture.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.towers import CONTEXT, TOWERS, Tower
from benchmarks.turns import summary

QUIET_STEPS = 50
TEXT, PICTURE = "text", "picture"


class Waits:
    """An engine for the model in ``folder``; ``prompt`` is of a request with one picture."""

    def __init__(self, tower: Tower, folder: Path) -> None:
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        from vllm import LLM

        self._prompt = tower.write(folder)
        self._size = tower.sizes
        llm = LLM(
            str(folder),
            dtype="bfloat16",
            load_format="dummy",
            max_model_len=CONTEXT,
            max_num_batched_tokens=CONTEXT,
            max_num_seqs=2,
            limit_mm_per_prompt={"image": 1},
            enable_prefix_caching=False,
            disable_log_stats=True,
        )
        self._engine = llm.llm_engine
        self._scheduler: Any = self._engine.engine_core.engine_core.scheduler
        self.ahead = self._scheduler.media_ahead
        self._count = 0

    def round(self, ahead: Any) -> tuple[float, float, float]:
        """Longest wait of the text, first token of the picture's request, a step without it."""
        self._scheduler.media_ahead = ahead
        self._count += 1
        text, picture = f"{TEXT}{self._count}", f"{PICTURE}{self._count}"
        self._ask(text, {"prompt_token_ids": [5, 6, 7]}, CONTEXT - 8)
        quiet = []
        for _ in range(QUIET_STEPS):
            begin = time.perf_counter()
            self._engine.step()
            quiet.append(time.perf_counter() - begin)
        prompt = {**self._prompt, "multi_modal_data": {"image": self._picture()}}
        self._ask(picture, prompt, 1)
        longest, begin = 0.0, time.perf_counter()
        last, answered = begin, False
        while not answered:
            for out in self._engine.step():
                answered |= out.request_id == picture
                if out.request_id == text:
                    now = time.perf_counter()
                    longest, last = max(longest, now - last), now
        first = time.perf_counter() - begin
        self._engine.abort_request([text])
        self._engine.step()
        return longest, first, statistics.median(quiet)

    def _ask(self, request: str, prompt: Any, tokens: int) -> None:
        from vllm import SamplingParams

        sampling = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
        self._engine.add_request(request, prompt, sampling)

    def _picture(self) -> Any:
        """Another in each round: what is encoded is kept."""
        import numpy as np
        from PIL import Image

        random = np.random.default_rng(self._count)
        return Image.fromarray(random.integers(0, 255, (*self._size, 3), dtype=np.uint8))


def main() -> None:
    """Measure in turns and print a line for each way."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.media_wait",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    pictures = [name for name, tower in TOWERS.items() if tower.work == "picture"]
    parser.add_argument("tower", nargs="?", default="qwen2.5-vl", choices=pictures)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        waits = Waits(TOWERS[options.tower], Path(folder))
        ways = {"between steps": waits.ahead, "within a step": None}
        found: dict[str, list[tuple[float, float, float]]] = {way: [] for way in ways}
        for number in range(options.rounds + 1):
            for way, ahead in ways.items():
                measured = waits.round(ahead)
                if number:  # the first one starts threads and touches memory
                    found[way].append(measured)
    for way, rounds in found.items():
        longest, first, quiet = ([each[i] for each in rounds] for i in range(3))
        print(
            f"{options.tower}, encoded {way}: the text waits {summary(longest, '.2f')} s at most, "
            f"{summary(quiet, '.3f')} s without a picture; the picture's first token comes after "
            f"{summary(first, '.2f')} s"
        )


if __name__ == "__main__":
    main()
