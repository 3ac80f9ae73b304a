"""MOSS-Transcribe-Diarize's processor: sounds as spectra of Whisper's, one for so many seconds, and
between their tokens, every two seconds, the time."""

from typing import Any

import torch
from transformers import AutoTokenizer, BatchFeature, WhisperFeatureExtractor
from transformers.processing_utils import ProcessorMixin

BEGIN, SOUND, END = "<|audio_start|>", "<|audio_pad|>", "<|audio_end|>"
SECONDS = 4  # of a piece; published checkpoints have 30
MERGED = 4  # states of a token, each of two frames
MARKED = 2  # seconds after which the time is said
MARKED_TOKENS = 25  # of these seconds


class MossProcessor(ProcessorMixin):
    audio_start_token, audio_end_token = BEGIN, END  # which the host reads, as the rest here
    audio_merge_size = MERGED

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.feature_extractor = WhisperFeatureExtractor(feature_size=80, chunk_length=SECONDS)
        self.audio_token_id = tokenizer.convert_tokens_to_ids(SOUND)
        self.chat_template = None

    @classmethod
    def from_pretrained(cls, folder: Any, *_: Any, **__: Any) -> Any:
        return cls(AutoTokenizer.from_pretrained(folder))

    def __call__(self, text: Any = None, audio: Any = (), **_: Any) -> BatchFeature:
        """A text with as many tokens of a sound as its pieces have, and these pieces' spectra."""
        text = text if isinstance(text, str) else text[0]
        extractor = self.feature_extractor
        cut, counts, made = [], [], {}
        for sound in audio or ():
            starts = range(0, len(sound), extractor.n_samples)
            pieces = [sound[start : start + extractor.n_samples] for start in starts]
            cut += pieces
            counts.append([self._tokens(len(piece)) for piece in pieces])
        if cut:
            made["input_features"] = extractor(
                cut, sampling_rate=extractor.sampling_rate, return_tensors="pt"
            ).input_features
            made["audio_feature_lengths"] = torch.tensor([n for some in counts for n in some])
            which = [i for i, some in enumerate(counts) for _ in some]
            made["audio_chunk_mapping"] = torch.tensor(which)
            words = [self._words(sum(some)) for some in counts]
            text = "".join(map("".join, zip(text.split(SOUND), [*words, ""], strict=True)))
        return BatchFeature({**self.tokenizer(text, return_tensors="pt"), **made})

    def _tokens(self, samples: int) -> int:
        """As many as a piece of so many samples fills, the last one in part."""
        return -(-samples // (2 * MERGED * self.feature_extractor.hop_length))

    def _words(self, tokens: int) -> str:
        """Those of a sound and the times between them."""
        parts = []
        for number in range(1, tokens // MARKED_TOKENS + 1):
            parts += [SOUND * MARKED_TOKENS, str(number * MARKED)]
        return "".join([*parts, SOUND * (tokens % MARKED_TOKENS)])

    def _audio_span_ids(self, tokens: int) -> list[int]:
        """The same in numbers, as the host asks for it."""
        return self.tokenizer(self._words(tokens), add_special_tokens=False)["input_ids"]
