"""Gated delta nets: Qwen3-Next and Qwen 3.5, dense and mixtures."""

from __future__ import annotations

from typing import Any

import numpy as np

from cpu_backend.gguf.architectures.base import SOFTMAX, Architecture
from cpu_backend.gguf.architectures.mamba import logarithm
from cpu_backend.gguf.architectures.qwen import SHARED_EXPERT
from cpu_backend.gguf.architectures.tensors import (
    ATTENTION,
    EXPERTS,
    HEAD_NORMS,
    MLP,
    Order,
    Tensor,
    centred,
    named,
)
from cpu_backend.gguf.reader import GgufFile

NORMS = named(
    {
        "attn_norm.weight": "input_layernorm.weight",
        "post_attention_norm.weight": "post_attention_layernorm.weight",
    }
)
DELTA = "linear_attn."


class Qwen35(Architecture):
    """Qwen 3.5: of four layers three are gated delta nets, whose value heads the file has in turns:
    the first ones of all key heads, then the second ones."""

    class_name = "Qwen3_5ForCausalLM"
    model_type = "qwen3_5_text"
    partial_rotary = True
    in_turns = True

    def __init__(self, file: GgufFile) -> None:
        super().__init__(file)
        self.key_heads = self.size("ssm.group_count")
        self.value_heads = self.size("ssm.time_step_rank")
        self.key_dim = self.size("ssm.state_size")
        self.value_dim = self.size("ssm.inner_size") // self.value_heads
        if self.value_heads % self.key_heads or self.value_dim * self.value_heads != self.size(
            "ssm.inner_size"
        ):
            raise self.file.error(
                f"has {self.value_heads} value heads of {self.size('ssm.inner_size')} channels to "
                f"{self.key_heads} key heads"
            )

    def config(self) -> dict[str, Any]:
        return super().config() | {
            "attention_bias": False,
            "attn_output_gate": True,
            "layer_types": [
                "linear_attention" if self.recurrent(layer) else "full_attention"
                for layer in range(self.num_layers)
            ],
            "linear_conv_kernel_dim": self.size("ssm.conv_kernel"),
            "linear_key_head_dim": self.key_dim,
            "linear_num_key_heads": self.key_heads,
            "linear_num_value_heads": self.value_heads,
            "linear_value_head_dim": self.value_dim,
            "mamba_ssm_dtype": "float32",
            "partial_rotary_factor": self.size("rope.dimension_count", self.head_dim)
            / self.head_dim,
        }

    def recurrent(self, layer: int) -> bool:
        """Whether a layer is a gated delta net."""
        key, interval = "attention.recurrent_layers", self.size("full_attention_interval", 4)
        if self.has(key):
            return bool(self.per_layer(key)[layer])
        return (layer + 1) % interval != 0

    # ---- tensors -----------------------------------------------------------------------------

    def sizes(self, layer: int, config: dict[str, Any]) -> dict[str, int]:
        sizes = super().sizes(layer, config)
        keys, values = self.key_heads * self.key_dim, self.value_heads * self.value_dim
        return sizes | {
            "queries": 2 * sizes["queries"],  # and gates
            "mixed": 2 * keys + values,
            "inner": values,
            "value_heads": self.value_heads,
            "value_dim": self.value_dim,
            "projections": 2 * (keys + values),
        }

    def outer(self) -> dict[str, Tensor]:
        return centred(super().outer())

    def layer(self, number: int) -> dict[str, Tensor]:
        mixer = self.delta() if self.recurrent(number) else ATTENTION | centred(HEAD_NORMS)
        return mixer | centred(NORMS) | self.feed_forward()

    def feed_forward(self) -> dict[str, Tensor]:
        """The tensors behind the attention."""
        return MLP

    def delta(self) -> dict[str, Tensor]:
        """The tensors of a gated delta net."""
        values, heads = self.in_order(self.value_dim), self.in_order(1)
        mixed = self.in_order(self.value_dim, 2 * self.key_heads * self.key_dim)
        return self.projections() | {
            "ssm_conv1d.weight": Tensor(
                DELTA + "conv1d.weight", ("mixed", 1, "kernel"), rows=mixed, plain=True
            ),
            "ssm_dt.bias": Tensor(DELTA + "dt_bias", ("value_heads",), rows=heads),
            "ssm_a": Tensor(DELTA + "A_log", ("value_heads",), rows=heads, values=logarithm),
            "ssm_norm.weight": Tensor(DELTA + "norm.weight", ("value_dim",)),
            "ssm_out.weight": Tensor(
                DELTA + "out_proj.weight", ("hidden", "inner"), columns=values
            ),
        }

    def projections(self) -> dict[str, Tensor]:
        """Those into a gated delta net."""
        values, heads = self.in_order(self.value_dim), self.in_order(1)
        mixed = self.in_order(self.value_dim, 2 * self.key_heads * self.key_dim)
        gates = {
            "ssm_beta.weight": Tensor(
                DELTA + "in_proj_b.weight", ("value_heads", "hidden"), rows=heads, plain=True
            ),
            "ssm_alpha.weight": Tensor(
                DELTA + "in_proj_a.weight", ("value_heads", "hidden"), rows=heads, plain=True
            ),
        }
        return gates | {
            "attn_qkv.weight": Tensor(
                DELTA + "in_proj_qkv.weight", ("mixed", "hidden"), rows=mixed
            ),
            "attn_gate.weight": Tensor(
                DELTA + "in_proj_z.weight", ("inner", "hidden"), rows=values
            ),
        }

    def in_order(self, head_dim: int, before: int = 0) -> Order | None:
        """Brings value heads of ``head_dim`` channels from the file's order to the checkpoint's, in
        which those of a key head lie together; ``before``: channels that stay in front of them."""
        if not self.in_turns or self.value_heads == self.key_heads:
            return None

        def order(size: int) -> np.ndarray:
            channels = np.arange(before, size).reshape(-1, self.key_heads, head_dim)
            return np.concatenate([np.arange(before), channels.swapaxes(0, 1).reshape(-1)])

        return order


