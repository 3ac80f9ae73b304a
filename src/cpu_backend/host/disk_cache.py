"""The KV cache on disk: the one connector there may be, and what it does not change.

What: ``VllmConfig._resolve_mm_embedding_inputs`` does not see it, and the log does not say that
    connectors are an experiment.
Why: the host takes whoever reads pages for one that is sent them by another server, and would
    accept embeddings of pictures, and none, from clients.  Nobody here has chosen a connector.
Since: 0.30
Until: a connector says for itself whether it is sent pages.
"""

from __future__ import annotations

import logging
import os
from typing import Any

from cpu_backend import envs
from cpu_backend.disk_cache import identity
from cpu_backend.errors import ConfigError
from cpu_backend.host.seam import change, patch

logger = logging.getLogger("vllm.cpu_backend")  # under the host's logger, so it is seen

CONNECTOR = "DiskConnector"
MODULE = "cpu_backend.worker.disk_connector"
IDENTITY = "identity"  # in the connector's settings, where nobody else has it
HASHES = ("sha256", "sha256_cbor")  # others begin with random bytes in every process


@patch("vllm.config.vllm", "VllmConfig._resolve_mm_embedding_inputs(self)")
def resolve(original: Any) -> Any:
    """As if there were no connector, if it is this one."""

    def resolve_mm_embedding_inputs(self: Any) -> None:
        kept = self.kv_transfer_config
        if kept is not None and _is_own(kept):
            self.kv_transfer_config = None
        try:
            original(self)
        finally:
            self.kv_transfer_config = kept

    return resolve_mm_embedding_inputs


@change("vllm.distributed.kv_transfer.kv_connector.v1.base", "logger")
def leave_out(module: Any) -> None:
    """By its beginning."""
    module.logger.addFilter(lambda record: not record.msg.startswith("Initializing KVConnector"))


def configure(config: Any) -> None:
    """Refuse connectors that this backend's pages have not been tried with, and set the one for a
    disk if it is asked for.  config: the host's VllmConfig; may be called several times with one.
    """
    transfer = config.kv_transfer_config
    if transfer is not None and not _is_own(transfer):
        raise ConfigError(
            f"{transfer.kv_connector} was not made for the order that keys and values have on the "
            f"CPU: leave --kv-transfer-config out; {envs.DISK_CACHE.name} keeps prompts on a disk."
        )
    media = config.ec_transfer_config
    if media is not None and media.ec_connector is not None:
        raise ConfigError(
            "what is made of pictures and sounds does not go from server to server on the CPU yet: "
            "leave --ec-transfer-config out."
        )
    folder = envs.disk_cache()
    if folder is None or config.model_config is None or transfer is not None:
        return
    for found, way_out in _CONFLICTS:
        if found(config):
            raise ConfigError(f"{envs.DISK_CACHE.name} does not go with {way_out}.")
    if reason := _without_effect(config):
        logger.warning("cpu_backend: %s has no effect: %s.", envs.DISK_CACHE.name, reason)
        return
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # what people asked is theirs
        writable = os.access(folder, os.W_OK | os.X_OK)
    except OSError:
        writable = False
    if not writable:
        raise ConfigError(
            f"{envs.DISK_CACHE.name}={folder} is no folder that can be written: name another."
        )
    envs.disk_cache_bytes()
    from vllm.config.kv_transfer import KVTransferConfig

    config.kv_transfer_config = KVTransferConfig(
        kv_connector=CONNECTOR,
        kv_connector_module_path=MODULE,
        kv_role="kv_both",
        kv_load_failure_policy="recompute",
        kv_connector_extra_config={
            "spec_name": "DiskSpec",
            IDENTITY: identity.settings(config),
        },
    )


_CONFLICTS = (
    (
        lambda config: config.lora_config is not None,
        "--enable-lora, as pages are found by an adapter's name, which may get other weights: "
        "leave one of them out",
    ),
    (
        lambda config: config.parallel_config.nnodes > 1,
        "--nnodes: serve on one machine, or leave it out",
    ),
    (
        # The host's connector wants all their pages of one length, which stages do not have.
        lambda config: (
            config.parallel_config.pipeline_parallel_size > 1
            and config.model_config.has_inner_state
        ),
        "--pipeline-parallel-size and a model with a recurrent state: choose "
        "--tensor-parallel-size, or leave one of them out",
    ),
    (
        lambda config: config.cache_config.prefix_caching_hash_algo not in HASHES,
        "a --prefix-caching-hash-algo that differs from process to process: choose sha256",
    ),
)


def _is_own(transfer: Any) -> bool:
    """Whether ``configure`` has set it."""
    return IDENTITY in transfer.kv_connector_extra_config


def _without_effect(config: Any) -> str:
    """Why prompts of this server are not kept at all; empty if they are."""
    model = config.model_config
    if model.runner_type != "generate":
        return "a model that does not generate text keeps nothing of a prompt"
    if model.is_encoder_decoder:
        return f"vLLM keeps nothing of the prompts of {model.architecture}"
    if not config.cache_config.enable_prefix_caching:
        return "prefix caching is off"
    return ""
