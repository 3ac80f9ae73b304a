"""A forward pass recorded once, to be run again without Python (``csrc/recording/``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class _ReadsOutsideOfTorch(TorchFunctionMode):
    """Tells of methods that hand a tensor's memory to Python, which no dispatcher sees."""

    METHODS = ("numpy", "tolist", "__array__", "untyped_storage", "__dlpack__")

    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__()
        self._tell = tell

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if getattr(func, "__name__", "") in self.METHODS:
            self._tell(f"Tensor.{func.__name__} reads a value back")
        return func(*args, **(kwargs or {}))


class StepRecording:
    """What ran between entering and leaving this context, ready to run again.

    step_data: the tensors that a later step replaces by its own; model_memory: those that outlive
    the recording and stay where they are; states: those of them that a step changes and reads
    beforehand, which whoever runs it twice puts back; see ``csrc/recording/step_recording.h``.  Set
    ``output`` before leaving.
    """

    def __init__(
        self,
        step_data: list[torch.Tensor],
        model_memory: list[torch.Tensor] | None = None,
        states: list[torch.Tensor] | None = None,
    ) -> None:
        self._native = torch.classes.cpu_backend.StepRecording(
            step_data, model_memory or [], states or []
        )
        self._reads = _ReadsOutsideOfTorch(self.refuse)
        self.output = torch.empty(0)

    def __enter__(self) -> StepRecording:
        self._native.open()
        self._reads.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._reads.__exit__(*exception)
        self._native.close(self.output)

    def refuse(self, reason: str) -> None:
        """Make it unusable; the first reason is kept."""
        self._native.fail(reason)

    def fill_with_garbage(self) -> None:
        """Overwrite all memory that the recording computes in."""
        self._native.fill_with_garbage()

    @property
    def error(self) -> str:
        """Why it cannot be replayed, or nothing."""
        return str(self._native.error())

    def replay(self, step_data: list[torch.Tensor]) -> torch.Tensor:
        """Run again over this step's data; gives the recorded output, overwritten."""
        result: torch.Tensor = self._native.replay(step_data)
        return result
