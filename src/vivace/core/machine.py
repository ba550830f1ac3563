"""How many processors this process may really use: its quota, not the host's count."""

from __future__ import annotations

import os
import platform
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


def machine_name() -> str:
    """The processor and how many of them this process may use: what a measurement is valid for."""
    model = [
        line.split(":", 1)[1].strip() for line in _read(Path("/proc/cpuinfo")).splitlines() if "model name" in line
    ]
    return f"{model[0] if model else platform.processor() or platform.machine()} x {default_threads()}"
