"""The collectives of a group of ranks: the host's, and those of parts that differ in length."""

from __future__ import annotations

import os
from typing import Any

import torch
from vllm.distributed.device_communicators.cpu_communicator import (
    CpuCommunicator,
    _CPUSHMDistributed,
)


class CPUCommunicator(CpuCommunicator):
    """Under data parallelism every replica computes its share of each expert for all of them.

    The replicas' batches differ in length, for which the host's communicator for CPUs has no
    collectives; and it takes those in shared memory for ranks of one engine only.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.unique_name.startswith(("dp", "ep")):
            names: list[str] = [""] * self.world_size
            own = os.environ["VLLM_DIST_IDENT"]
            torch.distributed.all_gather_object(names, own, group=self.device_group)
            # "meeting point-machine": replicas have a meeting point each.
            meeting_point, machines = names[0].split("-")[0], {n.split("-", 1)[-1] for n in names}
            self.group_name = f"{meeting_point}-{self.unique_name}-{self.ranks}"
            if len(machines) == 1:
                self.dist_module = _Replicas(self)

    def all_gatherv(
        self,
        input_: torch.Tensor | list[torch.Tensor],
        dim: int = 0,
        sizes: list[int] | None = None,
    ) -> torch.Tensor | list[torch.Tensor]:
        """[tokens of this rank, ...] to [tokens of all, ...]; ``sizes``: each rank's tokens."""
        if isinstance(input_, list):
            return [self.all_gatherv(part, dim, sizes) for part in input_]
        assert dim == 0
        if sizes is None:
            return self.all_gather(input_, 0)
        padded = input_.new_zeros(max(sizes), *input_.shape[1:])
        padded[: len(input_)] = input_
        parts = self.all_gather(padded, 0).split(max(sizes))
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    def reduce_scatterv(
        self, input_: torch.Tensor, dim: int = -1, sizes: list[int] | None = None
    ) -> torch.Tensor:
        """[tokens of all, ...] of every rank to the sums [tokens of this rank, ...]."""
        assert dim == 0
        if sizes is None:
            return self.reduce_scatter(input_, 0)
        self.all_reduce(input_)
        return input_.split(sizes)[self.rank_in_group].clone()


class _Replicas(_CPUSHMDistributed):
    @staticmethod
    def make_group_name(communicator: CPUCommunicator) -> str:
        return communicator.group_name
