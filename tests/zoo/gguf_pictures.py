"""``python -m tests.zoo.gguf_pictures [NAMES]``: models that read pictures out of two GGUF files
that llama.cpp's own converter wrote, judged as their checkpoints are (``mixed.py``).  One JSON line
per model.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cpu_backend.errors import ConfigError
from cpu_backend.gguf import folder as gguf_folder
from cpu_backend.gguf.checkpoint import Checkpoint, Pictures
from cpu_backend.gguf.projectors import KNOWN
from cpu_backend.gguf.projectors.lfm2 import TILES
from cpu_backend.gguf.reader import GgufFile
from tests.zoo import audio, gguf_files, images, judge, mixed, processors
from tests.zoo.build import BASE
from tests.zoo.image_specs import VISION
from tests.zoo.judge import Outcome
from tests.zoo.media import PICTURES, TORCHVISION, Case, MediaSpec, Shown, shown
from tests.zoo.processors import FIRST, SIDE, Framed
from tools import llama_cpp

# Of convolutions: smaller, sounds would hardly matter.
ENCODER = {"num_hidden_layers": 4, "initializer_range": 0.3}
# What GGUF files do not say and llama.cpp takes for granted.
GRANTED: dict[str, dict[str, dict[str, Any]]] = {
    "Gemma3ForConditionalGeneration": {"text_config": gguf_files.GRANTED["Gemma3ForCausalLM"]},
    # Of the small models, which have inputs per layer.
    "Gemma4ForConditionalGeneration": {
        "text_config": {"use_bidirectional_attention": None},
        "vision_config": {"standardize": True, "use_clipped_linears": True},
    },
    # More layers than the projector has, or convolutions, whose names are taken for theirs.
    "AudioFlamingo3ForConditionalGeneration": {"audio_config": ENCODER},
    "InternVLForConditionalGeneration": {"vision_config": {"num_hidden_layers": 4}},
    "Qwen2AudioForConditionalGeneration": {
        "audio_config": {"encoder_layers": 4, "initializer_range": 0.3}
    },
    "Llama4ForConditionalGeneration": {"text_config": gguf_files.GRANTED["Llama4ForCausalLM"]},
    "Mistral3ForConditionalGeneration": {
        "text_config": gguf_files.GRANTED["Ministral3ForCausalLM"]
    },
    "Qwen2_5_VLForConditionalGeneration": {
        "vision_config": {"tokens_per_second": 2, "window_size": 112}
    },
}
# What published configs say and transformers does not.
NAMED_TEXTS = {
    "InternVLForConditionalGeneration": "Qwen2ForCausalLM",
    "Idefics3ForConditionalGeneration": "VLlama3ForCausalLM",
    "Lfm2VlForConditionalGeneration": "Lfm2ForCausalLM",
}
# Of a model that has InternVL's tower, and from which the converter knows these names.
INTERN_NAMES = (
    (r"^(vision_tower|multi_modal_projector)\.", r"model.\1."),
    (r"^language_model\.model\.", "model.language_model."),
    (r"^language_model\.lm_head\.", "lm_head."),
)
INTERN = next(spec for spec in images.SPECS if spec.name == "InternVLForConditionalGeneration")
LARGE = {"attention_bias": False, "norm_type": "rms_norm", "use_qk_norm": True}
OMNI = next(spec for spec in images.SPECS if spec.name == "Qwen2_5OmniModel")
# As published, which is what files have.
SEEN = ("<|vision_bos|>", "<|vision_eos|>", "<|IMAGE|>", "<|VIDEO|>")


def _as_published(cases: Sequence[Case]) -> tuple[Case, ...]:
    """With such tokens in place of those of ``processors``."""

    def renamed(text: str) -> str:
        for own, published in zip(processors.QWEN, SEEN, strict=False):
            text = text.replace(own, published)
        return text

    return tuple(
        replace(case, marks=tuple(map(renamed, case.marks)))
        for case in cases
        if isinstance(case, Shown)
    )


GLM = next(spec for spec in images.SPECS if spec.name == "Glm4vForConditionalGeneration")


def _glm46(config: dict[str, Any]) -> dict[str, Any]:
    """Of the name that the converter takes for the model's."""
    return config | {"_name_or_path": "zai-org/GLM-4.6V-Flash"}


