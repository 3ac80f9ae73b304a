"""A checkpoint without layers that draft is refused in words.

What: ``SpeculativeConfig.hf_config_override`` raises where a config.json says that there are none.
Why: the host divides by their number (Moonlight says 0), and ends with a ZeroDivisionError.
Since: 0.30
Until: the host says so itself.
"""

from __future__ import annotations

from typing import Any

from cpu_backend.errors import ConfigError
from cpu_backend.host.seam import Hosts, patch

_MODULE, _OVERRIDE = "vllm.config.speculative", "SpeculativeConfig.hf_config_override"


@patch(_MODULE, f"{_OVERRIDE}(hf_config)", hosts=Hosts(until=(0, 33)))
@patch(
    _MODULE,
    f"{_OVERRIDE}(hf_config, transformers_mtp_overrides)",
    hosts=Hosts(since=(0, 33)),
)
def refuse_none(original: Any) -> Any:
    """Of a model that drafts, by layers of its own or as another's draft model."""

    def hf_config_override(hf_config: Any, *rest: Any, **named: Any) -> Any:
        config = original(hf_config, *rest, **named)
        if getattr(config, "n_predict", None) == 0:
            raise ConfigError(
                "The checkpoint has no layers that draft tokens, as its config.json says "
                "(num_nextn_predict_layers): choose another method or model of "
                "--speculative-config."
            )
        return config

    return hf_config_override
