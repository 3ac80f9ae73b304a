"""Processors made in code: a tokenizer of bytes beside what cuts images and sounds.

Each function leaves its processor in the model's folder and returns it.  The first special token of
a model's own has number FIRST, as its Spec's config says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.zoo.tokens import SPECIAL, write_tokenizer

FIRST = len(SPECIAL)
SIDE = 56  # pixels of an image's side, where it is fixed; four patches of 14
IDEFICS = ("<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>")
PINPOINTS = [[SIDE, 2 * SIDE], [2 * SIDE, SIDE], [2 * SIDE, 2 * SIDE]]  # of tiles of an image
QWEN = (
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<|vision_pad|>",
)
OMNI = ("vision_bos_token", "vision_eos_token", "image_token", "video_token")
OMNI += ("audio_token", "audio_bos_token", "audio_eos_token")


def _image_processor(name: str, **options: Any) -> Any:
    """``transformers``' own for this machine: without torchvision, the one by PIL."""
    import transformers
    from transformers.utils import is_torchvision_available

    backend = "" if is_torchvision_available() else "Pil"
    return getattr(transformers, f"{name}ImageProcessor{backend}")(**options)


def _keep(processor: Any, folder: Path) -> Any:
    processor.save_pretrained(folder)
    return processor


def blip2(folder: Path) -> Any:
    from transformers import Blip2Processor

    images = _image_processor("Blip", size={"height": SIDE, "width": SIDE})
    tokenizer = write_tokenizer(folder, ["<image>"])
    return _keep(Blip2Processor(images, tokenizer, num_query_tokens=8), folder)


def cohere2_vision(folder: Path) -> Any:
    from transformers import Cohere2VisionProcessor

    named = {
        "image_token": "<|IMG_PATCH|>",
        "boi_token": "<|START_OF_IMG|>",
        "eoi_token": "<|END_OF_IMG|>",
        "img_line_break_token": "<|IMG_LINE_BREAK|>",
    }
    tokenizer = write_tokenizer(folder, list(named.values()), extra_special_tokens=named)
    tile = {"height": SIDE, "width": SIDE}
    # Tokens of a tile are the square of what is called its patch size.
    images = _image_processor("Cohere2Vision", size=tile, max_patches=4, patch_size=2)
    return _keep(Cohere2VisionProcessor(images, tokenizer), folder)


def glm4v(folder: Path) -> Any:
    from transformers import Glm4vProcessor, Glm4vVideoProcessor

    images, tokenizer = _glm("Glm4v", folder)
    return _keep(Glm4vProcessor(images, tokenizer, Glm4vVideoProcessor()), folder)


def _glm(name: str, folder: Path) -> tuple[Any, Any]:
    extra = ["<|image|>", "<|video|>", "<|begin_of_image|>", "<|end_of_image|>"]
    extra += ["<|begin_of_video|>", "<|end_of_video|>"]
    size = {"shortest_edge": 4 * 28 * 28, "longest_edge": 16 * 2 * 28 * 28}
    return _image_processor(name, size=size), write_tokenizer(folder, extra)


def glm46v(folder: Path) -> Any:
    from transformers import Glm46VProcessor, Glm46VVideoProcessor

    images, tokenizer = _glm("Glm46V", folder)
    return _keep(Glm46VProcessor(images, tokenizer, Glm46VVideoProcessor()), folder)


def idefics3(folder: Path) -> Any:
    from transformers import Idefics3Processor

    tokenizer = write_tokenizer(folder, IDEFICS)
    return _keep(Idefics3Processor(_idefics_images("Idefics3"), tokenizer, image_seq_len=4), folder)


def _idefics_images(name: str) -> Any:
    size, tile = {"longest_edge": 2 * SIDE}, {"longest_edge": SIDE}
    return _image_processor(name, size=size, max_image_size=tile)


def smolvlm(folder: Path) -> Any:
    from transformers import SmolVLMProcessor, SmolVLMVideoProcessor

    tokenizer = write_tokenizer(folder, IDEFICS)
    images, videos = _idefics_images("SmolVLM"), SmolVLMVideoProcessor()
    return _keep(SmolVLMProcessor(images, tokenizer, videos, image_seq_len=4), folder)


