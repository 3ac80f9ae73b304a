"""Where another provider was faster than native: ``benchmarks/providers`` writes the table.

``measured.json`` is a list of {"target", "kind", "dtype", "provider"}: on CPUs whose instruction
set is "target", every measured shape of that kind and dtype took less time with that provider, by
more than 3 % with any number of rows.  Where no row fits: native.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path

TABLE = Path(__file__).with_name("measured.json")


@functools.cache
def _rows() -> dict[tuple[str, str, str], str]:
    rows = json.loads(TABLE.read_text())
    return {(row["target"], row["kind"], row["dtype"]): row["provider"] for row in rows}


def best(kind: str, dtype: str) -> str:
    """The provider for "linear" or "experts" of weights of that dtype ("float32", "int4", ...)."""
    from cpu_backend import ops

    return _rows().get((ops.load().target, kind, dtype.removeprefix("torch.")), "native")
