"""Programs and packages that some tests need and a newcomer may lack, and what to do about it.

A test names them: ``@pytest.mark.needs("nginx")``.  Where one is missing the test is skipped, and
the skip stands in the table at the end of the run (tests/report.py).  With
CPU_BACKEND_TEST_NEED_TOOLS=1 it is an error instead, as in continuous integration, which installs
them all.  What cannot be installed, a right that a container withholds, stays a skip.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tools import cgroup

# Beside the other packages the host would import it at every start.
TORCHAO = Path(sys.prefix) / "torchao"
NEED_ALL = "CPU_BACKEND_TEST_NEED_TOOLS"
# System programs that a user's PATH often leaves out.
PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])


def find(program: str) -> str | None:
    return shutil.which(program, path=PATH)


@dataclass(frozen=True)
class Tool:
    tests: str  # what goes untested without it
    install: str
    is_there: Callable[[], bool]
    installable: bool = True


def _program(name: str, tests: str, package: str) -> Tool:
    return Tool(tests, f"apt install {package}", lambda: find(name) is not None)


def _can_make_network_namespaces() -> bool:
    if (unshare := find("unshare")) is None:
        return False
    return subprocess.run([unshare, "-n", "true"], capture_output=True).returncode == 0


def _host_is_since(minor: int) -> bool:
    from cpu_backend.host.source import host

    return host().release >= (0, minor)


TOOLS = {
    "vLLM 0.33": Tool(
        "models that came with vLLM 0.33",
        "make test VLLM_VERSION=0.33.0 TORCH_VERSION=2.14.0, in another clone",
        lambda: _host_is_since(33),
        installable=False,
    ),
    "nginx": _program("nginx", "the nginx example before two servers", "nginx"),
    "haproxy": _program("haproxy", "the HAProxy example before two servers", "haproxy"),
    "buildah": _program("buildah", "images", "buildah"),
    "unshare": _program("unshare", "images", "util-linux"),
    "gcc": _program("gcc", "stand-ins for CUDA's libraries", "gcc"),
    "ip": _program("ip", "ranks on two machines", "iproute2"),
    "network namespaces": Tool(
        "ranks on two machines",
        "run as root, with CAP_SYS_ADMIN",
        _can_make_network_namespaces,
        installable=False,
    ),
    "control groups": Tool(
        "limits of memory and CPU time",
        "run as root where control groups of version 1 can be written",
        cgroup.can_be_made,
        installable=False,
    ),
    "setpriv": _program("setpriv", "servers of two users on one machine", "util-linux"),
    "root": Tool(
        "servers of two users, folders without permission",
        "run as root",
        lambda: os.geteuid() == 0,
        installable=False,
    ),
    "aarch64-linux-gnu-g++": _program(
        "aarch64-linux-gnu-g++", "all on aarch64", "g++-aarch64-linux-gnu"
    ),
    "llvm-mca-19": _program(
        "llvm-mca-19", "how fast models of CPUs run the kernels' loops", "llvm-19"
    ),
    "qemu-aarch64-static": _program("qemu-aarch64-static", "all on aarch64", "qemu-user-static"),
    "apt-get": Tool(
        "the whole plugin on aarch64",
        "use Debian or Ubuntu",
        lambda: find("apt-get") is not None,
        installable=False,
    ),
    "s390x-linux-gnu-g++": _program(
        "s390x-linux-gnu-g++", "kernels on s390x", "g++-s390x-linux-gnu"
    ),
    "python-zig": Tool(
        "whether the kernels compile for macOS",
        "pip install -r requirements/foreign.txt",
        lambda: find("python-zig") is not None,
    ),
    "qemu-s390x-static": _program("qemu-s390x-static", "kernels on s390x", "qemu-user-static"),
    "torchvision": Tool(
        "most models that take images",
        "make image-models-test",
        lambda: importlib.util.find_spec("torchvision") is not None,
        installable=False,  # that such models name it where it is missing is tested as well
    ),
    "torchao": Tool(
        "checkpoints of torchao",
        "make .venv/.stamps/torchao",
        lambda: TORCHAO.is_dir(),
    ),
    "torchaudio": Tool(
        "Granite Speech",
        "pip install torchaudio==2.11.0 --no-deps --index-url https://download.pytorch.org/whl/cpu",
        lambda: importlib.util.find_spec("torchaudio") is not None,
        installable=False,
    ),
    "num2words": Tool(
        "SmolVLM",
        "pip install num2words",
        lambda: importlib.util.find_spec("num2words") is not None,
        installable=False,
    ),
    "timm": Tool(
        "Gemma 3n with images",
        "pip install --no-deps timm",
        lambda: importlib.util.find_spec("timm") is not None,
        installable=False,
    ),
    "kubernetes-validate": Tool(
        "the Kubernetes examples against the schemas of Kubernetes",
        "pip install kubernetes-validate",
        lambda: importlib.util.find_spec("kubernetes_validate") is not None,
    ),
    "check-jsonschema": Tool(
        "the Compose example against the schema of Compose",
        "pip install check-jsonschema",
        lambda: importlib.util.find_spec("check_jsonschema") is not None,
    ),
    "zentorch": Tool(
        "zentorch as a provider",
        "pip install 'zentorch==2.13.*'",
        lambda: importlib.util.find_spec("zentorch") is not None,
    ),
    "ipex": Tool(
        "Intel Extension for PyTorch as a provider",
        "make ipex-test",
        lambda: importlib.util.find_spec("intel_extension_for_pytorch") is not None,
        installable=False,  # no torch of a host that is served here
    ),
    "arctic-inference": Tool(
        "drafts from suffixes",
        "pip install --no-deps --no-build-isolation arctic-inference",
        lambda: importlib.util.find_spec("arctic_inference") is not None,
        installable=False,
    ),
    "bochs-headless": Tool(
        "AVX-512 and AMX kernels on emulated CPUs",
        ".ci/install_bochs",
        lambda: find("bochs-headless") is not None,
    ),
}


@cache
def is_there(tool: str) -> bool:
    """Whether this machine has it; KeyError if the table above does not know it."""
    return TOOLS[tool].is_there()


def must_be_there(tool: str) -> bool:
    """Whether its absence is an error."""
    return os.environ.get(NEED_ALL, "") == "1" and TOOLS[tool].installable


def sentence(tool: str) -> str:
    return f"needs {tool} ({TOOLS[tool].install})"