# Of classes that have more than one kind of tower, or other tokens, or frames of videos.
OWN = {
    "GLM-4.6V": replace(GLM, processor=processors.glm46v, published_config=_glm46),
    "Qwen2_5OmniModel": replace(
        OMNI,
        processor=functools.partial(processors.qwen2_5_omni, seen=SEEN),
        cases=_as_published(OMNI.cases),
        more=_as_published(OMNI.more),
        config={
            **OMNI.config,
            "thinker_config": OMNI.config["thinker_config"]
            | {
                "vision_config": OMNI.config["thinker_config"]["vision_config"]
                | {"window_size": 112},
                "audio_config": OMNI.config["thinker_config"]["audio_config"]
                | {"encoder_layers": 4},
            },
        },
    ),
    "InternViT-6B": replace(
        INTERN,
        config={**INTERN.config, "vision_config": {**INTERN.config["vision_config"], **LARGE}},
    ),
    "Pixtral": MediaSpec(
        "LlavaForConditionalGeneration",
        "Pixtral",
        "llava",
        {
            "text_config": {"model_type": "mistral", "sliding_window": None},
            "vision_config": {
                **VISION,
                "model_type": "pixtral",
                "hidden_act": "silu",
                "image_size": 2 * SIDE,
            },
            "image_token_index": FIRST,
            "image_seq_length": 1,
            "vision_feature_layer": -1,
            "vision_feature_select_strategy": "full",
        },
        processor=processors.pixtral,
        cases=shown("[IMG]", PICTURES),
        needs=TORCHVISION,
    ),
}
PROCESSOR = "processor_config.json"
# What converters always write in 16 bits, the older ones for LLaVA above all.
CLIP = "clip_vision_model"
ROUNDED = {
    CLIP: ("linear_1.weight", "linear_2.weight", "patch_embedding.weight"),
    **dict.fromkeys(
        ("qwen2_audio_encoder", "qwen2_5_omni_vision_encoder"), ("conv1.weight", "conv2.weight")
    ),
    "siglip_vision_model": ("mm_input_projection_weight",),
}
# Of processors, what files do not say: published sizes are taken.
UNSAID = {"size", "max_frames", "max_video_tokens", "min_frames", "return_metadata", "fps"}
UNSAID |= {"do_sample_frames", "image_seq_length", "audio_seq_length", "max_soft_tokens"}
UNSAID |= {*TILES, "return_row_col_info"}
UNSAID |= {"max_audio_len", "default_transcription_prompt"}
UNSAID |= {"default_output_length"}  # of configs
# The same of one.
UNSAID_BY = {
    "Llama4Processor": {"max_patches"},
    "Qwen2_5OmniProcessor": {"chunk_length"},
}


def specs() -> dict[str, MediaSpec]:
    """The models whose projectors are read."""
    by_name = {spec.name: spec for spec in (*images.SPECS, *audio.SPECS)}
    return {known.class_name: by_name[known.class_name] for known in KNOWN} | OWN


def granted(spec: MediaSpec) -> MediaSpec:
    """A model that the converter can write."""
    if spec.name == "InternVLForConditionalGeneration":
        spec = replace(spec, published=INTERN_NAMES)
    if spec.name in NAMED_TEXTS:
        spec = replace(spec, published_config=functools.partial(_name_text, spec.name))
    own = {part: {**spec.config[part], **more} for part, more in GRANTED.get(spec.name, {}).items()}
    return replace(spec, config={**spec.config, **own})


def _name_text(name: str, config: dict[str, Any]) -> dict[str, Any]:
    named: dict[str, Any] = {
        "text_config": {**config["text_config"], "architectures": [NAMED_TEXTS[name]]}
    }
    if name == "InternVLForConditionalGeneration":
        named["vision_config"] = config["vision_config"] | {"architectures": ["InternVisionModel"]}
        named["max_dynamic_patch"] = 4
    return config | named


def served(model: torch.nn.Module, checkpoint: Path) -> tuple[Path, Any]:
    """A folder with the two files, and the processor that is read out of them."""
    from transformers import AutoProcessor, InternVLProcessor

    out = checkpoint / "gguf"
    write_files(checkpoint, out, "F32")
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(ROUNDED.get(_tower(checkpoint), ())):
                weight.copy_(weight.half())
    os.environ["XDG_CACHE_HOME"] = str(checkpoint / "cache")
    read = Path(gguf_folder.prefer_folder({"model": str(out)})["model"])
    for name in (PROCESSOR, "config.json"):
        _take_unsaid(read / name, checkpoint / name)
    processor = AutoProcessor.from_pretrained(read)
    return out, Framed(processor) if isinstance(processor, InternVLProcessor) else processor


