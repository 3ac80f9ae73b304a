"""The architectures that take sounds beside text, sorted by name."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tests.zoo import audio_processors, mistral, moss, processors, ultravox
from tests.zoo.media import (
    SOUNDS,
    TORCHVISION,
    Heard,
    MediaSpec,
    Sound,
    heard,
    shown,
    spoken,
    streamed,
)
from tests.zoo.processors import FIRST
from tests.zoo.remote.ultravox_processor import CONTEXT, MARK


@dataclass(frozen=True)
class Begun(Heard):
    """Where the host puts no token before the transcript's."""

    def request(self) -> dict[str, Any]:
        """For the host."""
        tokens = [self.start, *self.tokens]
        return {**super().request(), "decoder_prompt": {"prompt_token_ids": tokens}}


LONGER = (Sound(8000, 1), Sound(30000, 2), Sound(130000, 3))  # than the encoder reads at once
ENCODER = {
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_mel_bins": 80,
}
WHISPER = {
    "model_type": "whisper",
    "d_model": 64,
    "encoder_layers": 2,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 112,
    "num_mel_bins": 80,
    "init_std": 0.3,  # of convolutions: smaller, sounds would hardly matter
}
CONFORMER = {
    "input_dim": 160,
    "num_layers": 2,
    "hidden_dim": 64,
    "num_heads": 2,
    "feedforward_mult": 2,
    "context_size": 50,  # less than the frames of a sound
    "max_pos_emb": 64,
}
PROJECTOR = {
    "model_type": "blip_2_qformer",
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "encoder_hidden_size": 64,
    "cross_attention_frequency": 1,
}
# The published words of Cohere's config, which the host reads.
COHERE = {
    "encoder": {
        "feat_in": audio_processors.BANDS,
        "feat_out": -1,
        "n_layers": 2,
        "d_model": 96,
        "n_heads": 6,
        "ff_expansion_factor": 2,
        "causal_downsampling": False,
        "subsampling": "dw_striding",
        "subsampling_factor": 8,
        "subsampling_conv_channels": 32,
        "self_attention_model": "rel_pos",
        "att_context_size": [-1, -1],
        "xscaling": False,
        "untie_biases": True,
        "pos_emb_max_len": 64,
        "conv_kernel_size": 9,
        "conv_norm_type": "batch_norm",
        "conv_context_size": None,
    },
    "transf_decoder": {
        "config_dict": {
            "hidden_size": 192,
            "inner_size": 352,
            "num_layers": 3,
            "num_attention_heads": 6,
            "hidden_act": "relu",
            "max_sequence_length": 1024,
        }
    },
    "head": {"num_classes": 1000, "hidden_size": 192},
    "preprocessor": {"features": audio_processors.BANDS, "dither": 0.0, "pad_to": 0},
    "sample_rate": 16000,
    "max_audio_clip_s": 3,
    "overlap_chunk_second": 1,
}
QWEN3_HEARS: dict[str, Any] = {
    "text_config": {"model_type": "qwen3", "tie_word_embeddings": True},
    "audio_config": {
        **ENCODER,
        "model_type": "qwen3_asr_encoder",
        "output_dim": 192,
        "downsample_hidden_size": 24,
        "initializer_range": 0.1,
        "n_window_infer": 200,  # two seconds, which a sound may be longer than
    },
    "audio_token_id": FIRST,
    "tie_word_embeddings": True,
    "initializer_range": 0.1,  # of convolutions: smaller, sounds would hardly matter
}
QWEN3_ASR = MediaSpec(
    "Qwen3ASRForConditionalGeneration",
    "Qwen3-ASR",
    "qwen3_asr",
    QWEN3_HEARS,
    processor=processors.qwen3_asr,
    # Its processor takes no text without a sound.
    cases=shown("<|audio_start|><|audio_pad|><|audio_end|>", SOUNDS, at_once=1)[:-1],
    needs=TORCHVISION,
)
# transformers 5 writes a level too many.
LEVEL = ((r"\.model\.model\.", ".model."),)

