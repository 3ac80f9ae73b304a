"""Routers that stay with transformers compute row by row (host/transformers_routers.py)."""

from __future__ import annotations

import torch
from torch.nn import functional

from cpu_backend import ops
from cpu_backend.host.transformers_routers import _Products


class Router(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(20, 192).bfloat16())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x.float(), self.weight.type(torch.float32))


def test_a_row_is_the_same_in_every_batch() -> None:
    ops.load()
    torch.manual_seed(1)
    router, x = Router(), torch.randn(70, 192).bfloat16()
    expected = router(x)
    with torch.no_grad(), _Products(router):
        together = router(x)
        alone = torch.cat([router(x[i : i + 1]) for i in range(len(x))])
    assert torch.equal(together, alone)
    torch.testing.assert_close(together, expected, atol=1e-4, rtol=1e-5)


def test_products_with_other_weights_are_torchs() -> None:
    router, x, other = Router(), torch.randn(3, 192), torch.randn(7, 192)
    with torch.no_grad(), _Products(router):
        assert torch.equal(functional.linear(x, weight=other), x @ other.T)
    assert not hasattr(router, "cpu_linear")
