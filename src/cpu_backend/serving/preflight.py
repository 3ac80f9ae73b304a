"""A look at model and settings before the engine starts: whatever is wrong, in one sentence.

A check takes the host's engine arguments and answers with a sentence, or None.  ``look`` runs those
of CHECKS in order and raises the first answer as ConfigError.  Checks look at files of a local
folder only, at no more of them than takes milliseconds, and leave to the host what they are not
sure of.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import pkgutil
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from cpu_backend import envs
from cpu_backend.errors import ConfigError

Check = Callable[[Any], "str | None"]

AGAIN = "download it again, or choose another model."
HEADER_BYTES = 100_000_000  # the longest header that safetensors reads
TOKENIZERS = ("tokenizer*", "vocab*", "tekken.json", "merges.txt", "*.model", "*.tiktoken", "*.spm")
FREQUENCIES = ("rope_theta", "rope_local_base_freq", "partial_rotary_factor")
SIZES = ("hidden_size", "num_attention_heads", "num_key_value_heads", "vocab_size")
WEIGHTS = ("*.safetensors", "*.bin", "*.pt")
# A socket's name has at most 107 bytes, of which the host takes a slash and 36.
LONGEST_PLACE = 107 - 37
POINTER = b"version https://git-lfs"


def look(arguments: Any, variables: dict[str, Callable[[], Any]]) -> None:
    """Raise ConfigError for the first thing that cannot work with these engine arguments, or with
    the host's environment ``variables`` and how it reads each."""
    sockets_lie = variables["VLLM_RPC_BASE_PATH"]()
    checks = (check(arguments) for check in CHECKS)
    for said in (environment(variables), sockets(sockets_lie), *checks):
        if said:
            raise ConfigError(said)


def look_for(kind: str, name: str | None, revision: str | None = None) -> None:
    """Raise ConfigError where the host would look for the ``kind`` ("model", "tokenizer" or the
    like) called ``name`` in vain.

    Before it does, because it takes the path of a missing folder for a name on the model hub.
    """
    if name and (said := _missing(kind, str(name), revision)):
        raise ConfigError(said)


# ---- settings ------------------------------------------------------------------------------------


def environment(variables: dict[str, Callable[[], Any]]) -> str | None:
    """Variables of the host that it would read later, and fail."""
    for name in sorted(variables.keys() & os.environ.keys()):
        try:
            variables[name]()
        except (ValueError, TypeError) as error:
            return f"{name}={os.environ[name]} cannot be used: {str(error).rstrip('.')}."
    envs.health_seconds()
    return None


def sockets(place: str) -> str | None:
    """The folder in which sockets between the server's processes get their names."""
    if not os.access(place, os.W_OK | os.X_OK) or not os.path.isdir(place):
        return (
            f"The server's processes talk over sockets in '{place}', which is no folder that can "
            "be written: name another by TMPDIR or VLLM_RPC_BASE_PATH."
        )
    if len(os.fsencode(place)) > LONGEST_PLACE:
        return (
            f"The server's processes talk over sockets in '{place}', whose name is too long for "
            f"that: name a folder of at most {LONGEST_PLACE} characters by TMPDIR or "
            "VLLM_RPC_BASE_PATH."
        )
    return None


# ---- the model's folder --------------------------------------------------------------------------


def _missing(kind: str, name: str, revision: str | None) -> str | None:
    path = Path(name)
    if path.is_dir() or path.is_file() or "://" in name:
        return None
    if name.startswith(("/", ".", "~")) or name.count("/") > 1:
        return f"The {kind} folder '{name}' does not exist: check its path."
    if os.environ.get("VLLM_USE_MODELSCOPE", "") not in ("", "0", "False", "false"):
        return None
    from huggingface_hub import constants, snapshot_download

    if constants.HF_HUB_OFFLINE:
        try:
            snapshot_download(name, revision=revision, local_files_only=True)
        except (OSError, ValueError):
            return (
                f"The {kind} '{name}' is neither a folder nor in the cache of downloads "
                f"'{constants.HF_HUB_CACHE}', and HF_HUB_OFFLINE=1 forbids to "
                "download it: name a folder that exists, or unset HF_HUB_OFFLINE."
            )
    return None


