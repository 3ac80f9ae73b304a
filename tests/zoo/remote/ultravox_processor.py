"""Ultravox's processor: sounds as spectra, cut where the encoder's positions end."""

import math
from typing import Any

import torch
from transformers import AutoTokenizer, BatchFeature, WhisperFeatureExtractor
from transformers.processing_utils import ProcessorMixin

MARK = "<|audio|>"
CONTEXT = 300  # frames of a piece: three seconds
FRAMES_PER_TOKEN = 16  # two of a position, eight of a token


class UltravoxProcessor(ProcessorMixin):
    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.audio_processor = WhisperFeatureExtractor(feature_size=80, chunk_length=CONTEXT // 100)
        self.chat_template = None

    @classmethod
    def from_pretrained(cls, folder: Any, *_: Any, **__: Any) -> Any:
        return cls(AutoTokenizer.from_pretrained(folder))

    def __call__(
        self,
        text: Any = None,
        audios: Any = (),
        audio: Any = (),
        sampling_rate: int = 16000,
        **_: Any,
    ) -> BatchFeature:
        """A text whose marks are repeated, and the spectra of the sounds, piece by piece."""
        text = text if isinstance(text, str) else text[0]
        pieces, counts, words = [], [], []
        for sound in audios or audio:
            spectrum = torch.from_numpy(
                self.audio_processor(
                    sound, sampling_rate=sampling_rate, padding="longest", truncation=False
                ).input_features[0]
            )
            cut = spectrum.split(CONTEXT, dim=-1)
            pieces += cut
            counts.append(len(cut))
            words.append(MARK * sum(map(_tokens, cut)))
        made: dict[str, Any] = {}
        if pieces:
            longest = max(piece.shape[-1] for piece in pieces)
            made["audio_values"] = torch.stack(
                [torch.nn.functional.pad(piece, (0, longest - piece.shape[-1])) for piece in pieces]
            )
            made["audio_lens"] = torch.tensor([piece.shape[-1] for piece in pieces])
            made["audio_token_len"] = torch.tensor([*map(_tokens, pieces)])
            made["audio_num_chunks"] = torch.tensor(counts)
            text = "".join(map("".join, zip(text.split(MARK), [*words, ""], strict=True)))
        return BatchFeature({**self.tokenizer(text, return_tensors="pt"), **made})


def _tokens(piece: torch.Tensor) -> int:
    return math.ceil(piece.shape[-1] / FRAMES_PER_TOKEN)
