"""Sounds are read rightly, or the answer names the package that is missing.

What: ``load_audio`` asks for soundfile or torchcodec, and raises what the endpoints pass on.
Why: with neither, PyAV's whole numbers are taken for fractions of 1: a WAV file is 32,768 times too
loud for the model; without PyAV too, the endpoints call the sound invalid.
Since: 0.32
Until: the host scales them, and names what is missing.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from cpu_backend.host.seam import patch


@patch("vllm.multimodal.media.audio", "load_audio(path, ...)")
def name_packages(original: Any) -> Any:
    """PyAV is asked for besides: it resamples, and reads what the others do not."""

    def load_audio(path: Any, **options: Any) -> Any:
        try:
            if not (find_spec("torchcodec") or find_spec("soundfile")):
                raise ModuleNotFoundError("soundfile")
            return original(path, **options)
        except ImportError as error:
            raise ValueError(
                "This server cannot read sounds because the Python packages soundfile and av are "
                "not both installed: run `pip install soundfile av` in its environment, and start "
                "it again."
            ) from error

    return load_audio