def folder(arguments: Any) -> str | None:
    """A model that is a file of no kind that is read here, or a folder with nothing in it."""
    model = Path(str(arguments.model))
    if model.is_file():
        return f"'{model}' is no model: name the folder that it is in, or a file in GGUF."
    if model.is_dir() and not any(model.iterdir()):
        return f"The model folder '{model}' is empty: {AGAIN}"
    return None


def configuration(arguments: Any) -> str | None:
    """config.json: there, and an object."""
    model = Path(arguments.hf_config_path or str(arguments.model))
    if not model.is_dir() or arguments.config_format not in ("auto", "hf"):
        return None
    config = model / "config.json"
    if config.exists():
        return _not_an_object(config) or _impossible(config)
    if (model / "params.json").exists() or (model / "adapter_config.json").exists():
        return None
    return f"The model folder '{model}' has no config.json: {AGAIN}"


def _impossible(config: Path) -> str | None:
    """What no model can have, and what the host or its libraries would fail on."""
    import torch

    values = json.loads(config.read_bytes())
    for name in SIZES:
        if isinstance(size := values.get(name), int) and size < 1:
            return f"'{config}' says that {name} is {size}: {AGAIN}"
    for name in FREQUENCIES:
        numbers = values.get(name)
        for number in numbers if isinstance(numbers, list) else [numbers]:  # of each layer
            if number is not None and not (isinstance(number, int | float) and number > 0):
                return (
                    f"'{config}' says that {name} is {number!r}, which is no positive number: "
                    f"{AGAIN}"
                )
    for name in ("dtype", "torch_dtype"):
        dtype = values.get(name)
        if isinstance(dtype, str) and dtype != "auto":
            known = getattr(torch, dtype.removeprefix("torch."), None)
            if not isinstance(known, torch.dtype):
                return (
                    f"'{config}' says that {name} is '{dtype}', which torch does not have: {AGAIN}"
                )
    if not isinstance(values.get("quantization_config"), dict | None):
        return f"'{config}' has a quantization_config that is no JSON object: {AGAIN}"
    return None


def tokenizer(arguments: Any) -> str | None:
    """Files of a tokenizer: some are there, and those in JSON are whole."""
    path = Path(str(arguments.tokenizer or arguments.model))
    if arguments.skip_tokenizer_init or not path.is_dir():
        return None
    if not any(next(path.glob(pattern), None) for pattern in TOKENIZERS):
        return (
            f"The folder '{path}' has no tokenizer (tokenizer.json or tokenizer.model): "
            "download it too, or name another by --tokenizer."
        )
    for small in ("tokenizer_config.json", "special_tokens_map.json"):
        if (path / small).exists() and (said := _not_an_object(path / small)):
            return said
    whole = path / "tokenizer.json"
    try:
        if whole.exists() and not _ends_as_object(whole):
            return f"'{whole}' is no whole JSON object: {AGAIN}"
    except OSError as error:
        return _unreadable(whole, error)
    return None


def generation(arguments: Any) -> str | None:
    """generation_config.json: an object, if it is JSON; the host passes over one that is not.
    One elsewhere is there."""
    elsewhere = str(arguments.generation_config)
    if elsewhere not in ("auto", "vllm"):
        return _missing("generation config", elsewhere, None)
    path = Path(str(arguments.model)) / "generation_config.json"
    try:
        json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return _not_an_object(path)


def _unreadable(path: Path, error: OSError) -> str:
    return f"'{path}' cannot be read ({error.strerror}): check its permissions."


def _not_an_object(path: Path) -> str | None:
    try:
        value = json.loads(path.read_bytes())
    except OSError as error:
        return _unreadable(path, error)
    except ValueError as error:
        return f"'{path}' is no valid JSON ({error}): {AGAIN}"
    return None if isinstance(value, dict) else f"'{path}' is no JSON object: {AGAIN}"


def _ends_as_object(path: Path) -> bool:
    """Whether a file that is too long to be read here begins and ends as an object does."""
    with path.open("rb") as file:
        first = file.read(1)
        file.seek(max(0, path.stat().st_size - 64))
        return first == b"{" and file.read().rstrip().endswith(b"}")


# ---- code of the user's --------------------------------------------------------------------------


