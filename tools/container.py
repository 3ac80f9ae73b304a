"""Runs an image as a container engine would, with namespaces and a changed root alone: another
user, a read-only root, little shared memory, system calls refused, a signal as the end.

An image for Arm is run by qemu as an emulated Neoverse, where the kernel does that.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from examples.demo import free_port
from tools import aarch64, cgroup

ROOT = Path(__file__).resolve().parents[1]
QUESTION = "Which city is the capital of France?"
EXPECTED = "Paris"
START_SECONDS, STOP_SECONDS, ANSWER_SECONDS = 600, 60, 300
# As Debian and registries name an architecture, and as the kernel and qemu do.
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}


class ImageError(RuntimeError):
    """What an image or this machine lacks, in one sentence."""


def buildah(*arguments: str) -> str:
    done = subprocess.run(["buildah", *arguments], check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout.strip()


def architecture_of(tag: str) -> str | None:
    """Of an image in the store, if it is there."""
    command = ["buildah", "inspect", "--type", "image", tag]
    described = subprocess.run(command, capture_output=True, text=True)
    if described.returncode:
        return None
    found: str = json.loads(described.stdout)["OCIv1"]["architecture"]
    return found


@dataclass(frozen=True)
class Conditions:
    """How a container is run; ``user`` as in `docker run --user`, the image's own where empty;
    ``shm`` is the size of /dev/shm; ``restricted`` refuses to bind threads and memory; ``limits``
    are bytes of memory and the time of how many CPUs."""

    name: str
    user: str = ""
    read_only: bool = False
    shm: str = "64m"
    restricted: bool = False
    open_files: int = 4096
    limits: tuple[int, float] | None = None


AS_BUILT = Conditions("as built")
# What clusters ask for: an id that the image does not know, nothing to write but what is mounted.
STRICT = Conditions("strict", "54321:54321", True, restricted=True, open_files=1024)
LIMITED = Conditions("limited", limits=(4 << 30, 1.0))

# $1 root, $2 folder of the model, $3 size of /dev/shm, $4 "ro" or "rw", $5 folder with what /proc
# and /sys say of an emulated CPU or "", then the command.
INSIDE = """
set -e
root=$1 model=$2 shm=$3 mode=$4 cpu=$5; shift 5
mount --bind "$root" "$root"
mkdir -p "$root/mnt"
mount --bind "$model" "$root/mnt"
mount -o remount,bind,ro "$root/mnt"
mount -t proc proc "$root/proc"
if [ "$cpu" ]; then
  mount -t overlay -o "lowerdir=$cpu/sys:/sys" sys "$root/sys"
  mount --bind "$cpu/proc/cpuinfo" "$root/proc/cpuinfo"
else
  mount --bind /sys "$root/sys"
fi
mount -t tmpfs cgroup "$root/sys/fs/cgroup"
while IFS=: read -r _ kind group; do # a container sees its own limits there
  [ -e "/sys/fs/cgroup/$kind/cgroup.procs" ] || continue
  mkdir -p "$root/sys/fs/cgroup/$kind"
  mount --bind "/sys/fs/cgroup/$kind$group" "$root/sys/fs/cgroup/$kind"
done < /proc/self/cgroup
mount -t tmpfs -o mode=755 dev "$root/dev"
for device in null zero full random urandom; do
  touch "$root/dev/$device"; mount --bind "/dev/$device" "$root/dev/$device"
done
mkdir "$root/dev/shm"; mount -t tmpfs -o "mode=1777,size=$shm" shm "$root/dev/shm"
for folder in tmp cache; do mount -t tmpfs -o mode=1777 "$folder" "$root/$folder"; done
[ "$mode" = rw ] || mount -o remount,bind,ro "$root"
exec "$@"
"""


def try_image(tag: str, model: Path) -> None:
    """Raise ImageError for the first thing that is not as it should be."""
    architecture = architecture_of(tag)
    if architecture is None:
        raise ImageError(f"there is no image {tag}: run `make image` first.")
    with mounted(tag) as (root, config), emulated_cpu(architecture) as cpu:
        look(root, config)
        for conditions in (AS_BUILT, STRICT, LIMITED):
            if conditions.limits and not cgroup.can_be_made():
                print(f"{conditions.name}: not tried, control groups cannot be made here")
                continue
            limits: contextlib.AbstractContextManager[list[str]] = contextlib.nullcontext([])
            if conditions.limits:
                limits = cgroup.limited(*conditions.limits)
            with limits as begin:
                serve(Container(root, config, cpu), conditions, model, begin)


@dataclass(frozen=True)
class Container:
    """root: its folder; config: what the image says about running it; cpu: a folder with what /proc
    and /sys say of an emulated one, or None."""

    root: Path
    config: dict[str, Any]
    cpu: Path | None

    @property
    def patience(self) -> int:
        """How many times as long everything may take."""
        return 10 if self.cpu else 1


@contextlib.contextmanager
def emulated_cpu(architecture: str) -> Iterator[Path | None]:
    """Nothing for this machine's own architecture."""
    if MACHINES[architecture] == platform.machine():
        yield None
        return
    with tempfile.TemporaryDirectory() as folder:
        aarch64.describe_cpu(Path(folder))
        Path(folder).chmod(0o755)
        yield Path(folder)


@contextlib.contextmanager
def mounted(tag: str) -> Iterator[tuple[Path, dict[str, Any]]]:
    """A container's root folder, and what the image says about running it."""
    name = buildah("from", "--pull-never", tag)
    try:
        described = json.loads(buildah("inspect", name))
        yield Path(buildah("mount", name)), described["Docker"]["config"]
    finally:
        buildah("rm", name)


