"""A machine without GPUs captures none of their work.

What: ``torch.cuda.is_current_stream_capturing`` answers so.
Why: torch for CPUs has the question and no answer; the host asks it for each image of MiniCPM-V
    before 4.5 and of MiniCPM-o 2.6, which ended the engine.
Since: 0.32
Until: the host asks where there are GPUs alone.
"""

from __future__ import annotations

from typing import Any

from cpu_backend.host.seam import Hosts, When, change


@change(
    "vllm.model_executor.models.minicpmv",
    "Resampler2_5.forward(self, x, tgt_sizes)",
    when=When.COMPUTING,
    hosts=Hosts(since=(0, 32)),
)
def capture_nothing(module: Any) -> None:
    module.torch.cuda.is_current_stream_capturing = lambda: False
