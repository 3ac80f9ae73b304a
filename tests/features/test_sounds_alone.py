"""Sounds that are encoded at once are what they are alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from cpu_backend import host

FRAMES = (50, 188, 101)  # half a second, nearly two, one and the first frame of the next


def test_minicpmo_hears_no_padding() -> None:
    host.prepare_model()
    from vllm.model_executor.models.minicpmo import MiniCPMOBaseModel

    torch.manual_seed(20)
    model = _Ears()
    spectra = [torch.randn(80, frames) for frames in FRAMES]
    with torch.inference_mode():
        alone = [MiniCPMOBaseModel.get_audio_hidden_states(model, _data(s))[0] for s in spectra]
        together = MiniCPMOBaseModel.get_audio_hidden_states(model, _data(*spectra))
    for one, other in zip(alone, together, strict=True):
        assert torch.equal(one, other)


class _Ears(torch.nn.Module):
    """What the host's model asks of itself to hear."""

    def __init__(self) -> None:
        from transformers import WhisperConfig
        from vllm.model_executor.models.minicpmo import MiniCPMOBaseModel

        super().__init__()
        ears = WhisperConfig(
            d_model=64,
            encoder_layers=2,
            encoder_attention_heads=2,
            encoder_ffn_dim=256,
            init_std=0.3,
            attn_implementation="sdpa",
        )
        self.config = SimpleNamespace(audio_config=ears, audio_pool_step=2, audio_chunk_length=1.0)
        self.embed_dim = 96
        self._host = MiniCPMOBaseModel
        self.apm = self.init_audio_module(vllm_config=None)
        self.eval()

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self._host, name).__get__(self)


def _data(*spectra: torch.Tensor) -> dict[str, Any]:
    return {
        "audio_features": list(spectra),
        "audio_feature_lens": [torch.tensor([one.shape[1]]) for one in spectra],
    }
