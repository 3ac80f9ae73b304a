"""Checkpoints as Mistral writes them: its own tokenizer, config and names of weights."""

from __future__ import annotations

import json
import math
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.zoo.build import BASE, WINDOW
from tests.zoo.media import RATE, Picture, Sound

SECONDS = 4  # of a sound that the encoder reads at once; the last ones are padded
FRAMES = 50 * SECONDS  # of the encoder
BEGIN, SOUND = 6, 5  # the tokens before and of a sound
STEP = 1280  # samples of a token of Voxtral Realtime
LEFT, DELAY = 4, 2  # tokens of silence before a sound, and those by which its text is behind it
BEHIND, AHEAD = 840, 40  # samples that are heard beside those of a token
HEARD = 44  # frames of the encoder that one of them attends to
WIDER = 64  # channels of a head of its text
STREAMED = {
    "head_dim": WIDER,
    "sliding_window": WINDOW,
    "tied_embeddings": True,
    "ada_rms_norm_t_cond": True,  # by the delay
    "ada_rms_norm_t_cond_dim": 32,
}
IMAGE, BREAK, END = 7, 8, 9  # of an image, at the end of a row of it, and of the last
LARGEST = 112  # pixels of an image's longer side
TOKEN = 28  # pixels of the side of what is one token, two patches
SPECTRUM = {"num_mel_bins": 80, "hop_length": 160, "window_size": 400}
OPTIONS = {"tokenizer_mode": "mistral", "config_format": "mistral"}

# Ministral 3's rotary embeddings; a scale of the queries begins where their own length ends.
MINISTRAL = {
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 16.0,
    "original_max_position_embeddings": 64,
    "llama_4_scaling_beta": 0.1,
}
# Of images; Mistral's words for them are those of transformers.
VISION = {
    "hidden_size": 64,
    "num_channels": 3,
    "image_size": LARGEST,
    "max_image_size": LARGEST,
    "patch_size": 14,
    "intermediate_size": 112,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "rope_theta": 10000.0,
    "image_token_id": IMAGE,
    "image_break_token_id": BREAK,
    "image_end_token_id": END,
    "adapter_bias": False,
    "mm_projector_id": "patch_merge",
    "spatial_merge_size": 2,
    "add_pre_mm_projector_layer_norm": True,
}
# Patterns of names as ``transformers`` writes them, and what Mistral says instead.  The host reads
# either of the text's layers.
AUDIO = "mm_whisper_embeddings"
NAMES = (
    (r"^(model\.)?language_model\.(model\.)+", "model."),
    (r"^language_model\.lm_head", "lm_head"),
    (r"^(model\.)?multi_modal_projector\.linear_1", f"{AUDIO}.audio_language_projection.0"),
    (r"^(model\.)?multi_modal_projector\.linear_2", f"{AUDIO}.audio_language_projection.2"),
    (r"^(model\.)?audio_tower\.", f"{AUDIO}.whisper_encoder."),
    (r"whisper_encoder\.conv1", "whisper_encoder.conv_layers.0"),
    (r"whisper_encoder\.conv2", "whisper_encoder.conv_layers.1"),
    (r"whisper_encoder\.layer_norm", "whisper_encoder.transformer.norm"),
    (r"whisper_encoder\.layers", "whisper_encoder.transformer.layers"),
    (r"(transformer.*)self_attn\.([qkv])_proj", r"\1attention.w\2"),
    (r"(transformer.*)self_attn\.out_proj", r"\1attention.wo"),
    (r"self_attn_layer_norm", "attention_norm"),
    (r"(layers\.\d+)\.fc([12])", r"\1.feed_forward.w\2"),
    (r"final_layer_norm", "ffn_norm"),
)
STREAMED_NAMES = (
    (r"ada_rms_norm\.linear1", "ada_rms_norm_t_cond.0"),
    (r"ada_rms_norm\.linear2", "ada_rms_norm_t_cond.2"),
    (r"audio_tower\.embedder\.conv(\d)", r"audio_tower.conv\1"),
    (r"audio_tower\.norm", "audio_tower.layer_norm"),
    (r"(audio_tower.*)o_proj", r"\1out_proj"),
    (r"(audio_tower.*)mlp\.gate_proj", r"\1feed_forward.w1"),
    (r"(audio_tower.*)mlp\.down_proj", r"\1feed_forward.w2"),
    (r"(audio_tower.*)mlp\.up_proj", r"\1feed_forward.w3"),
    *NAMES,
    (rf"^{AUDIO}", "mm_streams_embeddings.embedding_module"),
    (r"(conv_layers\.\d)", r"\1.conv"),
)
PIXTRAL_NAMES = (
    (r"^(model\.)?language_model\.(model\.)*", ""),
    (r"^embed_tokens", "tok_embeddings"),
    (r"^lm_head", "output"),
    (r"^(model\.)?vision_tower\.", "vision_encoder."),
    (r"^(model\.)?multi_modal_projector\.norm", "pre_mm_projector_norm"),
    (r"^(model\.)?multi_modal_projector\.patch_merger", "patch_merger"),
    (r"^(model\.)?multi_modal_projector\.linear_1", "vision_language_adapter.w_in"),
    (r"^(model\.)?multi_modal_projector\.linear_2", "vision_language_adapter.w_out"),
    (r"(self_attn|attention)\.([qkvo])_proj", r"attention.w\2"),
    (r"input_layernorm", "attention_norm"),
    (r"post_attention_layernorm", "ffn_norm"),
    (r"(mlp|feed_forward)\.gate_proj", "feed_forward.w1"),
    (r"(mlp|feed_forward)\.down_proj", "feed_forward.w2"),
    (r"(mlp|feed_forward)\.up_proj", "feed_forward.w3"),
)


