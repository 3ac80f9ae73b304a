"""OpenCUA's processor has the parts of Qwen2-VL's.

What: ``OpenCUAProcessor.get_attributes`` names the image processor and the one of videos too.
Why: ``transformers`` 5 reads a processor's parts off the parameters of its ``__init__``, and
    OpenCUA's are not those of the class that it calls: the image processor is lost, and the
    engine does not start.
Since: 0.32
Until: it starts.
"""

from __future__ import annotations

from typing import Any

from cpu_backend.host.seam import change


@change("vllm.model_executor.models.opencua", "OpenCUAProcessor", "Qwen2VLProcessor")
def name_parts(opencua: Any) -> None:
    """Those of the class below."""
    parts = opencua.Qwen2VLProcessor.get_attributes
    opencua.OpenCUAProcessor.get_attributes = classmethod(lambda cls: parts())