class Qwen35Moe(Qwen35):
    """Qwen 3.5 with experts and a shared one in every layer."""

    class_name = "Qwen3_5MoeForCausalLM"
    model_type = "qwen3_5_moe_text"

    def config(self) -> dict[str, Any]:
        self.check_router(SOFTMAX, normed=True)
        return (
            super().config()
            | self.experts()
            | {
                "norm_topk_prob": True,
                "shared_expert_intermediate_size": self.shared_ffn(),
            }
        )

    def intermediate_size(self) -> int:
        return self.expert_ffn()

    def shared_ffn(self) -> int:
        """The width of the shared expert."""
        key = "expert_shared_feed_forward_length"
        return self.size(key if self.has(key) else "feed_forward_length")

    def sizes(self, layer: int, config: dict[str, Any]) -> dict[str, int]:
        return super().sizes(layer, config) | {"shared_ffn": self.shared_ffn()}

    def feed_forward(self) -> dict[str, Tensor]:
        return EXPERTS | SHARED_EXPERT


class Qwen3Next(Qwen35Moe):
    """Qwen3-Next: what Qwen 3.5 is, with projections of several kinds in one, key head by key head:
    always those of the two gates, in older files all others too."""

    in_turns = False

    def sizes(self, layer: int, config: dict[str, Any]) -> dict[str, int]:
        return super().sizes(layer, config) | {"gates": 2 * self.value_heads}

    def projections(self) -> dict[str, Tensor]:
        heads = self.value_heads // self.key_heads
        gates = (heads, heads)
        found = {
            f"ssm_ba.weight|{part}": Tensor(
                f"{DELTA}in_proj_{'ba'[part]}.weight",
                ("gates", "hidden"),
                rows=self.by_part(gates, part),
                plain=True,
            )
            for part in range(2)
        }
        if not any(name.endswith(".ssm_in.weight") for name in self.file.tensors):
            return found | {n: t for n, t in super().projections().items() if "attn" in n}
        widths = (*[self.key_dim] * 2, *[heads * self.value_dim] * 2)
        return found | {
            f"ssm_in.weight|{part}": Tensor(
                f"{DELTA}in_proj_{name}.weight",
                ("projections", "hidden"),
                rows=self.by_part(widths, *chosen),
            )
            for part, (name, chosen) in enumerate((("qkv", (0, 1, 2)), ("z", (3,))))
        }

    def by_part(self, widths: tuple[int, ...], *chosen: int) -> Order:
        """The rows of the chosen parts, one part after the other; the file has parts of ``widths``
        rows for each key head."""

        def order(size: int) -> np.ndarray:
            by_head = np.arange(size).reshape(self.key_heads, -1)
            parts = np.split(by_head, np.cumsum(widths)[:-1], axis=1)
            return np.concatenate([parts[part].reshape(-1) for part in chosen])

        return order


KNOWN = {"qwen35": Qwen35, "qwen35moe": Qwen35Moe, "qwen3next": Qwen3Next}
