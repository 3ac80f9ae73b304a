"""The part of a head that turns is found where the host's classes look for it.

What: a config whose ``rope_parameters`` have a ``partial_rotary_factor`` has one of its own, too.
Why: ``transformers`` from 5.20 on moves it there where a config's class does not list it.  Classes
    of the host, Ling 2's for one, ask the config itself and turn whole heads where it has none:
    every answer is wrong.
Since: 0.33, the first that takes transformers 5.20
Until: these classes read ``rope_parameters``.
"""

from __future__ import annotations

from typing import Any

from cpu_backend.host.seam import Hosts, patch

FACTOR = "partial_rotary_factor"


@patch(
    "vllm.transformers_utils.config", "patch_rope_parameters(config)", hosts=Hosts(since=(0, 33))
)
def keep_factor(original: Any) -> Any:
    """After the host has put the parameters into today's words."""

    def patch_rope_parameters(config: Any) -> None:
        original(config)
        rope = getattr(config, "rope_parameters", None) or {}
        if FACTOR in rope and not hasattr(config, FACTOR):
            setattr(config, FACTOR, rope[FACTOR])

    return patch_rope_parameters
