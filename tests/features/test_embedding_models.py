"""Small models that embed, offline: dimensions, layers behind the pooling, texts of
many pages, and classes of transformers."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import normalize

from cpu_backend.errors import ConfigError
from tests.features import sentence
from tests.features.offline import Offline
from tests.zoo import kinds, pooling
from tests.zoo.build import build
from tests.zoo.pooling_specs import CLASSES, SEQUENCE, PoolingSpec
from tests.zoo.tokens import write_tokenizer

OPTIONS = {"runner": "pooling", "dtype": "float32", "max_model_len": 512}
EXACT = 1e-5


def prompts(*lengths: int) -> list[tuple[int, ...]]:
    draw = random.Random(20)
    return [tuple(draw.randrange(3, 1000) for _ in range(length)) for length in lengths]


def make(name: str, folder: Path, **config: Any) -> tuple[PoolingSpec, Any]:
    """A model of the zoo with other fields in its config.json: its Spec and what transformers
    has."""
    spec = kinds.find(name)[1]
    assert isinstance(spec, PoolingSpec)
    return written(replace(spec, config={**spec.config, **config}), folder)


def written(spec: PoolingSpec, folder: Path) -> tuple[PoolingSpec, Any]:
    write_tokenizer(folder)
    return spec, build(spec, folder)


def embed(engine: Offline, asked: list[tuple[int, ...]], *params: Any) -> list[torch.Tensor]:
    tokens = [{"prompt_token_ids": list(ids)} for ids in asked]
    options = {"pooling_params": list(params)} if params else {}
    outputs = engine.embed(tokens, use_tqdm=False, **options)
    return [torch.tensor(output.outputs.embedding) for output in outputs]


@pytest.fixture(scope="module")
def start() -> Iterator[Callable[..., Offline]]:
    """``start(folder, pool, **options)``: one engine after the other in the same process; pool: how
    it makes a vector of a text, where no modules.json says it."""
    running: list[Offline] = []

    def begin(folder: Path, pool: str = "", **options: Any) -> Offline:
        options = {**OPTIONS, **options}
        if pool:
            options["pooler_config"] = {"seq_pooling_type": pool}
        if running:
            running[0].start(str(folder), **options)
        else:
            running.append(Offline(str(folder), **options))
        return running[0]

    yield begin
    for engine in running:
        engine.__exit__(None, None, None)


def test_dimensions(start: Callable[..., Offline], tmp_path: Path) -> None:
    """Different ones in a batch: the first numbers of the whole vector, normalized anew."""
    from vllm import PoolingParams
    from vllm.exceptions import VLLMValidationError

    spec, model = make("BertModel", tmp_path, matryoshka_dimensions=[32, 96])
    engine = start(tmp_path, spec.pool)
    sizes = (None, 96, 32, 96, None)
    asked = prompts(5, 200, 40, 1, 129)
    found = embed(engine, asked, *(PoolingParams(dimensions=size) for size in sizes))
    for ids, size, mine in zip(asked, sizes, found, strict=True):
        right = normalize(pooling.expected(model, spec, ids, None)[:size], dim=0)
        torch.testing.assert_close(mine, right, atol=EXACT, rtol=0)
    for wrong in (33, 0, 193):
        with pytest.raises(VLLMValidationError, match=rf"only supports .*dimensions.* got {wrong}"):
            embed(engine, asked[:1], PoolingParams(dimensions=wrong))


def test_dimensions_of_a_model_that_was_not_made_for_them(
    start: Callable[..., Offline], tmp_path: Path
) -> None:
    from vllm import PoolingParams
    from vllm.exceptions import VLLMValidationError

    make("BertModel", tmp_path)
    with pytest.raises(
        VLLMValidationError, match=r"does not support Matryoshka .* dimensions must be unset"
    ):
        embed(start(tmp_path), prompts(5), PoolingParams(dimensions=32))


def test_layers_behind_the_pooling(start: Callable[..., Offline], tmp_path: Path) -> None:
    """Two of them, as EmbeddingGemma has, one with an activation, as LaBSE has."""
    _, model = make("Gemma3TextModel", tmp_path)
    first = torch.nn.Linear(192, 320, bias=False)
    second = torch.nn.Linear(320, 80)
    sentence.write(
        tmp_path,
        sentence.pooling("mean_tokens"),
        sentence.dense(first, "linear.Identity"),
        sentence.dense(second, "activation.Tanh"),
        sentence.NORMALIZE,
    )
    asked = prompts(5, 200, 40)
    for ids, mine in zip(asked, embed(start(tmp_path), asked), strict=True):
        with torch.no_grad():
            states = model(torch.tensor([ids])).last_hidden_state[0]
            right = normalize(second(first(states.mean(0))).tanh(), dim=0)
        torch.testing.assert_close(mine, right, atol=EXACT, rtol=0)


def test_a_layer_behind_the_pooling_that_cannot_be_loaded(
    start: Callable[..., Offline], tmp_path: Path
) -> None:
    make("BertModel", tmp_path)
    layers = [sentence.dense(torch.nn.Linear(192, 192), "linear.Identity") for _ in range(2)]
    sentence.write(tmp_path, sentence.pooling("mean_tokens"), *layers, sentence.NORMALIZE)
    (tmp_path / "3_Dense/model.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"Of the 2 linear layers behind .* 1 can be loaded"):
        start(tmp_path)


def test_positions_behind_that_of_padding(start: Callable[..., Offline], tmp_path: Path) -> None:
    """Of a model that the host computes by the class of transformers, and whose name does not say
    that it is a RoBERTa."""
    spec, model = written(PoolingSpec("CamembertModel", "", "camembert"), tmp_path)
    asked = prompts(5, 200)
    for ids, mine in zip(asked, embed(start(tmp_path, spec.pool), asked), strict=True):
        right = pooling.expected(model, spec, ids, None)
        torch.testing.assert_close(mine, right, atol=EXACT, rtol=0)


def test_a_projection_of_embeddings(start: Callable[..., Offline], tmp_path: Path) -> None:
    """Of a model that the host computes by the class of transformers, and that classifies by more
    than one layer."""
    config = {**CLASSES, "embedding_size": 64}
    name = "ElectraForSequenceClassification"
    spec, model = written(PoolingSpec(name, "", "electra", config, auto=SEQUENCE), tmp_path)
    asked = prompts(5, 200)
    tokens = [{"prompt_token_ids": list(ids)} for ids in asked]
    found = start(tmp_path).classify(tokens, use_tqdm=False)
    for ids, output in zip(asked, found, strict=True):
        right = pooling.expected(model, spec, ids, None)
        mine = torch.tensor(output.outputs.probs)
        torch.testing.assert_close(mine, right, atol=EXACT, rtol=0)


@pytest.mark.parametrize(
    ("spec", "what"),
    [
        (
            PoolingSpec("DistilBertModel", "", "distilbert", {"dim": 192, "n_heads": 6}),
            "DistilBertModel, .* has an attention that vLLM cannot take over: choose",
        ),
        (
            PoolingSpec("ErnieForSequenceClassification", "", "ernie", CLASSES, auto=SEQUENCE),
            "ErnieModel, .* classifies behind a pooler, which vLLM leaves out: choose",
        ),
        (
            PoolingSpec("EuroBertForSequenceClassification", "", "eurobert", auto=SEQUENCE),
            r"EuroBertModel, .* classifies behind a layer \(dense\) that vLLM leaves out: choose",
        ),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_classes_of_transformers_that_the_host_cannot_use(
    start: Callable[..., Offline], tmp_path: Path, spec: PoolingSpec, what: str
) -> None:
    written(spec, tmp_path)
    with pytest.raises(ConfigError, match=what):
        start(tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        "ModernBertModel",
        pytest.param("Qwen3Model", marks=pytest.mark.slow),
        pytest.param("XLMRobertaModel", marks=pytest.mark.slow),
    ],
)
def test_texts_of_many_pages(start: Callable[..., Offline], tmp_path: Path, name: str) -> None:
    """Up to the last position, in windows and all over, beside short ones."""
    longest = 1500
    positions = longest + (name == "XLMRobertaModel")  # the first is never used
    spec, model = make(name, tmp_path, max_position_embeddings=positions)
    engine = start(tmp_path, spec.pool, max_model_len=longest)
    asked = prompts(longest, 3, 1025, 300)
    for ids, mine in zip(asked, embed(engine, asked), strict=True):
        right = pooling.expected(model, spec, ids, None)
        torch.testing.assert_close(mine, right, atol=EXACT, rtol=0)
