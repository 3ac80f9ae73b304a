"""Layers of GGUF files that only draft tokens: left out, and nothing else is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cpu_backend.errors import ConfigError
from tests.plugin.gguf_samples import HIDDEN, LAYERS
from tests.plugin.test_gguf_checkpoint import Edit, read

JOINS = "nextn.eh_proj.weight"


def with_layer(named: int, *tensors: str) -> Edit:
    """A layer more, of which ``named`` are said to draft; tensors: of it."""

    def edit(fields: dict[str, Any], weights: dict[str, np.ndarray]) -> None:
        fields |= {"llama.block_count": LAYERS + 1, "llama.nextn_predict_layers": named}
        for name in tensors:
            weights[f"blk.{LAYERS}.{name}"] = np.ones((HIDDEN, 2 * HIDDEN))

    return edit


def test_a_layer_that_drafts_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    plain = read(tmp_path / "plain")
    for tensors in ((JOINS, "nextn.hnorm.weight", "attn_q.weight"), ()):
        checkpoint = read(tmp_path, with_layer(1, *tensors))
        assert checkpoint.config == plain.config
        assert checkpoint.entries.keys() == plain.entries.keys()
        for name, entry in checkpoint.entries.items():
            same = checkpoint.values(entry) == plain.values(plain.entries[name])
            assert same.all(), name


@pytest.mark.parametrize(
    ("edit", "sentence"),
    [
        (with_layer(1, "attn_q.weight"), f"has the layer {LAYERS}, and does not say"),
        (with_layer(0, JOINS), f"has the layer {LAYERS}, and does not say"),
        (with_layer(2, JOINS), f"has the layer {LAYERS - 1}, and does not say"),
        (with_layer(LAYERS + 1, JOINS), "of which 3 only draft tokens"),
    ],
)
def test_layers_that_may_be_the_models_own_are_not_left_out(
    tmp_path: Path, edit: Edit, sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        read(tmp_path, edit)
