"""Ultravox: Whisper's encoder, a projector of eight states at once, and Llama, in plain torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import torch
from torch.nn.functional import pad, silu
from transformers import (
    AutoConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedConfig,
    WhisperConfig,
)
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.whisper.modeling_whisper import WhisperEncoder

from tests.zoo import remote
from tests.zoo.hearing import Hearing, whisper_states
from tests.zoo.remote.ultravox_processor import MARK, UltravoxProcessor
from tests.zoo.tokens import write_tokenizer

STACKED = 8


class UltravoxConfig(PreTrainedConfig):
    """The host's has more names for the same."""

    model_type = "ultravox"
    attribute_map: ClassVar[dict[str, str]] = {"audio_token_id": "audio_token_index"}
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


class UltravoxModel(Hearing):
    config_class = UltravoxConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.audio_tower = WhisperEncoder._from_config(config.audio_config)
        self.multi_modal_projector = Projector(config)
        self.language_model = LlamaForCausalLM._from_config(config.text_config)
        self.post_init()

    def hear(self, **given: torch.Tensor) -> torch.Tensor:
        """audio_values [pieces, bands, frames], as long as audio_lens [pieces] says."""
        pieces = zip(given["audio_values"], given["audio_lens"].tolist(), strict=True)
        return torch.cat([self._piece(spectrum[None, :, :length]) for spectrum, length in pieces])

    def _piece(self, spectrum: torch.Tensor) -> torch.Tensor:
        return self.multi_modal_projector(whisper_states(self.audio_tower, spectrum))[0]


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
