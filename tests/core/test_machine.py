"""How many threads a process may use, and what it reads of the processor."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from vivace.core.machine import cpu_field, default_threads, peak_rss_bytes


@pytest.fixture(autouse=True)
def eight_processors(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)


def quota(tmp_path, own: str, **files: str) -> int:
    for name, text in files.items():
        path = tmp_path / name.replace("__", "/").replace("cpu_max", "cpu.max").replace("cfs_", "cpu.cfs_")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    groups = tmp_path / "own"
    groups.write_text(own)
    return default_threads(tmp_path, groups)


def test_no_limit(tmp_path):
    assert quota(tmp_path, "") == 8
    assert quota(tmp_path, "0::/\n", cpu_max="max 100000\n") == 8


def test_version_2(tmp_path):
    assert quota(tmp_path, "0::/\n", cpu_max="200000 100000\n") == 2
    assert quota(tmp_path, "0::/a/b\n", cpu_max="max 100000", a__cpu_max="150000 100000", a__b__cpu_max="max 1") == 2
    assert quota(tmp_path, "0::/a\n", a__cpu_max="1000 100000") == 1


def test_version_1(tmp_path):
    files = {"cpu__x__cfs_quota_us": "300000", "cpu__x__cfs_period_us": "100000"}
    assert quota(tmp_path, "4:cpu,cpuacct:/x\n3:memory:/y\n", **files) == 3
    assert quota(tmp_path, "4:cpu,cpuacct:/x\n", **{**files, "cpu__x__cfs_quota_us": "-1"}) == 8


def test_affinity(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3})
    assert quota(tmp_path, "", cpu_max="400000 100000") == 1


def test_a_set_of_processors_given_from_outside():
    """As a cpuset or `taskset` gives it; the kernel makes both the process's affinity."""
    code = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
    code += "from vivace.core.machine import default_threads; print(default_threads())"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "1\n"


def test_quotas_of_both_versions_at_once(tmp_path):
    files = {"cpu__x__cfs_quota_us": "600000", "cpu__x__cfs_period_us": "100000"}
    assert quota(tmp_path, "4:cpu,cpuacct:/x\n0::/a\n", a__cpu_max="300000 100000", **files) == 3
    assert quota(tmp_path, "0::/../../outside\n") == 8


def test_fields_of_the_processor(tmp_path):
    file = tmp_path / "cpuinfo"
    file.write_text("processor\t: 0\nmodel name\t: A: B\n\nprocessor\t: 1\nmodel name\t: C\n")
    assert cpu_field("model name", file) == "A: B" and cpu_field("flags", file) is None
    assert cpu_field("flags", tmp_path / "none") is None


def test_memory_is_in_bytes():
    assert peak_rss_bytes() > 10_000_000