def logits_processors(arguments: Any) -> str | None:
    """Those named as ``module:Class`` can be imported."""
    for name in arguments.logits_processors or ():
        try:
            if isinstance(name, str):
                pkgutil.resolve_name(name)
        except Exception as error:  # whatever the user's module raises
            return (
                f"--logits-processors {name} cannot be loaded ({error}): name it as module:Class, "
                "of a module that Python finds (PYTHONPATH)."
            )
    return None


# ---- weights -------------------------------------------------------------------------------------


def weights(arguments: Any) -> str | None:
    """Weights: some are there, all that the index names, and each file as long as it says."""
    model = Path(arguments.model_weights or str(arguments.model))
    if not model.is_dir() or arguments.load_format not in ("auto", "hf", "safetensors"):
        return None
    index = model / "model.safetensors.index.json"
    if index.exists():
        if said := _not_an_object(index):
            return said
        table = json.loads(index.read_bytes()).get("weight_map")
        if not isinstance(table, dict) or not table:
            return f"'{index}' has no table of weights (weight_map): {AGAIN}"
        names = table.values()
        files = sorted({model / str(name) for name in names})
        for file in files:
            if not file.exists():
                return f"'{index}' names the weight file '{file.name}', which is missing: {AGAIN}"
    else:
        files = sorted(model.glob("*.safetensors"))
        if not any(next(model.glob(pattern), None) for pattern in WEIGHTS):
            return f"The model folder '{model}' has no weights (*.safetensors): {AGAIN}"
    return next(filter(None, map(damage, files)), None)


def damage(path: Path) -> str | None:
    """What is wrong with a file of safetensors as far as its header and length tell, or None."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(max(8, len(POINTER)))
            if start.startswith(POINTER):
                return (
                    f"The weight file '{path}' is a pointer of Git LFS in place of weights: "
                    "run 'git lfs pull' in its folder."
                )
            length = struct.unpack("<Q", start[:8])[0] if len(start) >= 8 else 0
            if not 2 <= length <= min(HEADER_BYTES, size - 8):
                return f"The weight file '{path}' is damaged (it has no whole header): {AGAIN}"
            file.seek(8)
            tensors = json.loads(file.read(length))
        ends = [tensor["data_offsets"][1] for key, tensor in tensors.items() if key[:2] != "__"]
    except OSError as error:
        return f"The weight file '{path}' cannot be read ({error.strerror}): check its permissions."
    except (ValueError, LookupError, TypeError, AttributeError):
        return f"The weight file '{path}' is damaged (its header is no list of tensors): {AGAIN}"
    promised = 8 + length + max(ends, default=0)
    if promised != size:
        state = "cut short" if size < promised else "too long"
        return (
            f"The weight file '{path}' is {state} (its header tells of {promised} bytes, and it "
            f"has {size}): {AGAIN}"
        )
    return None


CHECKS: tuple[Check, ...] = (
    folder,
    configuration,
    tokenizer,
    generation,
    logits_processors,
    weights,
)


# ---- the address ---------------------------------------------------------------------------------


@contextlib.contextmanager
def address(host: str, port: int) -> Iterator[None]:
    """Around the host's taking of its address: why it cannot be had, in one sentence."""
    try:
        if _is_reserved(host, port):
            raise OSError(errno.EADDRINUSE, "")
        yield
    except (OSError, OverflowError) as error:
        where = f"{host or 'this machine'}, port {port}"
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            raise ConfigError(
                f"Another process listens at {where} already: stop it, or choose another --port."
            ) from None
        raise ConfigError(
            f"No server can listen at {where} ({getattr(error, 'strerror', None) or error}): "
            "choose another --host or --port."
        ) from None


def _is_reserved(host: str, port: int) -> bool:
    """Whether another server has the address and does not listen yet, because it still loads.

    The host's own attempt succeeds beside such a one.  The one here asks for the address alone;
    connections that have ended a moment ago stand in its way too, and those the system lists.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        try:
            probe.bind((host, port))
        except OSError as error:
            return error.errno == errno.EADDRINUSE and not _has_connections(port)
    return False


def _has_connections(port: int) -> bool:
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            lines = Path(table).read_text().splitlines()[1:]
            if any(line.split()[1].endswith(f":{port:04X}") for line in lines):
                return True
    return False
