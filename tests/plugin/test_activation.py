"""When the plugin answers, when it steps aside, and what it is to the host."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

import cpu_backend
from cpu_backend import activation


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No remembered decision before or after, and nothing asked for."""
    monkeypatch.setattr(sys, "argv", ["vllm"])
    for name in ("VLLM_TARGET_DEVICE", "CPU_BACKEND_DEVICE"):
        monkeypatch.setenv(name, "")
    activation.decide.cache_clear()
    yield
    activation.decide.cache_clear()


@pytest.mark.parametrize("version", [(0, 29), (0, 34), (1, 0), None])
def test_host_outside_the_window_is_left_alone_with_one_line(
    monkeypatch: pytest.MonkeyPatch,
    version: tuple[int, int] | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(activation, "host_version", lambda: version)
    assert cpu_backend.register() is None
    [record] = caplog.records
    assert "steps aside" in record.message


def test_usable_accelerator_keeps_the_plugin_out_unless_the_cpu_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(activation, "torch_has_accelerator", lambda: True)
    monkeypatch.setattr(activation, "host_sees_accelerator", lambda: True)
    assert not activation.decide().active
    activation.decide.cache_clear()
    monkeypatch.setattr(sys, "argv", ["vllm", "serve", "model", "--device", "cpu"])
    assert activation.decide().active


def test_cuda_torch_without_a_gpu_computes_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activation, "torch_has_accelerator", lambda: True)
    monkeypatch.setattr(activation, "host_sees_accelerator", lambda: False)
    assert activation.decide().active


@pytest.mark.parametrize(
    ("argv", "environ", "requested"),
    [
        (["vllm", "serve", "m", "--device", "cpu"], {}, True),
        (["vllm", "serve", "m", "--device=cpu"], {}, True),
        (["vllm", "serve", "cpu", "--device", "auto"], {}, False),
        (["vllm"], {"VLLM_TARGET_DEVICE": "cpu"}, True),
        (["vllm"], {"VLLM_TARGET_DEVICE": "cuda"}, False),
        (["vllm"], {"CPU_BACKEND_DEVICE": "cpu"}, True),
    ],
)
def test_cpu_is_requested_by_option_or_environment(
    argv: list[str], environ: dict[str, str], requested: bool
) -> None:
    assert activation.cpu_requested(argv, environ) is requested


ASK_THE_HOST = """
from vllm.platforms import current_platform
from vllm.platforms.interface import PlatformEnum
assert current_platform._enum is PlatformEnum.CPU and current_platform.is_cpu()
assert not current_platform.is_out_of_tree()
print(type(current_platform).__name__)
"""


@pytest.mark.parametrize("target_device", ["", "cpu"])
def test_host_sees_a_cpu_platform_of_this_package(target_device: str) -> None:
    """The host's layers dispatch on PlatformEnum.CPU: anything else loses its CPU branches."""
    code = ASK_THE_HOST
    if target_device:  # the host skips platform plugins, so the general plugin has to act
        code = "from vllm.plugins import load_general_plugins\nload_general_plugins()\n" + code
        code = f"import os; os.environ['VLLM_TARGET_DEVICE'] = {target_device!r}\n" + code
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "CpuBackendPlatform"
