"""Writes a GGUF file with the weights of a checkpoint: CHECKPOINT OUT TYPE.

Of Llama, Qwen3-MoE, and the models with recurrent states of ``recurrent_models.py``.

TYPE is F32, BF16, F16, Q8_0 or Q4_1; norms stay in fp32, as llama.cpp wants them. Runs in the
environment of llama.cpp, which has gguf and numpy and nothing else. The tensors' names and the
order of the rows of query and key projections are those that `cpu_backend.gguf` undoes.
"""

from __future__ import annotations

import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "src"))
import recurrent_models

from cpu_backend.gguf.names import ARCHITECTURES, MIXTURES, OUTER_TENSORS, ROUTER, Architecture


def architecture_of(config: dict[str, Any]) -> tuple[str, Architecture]:
    """GGUF's name for the checkpoint's architecture, and its tensors."""
    known = [*ARCHITECTURES.items(), *MIXTURES.items()]
    model_type = config["model_type"]
    return next((name, a) for name, a in known if (a.model_type or name) == model_type)


def read_safetensors(path: Path) -> Iterator[tuple[str, np.ndarray]]:
    """(name, values in fp32) of every tensor of a file, one in memory at a time."""
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        start = file.tell()
        header.pop("__metadata__", None)
        for name, entry in header.items():
            begin, end = entry["data_offsets"]
            file.seek(start + begin)
            yield name, to_fp32(file.read(end - begin), entry["dtype"]).reshape(entry["shape"])


def to_fp32(data: bytes, dtype: str) -> np.ndarray:
    if dtype == "BF16":  # the upper half of an fp32 number
        return (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4")
    return np.frombuffer(data, {"F32": "<f4", "F16": "<f2"}[dtype]).astype("<f4")


def rope_permutation(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """Rows (i, i + head_dim / 2) of each head become rows (2i, 2i + 1)."""
    head_dim = weight.shape[0] // num_heads
    halves = weight.reshape(num_heads, 2, head_dim // 2, -1)
    return halves.swapaxes(1, 2).reshape(weight.shape)


def read_checkpoint(checkpoint: Path) -> Iterator[tuple[str, np.ndarray]]:
    for path in sorted(checkpoint.glob("*.safetensors")):
        yield from read_safetensors(path)


def gguf_tensors(
    checkpoint: Path, architecture: Architecture, config: dict[str, Any]
) -> Iterator[tuple[str, np.ndarray, int, int]]:
    """(name, values, number, count) of every tensor; of one of experts, each and how many."""
    outer = {name: gguf_name for gguf_name, name in OUTER_TENSORS.items()}
    inner = {name: gguf_name for gguf_name, name in architecture.layer_tensors.items()}
    heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}
    for name, values in read_checkpoint(checkpoint):
        if not name.startswith("model.layers."):
            yield outer[name], values, 0, 1
            continue
        _, _, layer, part = name.split(".", 3)
        for projection, key in heads.items():
            if projection in part and architecture.interleaved:
                values = rope_permutation(values, config[key])
        expert = re.search(r"(?<=experts\.)\d+", part)
        if expert is None:
            yield f"blk.{layer}.{inner[part]}", values, 0, 1
        else:
            part = part.replace(f".{expert[0]}.", ".{}.")
            count = config[architecture.num_experts]
            yield f"blk.{layer}.{inner[part]}", values, int(expert[0]), count


def write_metadata(
    writer: gguf.GGUFWriter, architecture: Architecture, config: dict[str, Any]
) -> None:
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    if architecture.num_experts:
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
        writer.add_expert_count(config[architecture.num_experts])
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])


def write_tokenizer(writer: gguf.GGUFWriter, checkpoint: Path) -> None:
    """The byte-level BPE of tokenizer.json; a checkpoint without one gets no vocabulary."""
    path = checkpoint / "tokenizer.json"
    if not path.is_file():
        writer.add_tokenizer_model("no_vocab")
        return
    tokenizer = json.loads(path.read_text())
    vocabulary = sorted(tokenizer["model"]["vocab"].items(), key=lambda item: item[1])
    special = {token["content"] for token in tokenizer["added_tokens"] if token["special"]}
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list([text for text, _ in vocabulary])
    writer.add_token_types([control if text in special else normal for text, _ in vocabulary])
    writer.add_token_merges([" ".join(merge) for merge in tokenizer["model"]["merges"]])
    named = json.loads((checkpoint / "special_tokens_map.json").read_text())
    ids = dict(vocabulary)
    writer.add_bos_token_id(ids[named["bos_token"]])
    writer.add_eos_token_id(ids[named["eos_token"]])
    writer.add_pad_token_id(ids[named["pad_token"]])
    writer.add_unk_token_id(ids[named["unk_token"]])
    writer.add_add_bos_token(False)


def main() -> None:
    checkpoint, out, type_name = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    config = json.loads((checkpoint / "config.json").read_text())
    weight_type = gguf.GGMLQuantizationType[type_name]
    tensors: Iterator[tuple[str, np.ndarray, int, int]]
    if recurrent := recurrent_models.FAMILIES.get(config["model_type"]):
        writer = gguf.GGUFWriter(out, recurrent.name, use_temp_file=True)
        recurrent.write_metadata(writer, config)
        tensors = recurrent.tensors(read_checkpoint(checkpoint), config)
    else:
        name, architecture = architecture_of(config)
        writer = gguf.GGUFWriter(out, name, use_temp_file=True)
        write_metadata(writer, architecture, config)
        tensors = gguf_tensors(checkpoint, architecture, config)
    writer.add_file_type(
        gguf.LlamaFileType[f"MOSTLY_{type_name}" if type_name != "F32" else "ALL_F32"]
    )
    write_tokenizer(writer, checkpoint)
    experts: dict[str, dict[int, np.ndarray]] = defaultdict(dict)
    for name, values, number, count in tensors:
        plain = values.ndim == 1 or name.endswith((ROUTER, *recurrent_models.FP32_TENSORS))
        kind = gguf.GGMLQuantizationType.F32 if plain else weight_type
        data = gguf.quants.quantize(values, kind)
        if count > 1:
            experts[name][number] = data
            if len(experts[name]) < count:
                continue
            parts = experts.pop(name)
            data = np.stack([parts[e] for e in range(count)])
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
