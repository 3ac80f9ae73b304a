"""How pip's settings reach the build of an image."""

from __future__ import annotations

import configparser
import platform
import subprocess
from pathlib import Path

import pytest

from tools import container, image


def test_settings_of_pip_reach_the_build_with_the_folders_they_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels, index = tmp_path / "wheels", tmp_path / "index"
    certificates = tmp_path / "ca.pem"
    for folder in (wheels, index / "simple"):
        folder.mkdir(parents=True)
    certificates.touch()
    listed = (
        f"global.find-links='{wheels}'\n"
        f":env:.extra-index-url='file://{index}/simple https://example.org/simple'\n"
        f"global.cert='{certificates}'\n"
        "install.user='true'\n"  # of one command: not for here
    )
    answer = subprocess.CompletedProcess([], 0, stdout=listed)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: answer)
    options = image.pip_options(tmp_path / "pip.conf")
    assert options == [
        f"--volume={certificates}:/run/pip/certificates.pem:ro",
        f"--volume={wheels}:{wheels}:ro",
        f"--volume={index}:{index}:ro",
        "--build-arg=TORCH_PIP_ARGS=",
    ]
    config = configparser.RawConfigParser()
    config.read(tmp_path / "pip.conf")
    assert dict(config["global"]) == {
        "find-links": str(wheels),
        "extra-index-url": f"file://{index}/simple https://example.org/simple",
        "cert": "/run/pip/certificates.pem",
    }


def test_without_settings_of_its_own_the_dockerfile_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = subprocess.CompletedProcess([], 0, stdout="global.timeout='9'\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: answer)
    assert image.pip_options(tmp_path / "pip.conf") == []


def test_an_architecture_whose_programs_do_not_run_here_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    image.check_machine("arm64")
    # Nobody registers an emulator of x86-64 on x86-64.
    with pytest.raises(container.ImageError, match="no programs for x86_64: install qemu-user-s"):
        image.check_machine("amd64")