def internvl(folder: Path) -> Any:
    from transformers import InternVLProcessor, InternVLVideoProcessor

    named = {
        "context_image_token": "<IMG_CONTEXT>",
        "start_image_token": "<img>",
        "end_image_token": "</img>",
        "video_token": "<video>",
    }
    tokenizer = write_tokenizer(folder, list(named.values()), extra_special_tokens=named)
    tile = {"height": SIDE, "width": SIDE}
    images = _image_processor("GotOcr2", size=tile, crop_to_patches=True, max_patches=4)
    videos = InternVLVideoProcessor(size=tile)
    return Framed(_keep(InternVLProcessor(images, tokenizer, videos, image_seq_length=4), folder))


@dataclass(frozen=True)
class Framed:
    """InternVL's processor and, as ``told_ids``, what ``transformers``' model has to be told: the
    host has another token for images that are a video's, which come last."""

    processor: Any

    def __call__(self, text: str, videos: Sequence[Any] = (), **given: Any) -> dict[str, Any]:
        own = self.processor
        if not videos:
            return dict(own(text=text, **given))
        made = dict(own(text=text, videos=videos, **given))
        pads = (made["input_ids"][0] == own.image_token_id).nonzero()[:, 0]
        seen = pads[-own.image_seq_length * sum(map(len, videos)) :]
        made["told_ids"] = made["input_ids"].clone()
        made["input_ids"][0, seen] = own.tokenizer.convert_tokens_to_ids(own.video_token)
        return made


def llama4(folder: Path) -> Any:
    from transformers import Llama4Processor

    extra = ["<|image|>", "<|image_start|>", "<|image_end|>", "<|patch|>"]
    extra += ["<|tile_x_separator|>", "<|tile_y_separator|>"]
    tile = {"height": SIDE, "width": SIDE}
    images = _image_processor("Llama4", size=tile, max_patches=4)
    return _keep(Llama4Processor(images, write_tokenizer(folder, extra), patch_size=14), folder)


def llava(folder: Path) -> Any:
    from transformers import LlavaProcessor

    return _keep(
        LlavaProcessor(
            _image_processor("CLIP", **_square()),
            write_tokenizer(folder, ["<image>"]),
            patch_size=14,
            vision_feature_select_strategy="default",
            num_additional_image_tokens=1,
        ),
        folder,
    )


def llava_next(folder: Path) -> Any:
    from transformers import LlavaNextProcessor

    return _keep(
        LlavaNextProcessor(
            _image_processor("LlavaNext", image_grid_pinpoints=PINPOINTS, **_square()),
            write_tokenizer(folder, ["<image>"]),
            patch_size=14,
            vision_feature_select_strategy="default",
            num_additional_image_tokens=1,
        ),
        folder,
    )


def llava_next_video(folder: Path) -> Any:
    from transformers import LlavaNextVideoProcessor, LlavaNextVideoVideoProcessor

    return _keep(
        LlavaNextVideoProcessor(
            LlavaNextVideoVideoProcessor(**_square()),
            _image_processor("LlavaNext", image_grid_pinpoints=PINPOINTS, **_square()),
            write_tokenizer(folder, ["<image>", "<video>"]),
            patch_size=7,
            vision_feature_select_strategy="default",
            num_additional_image_tokens=1,
        ),
        folder,
    )


def _square() -> dict[str, Any]:
    return {"size": {"shortest_edge": SIDE}, "crop_size": {"height": SIDE, "width": SIDE}}


def lfm2_vl(folder: Path) -> Any:
    """Four to sixteen tokens of an image, or of as many tiles of four and the whole."""
    from transformers import Lfm2VlProcessor

    named = {
        "image_token": "<image>",
        "image_start_token": "<|image_start|>",
        "image_end_token": "<|image_end|>",
        "image_thumbnail_token": "<|img_thumbnail|>",
    }
    tiles = [f"<|img_row_{row}_col_{col}|>" for row in range(1, 5) for col in range(1, 5)]
    tokenizer = write_tokenizer(folder, [*named.values(), *tiles], extra_special_tokens=named)
    images = _image_processor(
        "Lfm2Vl",
        encoder_patch_size=16,
        tile_size=64,
        min_tiles=2,
        max_tiles=4,
        min_image_tokens=4,
        max_image_tokens=16,
        max_num_patches=64,
    )
    return _keep(Lfm2VlProcessor(images, tokenizer), folder)


def llava_onevision(folder: Path) -> Any:
    from transformers import LlavaOnevisionProcessor, LlavaOnevisionVideoProcessor

    tile = {"height": SIDE, "width": SIDE}
    return _keep(
        LlavaOnevisionProcessor(
            _image_processor("LlavaOnevision", image_grid_pinpoints=PINPOINTS, size=tile),
            write_tokenizer(folder, ["<image>", "<video>"]),
            LlavaOnevisionVideoProcessor(size=tile),
            num_image_tokens=16,
            vision_feature_select_strategy="full",
        ),
        folder,
    )


