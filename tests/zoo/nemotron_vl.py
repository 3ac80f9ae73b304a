"""Nemotron Nano VL and Omni: RADIO's tower and Parakeet's before Nemotron-H."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import NemotronH_Omni_Reasoning_V3
from transformers.image_utils import OPENAI_CLIP_MEAN, OPENAI_CLIP_STD
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import get_optimal_tiled_canvas

from tests.zoo import remote
from tests.zoo.processors import FIRST
from tests.zoo.tokens import write_tokenizer

IMAGE, VIDEO, SOUND = "<image>", "<video>", "<so_embedding>"
TOKENS = (IMAGE, "<img>", "</img>", SOUND, "<so_start>", "<so_end>")  # a video has no own one
IMAGE_TOKEN, SOUND_TOKEN = FIRST, FIRST + TOKENS.index(SOUND)
SIDE, PATCH = 64, 16  # pixels of a tile's side, of a patch's
MERGED = 2  # patches along a side that are one token
TILES = 12  # of an image at most, before the small picture of the whole
PATCHES = {"min_num_patches": 20, "max_num_patches": 32}  # of an image that keeps its shape
OF_FRAME = 24  # patches of a video's frame that keeps its shape, at most
TEACHERS = ("a", "b")  # of the tower, each of which has a token
REGISTERS = 8  # tokens before the patches are a multiple of it
TOWER = "vit_small_patch16_224"  # the smallest that the host knows, which is:
RADIO = {
    "model_type": "radio",
    "hidden_size": 384,
    "num_hidden_layers": 12,
    "num_attention_heads": 6,
    "image_size": SIDE,
    "max_img_size": 2 * SIDE,
    "patch_size": PATCH,
    "num_cls_tokens": len(TEACHERS),
    "num_registers": REGISTERS - len(TEACHERS),
    "summary_idxs": [0],
    "video_temporal_patch_size": 2,
}
PARAKEET = {
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "conv_kernel_size": 9,
    "convolution_bias": False,
    "subsampling_conv_channels": 32,
    "subsampling_conv_kernel_size": 3,
    "subsampling_conv_stride": 2,
    "subsampling_factor": 8,
    "num_mel_bins": 80,
    "projection_hidden_size": 96,
    "projection_bias": False,
    "sampling_rate": 16000,
    "initializer_range": 0.3,  # of convolutions: smaller, sounds would hardly matter
}

# What transformers writes of a class that is not its own.
NAMES = (
    (r"^multi_modal_projector\.layer_norm", "mlp1.0"),
    (r"^multi_modal_projector\.linear_1", "mlp1.1"),
    (r"^multi_modal_projector\.linear_2", "mlp1.3"),
    (r"^vision_final_layernorm", "vision_projector.vision_final_layernorm"),
    (r"^audio_tower\.", "sound_encoder.encoder."),
    (r"^embed_audio\.layer_norm", "sound_projection.norm"),
    (r"^embed_audio\.linear_([12])", r"sound_projection.linear\1"),
)
OF_FRAMES = (r".*\.video_embedder\..*", "")  # where each frame of a video is an image


class NemotronVL(NemotronH_Omni_Reasoning_V3):
    def __init__(self, config: Any) -> None:
        super().__init__(config)
        for layer in self.vision_model.encoder.layer:  # published ones scale nothing
            layer.layer_scale1 = layer.layer_scale2 = torch.nn.Identity()

    def forward(
        self,
        input_ids: torch.Tensor,
        pictures: Sequence[torch.Tensor] = (),
        sounds: Sequence[torch.Tensor] = (),
        **_: Any,
    ) -> Any:
        """``input_ids`` [1, n]; of each image or video [parts, channels, height, width], in which
        frames that are one part have their channels one after the other; of each sound [frames,
        bands]."""
        states = self.language_model.get_input_embeddings()(input_ids)
        seen, heard = [*map(self._see, pictures)], [*map(self._hear, sounds)]
        for token, found in ((IMAGE_TOKEN, seen), (SOUND_TOKEN, heard)):
            if found:
                tokens = torch.cat(found)
                where = (input_ids[0] == token).nonzero()[: len(tokens), 0]
                states = states.index_copy(1, where, tokens[None])
        return self.language_model(inputs_embeds=states, use_cache=False)

    def _see(self, pixels: torch.Tensor) -> torch.Tensor:
        """[tokens, hidden]."""
        rows, columns = (length // PATCH for length in pixels.shape[-2:])
        patches = self.vision_model(pixels.to(self.dtype)).features
        return self.project_vision_features(patches, rows, columns).flatten(0, 1)

    def _hear(self, spectrum: torch.Tensor) -> torch.Tensor:
        """[tokens, hidden]."""
        states = self.audio_tower(spectrum[None].to(self.dtype)).last_hidden_state
        return self.embed_audio(states)[0]


@dataclass(frozen=True)
class Processor:
    """packed: frames of a video that are one part of it."""

    tokenizer: Any
    cut: Callable[[Any], torch.Tensor]
    films: Any
    packed: int

    def __call__(
        self,
        text: str,
        images: Any = (),
        videos: Any = (),
        audio: Any = (),
        video_metadata: Any = (),
        **_: Any,
    ) -> dict[str, Any]:
        """A text with as many marks as its media have tokens, and these."""
        pictures, sounds = [], []
        given = {IMAGE: iter(images), VIDEO: zip(videos, video_metadata, strict=True)}
        words = []
        for word in re.split(f"({IMAGE}|{VIDEO})", text):
            if word == IMAGE:
                pictures.append(self.cut(next(given[IMAGE])))
                word = _marked(_tokens(pictures[-1]) * len(pictures[-1]))
            elif word == VIDEO:
                video, said = next(given[VIDEO])
                pictures.append(self._film(video))
                words += _moments(len(video), self.packed, said["fps"], _tokens(pictures[-1]))
                continue
            words.append(word)
        for sound in audio:
            sounds.append(_spectrum(sound))
        text = "".join(words)
        for spectrum in sounds:
            length = -(-len(spectrum) // PARAKEET["subsampling_factor"])
            text = text.replace(SOUND, "<so_start>" + "\0" * length + "<so_end>", 1)
        text = text.replace("\0", SOUND)
        made = self.tokenizer(text, add_special_tokens=False, return_tensors="pt")
        return {**made, "pictures": pictures, "sounds": sounds}

    def _film(self, video: Any) -> torch.Tensor:
        """[parts, channels, height, width]; the last part is filled up with its last frame."""
        frames = self.films([video], do_sample_frames=False, return_tensors="pt")
        frames = frames.pixel_values_videos
        missing = -len(frames) % self.packed
        frames = torch.cat([frames, *[frames[-1:]] * missing])
        return frames.unflatten(0, (-1, self.packed)).flatten(1, 2)


def _tokens(pixels: torch.Tensor) -> int:
    """Of a part."""
    height, width = pixels.shape[-2:]
    return height * width // (PATCH * MERGED) ** 2


def _marked(tokens: int) -> str:
    return "<img>" + IMAGE * tokens + "</img>"


def _moments(frames: int, packed: int, rate: float, tokens: int) -> Iterator[str]:
    """What is written of each part of a video."""
    for first in range(0, frames, packed):
        some = range(first, min(first + packed, frames))
        said = " and ".join(f"frame {n + 1} sampled at {n / rate:.2f} seconds" for n in some)
        yield ("\n" if first else "") + "F" + said[1:] + ": " + _marked(tokens)


def _tiles(image: Any) -> torch.Tensor:
    """[tiles, 3, SIDE, SIDE], the last a small picture of the whole where there are several."""
    size = (SIDE, SIDE)
    columns, rows = get_optimal_tiled_canvas((image.height, image.width), size, 1, TILES)
    whole = _pixels(image, rows * SIDE, columns * SIDE)
    grid = whole.unflatten(2, (columns, SIDE)).unflatten(1, (rows, SIDE))
    tiles = grid.permute(1, 3, 0, 2, 4).flatten(0, 1)
    return torch.cat([tiles, _pixels(image, *size)[None]]) if len(tiles) > 1 else tiles


def _pixels(image: Any, height: int, width: int) -> torch.Tensor:
    """[3, height, width]; what is scaled may leave a colour's range."""
    import numpy as np

    numbers = torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)[None].float()
    scaled = torch.nn.functional.interpolate(
        numbers, (height, width), mode="bicubic", antialias=True
    )
    mean, std = (torch.tensor(of)[:, None, None] for of in (OPENAI_CLIP_MEAN, OPENAI_CLIP_STD))
    return (scaled[0] / 255 - mean) / std


