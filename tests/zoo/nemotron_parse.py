"""Nemotron Parse: RADIO's tower, what joins four of its patches, and mBART's decoder without
positions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, PreTrainedModel, RadioConfig, RadioModel
from transformers.models.mbart.modeling_mbart import MBartDecoder

from tests.zoo import remote
from tests.zoo.media import PICTURES, Heard, heard
from tests.zoo.remote.nemotron_parse import SIZE, NemotronParseConfig, NemotronParseProcessor
from tests.zoo.tokens import write_tokenizer

CODE = "nemotron_parse"  # that comes with checkpoints
PATCH = 16
JOINED = 4  # patches of a line that are one token
WIDE = 1024  # of tokens, whatever the config says
TOWER = "vit_huge_patch16_224"  # which all of its checkpoints have
# Its teachers, and which of their tokens are a page's summary.
TEACHERS = {"a": False, "b": True, "c": True, "d": True}
REGISTERS = 8  # tokens before the patches are a multiple of it
RADIO = {
    "hidden_size": 1280,
    "num_hidden_layers": 2,
    "num_attention_heads": 16,
    "mlp_ratio": 0.25,
    "patch_size": PATCH,
    "max_img_size": 256,
    "num_cls_tokens": len(TEACHERS),
    "num_registers": REGISTERS - len(TEACHERS),
    "summary_idxs": [number for number, used in enumerate(TEACHERS.values()) if used],
}
CONFIG = {
    "encoder": {
        "patch_size": PATCH,
        "args": {
            "model": TOWER,
            "teachers": [{"name": name, "use_summary": used} for name, used in TEACHERS.items()],
            "cls_token_per_teacher": True,
            "cpe_max_size": RADIO["max_img_size"],
            "register_multiple": REGISTERS,
        },
    },
    "decoder": {
        "vocab_size": 1024,  # the host takes a multiple of 64 alone
        "d_model": WIDE,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_attention_heads": 16,
        "decoder_attention_heads": 16,
        "encoder_ffn_dim": 352,
        "decoder_ffn_dim": 352,
        "scale_embedding": True,
        "tie_word_embeddings": False,
    },
}


class NemotronParse(PreTrainedModel):
    config_class = NemotronParseConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.encoder = Encoder()
        self.decoder = MBartDecoder(config.decoder)
        self.decoder.embed_positions = Nowhere()
        self.lm_head = torch.nn.Linear(WIDE, config.decoder.vocab_size, bias=False)
        self.post_init()

    def forward(self, decoder_input_ids: torch.Tensor, pixel_values: torch.Tensor, **_: Any) -> Any:
        """``decoder_input_ids`` [1, n], pixel_values [1, 3, *SIZE]."""
        seen = self.encoder(pixel_values)
        made = self.decoder(decoder_input_ids, encoder_hidden_states=seen, use_cache=False)
        return Scores(self.lm_head(made.last_hidden_state))


@dataclass(frozen=True)
class Scores:
    logits: torch.Tensor


class Nowhere(torch.nn.Module):
    """In the place of positions."""

    def forward(self, *_: Any, **__: Any) -> torch.Tensor:
        return torch.zeros(())


class Encoder(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        size = RADIO["hidden_size"]
        self.model_encoder = RadioModel(RadioConfig(**RADIO))
        self.model_encoder.make_preprocessor_external()
        for layer in self.model_encoder.encoder.layer:  # published ones scale nothing
            layer.layer_scale1 = layer.layer_scale2 = torch.nn.Identity()
        self.conv1 = torch.nn.Conv1d(size, WIDE, 1)
        self.conv2 = torch.nn.Conv2d(WIDE, WIDE, (1, JOINED), (1, JOINED), bias=False)
        self.sum_proj = torch.nn.Linear(size * sum(TEACHERS.values()), WIDE)
        self.layer_norm1, self.layer_norm2, self.layer_norm3 = (
            torch.nn.LayerNorm(WIDE, eps=1e-6) for _ in range(3)
        )

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """``pixels`` [1, 3, *SIZE]; tokens of its patches and one of its summary [1, n, WIDE]."""
        found = self.model_encoder(pixels)
        patches = self.layer_norm1(self.conv1(found.features.mT).mT)
        grid = patches.mT.unflatten(2, (SIZE[0] // PATCH, -1))
        tokens = self.layer_norm2(self.conv2(grid).flatten(2).mT)
        summary = self.layer_norm3(self.sum_proj(found.summary))
        return torch.cat([tokens, summary[:, None]], 1)


AutoConfig.register(NemotronParseConfig.model_type, NemotronParseConfig)


@dataclass(frozen=True)
class Page(Heard):
    """An image for the encoder, the first tokens of its text for the decoder."""

    def request(self) -> dict[str, Any]:
        """For the host."""
        page = {"prompt": "", "multi_modal_data": {"image": self.media[0].make()}}
        tokens = [self.start, *self.tokens]
        return {"encoder_prompt": page, "decoder_prompt": {"prompt_token_ids": tokens}}

    def inputs(self, processor: Any) -> dict[str, Any]:
        """For the model above."""
        pixels = processor(images=[self.media[0].make()])["pixel_values"]
        return {"pixel_values": pixels, self.ids: torch.tensor([[self.start, *self.tokens]])}


CASES = tuple(Page(2, case.media, case.tokens) for case in heard(2, PICTURES))


def processor(folder: Path) -> Any:
    _make_host_small()
    write_tokenizer(folder)
    remote.copied(CODE, "NemotronParseProcessor", folder)
    return NemotronParseProcessor.from_pretrained(folder)


def _make_host_small() -> None:
    """In this process and those forked from it, the tower has the sizes above: those of the host's
    are no matter of config.json, and take gigabytes."""
    from vllm.transformers_utils.configs import radio

    size, ratio = RADIO["hidden_size"], RADIO["mlp_ratio"]
    counts = RADIO["num_hidden_layers"], RADIO["num_attention_heads"]
    radio.VIT_TIMM_DIM_BY_NAME[TOWER] = (size, *counts, int(size * ratio))


def published(config: dict[str, Any]) -> dict[str, Any]:
    """With the class that comes with the checkpoint."""
    return {**config, "auto_map": {"AutoConfig": f"{CODE}.NemotronParseConfig"}}
