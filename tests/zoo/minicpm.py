"""MiniCPM-V and MiniCPM-o: SigLIP's patches and Whisper's frames before a text model of
``transformers``, what is between them in plain torch."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import avg_pool1d
from transformers import (
    AutoConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2ForCausalLM,
    Qwen3ForCausalLM,
    WhisperFeatureExtractor,
)
from transformers.models.siglip.modeling_siglip import SiglipEncoder
from transformers.models.whisper.modeling_whisper import WhisperEncoder

from tests.zoo import remote
from tests.zoo.hearing import whisper_states
from tests.zoo.media import RATE
from tests.zoo.remote.minicpm_config import MiniCPMOConfig, MiniCPMVConfig
from tests.zoo.remote.minicpm_processor import PATCH, UNKNOWN, MiniCPMVImageProcessor
from tests.zoo.tokens import SPECIAL, write_tokenizer

IMAGE, VIDEO, AUDIO = (f"(<{kind}>./</{kind}>)" for kind in ("image", "video", "audio"))
MARKS = re.compile(rf"({'|'.join(map(re.escape, (IMAGE, VIDEO, AUDIO)))})")
TEXTS = {
    "2.6": Qwen2ForCausalLM,
    "4.0": LlamaForCausalLM,
    "4.5": Qwen3ForCausalLM,
}
TOKENS = (
    *("<image>", "</image>", "<slice>", "</slice>", "<image_id>", "</image_id>"),
    *("<|audio_start|>", "<|audio_end|>", "<|spk_bos|>", "<|spk_eos|>"),
)
SECOND = 100  # frames of a spectrum


class MiniCPMV(PreTrainedModel):
    config_class = MiniCPMVConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.llm = TEXTS[str(config.version)]._from_config(config)
        self.vpm = Tower(config)
        self.resampler = Resampler(config)
        self._init_more(config)
        self.post_init()

    def _init_more(self, config: Any) -> None:
        pass

    def forward(
        self,
        input_ids: torch.Tensor,
        pixel_values: torch.Tensor | None = None,
        tgt_sizes: torch.Tensor | None = None,
        audio_features: torch.Tensor | None = None,
        audio_feature_lens: torch.Tensor | None = None,
        **_: Any,
    ) -> Any:
        """``input_ids`` [1, n]; pixel_values [patches, 3, PATCH, PATCH] of all views, tgt_sizes
        [views, 2] their rows and columns; audio_features [sounds, bands, frames], as long as
        audio_feature_lens [sounds] says.  Sounds come after images."""
        states = self.llm.get_input_embeddings()(input_ids)
        perceived = []
        if pixel_values is not None and tgt_sizes is not None:
            parts = pixel_values.split(tgt_sizes.prod(-1).tolist())
            for part, (rows, columns) in zip(parts, tgt_sizes.tolist(), strict=True):
                perceived.append(self.resampler(self.vpm(part, rows, columns), rows, columns))
        if audio_features is not None and audio_feature_lens is not None:
            for spectrum, length in zip(audio_features, audio_feature_lens.tolist(), strict=True):
                perceived.append(self.hear(spectrum[:, :length]))
        if perceived:
            media = torch.cat(perceived)
            marked = input_ids[0] == SPECIAL.index(UNKNOWN)
            states = states.index_copy(1, marked.nonzero()[: len(media), 0], media[None])
        return self.llm(inputs_embeds=states, use_cache=False)

    def hear(self, spectrum: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


class MiniCPMO(MiniCPMV):
    config_class = MiniCPMOConfig

    def _init_more(self, config: Any) -> None:
        self.apm = WhisperEncoder._from_config(config.audio_config)
        wide, size = config.audio_config.d_model, config.hidden_size
        self.audio_projection_layer = torch.nn.ModuleDict(
            {"linear1": torch.nn.Linear(wide, size), "linear2": torch.nn.Linear(size, size)}
        )

    def hear(self, spectrum: torch.Tensor) -> torch.Tensor:
        """``spectrum`` [bands, frames]; [tokens, hidden].  A position attends to those of its own
        second and of all before."""
        count = (spectrum.shape[1] + 1) // 2
        second = torch.arange(count) // int(self.config.audio_chunk_length * SECOND / 2)
        later = (second[:, None] < second).to(spectrum.dtype)
        mask = (later * torch.finfo(spectrum.dtype).min)[None, None]
        projection = self.audio_projection_layer
        states = projection["linear1"](whisper_states(self.apm, spectrum[None], mask)).relu()
        pooled = avg_pool1d(projection["linear2"](states).mT, self.config.audio_pool_step)
        return pooled[0].T


for model in (MiniCPMV, MiniCPMO):
    AutoConfig.register(model.config_class.model_type, model.config_class)


class Tower(torch.nn.Module):
    """Of one view."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        vision = config.vision_config
        vision._attn_implementation = "sdpa"
        size = vision.hidden_size
        self.side = vision.image_size // vision.patch_size  # of the table of places
        self.embeddings = torch.nn.ModuleDict(
            {
                "patch_embedding": torch.nn.Conv2d(3, size, PATCH, PATCH),
                "position_embedding": torch.nn.Embedding(self.side**2, size),
            }
        )
        self.encoder = SiglipEncoder(vision)
        if config.drop_vision_last_layer:
            del self.encoder.layers[-1]
        self.post_layernorm = torch.nn.LayerNorm(size, vision.layer_norm_eps)

    def forward(self, patches: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
        """``patches`` [rows * columns, 3, PATCH, PATCH]; states [rows * columns, size]."""
        row, column = (torch.arange(n) * self.side // n for n in (rows, columns))
        places = (row[:, None] * self.side + column).flatten()
        states = self.embeddings["patch_embedding"](patches).flatten(1)
        states = states + self.embeddings["position_embedding"](places)
        return self.post_layernorm(self.encoder(inputs_embeds=states[None]).last_hidden_state[0])


class Resampler(torch.nn.Module):
    """As many tokens of a view, whatever its size: queries that attend to its patches."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        size = config.hidden_size
        self.query = torch.nn.Parameter(torch.zeros(config.query_num, size))
        self.kv_proj = torch.nn.Linear(config.vision_config.hidden_size, size, bias=False)
        self.attn = torch.nn.MultiheadAttention(size, size // 128)
        self.ln_q, self.ln_kv, self.ln_post = (torch.nn.LayerNorm(size, 1e-6) for _ in range(3))
        self.proj = torch.nn.Parameter(torch.zeros(size, size))

    def forward(self, states: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
        """``states`` [rows * columns, size of the tower]; [queries, hidden]."""
        values = self.ln_kv(self.kv_proj(states))
        keys = values + self._places(rows, columns).to(values.dtype)
        attended, _ = self.attn(self.ln_q(self.query), keys, values, need_weights=False)
        return self.ln_post(attended) @ self.proj

    def _places(self, rows: int, columns: int) -> torch.Tensor:
        """Sines and cosines of the column in the first half of channels, of the row in the other
        one [rows * columns, hidden]."""
        quarter = self.query.shape[1] // 4
        frequencies = 10000.0 ** -(torch.arange(quarter) / quarter)
        row, column = torch.cartesian_prod(torch.arange(rows), torch.arange(columns)).T
        angles = [place[:, None] * frequencies for place in (column, row)]
        return torch.cat([part for angle in angles for part in (angle.sin(), angle.cos())], 1)


@dataclass(frozen=True)
class Processor:
    """What the models above take of a text with media."""

    images: Any
    tokenizer: Any
    ears: Any
    pool: int = 2  # positions of a sound that are one token

    def __call__(
        self, text: str, images: Any = (), videos: Any = (), audio: Any = (), **_: Any
    ) -> dict[str, Any]:
        given = {IMAGE: iter(images), VIDEO: iter(videos), AUDIO: iter(audio)}
        words, strips, sizes, spectra, number = [], [], [], [], 0
        for part in MARKS.split(text):
            if part not in given:
                words.append(part)
            elif part == AUDIO:
                pieces = self._spectra(next(given[part]))
                spectra += pieces
                words.append(self._heard(sum(piece.shape[-1] for piece in pieces)))
            else:
                medium, is_image = next(given[part]), part == IMAGE
                most = None if is_image else 1  # views of a frame
                seen = self.images([[medium] if is_image else [*medium]], max_slice_nums=most)
                strips += seen["pixel_values"][0]
                sizes.append(seen["tgt_sizes"][0])
                words += [
                    self.images.get_slice_image_placeholder(size, number, most, is_image)
                    for size in seen["image_sizes"][0]
                ]
                number += is_image
        inputs = dict(self.tokenizer("".join(words), return_tensors="pt"))
        if strips:
            patches = [strip.unflatten(2, (-1, PATCH)).permute(2, 0, 1, 3) for strip in strips]
            inputs["pixel_values"] = torch.cat(patches)
            inputs["tgt_sizes"] = torch.cat(sizes)
        if spectra:
            lengths = [spectrum.shape[-1] for spectrum in spectra]
            inputs["audio_features"] = torch.stack(
                [torch.nn.functional.pad(s, (0, max(lengths) - s.shape[-1])) for s in spectra]
            )
            inputs["audio_feature_lens"] = torch.tensor(lengths)
        return inputs

    def _spectra(self, sound: Any) -> list[torch.Tensor]:
        """[bands, frames] of each half minute, none of them silence that fills it up."""
        most, hop = self.ears.n_samples, self.ears.hop_length
        pieces = [sound[begin : begin + most] for begin in range(0, len(sound), most)]
        made = self.ears(pieces, sampling_rate=RATE, return_tensors="pt").input_features
        return [
            spectrum[:, : -(-len(piece) // hop)]
            for spectrum, piece in zip(made, pieces, strict=True)
        ]

    def _heard(self, frames: int) -> str:
        """The tokens of a sound, each second of it between marks."""
        tokens = (frames + 1) // 2 // self.pool
        second = SECOND // 2 // self.pool
        counts = [min(second, tokens - n) for n in range(0, tokens, second)]
        return "".join(f"<|audio_start|>{UNKNOWN * n}<|audio_end|>" for n in counts)


def minicpmv(folder: Path) -> Processor:
    return _processor("MiniCPMVProcessor", folder)


def minicpmo(folder: Path) -> Processor:
    return _processor("MiniCPMOProcessor", folder)


def _processor(name: str, folder: Path) -> Processor:
    """``name``: of the host's, which published checkpoints have as code of their own."""
    tokenizer = write_tokenizer(folder, TOKENS)
    for part in ("config", "processor", "tokenizer"):
        remote.put(f"minicpm_{part}", folder)
    path = folder / "tokenizer_config.json"
    named = {"AutoTokenizer": [None, "minicpm_tokenizer.MiniCPMTokenizer"]}
    path.write_text(json.dumps({**json.loads(path.read_text()), "auto_map": named}))
    ears = WhisperFeatureExtractor(feature_size=80)
    said = {
        "processor_class": name,
        "image_processor_type": "MiniCPMVImageProcessor",
        "auto_map": {"AutoImageProcessor": "minicpm_processor.MiniCPMVImageProcessor"},
        "feature_extractor_type": "WhisperFeatureExtractor",
        "feature_size": ears.feature_size,
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(said))
    return Processor(MiniCPMVImageProcessor(), tokenizer, ears)


def published(config: dict[str, Any]) -> dict[str, Any]:
    """With the class that comes with the checkpoint."""
    made = "MiniCPMOConfig" if "audio_config" in config else "MiniCPMVConfig"
    return {**config, "auto_map": {"AutoConfig": f"minicpm_config.{made}"}}