def voxtral(folder: Path) -> Any:
    """Leave tokenizer and config in ``folder``; what makes features for ``transformers`` is
    returned."""

    audio = {
        "sampling_rate": 16000,
        "frame_rate": 12.5,
        "audio_encoding_config": SPECTRUM,
        "chunk_length_s": SECONDS,
    }
    (folder / "tekken.json").write_text(json.dumps({**_tokenizer(), "audio": audio}))
    (folder / "params.json").write_text(json.dumps({**_text(), "multimodal": _whisper()}))
    return _spectra


def streamed(folder: Path) -> Any:
    """The same for a model that reads a token's part of a sound with each of its own."""
    audio = {
        "sampling_rate": RATE,
        "frame_rate": RATE / STEP,
        "audio_encoding_config": SPECTRUM,
        "transcription_format": "streaming",
        "transcription_delay_ms": 1000 * DELAY * STEP / RATE,
        "streaming_look_ahead_ms": 1000 * AHEAD / RATE,
        "streaming_look_back_ms": 1000 * BEHIND / RATE,
        "streaming_n_left_pad_tokens": LEFT,
    }
    (folder / "tekken.json").write_text(json.dumps({**_tokenizer(), "audio": audio}))
    text = {**_text(), **STREAMED}
    (folder / "params.json").write_text(json.dumps({**text, "multimodal": _causal_whisper()}))
    return _whole_spectrum


def _whole_spectrum(sounds: list[Any], sampling_rate: int) -> dict[str, Any]:
    from transformers import VoxtralRealtimeFeatureExtractor

    extractor = VoxtralRealtimeFeatureExtractor(feature_size=SPECTRUM["num_mel_bins"])
    return dict(extractor(sounds, sampling_rate=sampling_rate, return_tensors="pt"))


def _spectra(sounds: list[Any], sampling_rate: int) -> dict[str, Any]:
    """A sound as one spectrum, cut into what the encoder reads at once."""
    from transformers import WhisperFeatureExtractor

    extractor = WhisperFeatureExtractor(feature_size=80, chunk_length=SECONDS)
    [spectrum] = extractor(
        sounds,
        sampling_rate=sampling_rate,
        truncation=False,
        padding=True,
        pad_to_multiple_of=SECONDS * sampling_rate,
        return_tensors="pt",
    ).input_features
    return {"input_features": spectrum.unflatten(1, (-1, 2 * FRAMES)).transpose(0, 1)}


