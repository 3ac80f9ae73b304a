"""What a user may choose for a Serve application."""

from __future__ import annotations

import shlex
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class Settings(BaseModel):
    """The ``args`` of a Serve configuration file, or of ``serve run ... key=value``."""

    model_config = ConfigDict(extra="forbid")

    model: str
    # As on the command line of `vllm serve`, without model, host and port.
    options: str = ""
    # Engines in the cluster; auto: one for each NUMA node of each machine with CPUs for Ray.
    replicas: int | Literal["auto"] = "auto"
    gateways: int = Field(default=1, ge=1)
    # Requests that one engine works on at a time, and those that may wait for a place in any.
    max_ongoing: int = Field(default=64, ge=1)
    max_waiting: int = Field(default=64, ge=0)
    # Seconds that a request may wait for a place before it is refused.
    waiting_seconds: float = Field(default=60.0, gt=0)
    # One more request on a replica counts like so many prompt tokens that are not in its cache:
    # a replica is overloaded when its queue outweighs what its cache saves.
    busy_tokens: int = Field(default=256, ge=1)
    # How often a request whose replica died is tried elsewhere.
    retries: int = Field(default=3, ge=0)

    def command_line(self) -> list[str]:
        """Arguments of ``vllm serve``."""
        return [self.model, *shlex.split(self.options)]
