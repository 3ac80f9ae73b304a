"""The processors of Gemma models, made as those in ``processors``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.zoo.processors import FIRST, SIDE, _image_processor, _keep
from tests.zoo.tokens import write_tokenizer

GEMMA3N_OWN = FIRST + 6 + 256  # the first number of an image's own, behind begins, lines, bytes


def gemma3(folder: Path) -> Any:
    from transformers import Gemma3Processor

    image, begin, end = "<image_soft_token>", "<start_of_image>", "<end_of_image>"
    named = {"image_token": image, "boi_token": begin, "eoi_token": end}
    lines = ["\n" * n for n in range(1, 5)]  # one token each, which the host merges
    tokenizer = write_tokenizer(folder, [image, begin, end, *lines], extra_special_tokens=named)
    images = _image_processor("Gemma3", size={"height": SIDE, "width": SIDE})
    return _keep(Gemma3Processor(images, tokenizer, image_seq_length=16), folder)


def gemma3n(folder: Path) -> Any:
    """Images and sounds have the last numbers, from GEMMA3N_OWN on two each."""
    from transformers import Gemma3nAudioFeatureExtractor, Gemma3nProcessor

    named = {"image_token": "<image_soft_token>", "eoi_token": "<end_of_image>"}
    named |= {"audio_token": "<audio_soft_token>", "eoa_token": "<end_of_audio>"}
    begins = {"boi_token": "<start_of_image>", "boa_token": "<start_of_audio>"}
    first = [*begins.values(), *("\n" * n for n in range(1, 5))]
    tokenizer = write_tokenizer(folder, first, extra_special_tokens={**named, **begins})
    images = _image_processor("Siglip", size={"height": 128, "width": 128})
    sounds = Gemma3nAudioFeatureExtractor()
    return _keep(Gemma3nProcessor(sounds, images, tokenizer, image_seq_length=16), folder)


def gemma4(folder: Path) -> Any:
    from transformers import Gemma4AudioFeatureExtractor, Gemma4Processor, Gemma4VideoProcessor

    parts = (Gemma4AudioFeatureExtractor(), _image_processor("Gemma4", max_soft_tokens=70))
    return _gemma4(Gemma4Processor, parts, Gemma4VideoProcessor(), folder)


def gemma4_unified(folder: Path) -> Any:
    from transformers import (
        Gemma4UnifiedAudioFeatureExtractor,
        Gemma4UnifiedProcessor,
        Gemma4UnifiedVideoProcessor,
    )

    sounds = Gemma4UnifiedAudioFeatureExtractor()
    parts = (sounds, _image_processor("Gemma4Unified", max_soft_tokens=70))
    return _gemma4(Gemma4UnifiedProcessor, parts, Gemma4UnifiedVideoProcessor(), folder)


def _gemma4(make: Any, sounds_and_images: tuple[Any, Any], videos: Any, folder: Path) -> Any:
    image, begin, end = "<|image|>", "<|image>", "<image|>"
    audio = ("<|audio|>", "<|audio>", "<audio|>")
    named = {"image_token": image, "boi_token": begin, "eoi_token": end}
    named |= dict(zip(("audio_token", "boa_token", "eoa_token"), audio, strict=True))
    tokenizer = write_tokenizer(folder, [*named.values(), "<|video|>"], extra_special_tokens=named)
    lengths = {"image_seq_length": 70, "audio_seq_length": 128}  # at most, computed at once
    return _keep(make(*sounds_and_images, tokenizer, videos, **lengths), folder)
