"""Kernels on the shapes of real models, beside the machine's limits of the same run.

    python benchmarks/kernels [linear onednn decode latent batch prefill] [--model M ...]
                              [--dtype D ...] [--size N ...] [--isa ISA] [--budget SECONDS] ...

Times the torch ops, so it measures what a model gets. Sizes are tokens of a linear layer, of a
context or of a prompt. What the budget leaves no time for is said at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from pathlib import Path


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "kernel", nargs="*", default=[], help="linear, onednn, decode, latent, batch, prefill; all"
    )
    parser.add_argument("--model", action="append", help="part of a model's name; all")
    parser.add_argument("--dtype", action="append", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--size", action="append", type=int, help="tokens; all")
    parser.add_argument("--shape", help="only shapes that contain this")
    parser.add_argument("--isa", help="as CPU_BACKEND_ISA")
    parser.add_argument("--threads", type=int, help="unbound; else one bound to each core")
    parser.add_argument("--seconds", type=float, default=0.3, help="per measurement")
    parser.add_argument("--budget", type=float, default=170.0, help="seconds of the whole run")
    parser.add_argument("--json", help="write the rows here")
    parser.add_argument("--markdown", help="write the table here")
    return parser.parse_args()


def main() -> None:
    options = _options()
    if options.isa:
        os.environ["CPU_BACKEND_ISA"] = options.isa
    import attention
    import linear
    import torch
    from measure import measure
    from models import LATENT_MODELS, MODELS
    from report import line, markdown

    from cpu_backend import info, ops
    from cpu_backend.runtime.plan import Machine

    library = ops.load()
    if options.threads:
        ops.set_num_threads(options.threads)
    else:
        ops.bind_threads(Machine.read().plan(1)[0].cpus)
    host = {
        "cpu": info.cpu_model(),
        "isa": library.target,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    print(", ".join(f"{key} {value}" for key, value in host.items()), flush=True)
    names = {"latent": LATENT_MODELS}  # of all other families: MODELS
    dtypes = [getattr(torch, d) for d in options.dtype or ["float32", "bfloat16", "float16"]]
    families = {
        "linear": (linear.works, linear.TOKENS),
        "onednn": (linear.onednn_works, linear.TOKENS),
        "decode": (attention.decode_works, attention.CONTEXTS),
        "latent": (attention.latent_works, attention.CONTEXTS),
        "batch": (attention.batch_works, attention.BATCH_CONTEXTS),
        "prefill": (attention.prefill_works, attention.PROMPTS),
    }
    rows = []
    end = time.monotonic() + options.budget
    for name in options.kernel or families:
        works, sizes = families[name]
        models = [
            model
            for model in names.get(name, MODELS)
            if not options.model or any(part in model for part in options.model)
        ]
        for work in works(models, dtypes, options.size or list(sizes)):
            if options.shape and options.shape not in work.shape:
                continue
            if time.monotonic() > end:
                print(f"the budget of {options.budget:.0f} s ended before {name} {work.shape}")
                break
            rows.append(measure(work, options.seconds))
            print(line(rows[-1]), flush=True)
    if options.json:
        Path(options.json).write_text(
            json.dumps({"host": host, "rows": [row.as_dict() for row in rows]}, indent=1)
        )
    if options.markdown:
        Path(options.markdown).write_text(markdown(host, rows))


if __name__ == "__main__":
    main()
