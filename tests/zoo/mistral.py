"""Voxtral's checkpoint as Mistral writes it: its own tokenizer, config and names of weights."""

from __future__ import annotations

import json
from base64 import b64encode
from pathlib import Path
from typing import Any

from tests.zoo.build import BASE

SECONDS = 4  # of a sound that the encoder reads at once; a shorter one is padded
FRAMES = 50 * SECONDS  # of the encoder
BEGIN, SOUND = 6, 5  # the tokens before and of a sound
TOKENS = FRAMES // 4  # of a sound
SPECTRUM = {"num_mel_bins": 80, "hop_length": 160, "window_size": 400}
OPTIONS = {"tokenizer_mode": "mistral", "config_format": "mistral"}

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


def voxtral(folder: Path) -> Any:
    """Leave tokenizer and config in ``folder``; ``transformers``' feature extractor is returned."""
    from transformers import WhisperFeatureExtractor

    (folder / "tekken.json").write_text(json.dumps(_tokenizer()))
    (folder / "params.json").write_text(json.dumps(_config()))
    return WhisperFeatureExtractor(feature_size=80, chunk_length=SECONDS)


def _tokenizer() -> dict[str, Any]:
    """mistral_common's: special tokens, then the bytes."""
    from mistral_common.tokens.tokenizers.base import SpecialTokens

    first = ("unk", "bos", "eos", "begin_inst", "end_inst", "audio", "begin_audio")
    names = [SpecialTokens[name].value for name in first]
    names += [token.value for token in SpecialTokens if token.name not in first]
    special = [{"rank": i, "token_str": name, "is_control": True} for i, name in enumerate(names)]
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
    audio = {
        "sampling_rate": 16000,
        "frame_rate": 12.5,
        "audio_encoding_config": SPECTRUM,
        "chunk_length_s": SECONDS,
    }
    return {"config": config, "vocab": single, "special_tokens": special, "audio": audio}


def _config() -> dict[str, Any]:
    """What Voxtral's spec says, in Mistral's words."""
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
    whisper = {"encoder_args": encoder, "downsample_args": {"downsample_factor": 4}}
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
        "multimodal": {"whisper_model_args": whisper},
    }
