"""Applying a plan to the threads of this process.

The worker applies its rank's plan to the main thread before OpenMP starts and hands
``ThreadPlan.cpus`` to the native library, which binds each OpenMP thread.
"""

import contextlib
import logging
from collections.abc import Sequence

from cpu_backend.runtime import system
from cpu_backend.runtime.plan import BIND_ENV, Machine, ThreadPlan, cpus_apart
from cpu_backend.runtime.reservations import Reservation, Reservations
from cpu_backend.runtime.sysfs import format_cpu_list

logger = logging.getLogger("vllm.cpu_backend")  # under the host's logger, so it is seen


def claim(
    machine: Machine, ranks: int, server: str, table: Reservations | None = None
) -> tuple[ThreadPlan, ...]:
    """Plan all ranks of ``server`` beside the other servers, and keep those off for its lifetime.

    Every process that computes for the server calls this and gets the same plans, whatever other
    servers have come and gone since the first call.
    """
    table = table or Reservations()
    with table.changing():
        mine = table.find(server)
        beside = mine.beside if mine else table.taken(server)
        plans = machine.plan(ranks, beside)
        computing = frozenset(cpu for plan in plans for cpu in plan.cpus)
        if computing:
            table.hold(server, Reservation(_kept(machine, plans), computing, beside))
    return plans


def _kept(machine: Machine, plans: Sequence[ThreadPlan]) -> frozenset[int]:
    """The bound ranks' cores with all their siblings, and what is reserved beside them."""
    by_id, siblings = machine.topology.by_id, machine.topology.smt_siblings
    bound = [plan for plan in plans if plan.cpus]
    cores = {by_id[cpu].core_id for plan in bound for cpu in plan.cpus}
    beside = (plan.process_cpus for plan in bound)
    return frozenset().union(*(siblings[core] for core in cores), *beside)


def apply(plan: ThreadPlan) -> bool:
    """Restrict the calling thread, and all threads it starts, to the plan's CPUs.

    Returns whether the mask was set. Where a container or the platform forbids it, the rank still
    computes correctly, so that costs one warning and nothing else.
    """
    try:
        return bool(plan.process_cpus) and system.bind_thread(plan.process_cpus)
    except OSError as error:
        logger.warning(
            f"Threads stay unbound, as the system refused CPUs {format_cpu_list(plan.process_cpus)}"
            f" ({error}): allow sched_setaffinity in the container, or set {BIND_ENV}=nobind."
        )
        return False


def step_aside(
    machine: Machine, inherited_from: int | None = None, table: Reservations | None = None
) -> frozenset[int]:
    """Move threads of this process that do not compute to CPUs without compute threads.

    All of them, or in a process that computes those that ``inherited_from`` names: they were
    started by a compute thread and would share its CPU.  Returns where they went; empty where no
    CPU is left, which leaves them to the system.
    """
    apart = cpus_apart(machine, (table or Reservations()).computing())
    if inherited_from is not None and not apart:
        apart = machine.limits.cpus  # any CPU is better than one that is always busy
    moved = bool(apart) and system.move_threads(apart, inherited_from)
    return apart if moved else frozenset()


def leave_compute_threads(table: Reservations | None = None) -> None:
    """Have the calling thread run beside compute threads, if there is another CPU, and not on that
    of the one which started it."""
    machine = Machine.read()
    with contextlib.suppress(OSError):
        apart = cpus_apart(machine, (table or Reservations()).computing())
        system.bind_thread(apart or machine.limits.cpus)
