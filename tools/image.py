"""``python -m tools.image build|test``: builds an image with buildah, which needs no daemon, and
tries it.

pip's settings on this machine (an index, a folder of wheels, a certificate) reach the build and
stay out of the image.  Where no registry gives the base image and this user is root, debootstrap
makes it.  For another architecture than this machine's, qemu runs what the build runs.
"""

from __future__ import annotations

import argparse
import configparser
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tools import container

ROOT = Path(__file__).resolve().parents[1]
TAG = "localhost/vllm-cpu-backend"
BASE = "docker.io/library/debian:bookworm-slim"
DEBIAN = "http://deb.debian.org/debian"
OWN_INDEX = ("index-url", "extra-index-url", "find-links")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="what", required=True)
    building = commands.add_parser("build")
    building.description = "All other options go to `buildah bud`."
    building.add_argument("--file", default="Dockerfile.cpu")
    building.add_argument("--tag", default=TAG)
    own = next(
        (arch for arch, name in container.MACHINES.items() if name == platform.machine()), None
    )
    building.add_argument("--arch", choices=container.MACHINES, default=own, required=own is None)
    trying = commands.add_parser("test")
    trying.add_argument("--tag", default=TAG)
    trying.add_argument("--model", required=True, help="folder of the demo model")
    options, more = parser.parse_known_args()
    if more and options.what != "build":
        parser.error(f"unrecognized arguments: {shlex.join(more)}")
    try:
        if options.what == "build":
            check_machine(options.arch)
            get_base(options.arch)
            build(options.file, options.tag, options.arch, more)
        else:
            container.try_image(options.tag, Path(options.model))
    except (container.ImageError, subprocess.CalledProcessError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def check_machine(arch: str) -> None:
    """Whether programs of this architecture run here."""
    machine = container.MACHINES[arch]
    registered = Path(f"/proc/sys/fs/binfmt_misc/qemu-{machine}")
    if machine != platform.machine() and not registered.exists():
        raise container.ImageError(
            f"the kernel runs no programs for {machine}: install qemu-user-static and "
            "binfmt-support, which register qemu for them."
        )


def get_base(arch: str) -> None:
    """The image that FROM names, of this architecture, into the store of this user."""
    if container.architecture_of(BASE) == arch:
        return
    pull = ["buildah", "pull", "-q", "--arch", arch, BASE]
    pulled = subprocess.run(pull, capture_output=True, text=True)
    if pulled.returncode == 0:
        return
    if shutil.which("debootstrap") is None or os.geteuid() != 0:
        raise container.ImageError(
            f"{BASE} cannot be pulled ({pulled.stderr.strip().splitlines()[-1]}): name a registry "
            "that can be reached, or install debootstrap and run as root."
        )
    print(f"making {BASE}, which no registry gives here, with debootstrap", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        system = Path(folder) / "root"
        command = ["debootstrap", f"--arch={arch}", "--variant=minbase", "bookworm"]
        subprocess.run([*command, str(system), DEBIAN], check=True, stdout=subprocess.DEVNULL)
        made = container.buildah("from", "scratch")
        try:
            container.buildah("config", "--arch", arch, made)
            container.buildah("add", "-q", made, str(system), "/")
            container.buildah("commit", "-q", made, BASE)
        finally:
            container.buildah("rm", made)


def build(dockerfile: str, tag: str, arch: str, more: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        settings = Path(folder) / "pip.conf"
        options = [*pip_options(settings), *more]
        command = ["buildah", "bud", "--format", "docker", "--layers", "--isolation", "chroot"]
        command += ["--pull-never", "--network", "host", "--secret", f"id=pip,src={settings}"]
        command += ["--arch", arch]
        command += [*options, "-f", dockerfile, "-t", tag, "."]
        print(shlex.join(command), flush=True)
        subprocess.run(command, check=True, cwd=ROOT)


def pip_options(written: Path) -> list[str]:
    """Writes pip's settings for the build; options that mount the folders that they name.

    The file with certificates lies elsewhere there, as Debian's own package writes the usual one.
    """
    text = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    ).stdout
    settings = dict(pip_settings(text))
    options = []
    if certificates := settings.get("cert"):
        settings["cert"] = "/run/pip/certificates.pem"
        options.append(f"--volume={certificates}:{settings['cert']}:ro")
    for value in settings.values():
        for path in re.findall(r"(?:file://|(?<!\S))(/[^\s]+)", value):
            # Of an index in files, its pages name files beside their folder.
            place = Path(path).parent if path.endswith("/simple") else Path(path)
            if place.exists():
                options.append(f"--volume={place}:{place}:ro")
    if any(name in settings for name in OWN_INDEX):
        options.append("--build-arg=TORCH_PIP_ARGS=")  # that index, and not one on the network
    config = configparser.RawConfigParser()
    config["global"] = settings
    with written.open("w") as file:
        config.write(file)
    return options


def pip_settings(text: str) -> Iterator[tuple[str, str]]:
    """What `pip config list` prints, without the parts of commands."""
    for name, value in re.findall(r"^(?:global|:env:)\.([\w-]+)='(.*)'$", text, re.MULTILINE):
        yield name, value.replace("\\n", "\n")


if __name__ == "__main__":
    sys.exit(main())
