"""Environment variables: values that would end a start, and names that nothing reads."""

from __future__ import annotations

import difflib
import importlib.util
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from cpu_backend import envs
from cpu_backend.doctor.finding import Finding, note, ok, told
from cpu_backend.errors import ConfigError
from cpu_backend.runtime.memory import parse_kvcache_space
from cpu_backend.runtime.plan import ThreadSettings

PREFIXES = ("CPU_BACKEND_", "VLLM_CPU_")
# The host reads it before it asks any plugin, and ends with a traceback.
LOG_LEVEL = "VLLM_LOGGING_LEVEL"
OF_TESTS = "CPU_BACKEND_TEST_"  # how the names begin that this project's own tests read


@dataclass(frozen=True)
class Facts:
    """``mistakes`` are the sentences of the readers that refuse a value; ``named`` the variables
    that look as if they were meant for this backend, ``known`` those that it or the host reads."""

    mistakes: tuple[str, ...]
    named: tuple[str, ...]
    known: tuple[str, ...]


def read(environ: Mapping[str, str] = os.environ) -> Facts:
    readers: tuple[Callable[[], object], ...] = (
        envs.check_replay,
        envs.activations,
        envs.health_seconds,
        lambda: parse_kvcache_space(environ.get(envs.KVCACHE_SPACE.name)),
        lambda: ThreadSettings.from_env(environ),
    )
    mistakes = []
    for reader in readers:
        try:
            reader()
        except ConfigError as error:
            mistakes.append(str(error))
    ours = (name for name in environ if name.startswith(PREFIXES))
    named = tuple(sorted(name for name in ours if not name.startswith(OF_TESTS)))
    known = (*(variable.name for variable in envs.ALL), *_of_the_host())
    level = environ.get(LOG_LEVEL, "")
    if level and level.upper() not in logging.getLevelNamesMapping():
        mistakes.append(f"{LOG_LEVEL}={level} is no level of logging: use DEBUG, INFO or ERROR.")
    return Facts(tuple(mistakes), named, known)


def _of_the_host() -> list[str]:
    """The host's variables for CPUs, from its source."""
    spec = importlib.util.find_spec("vllm")
    for folder in (spec and spec.submodule_search_locations) or ():
        file = Path(folder) / "envs.py"
        if file.is_file():
            return re.findall(r'"(VLLM_CPU_\w+)"', file.read_text())
    return []


def judge(facts: Facts) -> Iterator[Finding]:
    for mistake in facts.mistakes:
        yield told("settings", mistake)
    for name in facts.named:
        if name not in facts.known:
            near = difflib.get_close_matches(name, facts.known, n=1)
            yield note(
                "settings", f"nothing reads {name}", f"use {near[0]}" if near else "unset it"
            )
    if not facts.mistakes:
        known = [name for name in facts.named if name in facts.known]
        yield ok("settings", f"{', '.join(known)} can be used" if known else "all are the defaults")