def look(root: Path, config: dict[str, Any]) -> None:
    """At the image itself."""
    compilers = [p for p in ("cc", "gcc", "g++", "c++", "clang") if (root / "usr/bin" / p).exists()]
    if compilers:
        raise ImageError(f"the image has compilers: {', '.join(compilers)}.")
    if config["User"].partition(":")[0] in ("", "0", "root"):
        raise ImageError("the image runs as root.")
    if (root / "etc/pip.conf").exists() or "PIP_" in " ".join(config["Env"]):
        raise ImageError("the image has settings of pip of the machine that built it.")
    size = subprocess.run(["du", "-sm", str(root)], stdout=subprocess.PIPE, text=True).stdout
    print(f"image: {size.split()[0]} MB, no compiler, user {config['User']}", flush=True)


def serve(container: Container, conditions: Conditions, model: Path, begin: list[str]) -> None:
    """Ask a server in a container one question, and stop it as `docker stop` does.  ``begin``:
    what to put before the command that makes the container."""
    config = container.config
    port = free_port()
    options = ["/mnt", "--host", "127.0.0.1", "--port", str(port), "--max-model-len", "512"]
    with tempfile.TemporaryFile("w+") as log:
        start = time.monotonic()
        command = [*config["Entrypoint"], *options]
        process = run(container, conditions, model, begin, command, log)
        try:
            said = ""
            wait_until_healthy(process, container, port)
            ready = time.monotonic() - start
            with contextlib.suppress(OSError):
                said = ask(port, ANSWER_SECONDS * container.patience)
            if EXPECTED not in said:
                raise ImageError(f"{conditions.name}: the answer is {said!r}.")
            doctor = [*enter(process), "python3", "-m", "cpu_backend.info", "--check"]
            report = subprocess.run(
                doctor, stdout=subprocess.PIPE, text=True, env=environment(container)
            )
            os.kill(first_process(process), signal.SIGTERM)
            code = process.wait(STOP_SECONDS * container.patience)
        except (ImageError, subprocess.TimeoutExpired):
            log.seek(0)
            sys.stderr.writelines(log.readlines()[-60:])
            raise
        finally:
            process.kill()  # and with it the namespace's first process, and all others
            process.wait()
    notes = [line for line in report.stdout.splitlines() if not line.startswith("ok ")]
    print(f"{conditions.name}: ready after {ready:.0f} s, {said!r}, ended with {code}", flush=True)
    print(*notes, sep="\n", flush=True)
    if code != 0 or report.returncode != 0:
        raise ImageError(
            f"{conditions.name}: exit code {code}, `info --check` {report.returncode}."
        )


def run(
    container: Container,
    conditions: Conditions,
    model: Path,
    begin: list[str],
    command: list[str],
    log: Any,
) -> subprocess.Popen[bytes]:
    """Start the command as the first process of a container."""
    root = container.root
    user, _, group = (conditions.user or container.config["User"]).partition(":")
    mode = "ro" if conditions.read_only else "rw"
    refusing = [sys.executable, str(ROOT / "tests/e2e/restricted.py")]
    program = [
        *begin,
        *("unshare", "--mount", "--pid", "--fork", "--kill-child"),
        *("sh", "-c", INSIDE, "sh", str(root), str(model.resolve()), conditions.shm, mode),
        str(container.cpu or ""),
        *(refusing if conditions.restricted else ()),
        *("prlimit", f"--nofile={conditions.open_files}"),
        *("chroot", str(root), "setpriv", "--no-new-privs", "--bounding-set=-all"),
        *("--inh-caps=-all", "--clear-groups", f"--reuid={user}", f"--regid={group or user}"),
        *command,
    ]
    return subprocess.Popen(
        program, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment(container)
    )


def environment(container: Container) -> dict[str, str]:
    """The image's own, what keeps a test from the network, and which CPU qemu plays."""
    image = dict(entry.split("=", 1) for entry in container.config["Env"])
    emulated = {"QEMU_CPU": aarch64.CPU} if container.cpu else {}
    return {**image, "HF_HUB_OFFLINE": "1", **emulated}


def first_process(unshare: subprocess.Popen[bytes]) -> int:
    """The container's process 1, by the number it has outside."""
    children = Path(f"/proc/{unshare.pid}/task/{unshare.pid}/children").read_text().split()
    if not children:
        raise ImageError("the container does not run.")
    return int(children[0])


def enter(unshare: subprocess.Popen[bytes]) -> list[str]:
    """What `docker exec` does, as root."""
    return ["nsenter", "-t", str(first_process(unshare)), "--mount", "--pid", "--root", "--wd"]


def wait_until_healthy(process: subprocess.Popen[bytes], container: Container, port: int) -> None:
    """Until the image's own HEALTHCHECK says so."""
    kind, *check = container.config["Healthcheck"]["Test"]
    command = ["sh", "-c", *check] if kind == "CMD-SHELL" else check
    env = {**environment(container), "HEALTH_URL": f"http://127.0.0.1:{port}/health"}
    deadline = time.monotonic() + START_SECONDS * container.patience
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(ImageError):  # it has not begun, or has just ended
            inside = [*enter(process), *command]
            if subprocess.run(inside, env=env, capture_output=True).returncode == 0:
                return
        time.sleep(1)
    raise ImageError(f"the server was not healthy, exit code {process.poll()}.")


def ask(port: int, seconds: float) -> str:
    question = {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 24}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/chat/completions",
        json.dumps({**question, "temperature": 0}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=seconds) as answer:
        said: str = json.load(answer)["choices"][0]["message"]["content"]
    return said
