"""Plan text: read, written, and refused with a hint."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vivace.plan.errors import PlanError
from vivace.plan.grammar import Term, parse, write
from vivace.plan.plan import Plan
from vivace.plan.scope import Scope


def test_reads_names_knobs_and_scopes():
    first = " a + b_2(k=8, x=1.5e-3,t=true , path=/m/x-1.gguf, q='a, \\'b\\'', l=[1, two, [none]])"
    text = first + " @ layers=4.., role=draft+c()"
    knobs = {"k": 8, "x": 1.5e-3, "t": True, "path": "/m/x-1.gguf", "q": "a, 'b'", "l": [1, "two", [None]]}
    assert parse(text) == [Term("a"), Term("b_2", knobs, "layers=4.., role=draft"), Term("c")]
    assert parse("  ") == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a b", "joined by +"),
        ("a +", "expected a method's name"),
        ("a(8)", "expected a knob"),
        ("a(k)", "a(k=value)"),
        ("a(k=1 j=2)", "separated by commas"),
        ("a(k=1, k=2)", "k is given twice"),
        ("a(k=", "expected a value"),
        ("a(k=[1", "separated by commas"),
        ("a @ + b", "a scope is missing"),
        ("a(k='x)", "expected a value"),
    ],
)
def test_says_what_is_wrong(text: str, says: str):
    with pytest.raises(PlanError, match=says.replace("(", r"\(").replace(")", r"\)").replace("+", r"\+")):
        parse(text)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=5,
)


@given(values)
def test_values_are_read_as_they_are_written(value: object):
    (term,) = parse(f"a(k={write(value)})")
    assert term.knobs["k"] == value and type(term.knobs["k"]) is type(value)


@given(st.text(alphabet="ab(k=1,.[]'\" +@)\\-e", max_size=30))
def test_any_text_is_read_or_refused(text: str):
    try:
        terms = parse(text)
    except PlanError:
        return
    for value in (v for term in terms for v in term.knobs.values() if isinstance(v, float)):
        assert not math.isnan(value) or "nan" in text


def test_equal_plans_have_one_text_and_key():
    one = Plan.parse("whole(share=1) + drops + loud(by=5)")
    other = Plan.parse("drops()+whole( share = 1.0 )+loud(token=0)")
    assert one.text == other.text == "drops + whole(share=1.0) + loud" and one.key == other.key
    assert Plan.parse(one.text) == one
    assert Plan.parse("loud(by=4)").key != Plan.parse("loud").key != Plan().key == ""


def test_order_counts_where_it_means_something():
    assert Plan.parse("loud(token=1) + loud").key != Plan.parse("loud + loud(token=1)").key


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("loudd", "no method 'loudd'; did you mean loud"),
        ("loud(bye=1)", "no knob 'bye'; did you mean by"),
        ("loud(by=101)", "loud: by must be float from -100 to 100, not 101"),
        ("loud(by=nan)", "by must be float"),
        ("loud(token=1.5)", "token must be int from 0, not 1.5"),
        ("loud(token=true)", "token must be int"),
        ("loud(mode=sub)", "mode must be one of add, set"),
        ("whole", r"whole needs share, as in whole\(share=...\)"),
        ("loud + loud", "stands in the plan twice"),
        ("loud @ depth=1", "a scope is layers"),
        ("loud @ layers=4..2", "the range is empty"),
        ("loud @ layers=x", "give numbers and ranges"),
        ("loud @ phase=late", "prefill or decode"),
        ("nothing.yaml", "cannot be read"),
    ],
)
def test_plans_that_cannot_be(text: str, says: str):
    with pytest.raises(PlanError, match=says):
        Plan.parse(text)


def test_yaml_says_the_same(tmp_path):
    file = tmp_path / "plan.yaml"
    file.write_text(
        "methods:\n- drops\n- name: whole\n  share: 0.5\n  scope: role=draft\n- {name: loud, names: [a, b]}\n"
    )
    assert Plan.parse(str(file)) == Plan.parse("drops + whole(share=0.5) @ role=draft + loud(names=[a, b])")
    for text in ("- drops", "methods: 3", "methods: [[1]]", "methods: [", "{"):
        file.write_text(text)
        with pytest.raises(PlanError, match=r"plan\.yaml"):
            Plan.parse(str(file))


@pytest.mark.parametrize("text", ["layers=4..", "layers=0,3", "layers=0..2,7, heads=1", "phase=decode, role=draft"])
def test_scopes_are_written_as_they_are_read(text: str):
    assert Scope.parse(text).text == text


def test_scopes_know_their_layers_and_whether_they_meet():
    assert Scope.parse("layers=0,2..3,6..").layers_of(8) == [0, 2, 3, 6, 7]
    assert not Scope.parse("layers=0..3").meets(Scope.parse("layers=4.."))
    assert Scope.parse("layers=0..4").meets(Scope.parse("layers=4.."))
    assert not Scope.parse("role=draft").meets(Scope())
    assert not Scope.parse("phase=decode").meets(Scope.parse("phase=prefill"))
    assert Scope.parse("layers=9..").meets(Scope.parse("layers=100.."))
