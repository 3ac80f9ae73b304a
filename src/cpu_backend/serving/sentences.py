"""Errors of the host that people cause, as one sentence instead of its traceback.

``told`` goes around the host's functions that read arguments, models and settings: what they raise
becomes a ConfigError, which ``print_without_traceback`` prints as one line when nobody catches it.
``CPU_BACKEND_TRACEBACK=1`` leaves every error as it is.
"""

from __future__ import annotations

import contextlib
import re
import sys
import traceback
from collections.abc import Iterator
from types import TracebackType
from typing import Any

from cpu_backend import envs
from cpu_backend.errors import ConfigError, EngineEndedError

SPOKEN = (ConfigError, EngineEndedError)
# What wrong arguments and damaged files raise; anything else is a defect and needs its traceback.
USUAL = (ValueError, OSError, NotImplementedError, ImportError)
# The same where the host only reads its command line.
ARGUMENTS = (*USUAL, KeyError, TypeError)

COMMAND = "vllm.entrypoints.cli."

LONGEST = 400  # characters of a message that are still read

# Where the host's words are long, without a way out, or speak of GPUs: what it says, and how it
# is said here.
WORDING = (
    (
        r"User-specified max_model_len \((\d+)\) is greater than .*?[a-z_]+=(\d+)",
        r"--max-model-len \1 is longer than the \2 tokens that the model was made for: "
        r"lower it, or leave it out.",
    ),
    (
        r"Unknown quantization method: (.*?)\.? Must be one of \[(.*?)\]",
        r"The quantization '\1' is not known: --quantization cpu_int8 or cpu_int4 quantizes any "
        r"checkpoint, and docs/quantization.md lists the schemes of checkpoints that are read.",
    ),
    (
        r"^Model Runner V1 does not support: (.*)",
        r"vLLM has \1 for its V2 model runner alone, which cpu_backend does not use yet: choose "
        r"another model, or leave that out.",
    ),
    (
        r"^No module named '(?!vllm|torch|cpu_backend)(\w+)[\w.]*'$",
        # Without a command: a module's name may be that of somebody else's package.
        r"The Python module \1 is not installed, which something that was asked for needs: "
        r"install its package, or leave that out.",
    ),
)


def sentence(error: BaseException) -> str:
    """What ``error`` says, on one line."""
    text = " ".join(_message(error).split())
    for pattern, words in WORDING:
        if found := re.search(pattern, text):
            return found.expand(words)
    return _shorten(text) or type(error).__name__


def _message(error: BaseException) -> str:
    if callable(details := getattr(error, "errors", None)):  # pydantic: several fields may be wrong
        first = details()[0]
        field = ".".join(str(part) for part in first.get("loc", ()))
        words = str(first.get("msg", "")).removeprefix("Value error, ")
        cause = first.get("ctx", {}).get("error")
        if isinstance(cause, AssertionError):
            words = str(cause) or _asserted(cause)
        return f"{field}: {words}" if field else words
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"'{error.filename}': {error.strerror}"
    if isinstance(error, KeyError) and error.args:
        said = str(error.args[0])
        return said if " " in said else f"there is no '{said}'"
    cause = error.__cause__
    # Validators of transformers' configurations name themselves and hide what they found.
    if cause is not None and type(error).__name__.startswith("StrictDataclass"):
        return str(cause)
    return str(error)


def _asserted(error: AssertionError) -> str:
    """What one without words asks for: the source of its ``assert``."""
    line = traceback.extract_tb(error.__traceback__)[-1].line or ""
    condition = line.removeprefix("assert ")
    return f"vLLM needs {condition}: choose a model and settings of which that is true."


def _shorten(text: str) -> str:
    """As many whole sentences as are read, at least one, however long."""
    kept = ""
    for part in re.split(r"(?<=[.!?]) (?=[A-Z(])", text):
        if kept and len(kept) + len(part) >= LONGEST:
            break
        kept = f"{kept} {part}".strip()
    return kept if len(kept) <= 2 * LONGEST else kept[: 2 * LONGEST] + " ..."


@contextlib.contextmanager
def told(*kinds: type[BaseException], around: tuple[str, str] = ("", "")) -> Iterator[None]:
    """Raise ConfigError with one sentence in place of errors of ``kinds`` (USUAL when none is
    named) from the block, or from the function that this decorates; ``around`` are words before
    and after it."""
    try:
        yield
    except Exception as error:
        is_told = isinstance(error, kinds or usual_kinds()) and not isinstance(error, SPOKEN)
        if not is_told or envs.wants_traceback():
            raise
        raise ConfigError(sentence(error).join(around)) from None


def usual_kinds() -> tuple[type[BaseException], ...]:
    """USUAL, and what the libraries that read models raise besides."""
    from huggingface_hub.errors import StrictDataclassError
    from safetensors import SafetensorError

    return (*USUAL, StrictDataclassError, SafetensorError)


def tell(owner: Any, name: str, *kinds: type[BaseException]) -> None:
    """Put ``told`` around the function ``owner.name``."""
    setattr(owner, name, told(*kinds)(getattr(owner, name)))


def print_without_traceback() -> None:
    """An error with its sentence ends the process with that sentence as its last line."""
    previous = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        if envs.wants_traceback():
            previous(kind, error, trace)
        elif isinstance(error, SPOKEN):
            print(f"cpu_backend: {error}", file=sys.stderr)
        elif isinstance(error, KeyboardInterrupt) and _is_of_the_command(trace):
            # The host raises the same for SIGTERM; once it serves, neither comes here.
            print("cpu_backend: stopped by Ctrl-C or SIGTERM.", file=sys.stderr)
        else:
            previous(kind, error, trace)

    if getattr(previous, "__module__", "") != __name__:
        sys.excepthook = hook


def _is_of_the_command(trace: TracebackType | None) -> bool:
    """Whether the host's command line runs, and not a program of the user's."""
    return any(
        frame.f_globals.get("__name__", "").startswith(COMMAND)
        for frame, _ in traceback.walk_tb(trace)
    )
