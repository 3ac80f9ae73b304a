"""What ``linux.py`` does, for systems of which nothing is known: threads and memory stay where the
system puts them, and all else runs."""

from collections.abc import Collection


def allowed_cpus() -> frozenset[int] | None:
    return None


def bind_thread(cpus: Collection[int]) -> bool:
    return False


def move_threads(cpus: Collection[int], bound_to: int | None = None) -> bool:
    return False


def may_bind_threads() -> bool | None:
    return None


def may_bind_memory() -> bool | None:
    return None


def release(address: int, num_bytes: int) -> bool:
    return False


def mallopt(parameter: int, value: int) -> None:
    pass


def malloc_trim() -> None:
    pass