def sound_tokens(sound: Sound) -> list[int]:
    """As many as its parts of SECONDS have."""
    return [BEGIN, *[SOUND] * (FRAMES // 4 * math.ceil(sound.samples / (SECONDS * RATE)))]


def pixtral(folder: Path) -> Any:
    """The same for images, which mistral_common cuts for both."""
    image = {"image_patch_size": 14, "max_image_size": LARGEST, "spatial_merge_size": 2}
    (folder / "tekken.json").write_text(json.dumps({**_tokenizer(), "image": image}))
    (folder / "params.json").write_text(json.dumps({**_text(), "vision_encoder": VISION}))
    return _pixels


def _pixels(images: list[Any]) -> dict[str, Any]:
    """Images of a case for ``transformers``, padded to the largest."""
    import torch
    from mistral_common.protocol.instruct.chunk import ImageChunk
    from mistral_common.tokens.tokenizers.image import ImageConfig, ImageEncoder, SpecialImageIDs

    encode = ImageEncoder(ImageConfig(14, LARGEST, 2), SpecialImageIDs(IMAGE, BREAK, END))
    made = [torch.tensor(encode(ImageChunk(image=image)).image) for image in images]
    sizes = torch.tensor([image.shape[1:] for image in made])
    pixels = torch.zeros(len(made), 3, *sizes.amax(0).tolist())
    for whole, image in zip(pixels, made, strict=True):
        whole[:, : image.shape[1], : image.shape[2]] = image
    return {"pixel_values": pixels, "image_sizes": sizes}


def picture_tokens(picture: Picture) -> list[int]:
    """Row by row, as many as it has after it is scaled down."""
    scale = max(picture.width / LARGEST, picture.height / LARGEST, 1)
    columns, rows = (
        math.ceil(round(side / scale) / TOKEN) for side in (picture.width, picture.height)
    )
    row = [*[IMAGE] * columns, BREAK]
    return [*(row * rows)[:-1], END]


def silence() -> int:
    """The token that stands for silence before a sound."""
    return [*_special()].index("[STREAMING_PAD]")


def _special() -> Iterator[str]:
    from mistral_common.tokens.tokenizers.base import SpecialTokens

    first = ("unk", "bos", "eos", "begin_inst", "end_inst", "audio", "begin_audio")
    first += ("img", "img_break", "img_end")
    yield from (SpecialTokens[name].value for name in first)
    yield from (token.value for token in SpecialTokens if token.name not in first)


def _tokenizer() -> dict[str, Any]:
    """mistral_common's: special tokens, then the bytes."""
    special = [
        {"rank": i, "token_str": name, "is_control": True} for i, name in enumerate(_special())
    ]
    single = [
        {"rank": i, "token_bytes": b64encode(bytes([i])).decode(), "token_str": None}
        for i in range(256)
    ]
    config = {
        "pattern": r"\S+|\s+",
        "version": "v11",
        "num_vocab_tokens": 256,
        "default_vocab_size": BASE["vocab_size"],
        "default_num_special_tokens": BASE["vocab_size"] - 256,
    }
    return {"config": config, "vocab": single, "special_tokens": special}


def _whisper() -> dict[str, Any]:
    """What Voxtral's spec says of its encoder, in Mistral's words."""
    encoder = {
        "dim": 64,
        "n_layers": 2,
        "head_dim": 32,
        "hidden_dim": 256,
        "n_heads": 2,
        "vocab_size": BASE["vocab_size"],
        "max_source_positions": FRAMES,
        "audio_encoding_args": {**SPECTRUM, "sampling_rate": 16000},
    }
    downsample = {"downsample_factor": 4}
    return {"whisper_model_args": {"encoder_args": encoder, "downsample_args": downsample}}


def _causal_whisper() -> dict[str, Any]:
    """What the spec of Voxtral Realtime says of its encoder."""
    model = _whisper()
    encoder = model["whisper_model_args"]["encoder_args"]
    encoder |= {"causal": True, "pos_embed": "rope", "sliding_window": HEARD}
    encoder |= {"n_heads": 1, "hidden_dim": 112}
    encoder["audio_encoding_args"] |= {"global_log_mel_max": 1.5}
    return model


def _text() -> dict[str, Any]:
    """What a spec says of the text's layers."""
    return {
        "dim": BASE["hidden_size"],
        "n_layers": BASE["num_hidden_layers"],
        "head_dim": BASE["head_dim"],
        "hidden_dim": BASE["intermediate_size"],
        "n_heads": BASE["num_attention_heads"],
        "n_kv_heads": BASE["num_key_value_heads"],
        "norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "vocab_size": BASE["vocab_size"],
        "max_position_embeddings": BASE["max_position_embeddings"],
    }
