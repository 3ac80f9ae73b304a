"""python -m inspecting MODEL [fork|spawn]: who answers the host's first questions about a model.

Prints the platform's class, the model's architecture and where the plugin was loaded from, as seen
by this process or by one that it starts.
"""

from __future__ import annotations

import multiprocessing
import sys


def inspect(model: str) -> None:
    from vllm.config import ModelConfig
    from vllm.platforms import current_platform

    architecture = ModelConfig(model=model).architecture
    place = sys.modules["cpu_backend"].__file__
    print(type(current_platform).__name__, architecture, place, flush=True)


if __name__ == "__main__":
    model, *method = sys.argv[1:]
    if method:
        process = multiprocessing.get_context(method[0]).Process(target=inspect, args=(model,))
        process.start()
        process.join()
        sys.exit(process.exitcode)
    inspect(model)
