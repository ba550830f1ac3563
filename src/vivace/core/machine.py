"""The machine as this process sees it: how many processors it may really use, what they are, its memory."""

from __future__ import annotations

import os
import platform
import sys
from math import ceil
from pathlib import Path

MAX_THREADS = 256  # of the native pool
CGROUPS = Path("/sys/fs/cgroup")


def default_threads(cgroups: Path = CGROUPS, own: Path = Path("/proc/self/cgroup")) -> int:
    """Processors allowed by affinity, cut to the CPU quota of the control groups above this process (v2 or v1)."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quotas = [quota for folder in _folders(cgroups, own) if (quota := _quota(folder)) is not None]
    return max(1, min([allowed, *(ceil(quota) for quota in quotas)]))


def _folders(cgroups: Path, own: Path) -> list[Path]:
    """Every folder from this process's control group up to the root; a limit anywhere on the way holds."""
    found = [cgroups, cgroups / "cpu"]
    for line in _read(own).splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers and "cpu" not in controllers.split(","):
            continue
        root = cgroups / "cpu" if controllers else cgroups
        inner = root / path.lstrip("/")
        found += [folder for folder in (inner, *inner.parents) if folder.is_relative_to(root)]
    return found


def _quota(folder: Path) -> float | None:
    """Processors' worth of time per period, or None when there is no limit here."""
    fields = _read(folder / "cpu.max").split() or [
        _read(folder / "cpu.cfs_quota_us").strip(),
        _read(folder / "cpu.cfs_period_us").strip(),
    ]
    try:
        quota, period = float(fields[0]), float(fields[1])
    except (ValueError, IndexError):
        return None  # "max", or no such file
    return quota / period if quota > 0 and period > 0 else None


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def cache_folder() -> Path:
    """Where what can be fetched or measured again is kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vivace"


def processor() -> str:
    """What the system calls the processor."""
    return cpu_field("model name") or platform.processor() or platform.machine()


def cpu_field(name: str, file: Path = Path("/proc/cpuinfo")) -> str | None:
    for line in _read(file).splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return None


def machine_name() -> str:
    """The processor and how many of them this process may use: what a measurement is valid for."""
    return f"{processor()} x {default_threads()}"


def peak_rss_bytes() -> int:
    """The most memory this process has held; 0 where the system does not tell."""
    try:
        from resource import RUSAGE_SELF, getrusage
    except ImportError:
        return 0
    return getrusage(RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
