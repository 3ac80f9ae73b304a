"""MOSS-Transcribe-Diarize: Whisper's encoder, four of its states a token, and Qwen 3."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, PreTrainedConfig, Qwen3Config, Qwen3ForCausalLM, WhisperConfig
from transformers.models.whisper.modeling_whisper import WhisperEncoder

from tests.zoo import remote
from tests.zoo.hearing import Hearing, whisper_states
from tests.zoo.remote.moss_processor import MERGED, SOUND, MossProcessor
from tests.zoo.tokens import write_tokenizer


class MossTranscribeDiarizeConfig(PreTrainedConfig):
    """The host's has more names for the same."""

    model_type = "moss_transcribe_diarize"
    text_config: Any = None
    audio_config: Any = None
    audio_token_id: int = 0
    audio_merge_size: int = MERGED
    tie_word_embeddings: bool = True

    def __post_init__(self, **rest: Any) -> None:
        self.text_config = Qwen3Config(**(self.text_config or {}))
        self.audio_config = WhisperConfig(**(self.audio_config or {}))
        super().__post_init__(**rest)


AutoConfig.register(
    MossTranscribeDiarizeConfig.model_type, MossTranscribeDiarizeConfig, exist_ok=True
)


class MossTranscribeDiarizeForConditionalGeneration(Hearing):
    config_class = MossTranscribeDiarizeConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        audio, text = config.audio_config, config.text_config
        self.whisper_encoder = WhisperEncoder._from_config(audio)
        self.vq_adaptor = Adaptor(audio.d_model * MERGED, text)
        self.language_model = Qwen3ForCausalLM._from_config(text)
        self.post_init()

    def hear(self, **given: torch.Tensor) -> torch.Tensor:
        """input_features [pieces, bands, frames]; audio_feature_lengths [pieces], their tokens."""
        pieces = zip(given["input_features"], given["audio_feature_lengths"].tolist(), strict=True)
        return torch.cat([self._piece(spectrum, tokens) for spectrum, tokens in pieces])

    def _piece(self, spectrum: torch.Tensor, tokens: int) -> torch.Tensor:
        states = whisper_states(self.whisper_encoder, spectrum[None])[0]
        merged = states[: tokens * MERGED].unflatten(0, (tokens, MERGED)).flatten(1)
        return self.vq_adaptor.layers(merged)


class Adaptor(torch.nn.Module):
    def __init__(self, wide: int, text: Any) -> None:
        super().__init__()
        size = text.hidden_size
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(wide, size),
            torch.nn.SiLU(),
            torch.nn.Linear(size, size),
            torch.nn.LayerNorm(size, eps=text.rms_norm_eps),
        )


def processor(folder: Path) -> Any:
    write_tokenizer(folder, [SOUND, "<|audio_start|>", "<|audio_end|>"])
    remote.copied("moss_processor", "MossProcessor", folder)
    return MossProcessor.from_pretrained(folder)
