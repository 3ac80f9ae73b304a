"""The collectives of a group of ranks: the host's, and those of parts that differ in length."""

from __future__ import annotations

import torch
from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator


class CPUCommunicator(CpuCommunicator):
    """Under data parallelism every replica computes its share of each expert for all of them.

    The replicas' batches differ in length, and the host's communicator for CPUs has no collectives
    for that.
    """

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
