"""The native libraries beside this file, and which of them this process loads.

`_kernels.so` knows nothing of torch and is the same for every one.  `_ops_2_13.so` binds it to
torch 2.13, and so on: torch promises nothing across minor versions.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from cpu_backend import __version__
from cpu_backend.errors import ConfigError

FOLDER = Path(__file__).parent
KERNELS = "_kernels.so"
REINSTALL = (
    "install its wheel again with `pip install --force-reinstall --no-deps`, or run "
    "`pip install .` in its sources"
)


@dataclass(frozen=True)
class Library:
    """What the loaded library says about itself."""

    target: str
    runnable: tuple[str, ...]
    built: tuple[str, ...]
    torch: str
    next: str  # what a better CPU would bring, or nothing

    @classmethod
    def parse(cls, description: str) -> Library:
        """Raises ConfigError where it is of another version than the Python files."""
        fields = dict(part.split("=", 1) for part in description.split(";"))
        version = fields.get("version", "an earlier one")
        if version != __version__:
            raise ConfigError(
                f"cpu_backend is installed in part: its Python files are version {__version__} and "
                f"its library is {version}: {REINSTALL}."
            )
        runnable, built = (tuple(fields[name].split(",")) for name in ("runnable", "built"))
        return cls(fields["target"], runnable, built, fields["torch"], fields["next"])


def served() -> list[str]:
    """The minor versions of torch that this installation has a library for: "2.13"."""
    found = (re.fullmatch(r"_ops_(\d+)_(\d+)\.so", path.name) for path in FOLDER.iterdir())
    minors = sorted((int(match[1]), int(match[2])) for match in found if match)
    return [f"{major}.{minor}" for major, minor in minors]


def ops_library(torch_version: str) -> Path:
    """The library to load beside this torch.  Raises ConfigError where there is none."""
    minors = served()
    if not minors or not (FOLDER / KERNELS).exists():
        missing = KERNELS if minors else "library"
        raise ConfigError(f"cpu_backend was installed without its native {missing}: {REINSTALL}.")
    minor = ".".join(torch_version.split(".")[:2])
    if minor not in minors:
        raise ConfigError(
            f"cpu_backend was built for torch {' and '.join(minors)} and this is torch "
            f"{torch_version}: install torch=={minors[-1]}.*, or run `pip install .` again in the "
            "sources of cpu_backend."
        )
    return FOLDER / f"_ops_{minor.replace('.', '_')}.so"


def other_versions() -> list[str]:
    """One sentence if Python finds several versions of this package, of which it takes one."""
    found = {each.version for each in metadata.distributions(name="vllm-cpu-backend")}
    versions = sorted(found - {__version__, None})  # None: what removing one has left behind
    if not versions:
        return []
    return [
        f"version {__version__} in {FOLDER} is used, and {' and '.join(versions)} is installed as "
        "well: run `pip uninstall vllm-cpu-backend` until none is left, and install one again."
    ]


def load_failure(error: OSError) -> ConfigError:
    """Why the system's loader refused, in one sentence."""
    reason = str(error.__cause__ or error)  # torch's own wording leaves the loader's out
    if found := re.search(r"version [`'](GLIBC(?:XX)?|CXXABI)_([\w.]+)' not found", reason):
        name = "glibc" if found[1] == "GLIBC" else "libstdc++"
        return ConfigError(
            f"cpu_backend was built on a newer system, whose {name} has {found[1]}_{found[2]}: "
            "install its manylinux wheel, or run `pip install .` in its sources on this system."
        )
    if "version `CPU_BACKEND_" in reason:
        return ConfigError(
            f"cpu_backend is installed in part: its libraries are of two builds: {REINSTALL}."
        )
    return ConfigError(f"cpu_backend cannot load its native library: {reason}.")
