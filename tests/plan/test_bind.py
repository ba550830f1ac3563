"""Verdicts: from facts, slots and scopes, with reasons and remedies."""

from __future__ import annotations

import pytest

from vivace.plan.bind import check
from vivace.plan.plan import Plan


def reasons(text: str) -> list[tuple[str, str, str, str]]:
    return [(r.verdict, r.method, r.fact, r.other) for r in check(Plan.parse(text)).reasons]


def test_nothing_is_ok_and_exact():
    report = check(Plan())
    assert (report.verdict, report.exactness, report.tier, report.reasons) == ("ok", "exact", "T0", ())


def test_what_one_needs_another_breaks():
    assert reasons("drops + whole(share=1)") == [("refused", "whole", "kv.append_only", "drops")]
    (reason,) = check(Plan.parse("drops + whole(share=1)")).reasons
    assert "leave out whole or drops" in reason.remedy and "stays in the cache" in reason.why


def test_what_one_can_do_without():
    report = check(Plan.parse("ragged + whole(share=1)"))
    assert report.verdict == "degraded" and report.exactness == "approximate"
    assert [r.why for r in report.reasons] == ["whole with ragged: it counts rows of the common list only"]


def test_a_slot_takes_so_many():
    assert ("refused", "drops", "", "ragged") in reasons("drops + ragged")
    assert check(Plan.parse("drops @ layers=0..3 + ragged @ layers=4..")).verdict == "ok"
    assert check(Plan.parse("drops + ragged @ role=draft")).verdict == "ok"


def test_a_slot_that_needs_another():
    assert reasons("whole(share=1)") == [("refused", "whole", "", "")]
    assert "kv_scorer" in check(Plan.parse("whole(share=1)")).reasons[0].why
    assert reasons("whole(share=1) + drops @ role=draft")[0][:2] == ("refused", "whole")


def test_a_scope_that_would_be_ignored():
    assert reasons("loud @ layers=3") == [("refused", "loud", "", "")]


@pytest.mark.parametrize("text", ["drops + whole(share=1)", "whole(share=1)", "drops + ragged", "loud @ layers=3"])
def test_remedies_are_given(text: str):
    assert all(reason.remedy for reason in check(Plan.parse(text)).reasons)


def test_as_json():
    record = check(Plan.parse("drops + whole(share=1)")).json()
    assert record["verdict"] == "refused" and record["plan"] == "drops + whole(share=1.0)"
    assert set(record["reasons"][0]) >= {"method", "fact", "other", "remedy"}
