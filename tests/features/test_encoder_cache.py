"""A picture that is asked about again, with other words, is encoded once, and the answers are those
of an engine that encodes it each time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from tests.features.offline import Offline
from tests.zoo import build, image_specs
from tests.zoo.media import PICTURES, Picture, Shown

IDEFICS = next(spec for spec in image_specs.SPECS if spec.models == "Idefics 3")
TOWER = "model.vision_model"
NEW_TOKENS = 8


def about(picture: Picture, before: str, after: str) -> Shown:
    return Shown(("<image>",), before, (picture,), after)


FIRST = about(PICTURES[0], "what is ", " here")
# Other words before the picture, so the prefix cache knows nothing of it.
AGAIN = about(PICTURES[0], "tell me of ", " all that you see")
OTHER = about(PICTURES[1], "what is ", " here")
OTHER_AGAIN = about(PICTURES[1], "tell me of ", " all that you see")

# At once, one round after the other.
ROUNDS = ((FIRST,), (AGAIN,), (OTHER, OTHER_AGAIN), (AGAIN, OTHER))


@dataclass(frozen=True)
class Round:
    """answers: tokens with their log-probabilities; pieces: of pictures, given to the tower."""

    answers: list[list[tuple[int, float]]]
    pieces: int


def count(model: Any) -> None:
    """Begin to count the pieces of pictures that the tower is given."""
    tower = model.get_submodule(TOWER)
    tower.pieces = 0

    def add(_: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        tower.pieces += len(args[0] if args else named["pixel_values"])

    tower.register_forward_pre_hook(add, with_kwargs=True)


def counted(model: Any) -> int:
    found: int = model.get_submodule(TOWER).pieces
    return found


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, list[Round]]:
    """What engines with the host's caches of media and without them make of the same questions."""
    model = tmp_path_factory.mktemp("idefics")
    IDEFICS.processor(model)
    build.build(IDEFICS, model)
    common = {"dtype": "float32", "max_model_len": 512, "max_num_seqs": 4}
    # Without either cache the host tells media apart by their requests.
    without = {"mm_processor_cache_gb": 0, "enable_prefix_caching": False}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_ALLOW_INSECURE_SERIALIZATION", "1")  # of functions for apply_model
        with Offline(str(model), **common) as engine:
            cached = asked(engine)
            engine.start(str(model), **common, **without)
            return {True: cached, False: asked(engine)}


def asked(engine: Offline) -> list[Round]:
    from vllm import SamplingParams

    engine.apply_model(count)
    sampling = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True, logprobs=0)
    rounds, before = [], 0
    for questions in ROUNDS:
        requests = [question.request() for question in questions]
        outputs = [r.outputs[0] for r in engine.generate(requests, sampling, use_tqdm=False)]
        answers = [
            [
                (token, said[token].logprob)
                for token, said in zip(o.token_ids, o.logprobs, strict=True)
            ]
            for o in outputs
        ]
        [pieces] = engine.apply_model(counted)
        rounds.append(Round(answers, pieces - before))
        before = pieces
    return rounds


def test_picture_in_two_requests_is_encoded_once(found: dict[bool, list[Round]]) -> None:
    first, again, others, both = found[True]
    assert first.pieces > 0
    assert again.pieces == 0
    assert both.pieces == 0
    # Of two at once, too.
    assert others.pieces > 0
    assert 2 * others.pieces == found[False][2].pieces


def test_without_caches_it_is_encoded_each_time(found: dict[bool, list[Round]]) -> None:
    first, again, others, both = found[False]
    assert first.pieces == again.pieces > 0
    assert both.pieces == first.pieces + others.pieces // 2


def test_answers_are_the_same(found: dict[bool, list[Round]]) -> None:
    for cached, encoded in zip(found[True], found[False], strict=True):
        assert cached.answers == encoded.answers
    [first], [again] = found[True][0].answers, found[True][1].answers
    assert first != again  # other words, another answer


def test_another_picture_gets_another_answer(found: dict[bool, list[Round]]) -> None:
    [first], others = found[True][0].answers, found[True][2].answers
    assert first != others[0]
