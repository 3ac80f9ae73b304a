"""The demo model's prompts on disk: another engine finds them, and no damage changes an answer."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from cpu_backend import envs
from cpu_backend.errors import ConfigError
from tests.e2e import drafts, engine
from tests.zoo import build, image_specs

BLOCK = 128
TEXT = (Path(__file__).parent / "alice.txt").read_text()


@pytest.fixture(scope="module")
def text(model_path: str) -> list[int]:
    tokens: list[int] = AutoTokenizer.from_pretrained(model_path)(TEXT).input_ids
    return tokens + tokens[::-1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all tests, whose prompts begin with a token of their own."""
    return tmp_path_factory.mktemp("pages")


def ask(
    model_path: str, folder: Path | None, batches: list[list[list[int]]], **options: Any
) -> list[list[Any]]:
    """What a new engine answers."""
    job = {
        "engine": {"model": model_path, "dtype": "bfloat16", "max_model_len": 1024, **options},
        "batches": batches,
        "sampling": {"max_tokens": 12, "logprobs": 0},
    }
    return engine.run(job, **({envs.DISK_CACHE.name: str(folder)} if folder else {}))


def files(folder: Path) -> set[Path]:
    return {path for path in folder.glob("*/??/*") if path.is_file()}


def same(first: dict[str, Any], second: dict[str, Any]) -> bool:
    return all(first[name] == second[name] for name in ("tokens", "logprobs"))


def test_another_engine_finds_prompts_and_damage_is_computed_anew(
    model_path: str, text: list[int], folder: Path
) -> None:
    """Stored, found, found together, damaged, and stored rightly again."""
    prompt, branch = [10, *text[:900]], [10, *text[:700], *text[1000:1200]]
    [[plain], [plain_branch]] = ask(model_path, None, [[prompt], [branch]])
    before = files(folder)
    [[stored], [again]] = ask(model_path, folder, [[prompt], [prompt]])
    assert (stored["cached"], again["cached"]) == (0, 896)
    assert same(stored, plain)
    kept = files(folder) - before
    assert len(kept) == 7
    together = [prompt, branch, prompt, prompt]
    [found] = ask(model_path, folder, [together])
    for answer, expected in zip(found, [plain, plain_branch, plain, plain], strict=True):
        assert answer["cached"] >= 700 // BLOCK * BLOCK
        assert same(answer, expected)
    generator = random.Random(1)
    cut, changed, stuck = generator.sample(sorted(kept), 3)
    os.truncate(cut, cut.stat().st_size // 2)
    content = bytearray(changed.read_bytes())
    content[generator.randrange(len(content))] ^= 16
    changed.write_bytes(content)
    stuck.unlink()
    stuck.mkdir()  # which cannot be removed as a file
    [[mended], [after]] = ask(model_path, folder, [[prompt], [prompt]])
    assert mended["cached"] < 896
    assert same(mended, plain)
    assert same(after, plain)
    stuck.rmdir()
    ask(model_path, folder, [[prompt]])
    [[last]] = ask(model_path, folder, [[prompt]])
    assert last["cached"] == 896
    assert same(last, plain)


def test_memory_that_holds_one_prompt_reads_the_others_from_the_disk(
    model_path: str, text: list[int], folder: Path
) -> None:
    prompts = [[20, *text[i : i + 900]] for i in (0, 100, 200)]
    rounds, blocks = [[prompt] for prompt in prompts] * 2, {"num_gpu_blocks_override": 10}
    plain = ask(model_path, None, rounds, **blocks)
    found = ask(model_path, folder, rounds, **blocks)
    assert [answer["cached"] for [answer] in plain] == [0] * 6, "all are meant not to fit"
    assert [answer["cached"] for [answer] in found] == [0] * 3 + [896] * 3
    assert all(same(a, b) for [a], [b] in zip(plain, found, strict=True))


def test_more_requests_than_memory_holds(model_path: str, text: list[int], folder: Path) -> None:
    """Requests are put off and begin again while pages come and go."""
    prompts = [[30, *text[i : i + 500]] for i in range(0, 400, 50)] * 2
    options = {"num_gpu_blocks_override": 14, "max_num_batched_tokens": 256}
    [plain] = ask(model_path, None, [prompts])
    for _ in range(2):
        [found] = ask(model_path, folder, [prompts], **options)
        assert all(same(a, b) for a, b in zip(plain, found, strict=True))
    assert max(answer["cached"] for answer in found) == 384


OPTIONS: dict[str, dict[str, Any]] = {
    "stages": {"pipeline_parallel_size": 2},
    "int8 cache": {"kv_cache_dtype": "int8_per_token_head"},
    "ngram": {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}},
    "draft_model": {},
    "eagle3": {},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIONS)
