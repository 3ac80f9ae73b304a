"""Mistral Small 3 and Ministral 3."""

from __future__ import annotations

from typing import Any

from cpu_backend.gguf.architectures.llama import Llama

TEMPERATURE = "attention.temperature_scale"


class Mistral3(Llama):
    """Llama, with queries that are scaled by their positions where the file says so."""

    class_name = "MistralForCausalLM"
    model_type = "mistral"

    def __init__(self, file: Any) -> None:
        super().__init__(file)
        if self.has(TEMPERATURE):
            self.class_name, self.model_type = "Ministral3ForCausalLM", "ministral3"

    def config(self) -> dict[str, Any]:
        return super().config() | {"sliding_window": None}

    def rotary(self) -> dict[str, Any]:
        config = super().rotary()
        if not self.has(TEMPERATURE):
            return config
        scaling = config["rope_scaling"]
        if scaling is None or scaling["rope_type"] != "yarn":
            raise self.refuse("scales its queries by positions without yarn")
        return {
            "rope_parameters": {
                "rope_theta": config["rope_theta"],
                **scaling,
                "llama_4_scaling_beta": self.number(TEMPERATURE),
            }
        }

    def rope_scaling(self) -> dict[str, Any] | None:
        scaling = super().rope_scaling()
        if scaling is not None and self.has("rope.scaling.yarn_log_multiplier"):
            scaling["mscale"] = 1.0
            scaling["mscale_all_dim"] = self.number("rope.scaling.yarn_log_multiplier")
        return scaling


KNOWN = {"mistral3": Mistral3}
