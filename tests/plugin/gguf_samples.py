# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Contributors to vllm-cpu-backend
"""Small made-up GGUF files, laid out as llama.cpp's converter writes them."""

import functools

import gguf
import numpy as np
import torch

from cpu_backend.demo_model import fetch
from cpu_backend.demo_model.support import sha256
from cpu_backend.gguf.architectures.tensors import ATTENTION, FFN_NORM, MLP, OUTER

HEADS, KV_HEADS, HEAD_DIM, FFN, LAYERS = 4, 2, 16, 96, 2
HIDDEN = HEADS * HEAD_DIM
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def byte_alphabet():
    """GPT-2's 256 printable stand-ins for bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return [chr(byte) for byte in printable] + [
        chr(256 + index) for index in range(256 - len(printable))
    ]


def rope_permutation(weight, num_heads):
    """What llama.cpp's converter does to query and key projections, row by row."""
    head_dim = weight.shape[0] // num_heads
    rows = []
    for head in range(num_heads):
        for index in range(head_dim // 2):
            rows += [head * head_dim + index, head * head_dim + index + head_dim // 2]
    return weight[rows]


@functools.cache
def checkpoint_weights():
    """Random weights under their checkpoint names, exact in bf16."""
    random_state = np.random.default_rng(0)
    kv_width = KV_HEADS * HEAD_DIM
    layer_shapes = {
        "input_layernorm": (HIDDEN,),
        "self_attn.q_proj": (HIDDEN, HIDDEN),
        "self_attn.k_proj": (kv_width, HIDDEN),
        "self_attn.v_proj": (kv_width, HIDDEN),
        "self_attn.o_proj": (HIDDEN, HIDDEN),
        "post_attention_layernorm": (HIDDEN,),
        "mlp.gate_proj": (FFN, HIDDEN),
        "mlp.up_proj": (FFN, HIDDEN),
        "mlp.down_proj": (HIDDEN, FFN),
    }
    shapes = {"model.embed_tokens.weight": (259 + 2, HIDDEN), "model.norm.weight": (HIDDEN,)}
    for layer in range(LAYERS):
        shapes |= {
            f"model.layers.{layer}.{name}.weight": shape for name, shape in layer_shapes.items()
        }
    return {
        name: torch.from_numpy(random_state.standard_normal(shape, np.float32))
        .to(torch.bfloat16)
        .float()
        .numpy()
        for name, shape in shapes.items()
    }


def gguf_weights():
    """The weights of checkpoint_weights as llama.cpp's converter writes them."""
    names = {there.name: here for here, there in OUTER.items()}
    for layer in range(LAYERS):
        for here, there in (ATTENTION | FFN_NORM | MLP).items():
            names[f"model.layers.{layer}.{there.name}"] = f"blk.{layer}.{here}"
    heads = {"attn_q.weight": HEADS, "attn_k.weight": KV_HEADS}
    for name, weight in checkpoint_weights().items():
        for ending, num_heads in heads.items():
            if names[name].endswith(ending):
                weight = rope_permutation(weight, num_heads)
        yield names[name], weight


def write_gguf(path, quantized="", arch="llama", extra_tensor=None, tensors_per_file=0):
    writer = gguf.GGUFWriter(path, arch, split_max_tensors=tensors_per_file)
    writer.add_block_count(LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(100000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    tokens = [*SPECIAL, *byte_alphabet(), "he", "12"]
    writer.add_token_list(tokens)
    writer.add_token_types(
        [gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.NORMAL] * (len(tokens) - 3)
    )
    writer.add_token_merges(["h e", "1 2"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(False)
    writer.add_chat_template("{{ messages[0]['content'] }}")
    for name, weight in gguf_weights():
        if name == quantized:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(name, gguf.quants.quantize(weight, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, np.ascontiguousarray(weight))
    if extra_tensor:
        writer.add_tensor(extra_tensor, np.zeros(4, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_passing_gguf(folder, monkeypatch, **options):
    """A small GGUF file that passes for the real one."""
    path = folder / "small.gguf"
    write_gguf(path, **options)
    monkeypatch.setattr(fetch, "GGUF_SHA256", sha256(path))
    return path
