"""The KV cache on disk, as a connector of the host: its scheduler asks which pages of a prompt are
stored, and orders them to be read or written while steps go on.

The host's ``OffloadingConnector`` decides what is stored and when a page may be used again, for
windows and recurrent states too.  Here is where pages go: into files, without the copy in the CPU's
memory that it keeps of a GPU's.  A page that cannot be read is computed anew.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorRole,
    KVConnectorTransferResults,
)
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.kv_offload.base import (
    CanonicalKVCaches,
    GPULoadStoreSpec,
    LoadStoreSpec,
    LookupResult,
    OffloadingManager,
    OffloadingSpec,
    OffloadingWorker,
    OffloadKey,
    PrepareStoreOutput,
    ReqContext,
    RequestOffloadingContext,
    TransferResult,
    get_offload_group_idx,
)
from vllm.v1.kv_offload.factory import OffloadingSpecFactory
from vllm.v1.outputs import KVConnectorOutput

from cpu_backend import envs
from cpu_backend.disk_cache.folder import PageFolder, Room
from cpu_backend.disk_cache.identity import folder_name
from cpu_backend.host.disk_cache import IDENTITY
from cpu_backend.runtime.threads import leave_compute_threads

logger = logging.getLogger("vllm.cpu_backend")  # under the host's logger, so it is seen

ABOUT = "about.json"  # what pages in a folder depend on, for people
READERS = 2  # half of the time goes into memory that is touched for the first time


class DiskConnector(OffloadingConnector):
    """The host's, with files behind it, which may be gone when they are wanted."""

    def __init__(
        self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig
    ) -> None:
        root = envs.disk_cache()
        assert root is not None
        assert vllm_config.kv_transfer_config is not None
        known = vllm_config.kv_transfer_config.kv_connector_extra_config
        name, about = folder_name(vllm_config, known[IDENTITY])
        folder = root / name
        if role == KVConnectorRole.SCHEDULER:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / ABOUT).write_text(about)
        known["folder"] = str(folder)
        super().__init__(vllm_config, role, kv_cache_config)

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        """The host's, with the requests whose pages could not be read: they are computed."""
        offloading = self.connector_worker
        assert offloading is not None
        assert isinstance(offloading.worker, DiskWorker)
        requests = dict(offloading._load_jobs)
        results = super().get_transfer_results(finished_req_ids)
        finished = requests.keys() - offloading._load_jobs.keys()
        results.failed_recving |= {requests[job] for job in offloading.worker.failed(finished)}
        return results

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        """The host's; a request whose pages could not be read is computed, all of it, and what is
        not there any more is stored again."""
        super().update_connector_output(connector_output)
        assert self.connector_scheduler is not None
        for request in connector_output.failed_recving:
            if status := self.connector_scheduler._req_status.get(request):
                status.req.skip_reading_prefix_cache = True
                for group in status.group_states:
                    group.next_stored_chunk_idx = 0


