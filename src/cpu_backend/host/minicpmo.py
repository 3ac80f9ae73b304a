"""MiniCPM-o hears each sound as if it were alone.

What: sounds that are asked about at once go through the encoder one after the other, each of their
    pieces as long as it is.
Why: the host fills shorter ones up to the longest one, and says of twice as many positions as a
    sound has that they are its own; so its last second hears what was filled up, and an answer
    depends on which requests were there.
Since: 0.30
Until: the host leaves out what is filled up.
"""

from __future__ import annotations

from typing import Any

from cpu_backend.host.seam import When, patch


@patch(
    "vllm.model_executor.models.minicpmo",
    "MiniCPMOBaseModel.get_audio_hidden_states(self, data)",
    when=When.COMPUTING,
)
def one_by_one(original: Any) -> Any:
    """Of each sound [tokens, hidden], those of its pieces one after the other."""
    import torch

    def hidden_states(self: Any, data: Any) -> Any:
        spectra = iter(data["audio_features"])
        return [
            torch.cat(
                [
                    original(
                        self,
                        {
                            "audio_features": [next(spectra)[:, :length]],
                            "audio_feature_lens": [length[None]],
                        },
                    )[0]
                    for length in lengths
                ]
            )
            for lengths in data["audio_feature_lens"]
        ]

    return hidden_states