def mistral3(folder: Path) -> Any:
    return pixtral(folder, merged=2)


def pixtral(folder: Path, merged: int = 1) -> Any:
    """merged: patches along a side that are one token."""
    from transformers import PixtralProcessor

    tokenizer = write_tokenizer(folder, ["[IMG]", "[IMG_BREAK]", "[IMG_END]"])
    images = _image_processor("Pixtral", size={"longest_edge": 2 * SIDE}, patch_size=14)
    processor = PixtralProcessor(images, tokenizer, patch_size=14, spatial_merge_size=merged)
    return _keep(processor, folder)


def qwen2_vl(folder: Path) -> Any:
    from transformers import Qwen2VLProcessor, Qwen2VLVideoProcessor

    tokenizer = write_tokenizer(folder, QWEN)
    videos = Qwen2VLVideoProcessor(size=four_to(16, 14))
    return _keep(Qwen2VLProcessor(_qwen_images(14), tokenizer, videos), folder)


def qwen2_5_vl(folder: Path) -> Any:
    from transformers import Qwen2_5_VLProcessor, Qwen2VLVideoProcessor

    tokenizer = write_tokenizer(folder, QWEN)
    videos = Qwen2VLVideoProcessor(size=four_to(16, 14))
    return _keep(Qwen2_5_VLProcessor(_qwen_images(14), tokenizer, videos), folder)


def qwen3_vl(folder: Path) -> Any:
    from transformers import Qwen3VLProcessor, Qwen3VLVideoProcessor

    half = [0.5] * 3
    images = _qwen_images(16, image_mean=half, image_std=half)
    tokenizer = write_tokenizer(folder, QWEN)
    return _keep(Qwen3VLProcessor(images, tokenizer, Qwen3VLVideoProcessor()), folder)


def qwen2_5_omni(folder: Path, seen: Sequence[str] = QWEN[:4]) -> Any:
    """seen: the tokens around pictures, and those of pictures and videos."""
    from transformers import Qwen2_5OmniProcessor

    return _omni(Qwen2_5OmniProcessor, 14, folder, seen)


def qwen3_omni(folder: Path) -> Any:
    from transformers import Qwen3OmniMoeProcessor

    half = [0.5] * 3
    return _omni(Qwen3OmniMoeProcessor, 16, folder, QWEN[:4], image_mean=half, image_std=half)


def _omni(make: Any, patch: int, folder: Path, seen: Sequence[str], **options: Any) -> Any:
    """For images, videos, and sounds of at most three seconds."""
    from transformers import Qwen2VLVideoProcessor

    tokens = dict(zip(OMNI, (*seen, "<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>"), strict=True))
    tokenizer = write_tokenizer(folder, list(tokens.values()), extra_special_tokens=tokens)
    # This processor makes at least 128 tokens of two frames, and the host believes that these have
    # no more than the largest image.
    images = _qwen_images(patch, most=256, **options)
    videos = Qwen2VLVideoProcessor(patch_size=patch, **options)
    return _keep(make(images, videos, _spectrum(3), tokenizer), folder)


def paddleocr_vl(folder: Path) -> Any:
    from transformers import PaddleOCRVLProcessor

    named = {
        "image_token": "<|IMAGE_PLACEHOLDER|>",
        "image_start_token": "<|IMAGE_START|>",
        "image_end_token": "<|IMAGE_END|>",
    }
    tokenizer = write_tokenizer(folder, list(named.values()), extra_special_tokens=named)
    images = _image_processor("PaddleOCRVL", size=four_to(16, 14))
    return _keep(PaddleOCRVLProcessor(images, tokenizer), folder)


def exaone4_5(folder: Path) -> Any:
    from transformers import Exaone4_5_Processor, Qwen2VLVideoProcessor

    tokenizer = write_tokenizer(folder, ["<vision>", "</vision>", "<|image_pad|>", "<|video_pad|>"])
    videos = Qwen2VLVideoProcessor(size=four_to(16, 14))
    return _keep(Exaone4_5_Processor(_qwen_images(14), tokenizer, videos), folder)


def cohere_compass(folder: Path) -> Any:
    from transformers import CohereCompassProcessor, CohereCompassVideoProcessor

    extra = ["<|IMAGE_PAD|>", "<|VIDEO_PAD|>", "<|VISION_START|>", "<|VISION_END|>"]
    images = _image_processor("CohereCompass", patch_size=16, size=four_to(16, 16))
    videos = CohereCompassVideoProcessor()
    return _keep(CohereCompassProcessor(images, write_tokenizer(folder, extra), videos), folder)


