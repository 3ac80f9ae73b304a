"""Drafts of models with latent attention, most of all by layers of their own (MTP), and of others
that have such layers: greedy fp32 tokens are those of the same engine without drafts, alone, in
batches, chunks and from the prefix cache, with steps recorded.

Small random models of the zoo.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.conftest import mostly_slow
from tests.e2e import drafts, mtp_heads
from tests.e2e.conftest import Start
from tests.e2e.test_speculation import DRAFTS, SUFFIX, Answers, ask
from tests.e2e.test_speculation_states import NEW_TOKENS, NGRAM, SETTINGS

TWO_RANKS = {"tensor_parallel_size": 2}
EAGER = {"enforce_eager": True}
WITH_CODE = {"trust_remote_code": True}
# The model and what the engine is told besides.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "DeepSeek V3": ("DeepseekV3ForCausalLM", {}),
    "DeepSeek V3, eager": ("DeepseekV3ForCausalLM", EAGER),
    "DeepSeek V3 on two ranks": ("DeepseekV3ForCausalLM", TWO_RANKS),
    "GLM-4.5": ("Glm4MoeForCausalLM", {}),
    "GLM-4.7-Flash": ("Glm4MoeLiteForCausalLM", {}),
    "Hunyuan 3": ("HYV3ForCausalLM", {}),
    "K-EXAONE": ("ExaoneMoeForCausalLM", {}),
    "Ling 2.5": ("BailingMoeV2_5ForCausalLM", WITH_CODE),
    "LongCat-Flash": ("LongcatFlashForCausalLM", {}),
    "MiMo": ("MiMoForCausalLM", {}),
    "MiMo V2 Flash": ("MiMoV2FlashForCausalLM", {}),
}
MTP = {"method": "mtp", "num_speculative_tokens": DRAFTS}


@pytest.mark.parametrize("case", mostly_slow(MODELS, "DeepSeek V3"))
def test_a_layer_like_the_models_own_drafts_what_the_model_says(
    case: str, start: Start, tmp_path: Path
) -> None:
    """But for what it does not see, so that some drafts are refused."""
    name, options = MODELS[case]
    model = mtp_heads.write(tmp_path / "model", name)
    settings = SETTINGS | options
    expected = ask(start(model, **settings), drafts.SMALL_VOCABULARY, NEW_TOKENS)
    assert expected.alone == expected.together == expected.again
    running = start(model, speculative_config=MTP, **settings)
    answers = ask(running, drafts.SMALL_VOCABULARY, NEW_TOKENS)
    for tokens in answers.tokens:
        assert tokens == expected.alone
    assert answers.logprobs == pytest.approx(expected.logprobs, abs=1e-4)
    assert answers.drafted > 500
    assert 0.8 < answers.accepted / answers.drafted < 1


@pytest.mark.parametrize("case", mostly_slow(MODELS, "GLM-4.7-Flash"))
def test_a_layer_reads_the_state_before(case: str, start: Start, tmp_path: Path) -> None:
    """Of a model that says with each token which one is next, also where it drafts from its own."""
    name, options = MODELS[case]
    model = mtp_heads.write(tmp_path / "model", name, by_states=True)
    running = start(model, speculative_config=MTP, **SETTINGS | options)
    answers = ask(running, drafts.SMALL_VOCABULARY, NEW_TOKENS)
    for text in answers.alone:
        assert text == [(text[0] + i) % drafts.SMALL_VOCABULARY for i in range(NEW_TOKENS)]
    assert answers.alone == answers.together == answers.again
    assert answers.accepted == answers.drafted > 500


@pytest.fixture(scope="module")
def latent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with latent attention; of DeepSeek V3 the host would make the layer that drafts."""
    folder = tmp_path_factory.mktemp("latent") / "model"
    return drafts.write_small(folder, "DeepseekV2ForCausalLM", q_lora_rank=64, num_hidden_layers=4)


@pytest.fixture(scope="module")
def expected(start: Start, latent: Path) -> Answers:
    return ask(start(latent, **SETTINGS), drafts.SMALL_VOCABULARY, NEW_TOKENS)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["draft_model", "eagle3", "ngram", SUFFIX])
def test_latent_attention_verifies_drafts(
    method: str, start: Start, latent: Path, expected: Answers, tmp_path: Path
) -> None:
    """Of a draft model, which is the target itself, of a head of random numbers, and of texts."""
    speculative = {"method": method, "num_speculative_tokens": DRAFTS}
    if method == "ngram":
        speculative |= NGRAM
    elif method == "draft_model":
        speculative["model"] = str(latent)
    elif method == "eagle3":
        speculative["model"] = str(drafts.write_latent_head(latent, tmp_path / "eagle3"))
    running = start(latent, speculative_config=speculative, **SETTINGS)
    answers = ask(running, drafts.SMALL_VOCABULARY, NEW_TOKENS)
    for tokens in answers.tokens:
        assert tokens == expected.alone
    assert answers.logprobs == pytest.approx(expected.logprobs, abs=1e-4)
    assert answers.drafted > 300
    least, most = {"draft_model": (0.97, 1), "eagle3": (0, 0.5)}.get(method, (0.03, 0.9))
    assert least <= answers.accepted / answers.drafted <= most
