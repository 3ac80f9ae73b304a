"""The processor's clock, as far as the system shows it; virtual machines show nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cpu_backend.doctor.finding import Finding, note, ok
from cpu_backend.info import cpu_model
from cpu_backend.runtime.sysfs import SYSFS, read_int, read_text

# Drivers that choose the clock by load whatever the governor is called; what holds them down is
# their preference for energy.
ACTIVE_DRIVERS = ("intel_pstate", "amd-pstate-epp")
SLOW_GOVERNORS = ("powersave", "conservative")
SET = "cpupower frequency-set"


@dataclass(frozen=True)
class Facts:
    """What most CPUs say, empty or 0 where it cannot be read; ``most`` is the clock in kHz that
    is allowed, ``possible`` the one that the processor has."""

    model: str
    driver: str = ""
    governor: str = ""
    preference: str = ""
    most: int = 0
    possible: int = 0


def read(sysfs: Path = SYSFS) -> Facts:
    folders = sorted((sysfs / "devices/system/cpu").glob("cpu[0-9]*/cpufreq"))

    def usual(name: str) -> str:
        counts = Counter(text for f in folders if (text := read_text(f / name).strip()))
        return counts.most_common(1)[0][0] if counts else ""

    def clock(folder: Path, name: str) -> int:
        return read_int(folder / name) or 0

    fastest = max(folders, key=lambda f: clock(f, "cpuinfo_max_freq"), default=sysfs)
    return Facts(
        cpu_model(),
        usual("scaling_driver"),
        usual("scaling_governor"),
        usual("energy_performance_preference"),
        clock(fastest, "scaling_max_freq"),
        clock(fastest, "cpuinfo_max_freq"),
    )


def judge(facts: Facts) -> Iterator[Finding]:
    if not facts.governor:
        yield ok("clock", f"{facts.model}; its clock is not shown here")
        return
    if 0 < facts.most < facts.possible:
        yield note(
            "clock",
            f"the clock is held at {_ghz(facts.most)} of {_ghz(facts.possible)}",
            f"{SET} -u {facts.possible}",
        )
    if facts.driver in ACTIVE_DRIVERS:
        slow, name = facts.preference == "power", f"preference {facts.preference or 'unknown'}"
        mend = "write balance_performance to energy_performance_preference of each CPU"
    else:
        slow, name = facts.governor in SLOW_GOVERNORS, f"governor {facts.governor}"
        mend = f"{SET} -g performance"
    if slow:
        yield note("clock", f"{name} of {facts.driver} saves power", mend)
    else:
        most = f", up to {_ghz(facts.most)}" if facts.most else ""
        yield ok("clock", f"{facts.model}; {name}{most}")


def _ghz(khz: int) -> str:
    return f"{khz / 1e6:.1f} GHz"
