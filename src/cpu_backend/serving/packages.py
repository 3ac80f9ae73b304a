"""Python packages that some models need and the host does not bring: named, with the way to get
them, where the host shows a traceback.

A model's class may import one, and so may the processor that cuts its images and sounds.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterator
from typing import Any

from cpu_backend.errors import ConfigError
from cpu_backend.serving.sentences import sentence, told

# What the usual index has of these is made for GPUs and does not load beside torch for CPUs.
FOR_CPUS = "--no-deps --index-url https://download.pytorch.org/whl/cpu"
INSTALL = {
    "torchvision": f"torchvision==0.28.0 {FOR_CPUS}",
    "torchaudio": f"torchaudio==2.11.0 {FOR_CPUS}",
}

# How transformers says who needs what.
NEEDS = (
    r"^(?P<who>\w+) requires the (?P<package>\w+) library",
    r"Package `(?P<package>\w+)` is required to run (?P<who>.+?)\. ",
)


def missing(who: str, package: str) -> ConfigError:
    """What to raise."""
    return ConfigError(
        f"{who} needs the Python package {package}, which is not installed: "
        f"run `pip install {INSTALL.get(package, package)}`, or choose another model."
    )


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
