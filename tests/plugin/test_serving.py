"""Errors as sentences, odd requests, the engine's sign of life: each without an engine."""

from __future__ import annotations

import asyncio
import json
import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import pydantic
import pytest
import xgrammar

from cpu_backend.errors import ConfigError
from cpu_backend.host import health, seam
from cpu_backend.serving import engine_start, heartbeat, requests, sentences
from cpu_backend.serving.engine_end import how_it_ended

# ---- sentences -----------------------------------------------------------------------------------


class Settings(pydantic.BaseModel):
    """A configuration of the host's kind."""

    size: int

    @pydantic.field_validator("size")
    @classmethod
    def positive(cls, size: int) -> int:
        if size < 1:
            raise ValueError("Too small.\n  Choose more. " + "More words. " * 100)
        assert size < 99, "Too large."
        return size


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0, "size: Too small. Choose more. More words."),
        (100, "size: Too large."),
        ("x", "size: Input should be a valid int"),
    ],
)
def test_validation_errors_of_pydantic_become_one_line(value: object, said: str) -> None:
    with pytest.raises(ConfigError) as caught, sentences.told():
        Settings(size=value)  # type: ignore[arg-type]
    text = str(caught.value)
    assert text.startswith(said)
    assert "\n" not in text
    assert len(text) <= sentences.LONGEST
    assert "pydantic" not in text


def test_an_assertion_without_words_says_what_it_asks_for(tmp_path: Path) -> None:
    source = tmp_path / "odd.py"  # pytest would give an assertion of this file words
    source.write_text("def odd(size):\n    assert size % 2\n    return size\n")
    odd = runpy.run_path(str(source))["odd"]
    model = pydantic.create_model("Odd", size=(Annotated[int, pydantic.AfterValidator(odd)], 1))
    with pytest.raises(ConfigError, match=r"^size: vLLM needs size % 2: choose"):
        sentences.told()(model)(size=8)


def test_only_usual_errors_are_told() -> None:
    with pytest.raises(ConfigError, match=r"^'/no/file': No such file or directory$"):
        sentences.told()(open)("/no/file")
    with pytest.raises(AttributeError), sentences.told():
        raise AttributeError("a defect")
    own = ConfigError("as it is")
    with pytest.raises(ConfigError) as caught, sentences.told(Exception):
        raise own
    assert caught.value is own


def test_words_of_the_host_about_gpus_are_said_anew() -> None:
    host = (
        "User-specified max_model_len (9) is greater than the derived max_model_len "
        "(max_position_embeddings=8.0 or model_max_length=None in model's config.json). To allow "
        "this ... CUDA array out-of-bounds error."
    )
    assert sentences.sentence(ValueError(host)).startswith(
        "--max-model-len 9 is longer than the 8 "
    )


def test_what_only_the_hosts_v2_runner_has_is_said_anew() -> None:
    said = sentences.sentence(ValueError("Model Runner V1 does not support: dspark drafts"))
    assert said.startswith("vLLM has dspark drafts for its V2 model runner alone, which ")


@pytest.mark.parametrize(
    ("module", "said"),
    [
        ("fastsafetensors.common", "module fastsafetensors is not installed"),
        ("vllm._C", "No module named 'vllm._C'"),
    ],
)
def test_a_package_that_is_missing_comes_with_its_way_out(module: str, said: str) -> None:
    assert said in sentences.sentence(ModuleNotFoundError(f"No module named '{module}'"))


@pytest.mark.parametrize(
    ("module", "wanted", "is_told"),
    [
        ("vllm.entrypoints.cli.main", "", True),
        ("vllm.entrypoints.cli.main", "1", False),
        ("users.own", "", False),
    ],
)
def test_ctrl_c_ends_the_command_with_one_line_and_no_program_of_a_user(
    module: str, wanted: str, is_told: bool
) -> None:
    code = (
        "from cpu_backend.serving import sentences; sentences.print_without_traceback()\n"
        f"exec('def main(): raise KeyboardInterrupt', names := {{'__name__': {module!r}}})\n"
        "names['main']()"
    )
    environ = {**os.environ, "CPU_BACKEND_TRACEBACK": wanted}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environ)
    assert done.returncode == -signal.SIGINT
    assert ("Traceback" in done.stderr) != is_told
    assert (done.stderr == "cpu_backend: stopped by Ctrl-C or SIGTERM.\n") == is_told


