"""Records as the measurement writes them, made up for the tests of figures and tables."""

from __future__ import annotations

from typing import Any

# Whole numbers, so that shares can be worked out in the head: a step reads 100 weights.
SHAPE = {
    "layer_weights": 90,
    "head_weights": 10,
    "kv_elements": 0,
    "attention_flop": 0,
    "vocab_size": 10,
}


def record(
    peer: str,
    number: int,
    works: dict[str, list[float]],
    *,
    dtype: str = "float32",
    failures: dict[str, str] | None = None,
    bytes_per_s: tuple[float, float] = (40_000.0, 40_000.0),
    is_server: bool = False,
    tokens: tuple[int, ...] = (1, 2, 3),
    gib: float = 1.0,
    first_token_s: float = 2.0,
    other_cores: float = 0.0,
) -> dict[str, Any]:
    """A process of ``peer`` in round ``number``. In fp32 the default bound is 100 tokens/s."""
    return {
        "model": "model",
        "shape": SHAPE,
        "round": number,
        "peer": peer,
        "dtype": dtype,
        "is_server": is_server,
        "commit": "abc",
        "time": "2026-01-02T03:04:05+00:00",
        "works": {
            text: {"values": values, "other_cores": other_cores} for text, values in works.items()
        },
        "failures": failures or {},
        "startup": {
            "first_token_s": first_token_s,
            "construct_s": 1.0,
            "other_cores": other_cores,
            "versions": {"torch": "2"},
        },
        "greedy": {"tokens": list(tokens), "text": "a | b"},
        "memory_bytes": {"peak_rss": int(gib * 2**30), "pss": int(gib * 2**29)},
        "limits": [{"bytes_per_s": b, "flop_per_s": 1e30} for b in bytes_per_s],
    }