@dataclass(frozen=True)
class Shaped:
    """An image as one part that keeps its shape."""

    images: Any

    def __call__(self, image: Any) -> torch.Tensor:
        made = self.images(image, return_tensors="pt")
        rows, columns = made.image_grid_hw.flatten().tolist()
        grid = made.pixel_values.view(rows, columns, 3, PATCH, PATCH)
        return grid.permute(2, 0, 3, 1, 4).flatten(1, 2).flatten(2, 3)[None]


def _spectrum(sound: Any) -> torch.Tensor:
    """[frames, bands], by the host's extractor: ``transformers``' asks for librosa."""
    from transformers import PreTrainedConfig
    from vllm.model_executor.models.parakeet import ParakeetExtractor

    made = ParakeetExtractor(PreTrainedConfig(**PARAKEET))([sound])
    return made["input_audio_features"][0, : int(made["feature_attention_mask"].sum())]


def processor_of_tiles(folder: Path) -> Processor:
    return _processor(folder, _tiles, 1, (SIDE // PATCH) ** 2, video_maintain_aspect_ratio=False)


def processor_of_shapes(folder: Path) -> Processor:
    from transformers import NemotronH_Omni_Reasoning_V3ImageProcessor

    images = NemotronH_Omni_Reasoning_V3ImageProcessor(patch_size=PATCH, **PATCHES)
    return _processor(folder, Shaped(images), RADIO["video_temporal_patch_size"], OF_FRAME)


def _processor(folder: Path, cut: Any, packed: int, of_frame: int, **options: Any) -> Processor:
    from transformers import NemotronH_Omni_Reasoning_V3VideoProcessor

    remote.put("nemotron_vl_config", folder)
    films = NemotronH_Omni_Reasoning_V3VideoProcessor(
        norm_mean=OPENAI_CLIP_MEAN,
        norm_std=OPENAI_CLIP_STD,
        video_target_num_patches=of_frame,
        **options,
    )
    return Processor(write_tokenizer(folder, TOKENS), cut, films, packed)


def _published(config: dict[str, Any], args: dict[str, Any], **vision: Any) -> dict[str, Any]:
    """In NVIDIA's words; ``args``: of the tower."""
    tower = {
        "model": TOWER,
        "teachers": [{"name": name, "use_summary": name == TEACHERS[0]} for name in TEACHERS],
        "cls_token_per_teacher": True,
        "cpe_max_size": RADIO["max_img_size"],
        "register_multiple": REGISTERS,
        **args,
    }
    return {
        "model_type": "NemotronH_Nano_VL_V2",
        "auto_map": {"AutoConfig": "nemotron_vl_config.NemotronVLConfig"},
        "llm_config": config["text_config"],
        "vision_config": {
            "args": tower,
            "patch_size": PATCH,
            "preferred_resolution": [SIDE, SIDE],
            **vision,
        },
        "downsample_ratio": 1 / MERGED,
        "dtype": "float32",
        "force_image_size": SIDE,
        "image_tag_type": "internvl",
        "norm_mean": OPENAI_CLIP_MEAN,
        "norm_std": OPENAI_CLIP_STD,
        "patch_size": PATCH,
        "projector_hidden_size": config["projector_hidden_size"],
        "ps_version": "v2",
        "template": "",
        "use_thumbnail": True,
        "vit_hidden_size": RADIO["hidden_size"],
    }


def published_of_tiles(config: dict[str, Any]) -> dict[str, Any]:
    return _published(config, {})


def published_of_shapes(config: dict[str, Any]) -> dict[str, Any]:
    packed = RADIO["video_temporal_patch_size"]
    films = {"video_target_num_patches": OF_FRAME, "video_maintain_aspect_ratio": True}
    vision = {"video_temporal_patch_size": packed, **films}
    return {**_published(config, PATCHES, **vision), "sound_config": PARAKEET}
