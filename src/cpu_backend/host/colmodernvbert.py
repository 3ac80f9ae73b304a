"""ColModernVBERT is what its config.json says.

What: the parts of its config have every field of the file.
Why: the host takes the sizes of both encoders alone, and the rest as it is by default.
Since: 0.30
Until: 0.33, which has the config of transformers.
"""

from __future__ import annotations

from typing import Any

from cpu_backend.host.seam import Hosts, patch


@patch(
    "vllm.transformers_utils.configs.colmodernvbert",
    "ColModernVBertConfig.__init__(self, embedding_dim, image_token_id, pixel_shuffle_factor, ...)",
    hosts=Hosts(until=(0, 33)),
)
def read_parts(original: Any) -> Any:
    """What the host leaves out, too."""

    def __init__(  # noqa: N807
        self: Any,
        *args: Any,
        text_config: dict[str, Any] | None = None,
        vision_config: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        original(self, *args, text_config=text_config, vision_config=vision_config, **kwargs)
        self.text_config = _with(self.text_config, text_config)
        self.vision_config = _with(self.vision_config, vision_config)

    return __init__


def _with(part: Any, said: dict[str, Any] | None) -> Any:
    return type(part)(**{**part.to_dict(), **(said or {})})
