"""A layer of lightning attention, with what published configs may leave out, against plain torch;
and the dtype of its states."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cpu_backend.attention import states
from cpu_backend.host import linear_attention
from cpu_backend.state_ops import StepSequences
from tests.zoo.ling import LightningAttention

HEADS, HEAD_DIM, HIDDEN, LAYERS = 6, 40, 48, 4
LAYER = 2
STEPS = ((5, 3), (1, 4))  # tokens of each sequence
PADDING = 2


def reference_layer(silu: bool, norms: bool) -> LightningAttention:
    """Of random weights and without rotation, which is the host's module."""
    config = SimpleNamespace(
        num_attention_heads=HEADS,
        head_dim=HEAD_DIM,
        group_norm_size=2,
        rms_norm_eps=1e-6,
        rope_parameters={"rope_theta": 10000.0, "partial_rotary_factor": 0.0},
        linear_silu=silu,
        num_hidden_layers=LAYERS,
        hidden_size=HIDDEN,
    )
    layer = LightningAttention(config, LAYER)
    for norm in (layer.query_layernorm, layer.key_layernorm, layer.g_norm):
        torch.nn.init.uniform_(norm.weight, 0.5, 1.5)
    if not norms:
        layer.query_layernorm = layer.key_layernorm = torch.nn.Identity()
    return layer


def host_layer(of: LightningAttention, norms: bool) -> Any:
    """What the host's has of it, with states that no sequence has left."""
    return SimpleNamespace(
        prefix="layer",
        tp_heads=HEADS,
        head_dim=HEAD_DIM,
        scaling=HEAD_DIM**-0.5,
        linear_silu=of.silu,
        use_qk_norm=norms,
        linear_rope=False,
        query_key_value=lambda x: (of.query_key_value(x), None),
        query_layernorm=of.query_layernorm,
        key_layernorm=of.key_layernorm,
        g_proj=lambda x: (of.g_proj(x), None),
        dense=lambda x: (of.dense(x), None),
        g_norm=SimpleNamespace(
            weight=of.g_norm.weight, eps=of.eps, group_size=HEADS * HEAD_DIM // of.groups
        ),
        tp_slope=torch.tensor(of.rates)[:, None, None],
        kv_cache=(torch.full((4, HEADS, HEAD_DIM, HEAD_DIM), torch.nan),),
    )


@pytest.mark.parametrize("norms", [True, False])
@pytest.mark.parametrize("silu", [True, False])
@torch.no_grad()
def test_sequences_go_on_where_they_were(
    silu: bool, norms: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(3)
    reference = reference_layer(silu, norms)
    layer = host_layer(reference, norms)
    forward = linear_attention.attend(None)
    whole = [torch.randn(sum(lengths), HIDDEN) for lengths in zip(*STEPS, strict=True)]
    found: list[list[torch.Tensor]] = [[], []]
    done = [0, 0]
    for number, lengths in enumerate(STEPS):
        parts = [x[n : n + more] for x, n, more in zip(whole, done, lengths, strict=True)]
        sequences = StepSequences(
            torch.tensor([0, lengths[0], sum(lengths)], dtype=torch.int32),
            torch.tensor([3, 1], dtype=torch.int32),
            torch.tensor([number > 0] * 2),
        )
        context = SimpleNamespace(
            attn_metadata={"layer": states.StateMetadata(sum(lengths), sequences)}
        )
        monkeypatch.setattr(states, "get_forward_context", lambda context=context: context)
        hidden = torch.cat([*parts, torch.full((PADDING, HIDDEN), torch.nan)])
        output = torch.zeros_like(hidden)
        forward(layer, hidden, output, torch.zeros(len(hidden), dtype=torch.long))
        assert (output[-PADDING:] == 0).all()
        for i, part in enumerate(output[:-PADDING].split(lengths)):
            found[i].append(part)
        done = [n + more for n, more in zip(done, lengths, strict=True)]
    for x, parts in zip(whole, found, strict=True):
        expected = reference(x[None])[0][0]
        torch.testing.assert_close(torch.cat(parts), expected, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_what_a_layer_keeps_is_made_before_any_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Made in the first step, it would outlive it, and no step could be recorded."""
    layer = host_layer(reference_layer(silu=False, norms=True), norms=True)
    before = set(vars(layer))
    hidden = torch.randn(3, HIDDEN)
    output = torch.full_like(hidden, torch.nan)
    context = SimpleNamespace(attn_metadata=None)
    monkeypatch.setattr(states, "get_forward_context", lambda: context)
    linear_attention.attend(None)(layer, hidden, output, torch.zeros(3, dtype=torch.long))
    assert (output == 0).all()
    assert set(vars(layer)) - before == {"lightning_constants"}


@pytest.mark.parametrize("asked", [torch.float32, torch.bfloat16])
def test_states_have_the_dtype_asked_for(asked: torch.dtype) -> None:
    """Not the model's: a state that hardly decays would no longer change."""
    model = SimpleNamespace(dtype=torch.bfloat16)
    cache = SimpleNamespace(
        mamba_cache_dtype="auto", mamba_ssm_cache_dtype=str(asked).removeprefix("torch.")
    )
    layer = SimpleNamespace(model_config=model, cache_config=cache)
    config = SimpleNamespace(model_config=model, cache_config=cache)
    assert linear_attention.dtype_of_layer(None)(layer) == (asked,)
    assert linear_attention.dtype_of_model(None)(None, config) == (asked,)