@pytest.mark.parametrize("traceback", ["", "1"])
def test_uncaught_sentence_is_the_only_line_unless_the_traceback_is_wanted(traceback: str) -> None:
    code = (
        "from cpu_backend.serving import sentences; sentences.print_without_traceback()\n"
        "with sentences.told(): int('x')"
    )
    environ = {**os.environ, "CPU_BACKEND_TRACEBACK": traceback}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environ)
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    assert ("Traceback" in done.stderr) == bool(traceback)
    assert traceback or lines == ["cpu_backend: invalid literal for int() with base 10: 'x'"]


def test_the_first_sentence_of_a_server_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_start.tempfile, "gettempdir", lambda: str(tmp_path))
    assert engine_start.take("abc") == ""
    engine_start.leave("abc", "first")
    engine_start.leave("abc", "second")
    assert engine_start.take("abc") == "first"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (-9, "killed by signal 9 (SIGKILL), often because memory ran out"),
        (-11, "killed by signal 11 (SIGSEGV), a fault in native code"),
        (-40, "killed by signal 40"),
        (1, "ended with exit code 1: the log above says why"),
    ],
)
def test_how_an_engine_ended(code: int, words: str) -> None:
    assert words in how_it_ended(code)


# ---- requests ------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["\ud800", "a\udfff", "\ude00\ud83d", "\ud800\ud800\udc00"])
@pytest.mark.parametrize("where", ["prompt", "deep", "key"])
def test_half_pairs_are_found_wherever_they_are(text: str, where: str) -> None:
    body = {"prompt": {"prompt": text}, "deep": {"a": [{"b": [text]}]}, "key": {text: 1}}[where]
    assert "surrogate" in requests.odd(json.dumps(body).encode(), body)
    raw = json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass")
    assert "surrogate" in requests.odd(raw, json.loads(raw))


def test_usual_bodies_are_let_pass() -> None:
    for text in ("plain", "\U0001f600", "\ud7ff\ue000", "\\ud800 in words"):
        for ascii_only in (True, False):
            body = {"prompt": text, "structured_outputs": {"regex": "a"}}
            raw = json.dumps(body, ensure_ascii=ascii_only).encode()
            assert requests.odd(raw, body) == ""
    assert requests.odd(b"[1]", [1]) == ""
    assert requests.odd(b"{}", {"structured_outputs": None}) == ""


@pytest.mark.parametrize("value", ["text", [], 1, True])
def test_constraints_that_are_no_object_are_refused(value: object) -> None:
    body = {"structured_outputs": value}
    assert "must be an object" in requests.odd(json.dumps(body).encode(), body)


@pytest.mark.parametrize(
    ("pattern", "productive"),
    [
        ("a+", True),
        ("", True),
        (r"[^\s\S]", False),
        (r"a[^\s\S]", False),
        (r"a[^\s\S]*", True),
        (r"a|[^\s\S]", True),
        (r"([^\s\S]b){2,3}", False),
        (r"([^\s\S]b){0,3}", True),
    ],
)
def test_patterns_without_a_text_are_found(pattern: str, productive: bool) -> None:
    grammar = xgrammar.Grammar.from_regex(pattern).serialize_json()
    assert requests.is_productive(grammar) == productive


@pytest.mark.parametrize(
    ("grammar", "productive"),
    [
        ('root ::= "a"', True),
        ('root ::= ""', True),
        ("root ::= root", False),
        ('root ::= root "a"', False),
        ('root ::= root "a" | "b"', True),
        ("root ::= a\na ::= b\nb ::= root", False),
        ('root ::= a{2,4}\na ::= "x" a', False),
        ('root ::= "(" root ")" | "x"', True),
    ],
)
def test_grammars_without_an_end_are_found(grammar: str, productive: bool) -> None:
    text = xgrammar.Grammar.from_ebnf(grammar).serialize_json()
    assert requests.is_productive(text) == productive


