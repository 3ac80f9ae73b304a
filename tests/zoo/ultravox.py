"""Ultravox: Whisper's encoder, a projector of eight states at once, and Llama, in plain torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import gelu, pad, silu
from transformers import (
    AutoConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    WhisperConfig,
)
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.whisper.modeling_whisper import WhisperEncoder

from tests.zoo import remote
from tests.zoo.remote.ultravox_processor import MARK, UltravoxProcessor
from tests.zoo.tokens import write_tokenizer

STACKED = 8


class UltravoxConfig(PreTrainedConfig):
    """The host's has more names for the same."""

    model_type = "ultravox"
    text_config: Any = None
    audio_config: Any = None
    audio_token_index: int = 0
    hidden_size: int = 0
    vocab_size: int = 0
    stack_factor: int = STACKED
    projector_ln_mid: bool = True

    def __post_init__(self, **rest: Any) -> None:
        self.text_config = LlamaConfig(**(self.text_config or {}))
        self.audio_config = WhisperConfig(**(self.audio_config or {}))
        super().__post_init__(**rest)


AutoConfig.register(UltravoxConfig.model_type, UltravoxConfig)


class UltravoxModel(PreTrainedModel):
    config_class = UltravoxConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.audio_tower = WhisperEncoder._from_config(config.audio_config)
        self.multi_modal_projector = Projector(config)
        self.language_model = LlamaForCausalLM._from_config(config.text_config)
        self.post_init()

    def forward(
        self,
        input_ids: torch.Tensor,
        audio_values: torch.Tensor | None = None,
        audio_lens: torch.Tensor | None = None,
        **_: Any,
    ) -> Any:
        """``input_ids`` [1, n]; audio_values [pieces, bands, frames], as long as audio_lens
        [pieces] says."""
        states = self.language_model.get_input_embeddings()(input_ids)
        if audio_values is not None and audio_lens is not None:
            heard = torch.cat(
                [
                    self.multi_modal_projector(self._hear(piece[None, :, :length]))[0]
                    for piece, length in zip(audio_values, audio_lens.tolist(), strict=True)
                ]
            )
            marked = input_ids[0] == self.config.audio_token_index
            where = marked.nonzero()[: len(heard), 0]
            states = states.index_copy(1, where, heard[None])
        return self.language_model(inputs_embeds=states, use_cache=False)

    def _hear(self, spectrum: torch.Tensor) -> torch.Tensor:
        """``spectrum`` [1, bands, frames], fewer than Whisper asks for; states [1, n, d]."""
        tower = self.audio_tower
        states = gelu(tower.conv2(gelu(tower.conv1(spectrum)))).transpose(1, 2)
        states = states + tower.embed_positions.weight[: states.shape[1]]
        for layer in tower.layers:
            states = layer(states, None)
            states = states[0] if isinstance(states, tuple) else states
        return tower.layer_norm(states)


class Projector(torch.nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        wide = config.audio_config.d_model * STACKED
        size, text = config.hidden_size, config.text_config.hidden_size
        self.ln_pre = LlamaRMSNorm(wide)
        self.linear_1 = torch.nn.Linear(wide, size, bias=False)
        self.linear_2 = torch.nn.Linear(size // 2, text, bias=False)
        self.in_the_middle = config.projector_ln_mid
        if self.in_the_middle:  # since Ultravox 0.5
            self.ln_mid = LlamaRMSNorm(size // 2)
        else:
            self.ln_post = LlamaRMSNorm(text)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """``states`` [1, n, d]; [1, n / 8, hidden], the last one's filled up with zeros."""
        missing = -states.shape[1] % STACKED
        stacked = pad(states, (0, 0, 0, missing)).unflatten(1, (-1, STACKED)).flatten(2)
        value, gate = self.linear_1(self.ln_pre(stacked)).chunk(2, -1)
        states = value * silu(gate)
        if self.in_the_middle:
            return self.linear_2(self.ln_mid(states))
        return self.ln_post(self.linear_2(states))


def processor(folder: Path) -> Any:
    write_tokenizer(folder, [MARK])
    remote.copied("ultravox_processor", "UltravoxProcessor", folder)
    return UltravoxProcessor.from_pretrained(folder)
