# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Contributors to vllm-cpu-backend
"""Converts a Llama GGUF file into a Hugging Face checkpoint: config, tokenizer and weights."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cpu_backend.demo_model.fetch import PACKAGE
from cpu_backend.demo_model.support import DemoModelError, progress, write_json

if TYPE_CHECKING:
    import numpy as np
    from gguf import GGUFReader

WEIGHTS_NAME = "model.safetensors"

# Text that a byte-level tokenizer must give back unchanged; checked on every conversion.
ROUND_TRIP_TEXT = (
    "Odd  text:\t1234.5\r\n naïve café, 东京 🙂🏽, it's \u00a0<|im_start|>user\n0x7F\u200d"
)

# GGUF tensor name within a block -> name within a Llama layer.
LAYER_TENSORS = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
}
OUTER_TENSORS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


class WrongGgufError(DemoModelError):
    """The GGUF file holds another model."""

    def __init__(self, finding: str) -> None:
        super().__init__(f"The GGUF file {finding}: pass the one of {PACKAGE}.")


def write_checkpoint(gguf_file: Path, folder: Path) -> None:
    """Write config, tokenizer and weights of a Llama GGUF file into an existing ``folder``."""
    import gguf

    reader = gguf.GGUFReader(gguf_file)
    config = llama_config(reader)
    write_json(folder / "config.json", config)
    special_ids = {key: value for key, value in config.items() if key.endswith("_token_id")}
    write_json(folder / "generation_config.json", {"_from_model_config": True, **special_ids})
    _write_tokenizer(reader, folder)
    _write_weights(reader, config, folder / WEIGHTS_NAME)


def llama_config(reader: GGUFReader) -> dict[str, Any]:
    """The config.json of the model, from the metadata of its GGUF file."""
    if _field(reader, "general.architecture") != "llama":
        raise WrongGgufError("does not hold a Llama-architecture model")
    get = partial(_field, reader)
    hidden_size, num_heads = get("llama.embedding_length"), get("llama.attention.head_count")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": get("tokenizer.ggml.eos_token_id"),
        "pad_token_id": get("tokenizer.ggml.padding_token_id"),
        "head_dim": hidden_size // num_heads,
        "hidden_act": "silu",
        "hidden_size": hidden_size,
        "intermediate_size": get("llama.feed_forward_length"),
        "max_position_embeddings": get("llama.context_length"),
        "mlp_bias": False,
        "num_attention_heads": num_heads,
        "num_hidden_layers": get("llama.block_count"),
        "num_key_value_heads": get("llama.attention.head_count_kv"),
        "rms_norm_eps": _shortest_float(get("llama.attention.layer_norm_rms_epsilon")),
        "rope_scaling": None,
        "rope_theta": _shortest_float(get("llama.rope.freq_base")),
        "tie_word_embeddings": all(tensor.name != "output.weight" for tensor in reader.tensors),
        "torch_dtype": "bfloat16",
        "vocab_size": len(get("tokenizer.ggml.tokens")),
    }


def _write_tokenizer(reader: GGUFReader, folder: Path) -> None:
    from gguf import TokenType
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    get = partial(_field, reader)
    if get("tokenizer.ggml.pre") != "smollm":
        raise WrongGgufError("has another tokenizer than SmolLM")
    tokens = get("tokenizer.ggml.tokens")
    types = get("tokenizer.ggml.token_type")
    merges = [tuple(merge.split(" ")) for merge in get("tokenizer.ggml.merges")]
    special = [text for text, kind in zip(tokens, types, strict=True) if kind == TokenType.CONTROL]

    tokenizer = Tokenizer(
        models.BPE(vocab={text: index for index, text in enumerate(tokens)}, merges=merges)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(text, special=True, normalized=False) for text in special]
    )
    encoded = tokenizer.encode(ROUND_TRIP_TEXT, add_special_tokens=False).ids
    if tokenizer.decode(encoded, skip_special_tokens=False) != ROUND_TRIP_TEXT:
        raise WrongGgufError("has a tokenizer that does not give text back unchanged")
    tokenizer.save(str(folder / "tokenizer.json"))

    roles = {"bos": "bos", "eos": "eos", "padding": "pad", "unknown": "unk"}
    named = {
        f"{role}_token": tokens[get(f"tokenizer.ggml.{key}_token_id")]
        for key, role in roles.items()
    }
    tokenizer_config = {
        # The generic class reads tokenizer.json as it is; GPT2Tokenizer would not split digits.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": get("tokenizer.ggml.add_bos_token"),
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": get("llama.context_length"),
        "chat_template": get("tokenizer.chat_template"),
        **named,
    }
    write_json(folder / "tokenizer_config.json", tokenizer_config)
    write_json(folder / "special_tokens_map.json", named)


def _write_weights(reader: GGUFReader, config: dict[str, Any], weights_file: Path) -> None:
    import gguf
    import torch
    from safetensors.torch import save_file

    heads = {
        "attn_q.weight": config["num_attention_heads"],
        "attn_k.weight": config["num_key_value_heads"],
    }
    weights: dict[str, torch.Tensor] = {}
    with progress(total=len(reader.tensors), unit="tensor") as bar:
        for tensor in reader.tensors:
            # A copy, as the file is mapped read-only; one at a time, as fp32 takes twice the room.
            values = gguf.dequantize(tensor.data, tensor.tensor_type).astype("float32")
            block_tensor = tensor.name.split(".", 2)[-1]
            if block_tensor in heads:
                values = undo_rope_permutation(values, heads[block_tensor])
            weights[checkpoint_name(tensor.name)] = (
                torch.from_numpy(values).to(torch.bfloat16).contiguous()
            )
            bar.update(1)
    save_file(weights, weights_file, metadata={"format": "pt"})
    # save_file lets only the owner read; a shared cache needs the mode of the other files.
    weights_file.chmod(weights_file.with_name("config.json").stat().st_mode)


def checkpoint_name(gguf_name: str) -> str:
    """The name of a GGUF tensor in a Hugging Face Llama checkpoint."""
    if gguf_name in OUTER_TENSORS:
        return OUTER_TENSORS[gguf_name]
    match = re.fullmatch(r"blk\.(\d+)\.(.+)", gguf_name)
    if match is None or match[2] not in LAYER_TENSORS:
        raise WrongGgufError(f"has the unknown tensor '{gguf_name}'")
    return f"model.layers.{match[1]}.{LAYER_TENSORS[match[2]]}"


def undo_rope_permutation(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """Bring rows of a query or key projection from GGUF order back to checkpoint order.

    weight [num_heads * head_dim, hidden].  RoPE turns pairs of rows of each head: GGUF stores a
    pair as rows (2i, 2i + 1), a Hugging Face checkpoint as rows (i, i + head_dim / 2).
    """
    head_dim = weight.shape[0] // num_heads
    pairs = weight.reshape(num_heads, head_dim // 2, 2, -1)
    return pairs.swapaxes(1, 2).reshape(weight.shape)


def _field(reader: GGUFReader, key: str) -> Any:
    field = reader.get_field(key)
    if field is None:
        raise WrongGgufError(f"has no field '{key}'")
    return field.contents()


def _shortest_float(value: float) -> float:
    """The decimal number that a stored fp32 value was meant to be: 9.999999747e-06 -> 1e-05."""
    import numpy as np

    return float(str(np.float32(value)))