@pytest.mark.parametrize(
    ("schema", "productive"),
    [
        ({"$ref": "#"}, False),
        ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, False),
        ({"type": "object", "properties": {"a": {"$ref": "#"}}}, True),
        ({"type": "array", "items": {"$ref": "#"}}, True),
        ({"type": "string", "pattern": "^[a-z]+$"}, True),
        ({"enum": ["a", 1, None]}, True),
        ({}, True),
    ],
)
def test_schemas_without_an_end_are_found(schema: object, productive: bool) -> None:
    text = xgrammar.Grammar.from_json_schema(json.dumps(schema)).serialize_json()
    assert requests.is_productive(text) == productive


# ---- the sign of life ----------------------------------------------------------------------------

ENGINE = """
import sys, time
from cpu_backend.serving import heartbeat
heartbeat.Answerer([heartbeat.name(sys.argv[1], 0)], lambda: float(sys.argv[2]))
print("ready", flush=True)
while True:
    time.sleep(60)
"""


@contextmanager
def engine(address: str, busy: float) -> Iterator[int]:
    """A process that answers that it has been busy for so long."""
    command = [sys.executable, "-c", ENGINE, address, str(busy)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            yield process.pid
        finally:
            process.kill()


def ask(asker: heartbeat.Asker) -> str:
    return asyncio.run(asker.hang())


def wait_for(asker: heartbeat.Asker, words: str) -> float:
    """Seconds until the answer has ``words``, or is empty as they are."""
    start = time.monotonic()
    while words not in (said := ask(asker)) or bool(said) != bool(words):
        assert time.monotonic() - start < 60, said
        time.sleep(0.1)
    return time.monotonic() - start


def test_a_stopped_process_hangs_until_it_runs_again() -> None:
    address = f"ipc:///tmp/{os.getpid()}"
    asker = heartbeat.Asker([heartbeat.name(address, 0)], seconds=1.5)
    with engine(address, busy=0) as pid:
        assert ask(asker) == ""
        os.kill(pid, signal.SIGSTOP)
        assert wait_for(asker, "no sign of life") >= 1.5
        for _ in range(30):  # more questions than the queue of a socket takes
            asyncio.run(_ask_in_vain(asker))
        assert "no sign of life" in ask(asker)
        os.kill(pid, signal.SIGCONT)
        wait_for(asker, "")
    assert ask(asker) == "", "whether a process has ended others tell"


async def _ask_in_vain(asker: heartbeat.Asker) -> None:
    try:
        await asyncio.wait_for(asker.hang(), 0.01)
    except TimeoutError:
        return


@pytest.mark.parametrize(("busy", "hangs"), [(59.0, False), (61.0, True)])
def test_a_step_is_a_hang_only_after_much_longer(busy: float, hangs: bool) -> None:
    address = f"ipc:///tmp/busy{os.getpid()}"
    asker = heartbeat.Asker([heartbeat.name(address, 0)], seconds=1.0)
    with engine(address, busy):
        assert ("busy with one step" in ask(asker)) == hangs


def test_the_time_of_a_step_is_that_since_it_began() -> None:
    class Engine:
        """Takes note of what its loop does, as EngineCoreProc."""

        _busy_since: float | None = None

        def _process_engine_step(self) -> float | None:
            return self._busy_since

        def _handle_client_request(self) -> None:
            raise ValueError("a request fails")

    seam.replace(Engine, "_process_engine_step", health.step)
    seam.replace(Engine, "_handle_client_request", health.handle)
    loop = Engine()
    before = time.monotonic()
    begun = loop._process_engine_step()
    assert begun is not None
    assert before <= begun <= time.monotonic()
    with pytest.raises(ValueError, match="fails"):
        loop._handle_client_request()
    assert loop._busy_since is None
