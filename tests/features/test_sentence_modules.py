"""Modules of sentence-transformers that the host has not are refused, when an engine is
configured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cpu_backend.errors import ConfigError
from tests.features.sentence import NORMALIZE, Module, pooling, write
from tests.zoo import build, kinds
from tests.zoo.tokens import write_tokenizer

MEAN, MAX, SCALED = pooling("mean_tokens"), pooling("max_tokens"), pooling("mean_sqrt_len_tokens")
DENSE = Module("Dense", {"in_features": 192, "out_features": 192})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    build.write_config(kinds.find("BertModel")[1], tmp_path)
    write_tokenizer(tmp_path)
    return tmp_path


def configure(folder: Path, **options: Any) -> Any:
    from vllm.engine.arg_utils import EngineArgs

    made = EngineArgs(str(folder), device="cpu", runner="pooling", **options)
    return made.create_engine_config().model_config.pooler_config


@pytest.mark.parametrize(
    ("modules", "what"),
    [
        ((MEAN, Module("LayerNorm")), "a module LayerNorm, which vLLM does not have"),
        ((Module("WeightedLayerPooling"), MEAN), "a module WeightedLayerPooling"),
        ((MEAN, NORMALIZE, DENSE), "modules in the order Pooling, Normalize, Dense"),
        ((MAX, NORMALIZE), "a pooling by max_tokens"),
        ((pooling("weightedmean_tokens"),), "a pooling by weightedmean_tokens"),
        ((pooling("mean_tokens", "max_tokens"),), r"several kinds of pooling \(.*mean_tokens"),
        ((SCALED,), "a pooling by mean_sqrt_len_tokens"),
        ((Module("Pooling", {"pooling_mode": "max"}),), "a pooling by max"),
    ],
    ids=lambda value: "" if isinstance(value, str) else " ".join(module.kind for module in value),
)
def test_what_the_host_lacks(folder: Path, modules: tuple[Module, ...], what: str) -> None:
    write(folder, *modules)
    with pytest.raises(ConfigError, match=rf"has {what}.*: choose another model\."):
        configure(folder)


@pytest.mark.parametrize(
    ("modules", "pool"),
    [
        ((MEAN, DENSE, NORMALIZE), "MEAN"),
        ((MEAN, Module("Dropout", {"dropout": 0.1}), DENSE), "MEAN"),
        ((SCALED, NORMALIZE), "MEAN"),
        ((pooling("cls_token"),), "CLS"),
        ((pooling("lasttoken"), NORMALIZE), "LAST"),
        ((Module("Pooling", {"pooling_mode": "mean"}),), "MEAN"),
    ],
)
def test_what_it_has(folder: Path, modules: tuple[Module, ...], pool: str) -> None:
    write(folder, *modules)
    found = configure(folder)
    assert found.seq_pooling_type == pool
    assert found.use_activation == (NORMALIZE in modules)


def test_who_names_a_pooling_has_that(folder: Path) -> None:
    write(folder, MAX)
    assert configure(folder, pooler_config={"seq_pooling_type": "CLS"}).seq_pooling_type == "CLS"
