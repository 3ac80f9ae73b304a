"""Which provider makes a layer: the one that was named, or the fastest that was measured."""

from __future__ import annotations

import functools
import importlib
import logging
import os
from collections import Counter
from collections.abc import Callable, Hashable
from typing import TypeVar

import torch

from cpu_backend import envs
from cpu_backend.errors import ConfigError
from cpu_backend.providers import measured
from cpu_backend.providers.interface import Needs, Provider, Unsupported

logger = logging.getLogger("vllm.cpu_backend")  # under the host's logger, so it is seen

# Name: the module that has it as PROVIDER, and the package it needs.
KNOWN: dict[str, tuple[str, Needs | None]] = {
    "native": ("cpu_backend.providers.native", None),
    "torch": ("cpu_backend.providers.pytorch", None),
    "zentorch": ("cpu_backend.providers.zentorch", Needs("zentorch")),
    "ipex": ("cpu_backend.providers.ipex", Needs("intel-extension-for-pytorch", torch="2.8")),
}
NATIVE, AUTO = "native", "auto"
# Methods that quantize for native's own products, or keep a file's blocks as they are.
ONLY_NATIVE = ("cpu_int8", "cpu_int4", "gguf")

Made = TypeVar("Made")


@functools.cache
def load(name: str) -> Provider:
    """The provider of that name.  Raises ConfigError where it cannot be had here."""
    module, _ = KNOWN[name]
    if missing := missing_package(name):
        raise ConfigError(f"the provider {name} cannot be used: {missing}")
    try:
        provider: Provider = importlib.import_module(module).PROVIDER()
    except Exception as error:  # whatever a package does when it is imported
        said = str(error).strip().splitlines() or [type(error).__name__]
        raise ConfigError(
            f"the provider {name} cannot be used: importing it failed ({said[-1]}): "
            "mend its installation, or choose native."
        ) from error
    return provider


def missing_package(name: str) -> str:
    """What keeps a provider from being loaded, as a sentence, or nothing.  Imports nothing."""
    needs = KNOWN[name][1]
    return needs.missing() if needs else ""


class Choice:
    """The provider of one kind of layers, and what each has made in this process."""

    def __init__(self, variable: envs.Variable, kind: str) -> None:
        self._variable, self._kind = variable, kind
        self.made: Counter[str] = Counter()
        self._failed: dict[str, str] = {}  # under "auto": provider, why not
        self._rehearsed: set[tuple[str, Hashable]] = set()

    @property
    def name(self) -> str:
        """What the user chose.  Raises ConfigError for a name that nobody has."""
        name = self._variable.get()
        if name != AUTO and name not in KNOWN:
            raise ConfigError(
                f"{self._variable.name}={name} is not known: choose {', '.join(KNOWN)} or {AUTO}."
            )
        return name

    def check(self, quantization: str | None) -> None:
        """Raises ConfigError for what can be told before a provider is imported."""
        name = self.name
        if name in (NATIVE, AUTO):
            return
        if missing := missing_package(name):
            raise ConfigError(f"{self._variable.name}={name} cannot be used: {missing}")
        if quantization in ONLY_NATIVE:
            raise ConfigError(
                f"{self._variable.name}={name} does not go with --quantization {quantization}, "
                "which is made for native products: choose one of them."
            )

    def rehearse(self, what: Hashable, trial: Callable[[Provider], object]) -> None:
        """Import the provider that was named, and have it make ``what``, of which no weight has
        been read yet.  Native makes everything, and "auto" has it to fall back on.

        Raises ConfigError where the provider cannot make it.
        """
        name = self.name
        if name not in (NATIVE, AUTO) and (name, what) not in self._rehearsed:
            self._make_by(name, trial)
            self._rehearsed.add((name, what))

    def make(self, dtype: str, what: Callable[[Provider], Made]) -> Made:
        """``what`` of the chosen provider; ``dtype``: of the weight, as measured.best() knows it.

        Raises ConfigError where the provider that was named cannot make it.
        """
        name = self.name
        if name != AUTO:
            made = self._make_by(name, what)
            self.made[name] += 1
            return made
        for candidate in (measured.best(self._kind, dtype), NATIVE):
            try:
                made = what(load(candidate))
            except (Unsupported, ConfigError) as error:
                if candidate == NATIVE:
                    raise
                if candidate not in self._failed:
                    logger.warning("cpu_backend: %s: %s; native instead.", candidate, error)
                self._failed.setdefault(candidate, str(error))
                continue
            self.made[candidate] += 1
            return made
        raise AssertionError("native makes everything")

    def _make_by(self, name: str, what: Callable[[Provider], Made]) -> Made:
        try:
            return what(load(name))
        except Unsupported as error:
            if name == NATIVE:
                raise
            raise ConfigError(
                f"{self._variable.name}={name} cannot be used for this model: {name} {error}. "
                "Choose native, which has everything that is supported here, or auto."
            ) from error

    def describe(self) -> str:
        """What was chosen, and under "auto" how often each was."""
        name = self.name
        if name != AUTO:
            return name
        counts = ", ".join(f"{count} {one}" for one, count in self.made.most_common())
        return f"auto ({counts})" if counts else AUTO

    def used(self) -> list[Provider]:
        """The providers of this process's layers, and the one that was named."""
        return [load(name) for name in {*self.made, self.name} - {AUTO}]


linear = Choice(envs.LINEAR, "linear")
experts = Choice(envs.EXPERTS, "experts")


def check(quantization: str | None) -> None:
    """Refuse a setting that cannot work, before a process of the engine begins."""
    linear.check(quantization)
    experts.check(quantization)
    for variable in (envs.MOE_PREPACK, envs.SGL_KERNEL):
        if variable.name in os.environ:
            _tell(f"{variable.name}={os.environ[variable.name]}: {variable.meaning}")


@functools.cache  # the host checks several configurations of a model
def _tell(sentence: str) -> None:
    logger.info("cpu_backend: %s.", sentence)


def prepare(dtype: torch.dtype) -> None:
    """Import what was named, in a process that computes; ``dtype``: of the activations."""
    linear.rehearse(dtype, lambda provider: provider.linear(torch.zeros(64, 64, dtype=dtype)))
    experts.rehearse(None, lambda provider: None)


def replayable() -> bool:
    """Whether every layer's provider lets its ops be part of a recorded step."""
    return all(one.replayable for one in (*linear.used(), *experts.used()))


def describe() -> dict[str, str]:
    """What computes linear layers and experts."""
    return {"linear": linear.describe(), "experts": experts.describe()}