def write_files(checkpoint: Path, out: Path, kind: str) -> None:
    """A GGUF file of the text, with a vocabulary, and one of the projector."""
    out.mkdir()
    _fill_vocabulary(checkpoint / "tokenizer.json")
    llama_cpp.convert(checkpoint, out / f"{kind}.gguf", kind, "said")
    part = "clip" if _tower(checkpoint) == CLIP else "mmproj"
    llama_cpp.convert(checkpoint, out / f"mmproj-{kind}.gguf", kind, part)


def _tower(checkpoint: Path) -> str:
    """Its kind."""
    said = json.loads((checkpoint / "config.json").read_text())
    said = said.get("thinker_config", said)
    return str((said.get("vision_config") or said.get("audio_config"))["model_type"])


def _take_unsaid(ours: Path, theirs: Path) -> None:
    """Sizes that fit the small model, in place of published ones."""
    said, wanted = json.loads(ours.read_text()), json.loads(theirs.read_text())
    for part in [part for part, fields in wanted.items() if isinstance(fields, dict)]:
        if unsaid := _unsaid(wanted) & wanted[part].keys():
            said[part] |= {name: wanted[part][name] for name in unsaid}
    ours.write_text(json.dumps(said))


def _unsaid(processor: dict[str, Any]) -> set[str]:
    return UNSAID | UNSAID_BY.get(processor.get("processor_class", ""), set())


def _fill_vocabulary(path: Path) -> None:
    """Some converters drop the rows of a table that have no token, and a file has to have a merge:
    of two bytes that are in no text."""
    said = json.loads(path.read_text())
    tokens, zero = said["model"]["vocab"], "\u0100"
    tokens[2 * zero] = len(tokens)
    tokens |= {f"<{number}>": number for number in range(len(tokens), BASE["vocab_size"])}
    said["model"]["merges"] = [[zero, zero]]
    path.write_text(json.dumps(said))


def examine(spec: MediaSpec, folder: Path) -> Outcome:
    """Runs in a process of its own."""
    outcome = mixed.examine(granted(spec), folder, lambda model: served(model, folder))
    if outcome.state != judge.RIGHT:
        return outcome
    faults = [*_processor_faults(folder), *damaged(folder / "gguf")]
    return Outcome(judge.WRONG, "; ".join(faults)) if faults else outcome


def _processor_faults(folder: Path) -> list[str]:
    """In what the processor differs from that of the checkpoint."""
    ours = _processor(next((folder / "cache").rglob(PROCESSOR)))
    theirs = _processor(folder / PROCESSOR)
    unsaid = _unsaid(theirs[""])
    return [
        f"{part}.{name}: {found} and not {theirs[part][name]}"
        for part, fields in ours.items()
        for name, found in fields.items()
        if name not in unsaid and not _same(found, theirs[part].get(name))
    ]


def _same(found: Any, wanted: Any) -> bool:
    """In fp32, if they are numbers."""
    if isinstance(found, list):
        return bool(np.array_equal(np.float32(found), np.float32(wanted)))
    return bool(found == wanted)


def _processor(path: Path) -> dict[str, dict[str, Any]]:
    said = json.loads(path.read_text())
    own = {name: value for name, value in said.items() if not isinstance(value, dict)}
    return {"": own} | {name: value for name, value in said.items() if isinstance(value, dict)}


def damaged(folder: Path) -> list[str]:
    """What else than one sentence the file of pictures comes to with a field of another kind or a
    tensor less."""
    path = folder / "mmproj-F32.gguf"
    text = Checkpoint(GgufFile(folder / "F32.gguf"))
    faults = []
    for key in [key for key in GgufFile(path).metadata if key.startswith("clip.")]:
        for value in gguf_files.OTHERS:
            file = GgufFile(path)
            file.metadata[key] = value
            faults += _other_than_a_sentence(file, text, f"{key} = {value!r}")
    for missing in GgufFile(path).tensors:
        file = GgufFile(path)
        del file.tensors[missing]
        faults += _other_than_a_sentence(file, text, f"without {missing}")
    return faults


def _other_than_a_sentence(file: GgufFile, text: Checkpoint, what: str) -> list[str]:
    try:
        Pictures(file, text)
    except ConfigError as error:
        return [f"{what}: {error}"] if "\n" in str(error) else []
    except Exception as error:
        return [f"{what}: {type(error).__name__}: {error}"]
    return []


def main() -> int:
    """Of all that are known if none is named."""
    known = specs()
    return gguf_files.report((known[name] for name in sys.argv[1:] or sorted(known)), examine)


if __name__ == "__main__":
    sys.exit(main())