def test_beside_other_options(
    model_path: str, text: list[int], folder: Path, tmp_path: Path, name: str
) -> None:
    options = OPTIONS[name]
    if not options:  # drafts by a model, which has pages too
        if name == "eagle3":
            model = drafts.write_head(Path(model_path), tmp_path / "head", name)
        else:
            model = drafts.write_first_layers(Path(model_path), tmp_path / "layers", 2)
        options = {"method": name, "model": str(model), "num_speculative_tokens": 2}
        options = {"speculative_config": options}
    prompt = [40, *text[:900]]
    [[plain]] = ask(model_path, None, [[prompt]], **options)
    [[stored]] = ask(model_path, folder, [[prompt]], **options)
    [[found]] = ask(model_path, folder, [[prompt]], **options)
    assert (stored["cached"], found["cached"]) == (0, 896)
    assert same(stored, plain)
    assert same(found, plain)


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        ({"enable_lora": True}, "does not go with --enable-lora"),
        ({"prefix_caching_hash_algo": "xxhash"}, "differs from process to process: choose sha256"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_it_does_not_go_with(
    model_path: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    option: dict[str, Any],
    sentence: str,
) -> None:
    monkeypatch.setenv(envs.DISK_CACHE.name, str(tmp_path))
    with pytest.raises(ConfigError, match=sentence):
        _configure(model_path, **option)


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        (envs.DISK_CACHE, os.devnull, "is no folder that can be written: name another"),
        (envs.DISK_CACHE, "/proc/pages", "is no folder that can be written: name another"),
        (envs.DISK_CACHE_SPACE, "much", "is no size: give it in GiB"),
        (envs.DISK_CACHE_SPACE, "0", "is no size: give it in GiB"),
    ],
)
def test_settings_that_cannot_be(
    model_path: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: envs.Variable,
    value: str,
    sentence: str,
) -> None:
    monkeypatch.setenv(envs.DISK_CACHE.name, str(tmp_path))
    monkeypatch.setenv(name.name, value)
    with pytest.raises(ConfigError, match=sentence):
        _configure(model_path)


def test_where_it_has_no_effect_a_line_says_so(
    model_path: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv(envs.DISK_CACHE.name, str(tmp_path))
    config = _configure(model_path, enable_prefix_caching=False)
    assert config.kv_transfer_config is None
    assert "has no effect: prefix caching is off." in caplog.text


def test_clients_may_send_no_embeddings_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which the host allows where another server sends pages."""
    monkeypatch.setenv(envs.DISK_CACHE.name, str(tmp_path / "pages"))
    spec = next(s for s in image_specs.SPECS if s.name == "Idefics3ForConditionalGeneration")
    (tmp_path / "model").mkdir()
    spec.processor(tmp_path / "model")
    build.write_config(spec, tmp_path / "model")
    config = _configure(str(tmp_path / "model"))
    assert config.kv_transfer_config.kv_connector == "DiskConnector"
    media = config.model_config.multimodal_config
    assert not media.enable_mm_embeds
    assert not media.allow_missing_mm_embeddings


def _configure(model: str, **options: Any) -> Any:
    from vllm.engine.arg_utils import EngineArgs

    return EngineArgs(model, device="cpu", max_model_len=512, **options).create_engine_config()
