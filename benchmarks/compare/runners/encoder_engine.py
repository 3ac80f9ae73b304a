"""BERT by OpenVINO, ONNX Runtime or torch, as their documentation advises for throughput.

``settings["backend"]`` chooses.  ONNX Runtime gets the graph that its own optimizer for BERT makes.
"""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

from protocol import run_engine


class EncoderEngine:
    def __init__(self, modules: Any, settings: dict[str, Any]) -> None:
        self.np, torch = modules.numpy, modules.torch
        torch.set_num_threads(settings["threads"])
        backend = settings["backend"]
        model = modules.BertModel.from_pretrained(
            settings["model"], attn_implementation="eager" if backend == "onnxruntime" else "sdpa"
        ).eval()
        self.versions = {"torch": torch.__version__, "transformers": modules.transformers}
        getattr(self, f"_{backend}")(_first_token(torch, model), settings)

    def _torch(self, model: Any, settings: dict[str, Any]) -> None:
        import torch

        model = model.to(getattr(torch, settings["dtype"]))

        def run(ids: Any, mask: Any) -> Any:
            with torch.inference_mode():
                return model(torch.from_numpy(ids), torch.from_numpy(mask)).float().numpy()

        self.run = run

    def _openvino(self, model: Any, settings: dict[str, Any]) -> None:
        import openvino

        self.versions["openvino"] = openvino.__version__
        compiled = openvino.Core().compile_model(
            openvino.convert_model(model, example_input=_example()),
            "CPU",
            {
                "INFERENCE_NUM_THREADS": settings["threads"],
                "PERFORMANCE_HINT": "LATENCY",  # one batch at a time takes every thread
                "INFERENCE_PRECISION_HINT": {"float32": "f32", "bfloat16": "bf16"}[
                    settings["dtype"]
                ],
            },
        )
        self.run = lambda ids, mask: compiled((ids, mask))[0]

    def _onnxruntime(self, model: Any, settings: dict[str, Any]) -> None:
        import onnxruntime
        import torch
        from onnxruntime.transformers import optimizer

        if settings["dtype"] != "float32":
            raise ValueError("onnxruntime multiplies fp32 on CPUs")
        self.versions["onnxruntime"] = onnxruntime.__version__
        path = os.path.join(settings["model"], "model.onnx")
        names = ["ids", "mask"]
        axes = {name: {0: "texts", 1: "tokens"} for name in names}
        torch.onnx.export(
            model, _example(), path, input_names=names, dynamic_axes=axes, dynamo=False
        )
        config = model.model.config
        optimizer.optimize_model(
            path, "bert", num_heads=config.num_attention_heads, hidden_size=config.hidden_size
        ).save_model_to_file(path)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = settings["threads"]
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self.run = lambda ids, mask: session.run(None, {"ids": ids, "mask": mask})[0]

    def embed(self, texts: list[list[int]]) -> list[list[float]]:
        longest = max(map(len, texts))
        ids = self.np.zeros((len(texts), longest), "int64")
        mask = self.np.zeros((len(texts), longest), "int64")
        for row, text in enumerate(texts):
            ids[row, : len(text)] = text
            mask[row, : len(text)] = 1
        vectors: list[list[float]] = self.run(ids, mask).tolist()
        return vectors


def _first_token(torch: Any, model: Any) -> Any:
    """The model as a function of ids and mask that gives the first token's vector."""

    class FirstToken(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: Any, mask: Any) -> Any:
            return self.model(input_ids=ids, attention_mask=mask).last_hidden_state[:, 0]

    return FirstToken().eval()


def _example() -> tuple[Any, Any]:
    import torch

    return torch.randint(100, 1000, (2, 16)), torch.ones(2, 16, dtype=torch.int64)


def load() -> Any:
    import numpy
    import torch
    import transformers

    return SimpleNamespace(
        numpy=numpy,
        torch=torch,
        transformers=transformers.__version__,
        BertModel=transformers.BertModel,
    )


if __name__ == "__main__":
    run_engine(load, EncoderEngine)
