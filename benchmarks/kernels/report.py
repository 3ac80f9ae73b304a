"""Rows as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from measure import Row


def _cells(row: Row) -> list[str]:
    spread = (row.slowest - row.fastest) / row.seconds
    return [
        row.kernel,
        row.shape,
        row.dtype,
        row.size,
        f"{row.seconds * 1e6:.0f} µs",
        f"{spread:.0%}",
        f"{row.bytes_per_s / 1e9:.1f} of {row.read_limit / 1e9:.1f}",
        f"{row.flop_per_s / 1e9:.1f} of {row.flop_limit / 1e9:.1f}",
        f"{row.share:.0%}",
        f"{row.best_share:.0%}",
        f"{row.error:.1e}",
    ]


_HEAD = [
    "kernel",
    "shape",
    "dtype",
    "size",
    "median",
    "spread",
    "GB/s",
    "GFLOP/s",
    "share",
    "best",
    "error",
]
_WIDTHS = [17, 33, 8, 12, 10, 6, 13, 15, 5, 5, 7]


def line(row: Row) -> str:
    """One row for a terminal."""
    return "  ".join(f"{c:<{w}}" for c, w in zip(_cells(row), _WIDTHS, strict=True)).rstrip()


def markdown(host: Mapping[str, object], rows: Sequence[Row]) -> str:
    """A table; ``share`` and ``best`` as in measure.Row, ``error`` relative to fp32."""
    head = ", ".join(f"{key} {value}" for key, value in host.items())
    lines = [
        head,
        "",
        "| " + " | ".join(_HEAD) + " |",
        "| " + " | ".join("---" for _ in _HEAD) + " |",
    ]
    lines += ["| " + " | ".join(_cells(row)) + " |" for row in rows]
    return "\n".join(lines) + "\n"
