"""The cost table."""

from __future__ import annotations

from itertools import accumulate, cycle

import pytest
from scripted import ScriptedExecutor, random_brain, tiny_spec

from vivace.core import cost
from vivace.core.cost import CostTable, cost_path, cost_table, measure
from vivace.core.engine import Engine
from vivace.core.step import StepError

TABLE = CostTable((1, 2, 8), (0, 100), ((1.0, 2.0), (1.5, 3.0), (4.5, 6.0)))


@pytest.mark.parametrize(
    ("rows", "depth", "seconds"),
    [(1, 0, 1), (8, 100, 6), (5, 0, 3), (1, 50, 1.5), (5, 50, 3.75), (14, 0, 7.5), (1, 300, 4)],
)
def test_time_of(rows, depth, seconds):
    assert TABLE.time_of(rows, depth) == pytest.approx(seconds)


def test_json_round_trip():
    assert CostTable.from_json(TABLE.to_json()) == TABLE


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"rows": [1, 2], "depths": [0], "seconds": [[1.0]]}'])
def test_other_json_is_refused(text):
    with pytest.raises(ValueError, match="not a cost table"):
        CostTable.from_json(text)


def executor() -> ScriptedExecutor:
    return ScriptedExecutor(random_brain(0, 8), tiny_spec(8), capacity_pages=16)


def test_measure(monkeypatch):
    ticks = iter(range(10**6))
    monkeypatch.setattr(cost, "perf_counter", lambda: next(ticks))
    model = executor()
    table = measure(model, rows=(1, 4), depths=(0, 100, 600, 5000), repeats=3)
    assert table == CostTable((1, 4), (0, 100, 600), ((1.0,) * 3,) * 2)
    assert model.batch_sizes.count(4) == 3 * 4 and sum(n for n in model.batch_sizes if n not in (1, 4)) == 600
    assert model.store.free_pages == 16
    model.store.check()


def test_no_step_is_longer_than_the_executor_takes():
    model = executor()
    model.max_rows = 4
    table = measure(model, rows=(1, 4, 5), depths=(0, 10), repeats=1)
    assert (table.rows, max(model.batch_sizes)) == ((1, 4), 4)


def test_a_full_cache_is_refused():
    model = executor()
    model.store.reserve(model.store.new(), list(range(15 * 64 + 1)))
    with pytest.raises(StepError, match="needs 64 tokens of cache, and 0 are free"):
        measure(model, rows=(1, 64), depths=(0, 10))


def test_the_first_step_of_each_kind_warms_up(monkeypatch):
    clock = accumulate(cycle((0, 100, 0, 1)))
    monkeypatch.setattr(cost, "perf_counter", lambda: next(clock))
    assert measure(executor(), rows=(1, 4), depths=(0,), repeats=1).seconds == ((1.0,), (1.0,))


def test_measured_once_per_executor_plan_and_machine(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    measured = []
    monkeypatch.setattr(cost, "measure", lambda executor: measured.append(1) or TABLE)
    model = executor()
    assert cost_table(model) == cost_table(model) == TABLE
    assert len(measured) == 1
    for name, value in (("name", "other"), ("isa", "other"), ("fingerprint", "other"), ("threads", 2)):
        setattr(model, name, value)
        assert cost_table(model) == TABLE
    assert len(measured) == 5
    cost_table(model, "plan")
    monkeypatch.setattr(cost, "machine_name", lambda: "other")
    cost_table(model)
    assert len(measured) == 7
    cost_path(model).write_text("{")
    assert cost_table(model) == TABLE
    assert len(measured) == 8


def test_a_table_that_cannot_be_kept_is_still_given(monkeypatch, tmp_path):
    (tmp_path / "vivace").write_text("a file, not a folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(cost, "measure", lambda executor: TABLE)
    assert cost_table(executor()) == TABLE


def test_an_engine_knows_the_cost_of_its_models(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    measured = []
    monkeypatch.setattr(cost, "measure", lambda executor: measured.append(executor.fingerprint) or TABLE)
    models = {"target": executor(), "draft": executor()}
    models["draft"].fingerprint = "small"
    engine = Engine(models)
    assert not measured  # only when somebody asks
    assert engine.cost() == engine.cost() == engine.cost("draft") == TABLE
    assert measured == ["scripted", "small"]
