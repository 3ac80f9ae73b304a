"""Paths of the host's server that need another kind of engine."""

from __future__ import annotations

from collections.abc import Callable

import openai
import pytest

from tests.ray_serve.cluster import OPTIONS, Endpoint


@pytest.mark.slow
def test_embeddings(deploy: Callable[..., Endpoint]) -> None:
    endpoint = deploy(options=f"{OPTIONS} --runner pooling")
    texts = ["A cat sat on the mat.", "A kitten lay on the rug.", "Shares fell on Monday."]
    reply = endpoint.client().embeddings.create(model=endpoint.model, input=texts)
    cat, kitten, shares = (item.embedding for item in reply.data)

    def cosine(a: list[float], b: list[float]) -> float:
        return sum(x * y for x, y in zip(a, b, strict=True))

    assert cosine(cat, cat) == pytest.approx(1, abs=1e-4)
    assert cosine(cat, kitten) > cosine(cat, shares)

    with pytest.raises(openai.BadRequestError, match="does not support Matryoshka"):
        endpoint.client().embeddings.create(model=endpoint.model, input=texts, dimensions=64)
