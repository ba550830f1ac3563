"""How many threads a process may use."""

from __future__ import annotations

import os

import pytest

from vivace.core.machine import default_threads


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