def muse_glimmer(folder: Path) -> Any:
    from transformers import (
        MuseGlimmerImageProcessor,
        MuseGlimmerProcessor,
        MuseGlimmerVideoProcessor,
    )

    extra = ["<|patch|>", "<|video|>", "<|image_start|>", "<|image_end|>"]
    extra += ["<|vid_frame_separator|>", "<|vid_start|>", "<|vid_end|>", "<|image|>"]
    parts = (MuseGlimmerImageProcessor(), MuseGlimmerVideoProcessor())
    return _keep(MuseGlimmerProcessor(*parts, write_tokenizer(folder, extra)), folder)


def _qwen_images(patch: int, most: int = 16, **options: Any) -> Any:
    size = four_to(most, patch)
    return _image_processor("Qwen2VL", patch_size=patch, size=size, **options)


def four_to(most: int, patch: int) -> dict[str, int]:
    """Pixels of so many tokens, each of two by two patches."""
    token = (2 * patch) ** 2
    return {"shortest_edge": 4 * token, "longest_edge": most * token}


def qwen2_audio(folder: Path) -> Any:
    from transformers import Qwen2AudioProcessor

    tokenizer = write_tokenizer(folder, ["<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>"])
    return _keep(Qwen2AudioProcessor(_spectrum(30), tokenizer), folder)


def audioflamingo3(folder: Path) -> Any:
    from transformers import AudioFlamingo3Processor

    tokenizer = write_tokenizer(folder, ["<sound>"])
    return _keep(AudioFlamingo3Processor(_spectrum(30), tokenizer, max_audio_len=30), folder)


def glmasr(folder: Path) -> Any:
    from transformers import GlmAsrProcessor

    tokenizer = write_tokenizer(folder, ["<sound>"])
    processor = GlmAsrProcessor(_spectrum(30), tokenizer, audio_token="<sound>", max_audio_len=30)
    return _keep(processor, folder)


def whisper(folder: Path) -> Any:
    from transformers import WhisperProcessor, WhisperTokenizer

    from tests.zoo.tokens import byte_vocabulary

    special = ("<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|transcribe|>")
    special += ("<|notimestamps|>", "<pad>")
    tokenizer = WhisperTokenizer(
        vocab=byte_vocabulary(special), merges=[], additional_special_tokens=list(special)
    )
    return _keep(WhisperProcessor(_spectrum(3), tokenizer), folder)


def _spectrum(seconds: int) -> Any:
    """As many frames of 80 bands as so long a sound has, 100 a second; a shorter one is padded."""
    from transformers import WhisperFeatureExtractor

    return WhisperFeatureExtractor(feature_size=80, chunk_length=seconds)


def clip(folder: Path) -> Any:
    from transformers import CLIPProcessor, CLIPTokenizer

    from tests.zoo.tokens import byte_vocabulary

    begin, end = "<|startoftext|>", "<|endoftext|>"
    # The host needs a number 0 that is no special token.
    tokenizer = CLIPTokenizer(vocab=byte_vocabulary(["!</w>", end, begin]), merges=[])
    return _keep(CLIPProcessor(_image_processor("CLIP", **_square()), tokenizer), folder)


def siglip(folder: Path) -> Any:
    from transformers import SiglipProcessor

    images = _image_processor("Siglip", size={"height": SIDE, "width": SIDE})
    return _keep(SiglipProcessor(images, write_tokenizer(folder)), folder)


def qwen3_asr(folder: Path) -> Any:
    from transformers import Qwen3ASRFeatureExtractor, Qwen3ASRProcessor

    names = ("audio_token", "audio_bos_token", "audio_eos_token")
    extra = ("<|audio_pad|>", "<|audio_start|>", "<|audio_end|>")
    named = dict(zip(names, extra, strict=True))
    tokenizer = write_tokenizer(folder, extra, extra_special_tokens=named)
    return _keep(Qwen3ASRProcessor(Qwen3ASRFeatureExtractor(feature_size=80), tokenizer), folder)


def granite_speech(folder: Path) -> Any:
    from transformers import GraniteSpeechFeatureExtractor, GraniteSpeechProcessor

    tokenizer = write_tokenizer(folder, ["<|audio|>"])
    return _keep(GraniteSpeechProcessor(GraniteSpeechFeatureExtractor(), tokenizer), folder)
