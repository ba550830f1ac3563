"""What this machine is, and what it does at best."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from vivace.core.machine import default_threads, processor
from vivace.measure.limits import Limits
from vivace.ops.registry import native


@dataclass(frozen=True)
class Machine:
    """The facts that a record of a measurement needs."""

    processor: str
    cores: int  # of the host, as the system counts them
    threads: int  # that this process may use
    isa: str
    memory_bytes: int
    governor: str | None
    system: str
    python: str
    vivace: str

    def record(self) -> dict[str, object]:
        return asdict(self)


def describe() -> Machine:
    return Machine(
        processor=processor(),
        cores=os.cpu_count() or 1,
        threads=default_threads(),
        isa=native().isa(),
        memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        governor=_text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        vivace=own_version(),
    )


def own_version() -> str:
    try:
        return version("vivace")
    except PackageNotFoundError:
        return "unknown"


def probe(threads: int, seconds: float = 0.3, megabytes: int = 256) -> Limits:
    """Measures read bandwidth over `megabytes` and the int8 peak with that many threads, `seconds` each."""
    core = native()
    return Limits(core.probe_bandwidth(threads, seconds, megabytes), core.probe_int8(threads, seconds))


def _text(path: str) -> str | None:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return None
