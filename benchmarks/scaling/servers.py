"""Servers as their makers' product pages and data sheets describe them."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.scaling.model import Node

# Sustained part of channels x rate.  STREAM on full sockets: 378 of 460.8 GB/s (EPYC 9004 with
# DDR5-4800, Micron and AMD), 171.5 of 204.8 (eight channels of DDR4-3200, Microway).
SUSTAINED = 0.82


@dataclass(frozen=True)
class Server:
    """``flop_per_cycle``: fp32 of a core, two per multiply-add; ``base_ghz``: of all cores.

    ``bf16_gain``: bf16 operations per fp32 one by VDPBF16PS.  On Intel's cores it runs on one of
    the two units, so nothing is gained; AMX is left out, as its speed was never measured here.
    """

    name: str
    sockets: int
    cores: int  # of a socket
    channels: int  # of a socket, 8 bytes wide
    mega_transfers: int  # per second and channel
    base_ghz: float
    flop_per_cycle: int
    bf16_gain: int = 1

    @property
    def socket_bytes_per_s(self) -> float:
        return self.channels * 8 * self.mega_transfers * 1e6 * SUSTAINED

    def node(self, nodes: int, core_bytes_per_s: float) -> Node:
        """One of ``nodes`` equal NUMA nodes; one alone is a socket, as a rank gets it."""
        sockets = self.sockets / nodes if nodes > 1 else 1.0
        return Node(
            cores=round(self.cores * sockets),
            bytes_per_s=self.socket_bytes_per_s * sockets,
            core_bytes_per_s=core_bytes_per_s,
            core_flop_per_s=self.base_ghz * 1e9 * self.flop_per_cycle * self.bf16_gain,
        )


# 256 cores that can be one, two, four or eight nodes (NPS1, NPS2, NPS4 on two sockets).
REFERENCE = Server("2 x AMD EPYC 9755", 2, 128, 12, 6000, 2.7, 64, 2)
SERVERS = (
    Server("1 x AMD EPYC 7763", 1, 64, 8, 3200, 2.45, 32),
    Server("2 x AMD EPYC 7763", 2, 64, 8, 3200, 2.45, 32),
    Server("2 x AMD EPYC 9654", 2, 96, 12, 4800, 2.4, 32, 2),
    REFERENCE,
    Server("2 x Intel Xeon 8480+", 2, 56, 8, 4800, 2.0, 64),
    Server("2 x Intel Xeon 6980P", 2, 128, 12, 6400, 2.0, 64),
    Server("1 x AWS Graviton4", 1, 96, 12, 5600, 2.8, 32),
)
