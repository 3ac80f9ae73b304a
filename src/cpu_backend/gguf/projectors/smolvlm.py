"""Idefics 3 and SmolVLM: a SigLIP tower over tiles of a picture."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from cpu_backend.gguf.architectures.tensors import Tensor
from cpu_backend.gguf.projectors.siglip import Siglip


class Idefics3(Siglip):
    """Both, whose pictures are cut into tiles in the same way; SmolVLM 2 gets pictures alone."""

    kind, texts = "idefics3", ("llama",)
    class_name = "Idefics3ForConditionalGeneration"
    model_type, text_type = "idefics3", "llama"
    vision_type = "idefics3_vision"
    tower = "model.vision_model."
    needs = ()
    merge_field = "projector.scale_factor"
    text_weights = text_modules = "model.text_model."
    marks: Mapping[str, str] = MappingProxyType(
        {
            "image_token": "<image>",
            "fake_image_token": "<fake_token_around_image>",
            "global_image_token": "<global-img>",
            "end_of_utterance_token": "<end_of_utterance>",
        }
    )

    def outer(self) -> dict[str, Tensor]:
        return super().outer() | {
            "mm.model.fc.weight": Tensor(
                "model.connector.modality_projection.proj.weight", ("text", "merged")
            )
        }

    def more(self) -> dict[str, Any]:
        return {"scale_factor": self.merged}

    def processor(self) -> dict[str, Any]:
        side = self.size("vision.image_size")
        return {
            "processor_class": "Idefics3Processor",
            "image_seq_len": self.tokens(self.merged),
            "image_processor": {
                **self.normalized(),
                "do_image_splitting": True,
                "do_pad": True,
                "image_processor_type": "Idefics3ImageProcessor",
                "max_image_size": {"longest_edge": side},
                "resample": 1,
                "size": {"longest_edge": self.size("vision.preproc_image_size", 4 * side)},
            },
        }


KNOWN = (Idefics3,)