class DiskSpec(OffloadingSpec):
    """Both ends of the connector; ``config.extra_config["folder"]`` is where files lie."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        folder = Path(config.extra_config["folder"])
        self.pages = PageFolder(folder, config.parallel.world_size)
        self.room = Room(folder.parent, envs.disk_cache_bytes())

    def get_manager(self) -> OffloadingManager:
        page = self.config.worker_kv_bytes_per_block * self.config.parallel.world_size
        return DiskManager(self.pages, self.room, page)

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        groups = {group.group_id: i for i, group in enumerate(self.config.groups)}
        return DiskWorker(self.pages, self.config.parallel.rank, kv_caches, groups)


OffloadingSpecFactory.register_spec(DiskSpec.__name__, __name__, DiskSpec.__name__)


@dataclass(frozen=True)
class Keys(LoadStoreSpec):
    """Of pages, in the order of the blocks that they are read into or written from."""

    keys: Sequence[OffloadKey]


Pages = Sequence[tuple[OffloadKey, int]]  # and the blocks of the cache that they are in


class Part(NamedTuple):
    """What one thread did of a job, and when."""

    begin: float
    end: float
    size: int
    is_whole: bool


class DiskManager(OffloadingManager):
    """What the scheduler asks; whether a page is stored says the disk alone, which others may
    write to as well.  page: bytes of one, about."""

    def __init__(self, pages: PageFolder, room: Room, page: int) -> None:
        self._pages, self._room, self._page = pages, room, page
        self._being_stored: set[OffloadKey] = set()
        room.clean()
        logger.info(
            "cpu_backend: pages of prompts are kept in '%s'; those of all models may take %.1f GiB",
            pages.folder,
            room.limit / 2**30,
        )

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        return RequestOffloadingContext()

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        if self._pages.has(key):
            return LookupResult.HIT
        return LookupResult.HIT_PENDING if key in self._being_stored else LookupResult.MISS

    def touch(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        for key in keys:
            self._pages.touch(key)

    def prepare_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> LoadStoreSpec:
        self.touch(keys, req_context)
        return Keys(tuple(keys))

    def prepare_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext
    ) -> PrepareStoreOutput:
        """Of ``keys`` those that are not stored yet, and that no other request is storing."""
        new = [k for k in keys if k not in self._being_stored and not self._pages.has(k)]
        self._being_stored.update(new)
        return PrepareStoreOutput(keys_to_store=new, store_spec=Keys(tuple(new)), evicted_keys=[])

    def complete_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext, success: bool = True
    ) -> None:
        self._being_stored.difference_update(keys)
        self._room.grew(len(keys) * self._page)

    def reset_cache(self) -> None:
        """The stores under way are not reported any more.  Files stay: what they hold is right."""
        self._being_stored.clear()


class DiskWorker(OffloadingWorker):
    """Reads and writes the pages of one rank, beside its steps.

    kv_caches: for each group of layers, where its pages lie in memory.  groups: position in them by
    the number that a key has.
    """

    def __init__(
        self, pages: PageFolder, rank: int, kv_caches: CanonicalKVCaches, groups: dict[int, int]
    ) -> None:
        self._pages, self._rank = pages, rank
        rows = [each.tensor.numpy() for each in kv_caches.tensors]
        self._layers = {
            number: [(rows[ref.tensor_idx], ref.page_size_bytes) for ref in refs]
            for number, refs in zip(groups, kv_caches.group_data_refs, strict=True)
        }
        # One thread writes: it may fall behind, and steps have the cores before it.
        self._writer = ThreadPoolExecutor(1, "kv-writer", initializer=leave_compute_threads)
        self._readers = ThreadPoolExecutor(READERS, "kv-reader", initializer=leave_compute_threads)
        self._jobs: dict[int, list[Future[Part]]] = {}
        self._failed: set[int] = set()
        self._told = False

    def submit_store(
        self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec
    ) -> bool:
        return self._submit(self._writer, 1, self._write, job_id, src_spec, dst_spec)

    def submit_load(
        self,
        job_id: int,
        src_spec: LoadStoreSpec,
        dst_spec: GPULoadStoreSpec,
        expedited: bool = False,
    ) -> bool:
        return self._submit(self._readers, READERS, self._read, job_id, dst_spec, src_spec)

    def get_finished(self) -> list[TransferResult]:
        """The host knows no failure here: one of a read is told by ``failed``."""
        done = [job for job, parts in self._jobs.items() if all(part.done() for part in parts)]
        return [self._finish(job) for job in done]

    def _finish(self, job: int) -> TransferResult:
        parts = [part.result() for part in self._jobs.pop(job)]
        if not all(part.is_whole for part in parts):
            self._failed.add(job)
        seconds = max(part.end for part in parts) - min(part.begin for part in parts)
        return TransferResult(job, True, sum(part.size for part in parts), seconds)

    def wait(self, job_ids: set[int]) -> None:
        wait_for([part for job in job_ids for part in self._jobs.get(job, [])])

    def failed(self, jobs: Collection[int]) -> set[int]:
        """Those of ``jobs``, finished reads, of which some page was not there, or damaged."""
        failed = self._failed.intersection(jobs)
        self._failed -= failed
        return failed

    def shutdown(self) -> None:
        """What was begun is finished: a prompt's last pages are written after its answer."""
        for pool in (self._readers, self._writer):
            pool.shutdown(wait=True)

    def _submit(
        self,
        pool: ThreadPoolExecutor,
        threads: int,
        work: Callable[[Pages], int | None],
        job: int,
        blocks: GPULoadStoreSpec,
        named: LoadStoreSpec,
    ) -> bool:
        """Have every thread do its share of the pages by ``work``, which returns the number of
        bytes; None where some could not be read."""
        assert isinstance(named, Keys)
        pages = list(zip(named.keys, blocks.block_ids.tolist(), strict=True))

        def timed(share: Pages) -> Part:
            begin = time.perf_counter()
            size = work(share)
            return Part(begin, time.perf_counter(), size or 0, size is not None)

        self._jobs[job] = [pool.submit(timed, pages[i::threads]) for i in range(threads)]
        return True

    def _parts(self, key: OffloadKey, block: int) -> list[memoryview]:
        """Where the page ``block`` of the key's group lies, layer by layer."""
        layers = self._layers[get_offload_group_idx(key)]
        return [memoryview(rows[block, :size]).cast("B") for rows, size in layers]

    def _write(self, pages: Pages) -> int:
        written = 0
        for key, block in pages:
            try:
                written += self._pages.write(key, self._rank, self._parts(key, block))
            except OSError as error:
                if not self._told:
                    self._told = True
                    logger.warning(
                        "cpu_backend: pages cannot be written to '%s' (%s): those that are not "
                        "are computed anew when they are wanted again.",
                        self._pages.folder,
                        error.strerror or error,
                    )
        return written

    def _read(self, pages: Pages) -> int | None:
        """All of them, whether or not some fail: each that does goes, or others would find it."""
        size, is_whole = 0, True
        for key, block in pages:
            parts = self._parts(key, block)
            if self._pages.read(key, self._rank, parts):
                size += sum(part.nbytes for part in parts)
            else:
                self._pages.remove(key, self._rank)
                is_whole = False
        return size if is_whole else None
