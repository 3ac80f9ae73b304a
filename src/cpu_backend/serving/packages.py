"""Python packages that some models need and the host does not bring: named, with the way to get
them, where the host shows a traceback.

A model's class may import one, and so may the processor that cuts its images and sounds.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any

from cpu_backend.errors import ConfigError
from cpu_backend.serving.sentences import sentence, told

# What the usual index has of these is made for GPUs and does not load beside torch for CPUs.
FOR_CPUS = "--no-deps --index-url https://download.pytorch.org/whl/cpu"
TORCHAUDIO = "2.11.0"  # its last release

# How transformers says who needs what.
NEEDS = (
    r"^(?P<who>\w+) requires the (?P<package>\w+) library",
    r"Package `(?P<package>\w+)` is required to run (?P<who>.+?)\. ",
)


def missing(who: str, package: str) -> ConfigError:
    """What to raise."""
    return ConfigError(
        f"{who} needs the Python package {package}, which is not installed: "
        f"run `pip install {_to_install(package)}`, or choose another model."
    )


def _to_install(package: str) -> str:
    """What pip is given."""
    if package == "torchvision":
        return f"{package}=={torchvision_for(version('torch'))} {FOR_CPUS}"
    return f"{package}=={TORCHAUDIO} {FOR_CPUS}" if package == "torchaudio" else package


def torchvision_for(torch: str) -> str:
    """The release that is made for a release of torch: 0.28.0 for 2.13.0, 0.29.0 for 2.14.0."""
    _, minor, patch = map(int, re.findall(r"\d+", torch)[:3])
    return f"0.{minor + 15}.{patch}"


def in_classes(attempt: Callable[[str, Any], Any], method: str) -> Callable[[str, Any], Any]:
    """For the host's functions that inspect or load a model's class by one of its ``method``s: they
    say only that it failed, behind a traceback."""

    @functools.cache
    def look(architecture: str, model: Any) -> Any:
        try:
            return getattr(model, method)()
        except Exception as error:
            if package := _not_found(error):
                raise missing(architecture, package) from error
            return attempt(architecture, model)

    return look


def _not_found(error: BaseException | None) -> str:
    """The package that was looked for in vain; empty if there is another reason.  transformers
    raises an error without a name because of the one that has it."""
    while isinstance(error, ModuleNotFoundError) and error.name is None:
        error = error.__cause__
    name = error.name if isinstance(error, ModuleNotFoundError) else None
    return (name or "").partition(".")[0]


@contextlib.contextmanager
def of_first_use(architecture: str) -> Iterator[None]:
    """Around what a model's class does with its processor: some import more then."""
    try:
        yield
    except ModuleNotFoundError as error:
        if package := _not_found(error):
            raise missing(architecture, package) from error
        raise


@contextlib.contextmanager
def of_processors(model: str) -> Iterator[None]:
    """Around what loads a model's processor: ConfigError for whatever it raises."""
    before = f"The processor of '{model}' cannot be loaded ("
    after = "): download it again, or choose another model."
    with told(around=(before, after)):
        try:
            yield
        except ImportError as error:
            said = sentence(error)
            for pattern in NEEDS:
                if found := re.search(pattern, said):
                    raise missing(found["who"], found["package"].lower()) from error
            raise
