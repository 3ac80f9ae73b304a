"""A runner whose engine counts upwards, with the faults that real ones have on request.

Speaks the real protocol; ``settings["engine"]`` chooses the fault.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks/compare/runners"))
from protocol import run_engine


class ToyEngine:
    def __init__(self, _: None, settings: dict[str, Any]) -> None:
        self.fault = settings["engine"].get("fault")
        self.versions = {"toy": "1"}
        print("engines print to stdout while they load", flush=True)
        if self.fault == "construct":
            raise ValueError("no\nsuch model")
        if self.fault == "child":
            child = [sys.executable, "-c", "x = bytearray(200 << 20); import time; time.sleep(60)"]
            self.child = subprocess.Popen(child)
            time.sleep(2)

    def generate(self, prompts: list[list[int]], outputs: int) -> list[list[int]]:
        if self.fault == "hang" and outputs == 5:
            time.sleep(60)
        if self.fault == "die" and outputs == 5:
            print("the last words", file=sys.stderr, flush=True)
            os._exit(3)
        if self.fault == "busy child" and outputs == 5:
            busy = "import time\nwhile time.process_time() < 1: pass"
            subprocess.run([sys.executable, "-c", busy], check=True)
        if self.fault == "short" and outputs == 5:
            outputs = 4
        time.sleep(0.001 * outputs)
        return [[prompt[-1] + i + 1 for i in range(outputs)] for prompt in prompts]

    def text(self, tokens: list[int]) -> str:
        return f"{os.environ.get('TOY', '')}{tokens}"


if __name__ == "__main__":
    run_engine(lambda: None, ToyEngine)
