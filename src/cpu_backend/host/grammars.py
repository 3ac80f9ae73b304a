"""Each constraint on the output is compiled by the library that has accepted it.

What: ``grammar_init`` keeps a manager per library.
Why: the host gives all to the library of the first, where those that only another one reads fail.
Since: 0.32
Until: it compiles each by its own library.
"""

from __future__ import annotations

import copy
from typing import Any

from cpu_backend.host.seam import patch


@patch("vllm.v1.structured_output", "StructuredOutputManager.grammar_init(self, request)")
def compile_as_accepted(original: Any) -> Any:
    """Masks, of one form in all libraries, are made by the first; each grammar fills its own."""

    def grammar_init(self: Any, request: Any) -> None:
        if request.structured_output_request is None:
            return
        kind = request.sampling_params.structured_outputs._backend
        managers = self.__dict__.setdefault("_manager_of", {})
        if kind not in managers:
            managers[kind] = copy.copy(self)
            managers[kind].backend = None
        original(managers[kind], request)
        self.backend = self.backend or managers[kind].backend

    return grammar_init