SPECS = (
    MediaSpec(
        "AudioFlamingo3ForConditionalGeneration",
        "Audio Flamingo 3",
        "audioflamingo3",
        {
            "text_config": {"model_type": "qwen2"},
            "audio_config": {**ENCODER, "model_type": "audioflamingo3_encoder"},
            "audio_token_id": FIRST,
        },
        processor=processors.audioflamingo3,
        cases=shown("<sound>", SOUNDS, at_once=1),
        published=LEVEL,
    ),
    MediaSpec(
        "CohereAsrForConditionalGeneration",
        "Cohere Transcribe",
        "cohere_asr",
        {
            **COHERE,
            "encoder_config": {
                "hidden_size": 96,
                "intermediate_size": 192,
                "num_hidden_layers": 2,
                "num_attention_heads": 6,
                "num_key_value_heads": 6,
                "num_mel_bins": audio_processors.BANDS,
                "subsampling_conv_channels": 32,
                "max_position_embeddings": 64,
                "initializer_range": 0.3,  # of convolutions: smaller, sounds would hardly matter
            },
            "num_key_value_heads": 6,
            "decoder_start_token_id": 1,
            "initializer_range": 0.3,
        },
        processor=audio_processors.cohere_asr,
        published=((r"^model\.", ""),),
        cases=tuple(Begun(1, case.media, case.tokens) for case in heard(1, SOUNDS)),
        fixed=True,
        needs=("torchaudio",),
    ),
    MediaSpec(
        "GlmAsrForConditionalGeneration",
        "GLM-ASR",
        "glmasr",
        {
            "text_config": {"model_type": "llama"},
            "audio_config": {
                **ENCODER,
                "model_type": "glmasr_encoder",
                "intermediate_size": 256,  # what a token is made of: four frames
            },
            "audio_token_id": FIRST,
        },
        processor=processors.glmasr,
        cases=shown("<sound>", SOUNDS, at_once=1),
        published=LEVEL,
    ),
    MediaSpec(
        "GraniteSpeechForConditionalGeneration",
        "Granite Speech",
        "granite_speech",
        {
            "text_config": {"model_type": "granite", "tie_word_embeddings": True},
            "encoder_config": CONFORMER,
            "projector_config": PROJECTOR,
            "audio_token_index": FIRST,
            "has_lora_adapter": False,
        },
        processor=processors.granite_speech,
        cases=shown("<|audio|>", SOUNDS, at_once=1),
        published=LEVEL,
        needs=("torchaudio",),
    ),
    MediaSpec(
        "GraniteSpeechPlusForConditionalGeneration",
        "Granite Speech Plus",
        "granite_speech_plus",
        {
            "text_config": {"model_type": "granite", "tie_word_embeddings": True},
            "encoder_config": {**CONFORMER, "cat_hidden_layers": [1]},
            "projector_config": {**PROJECTOR, "encoder_hidden_size": 128},
            "audio_token_index": FIRST,
            "has_lora_adapter": False,
        },
        processor=processors.granite_speech,
        cases=shown("<|audio|>", SOUNDS, at_once=1),
        published=LEVEL,
        needs=("torchaudio",),
    ),
    MediaSpec(
        "MossTranscribeDiarizeForConditionalGeneration",
        "MOSS-Transcribe-Diarize",
        "moss_transcribe_diarize",
        {
            "text_config": {"model_type": "qwen3", "tie_word_embeddings": True},
            "audio_config": {**WHISPER, "max_source_positions": 200},
            "audio_token_id": FIRST,
            "tie_word_embeddings": True,
        },
        processor=moss.processor,
        cases=shown("<|audio_start|><|audio_pad|><|audio_end|>", LONGER, at_once=1),
        options={"trust_remote_code": True},
        note="compared with Whisper's encoder, Qwen 3 and what is between them in plain torch",
    ),
    MediaSpec(
        "Qwen2AudioForConditionalGeneration",
        "Qwen2-Audio",
        "qwen2_audio",
        {
            "text_config": {"model_type": "qwen2"},
            "audio_config": {
                "model_type": "qwen2_audio_encoder",
                "d_model": 64,
                "encoder_layers": 2,
                "encoder_attention_heads": 2,
                "encoder_ffn_dim": 112,
                "num_mel_bins": 80,
                "max_source_positions": 1500,
            },
            "audio_token_index": FIRST,
        },
        processor=processors.qwen2_audio,
        cases=shown("Audio 1: <|audio_bos|><|AUDIO|><|audio_eos|>", SOUNDS),
        published=LEVEL,
    ),
    QWEN3_ASR,
    replace(
        QWEN3_ASR,
        name="Qwen3ASRRealtimeGeneration",
        models="Qwen3-ASR over a websocket",
        auto="Qwen3ASRForConditionalGeneration",
        note="compared with Qwen3-ASR, which computes the same",
    ),
    MediaSpec(
        "UltravoxModel",
        "Ultravox",
        "ultravox",
        {
            "text_config": {"model_type": "llama"},
            "audio_config": {**WHISPER, "max_source_positions": CONTEXT // 2},
            "hidden_size": 96,
            "audio_token_index": FIRST,
        },
        processor=ultravox.processor,
        cases=shown(MARK, LONGER, at_once=1),
        options={"trust_remote_code": True},
        note="compared with Whisper's encoder, Llama and what is between them in plain torch; "
        "pieces of a sound that is longer than the encoder reads are not filled up",
    ),
    MediaSpec(
        "VoxtralForConditionalGeneration",
        "Voxtral",
        "voxtral",
        {
            "text_config": {"model_type": "llama", "rope_theta": 10000.0},
            "audio_config": {
                **ENCODER,
                "model_type": "voxtral_encoder",
                "intermediate_size": 256,  # what a token is made of: four frames
                "max_source_positions": mistral.FRAMES,
                "initializer_range": 0.2,  # smaller, sounds would hardly matter
            },
            "audio_token_id": mistral.SOUND,
        },
        processor=mistral.voxtral,
        cases=spoken(mistral.sound_tokens, LONGER),
        published=mistral.NAMES,
        options=mistral.OPTIONS,
    ),
    MediaSpec(
        "VoxtralRealtimeGeneration",
        "Voxtral Realtime",
        "voxtral_realtime",
        {
            "text_config": {
                "model_type": "voxtral_realtime_text",
                # Pages of as many bytes as the encoder's, whose states are four for each token.
                "head_dim": mistral.WIDER,
                "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
            },
            "audio_config": {
                "model_type": "voxtral_realtime_encoder",
                "hidden_size": 64,
                "intermediate_size": 112,
                "num_hidden_layers": 2,
                "num_attention_heads": 1,
                "head_dim": 32,
                "num_mel_bins": 80,
                "sliding_window": mistral.HEARD,
                "initializer_range": 0.2,  # smaller, sounds would hardly matter
                "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
            },
            "default_num_delay_tokens": mistral.DELAY,
            "tie_word_embeddings": True,
        },
        auto="VoxtralRealtimeGeneration",
        processor=mistral.streamed,
        cases=streamed(mistral.STEP),
        published=mistral.STREAMED_NAMES,
        in_pairs=(r"whisper_encoder.*w[qk]\.", 32),
        options=mistral.OPTIONS,
    ),
    MediaSpec(
        "WhisperForConditionalGeneration",
        "Whisper",
        "whisper",
        {
            "d_model": 192,
            "encoder_layers": 2,
            "decoder_layers": 3,
            "encoder_attention_heads": 6,
            "decoder_attention_heads": 6,
            "encoder_ffn_dim": 352,
            "decoder_ffn_dim": 352,
            "max_source_positions": 150,
            "max_target_positions": 512,
            "bos_token_id": 0,
            "eos_token_id": 0,
            "pad_token_id": 5,
            "decoder_start_token_id": 1,
            "tie_word_embeddings": True,
        },
        processor=processors.whisper,
        cases=heard(1, SOUNDS),
        fixed=True,
        selected=True,
    ),
)
