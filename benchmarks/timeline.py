"""Where the time of a decode step goes: the phases of one step on a common time axis, as SVG.

    python -m benchmarks.timeline [--model FOLDER] [--out docs/timeline.svg]

Each setting runs in a process of its own, with engine and model in one process, so that a step is
one chain of calls.  A clock wraps the methods of the host and of this project that make up a step;
of 128 steps the median one is drawn.  What no such method accounts for is Python between them.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.compare.chart import COLOURS, rect, text

STEPS, SKIPPED = 128, 16
PHASES = {
    "schedule": "scheduler",
    "_update_states": "inputs",
    "_prepare_inputs": "inputs",
    "_build_attention_metadata": "inputs",
    "_preprocess": "inputs",
    "_model_forward": "model",
    "compute_logits": "output layer",
    "_sample": "sampler",
    "_bookkeeping_sync": "results",
    "update_from_output": "results",
    "process_outputs": "text",
}
ROWS = (*dict.fromkeys(PHASES.values()), "between them")
LEFT, WIDTH, ROW, HEAD, MARGIN = 120, 560, 18, 44, 16


@dataclass(frozen=True)
class Setting:
    title: str
    requests: int
    options: dict[str, Any]


SETTINGS = {
    "replayed": Setting("one request, replayed", 1, {}),
    "eager": Setting("one request, --enforce-eager", 1, {"enforce_eager": True}),
    "batch": Setting("64 requests, replayed", 64, {}),
}


class Clock:
    """Wraps methods; ``spans`` of a step are (phase, begin, end) in seconds since its begin."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, float, float]] = []

    def watch(self, owner: object, name: str) -> None:
        method: Callable[..., Any] = getattr(owner, name)

        @functools.wraps(method)
        def timed(*args: Any, **kwargs: Any) -> Any:
            begin = time.perf_counter()
            try:
                return method(*args, **kwargs)
            finally:
                self.spans.append((PHASES[name], begin, time.perf_counter()))

        setattr(owner, name, timed)

    def take(self, begin: float) -> list[tuple[str, float, float]]:
        spans = [(phase, start - begin, end - begin) for phase, start, end in self.spans]
        self.spans = []
        return spans


def measure(model: str, setting: Setting) -> dict[str, Any]:
    """Run in a process of its own: the median step, and how long reading the weights once takes."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from vllm import LLM, SamplingParams

    from benchmarks.limits import read_bandwidth

    llm = LLM(model, device="cpu", dtype="bfloat16", max_model_len=2048, **setting.options)
    engine = llm.llm_engine
    core = engine.engine_core.engine_core
    runner = core.model_executor.driver_worker.worker.model_runner
    clock = Clock()
    owners = (core.scheduler, runner, runner.model, engine.output_processor)
    for name in PHASES:
        clock.watch(next(owner for owner in owners if hasattr(owner, name)), name)
    sampling = SamplingParams(temperature=0.8, seed=1, max_tokens=STEPS, ignore_eos=True)
    for i in range(setting.requests):
        prompt = {"prompt_token_ids": [100 + i, *range(200, 231)]}
        engine.add_request(str(i), prompt, sampling)
    steps = []
    while engine.has_unfinished_requests():
        begin = time.perf_counter()
        engine.step()
        seconds = time.perf_counter() - begin
        steps.append((seconds, clock.take(begin)))
    seconds, spans = sorted(steps[SKIPPED:])[len(steps[SKIPPED:]) // 2]
    weights = sum(file.stat().st_size for file in Path(model).glob("*.safetensors"))
    return {"seconds": seconds, "spans": spans, "floor": weights / read_bandwidth()}


def totals(step: dict[str, Any]) -> dict[str, float]:
    """Seconds of each row; what is left of the step lies between the phases."""
    seconds = dict.fromkeys(ROWS, 0.0)
    for phase, begin, end in step["spans"]:
        seconds[phase] += end - begin
    seconds[ROWS[-1]] = step["seconds"] - sum(seconds.values())
    return seconds


def panel(setting: Setting, step: dict[str, Any], top: float) -> str:
    """A row per phase, a bar wherever it ran; the dashed line is the weights read once."""
    scale = WIDTH / max(step["seconds"], step["floor"])
    rows = totals(step)
    parts = [text(MARGIN, top, f"{setting.title}: {step['seconds'] * 1e3:.1f} ms", weight="bold")]
    for i, (row, seconds) in enumerate(rows.items()):
        y = top + 8 + i * ROW
        parts.append(text(LEFT - 8, y + 12, row, anchor="end"))
        label = f"{seconds * 1e3:.2f} ms, {seconds / step['seconds']:.0%}"
        parts.append(text(LEFT + WIDTH + 8, y + 12, label, size=11))
        for phase, begin, end in step["spans"]:
            if phase == row:
                width = max(1.0, (end - begin) * scale)
                parts.append(rect(LEFT + begin * scale, y + 3, width, ROW - 6, COLOURS[i]))
    bottom = top + 8 + len(rows) * ROW
    floor = LEFT + step["floor"] * scale
    parts.append(
        f'<path d="M{floor:.1f} {top + 8:.1f}V{bottom:.1f}" stroke="#555555" '
        'stroke-dasharray="4 3"/>'
    )
    floor_label = f"weights read once: {step['floor'] * 1e3:.1f} ms"
    parts.append(text(floor, bottom + 12, floor_label, anchor="middle", fill="#555555", size=11))
    return "\n".join(parts)


def svg(steps: dict[str, dict[str, Any]], caption: str) -> str:
    height = (len(ROWS) + 2) * ROW + 24
    panels = [
        panel(SETTINGS[name], step, HEAD + 30 + i * height)
        for i, (name, step) in enumerate(steps.items())
    ]
    width, total = LEFT + WIDTH + 130, HEAD + 20 + len(panels) * height
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {total}" '
            f'width="{width}" height="{total}" font-family="system-ui, sans-serif" font-size="12">',
            f'<rect width="{width}" height="{total}" fill="#ffffff"/>',
            text(MARGIN, 24, "Where a decode step's time goes", size=16, weight="bold"),
            text(MARGIN, 42, caption, fill="#555555", size=11),
            *panels,
            "</svg>",
            "",
        ]
    )


def main() -> None:
    from cpu_backend.demo_model.store import default_dir

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default=str(default_dir()))
    parser.add_argument("--out", type=Path, default=Path("docs/timeline.svg"))
    parser.add_argument("--only", choices=SETTINGS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        print(json.dumps(measure(options.model, SETTINGS[options.only])))
        return
    steps = {}
    for name in SETTINGS:
        command = [sys.executable, "-m", "benchmarks.timeline", "--model", options.model]
        done = subprocess.run([*command, "--only", name], check=True, stdout=subprocess.PIPE)
        steps[name] = json.loads(done.stdout.splitlines()[-1])
        print(name, {row: f"{s * 1e3:.2f} ms" for row, s in totals(steps[name]).items()})
    caption = f"{Path(options.model).name}, bf16, {time.strftime('%Y-%m-%d')}"
    options.out.write_text(svg(steps, caption))


if __name__ == "__main__":
    main()
