"""How a running engine ended that was not asked to, in one sentence."""

from __future__ import annotations

import signal

MEANINGS = {
    signal.SIGKILL: "often because memory ran out: lower VLLM_CPU_KVCACHE_SPACE or "
    "--max-model-len, or choose a smaller model or quantization",
    signal.SIGTERM: "which somebody sent to it and not to the server",
}
STOPPED = "The server was stopped before the answer was complete: send the request again."
FAULT = "a fault in native code, which is worth a report"


def how_it_ended(code: int) -> str:
    """The sentence for an engine process with the exit code ``code``, negative for a signal."""
    if code >= 0:
        return f"The engine process ended with exit code {code}: the log above says why."
    try:
        number = signal.Signals(-code)
    except ValueError:
        return f"The engine process was killed by signal {-code}."
    return (
        f"The engine process was killed by signal {-code} ({number.name}), "
        f"{MEANINGS.get(number, FAULT)}."
    )
