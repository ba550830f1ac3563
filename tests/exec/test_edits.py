"""Edits stop a step where a tap shows something; one that changes nothing gives the bits of a step in one call."""

from __future__ import annotations

import numpy as np
import pytest
from hf_zoo import random_tokens
from test_reference import NAMES, all_logits, checkpoint, prefilled, step

from vivace.core.step import Mask, Segment, StepError, StepRequest, Write
from vivace.core.taps import Tap
from vivace.exec.reference import ReferenceExecutor

native = pytest.importorskip("vivace.exec.native", reason="the native core is not built")
PARENTS = np.array([-1, 0, 0, 2, -1, 4, 3], np.int32)


@pytest.fixture(params=NAMES)
def executor(request):
    made = native.NativeExecutor(checkpoint(request.param), capacity_pages=32, threads=2)
    yield made
    made.store.check()
    made.close()


def nothing(values: np.ndarray) -> None:
    pass


def every_tap(executor, *kinds: str) -> list[Tap]:
    blocks = len(executor.spec.blocks)
    return [Tap(kind, i) for kind in kinds for i in range(blocks + (kind == "hidden"))]


def segments_of(executor) -> dict[str, list[Segment]]:
    seqs = [prefilled(executor, random_tokens(n)) for n in (70, 255)]
    scratch = Write.SCRATCH
    return {
        "one row": [Segment(seqs[0], random_tokens(1), write=scratch)],
        "rows": [all_logits(seqs[1], random_tokens(9), write=scratch)],
        "tree": [all_logits(seqs[1], random_tokens(7), mask=Mask.TREE, parents=PARENTS, write=scratch)],
        "batch": [Segment(seq, random_tokens(n), write=scratch) for seq, n in zip(seqs, (1, 4), strict=True)],
    }


@pytest.mark.parametrize("kinds", [("hidden",), ("query",), ("hidden", "query")], ids="+".join)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("skips", [False, True], ids=["all layers", "some layers"])
def test_an_edit_that_changes_nothing_gives_the_same_bits(executor, kinds, threads, skips):
    executor.set_threads(threads)
    for name, segments in segments_of(executor).items():
        count = sum(segment.rows for segment in segments)
        mask = np.random.default_rng(1).random((count, len(executor.spec.blocks))) < 0.6 if skips else None
        taps = every_tap(executor, "hidden", "query", "attention_mass", "log_sum_exp")
        plain = StepRequest(segments, taps=frozenset(taps), layer_mask=mask)
        result = executor.run(plain)
        wanted = [result.logits.copy(), *(result.taps[tap].copy() for tap in taps)]
        assert (result.cost.tier, result.cost.native_calls) == ("T0", 1)
        plain.edits = dict.fromkeys(every_tap(executor, *kinds), nothing)
        result = executor.run(plain)
        assert result.cost.tier == ("T2" if "query" in kinds else "T1")
        assert result.cost.native_calls > 1
        for tap, want, found in zip(
            [None, *taps], wanted, [result.logits, *(result.taps[t] for t in taps)], strict=True
        ):
            assert np.array_equal(found, want), (name, tap)


@pytest.mark.parametrize("kind", ["hidden", "query"])
def test_an_edit_sees_what_the_tap_shows_and_the_tap_what_it_left(executor, kind):
    tap, later, seen = Tap(kind, 1), Tap("hidden", 2), []
    (segment,) = segments_of(executor)["rows"]
    plain = step(executor, segment, taps=frozenset([tap, later])).taps
    shown, after = plain[tap].copy(), plain[later].copy()

    def edit(values: np.ndarray) -> None:
        seen.append(values.copy())
        values[3] = 1 - values[3]

    edited = step(executor, segment, taps=frozenset([tap, later]), edits={tap: edit}).taps
    assert len(seen) == 1
    assert np.array_equal(seen[0], shown)
    shown[3] = 1 - shown[3]
    assert np.array_equal(edited[tap], shown)
    differs = (edited[later] != after).any(1)
    rows_that_see_it = [3] if kind == "query" else range(3, 9)
    assert differs[rows_that_see_it].all()
    assert not differs[:3].any()
    assert kind == "hidden" or not differs[4:].any()


def test_an_edit_of_the_last_stream_without_logits_is_in_its_tap(executor):
    blocks = len(executor.spec.blocks)
    tap = Tap("hidden", blocks)
    segment = Segment(executor.store.new(), random_tokens(3), logits=np.empty(0, np.int32))

    def zero(values: np.ndarray) -> None:
        values[:] = 0

    result = step(executor, segment, taps=frozenset([tap]), edits={tap: zero})
    assert not result.taps[tap].any()


def test_queries_of_a_layer_that_no_row_runs_are_not_edited(executor):
    calls = []
    mask = np.ones((4, len(executor.spec.blocks)), np.bool_)
    mask[:, 1] = False
    edits = {Tap("query", 1): calls.append, Tap("hidden", 1): calls.append}
    for tested in (executor, ReferenceExecutor(executor._checkpoint, capacity_pages=4)):
        calls.clear()
        step(tested, Segment(tested.store.new(), random_tokens(4)), layer_mask=mask, edits=edits)
        assert [values.ndim for values in calls] == [2]


def test_a_part_of_the_depth_is_one_call(executor):
    segment = Segment(executor.store.new(), random_tokens(3), write=Write.SCRATCH)
    request = StepRequest([segment], last_layer=1, taps=frozenset([Tap("hidden", 1)]))
    cost = executor.run(request).cost
    assert (cost.tier, cost.native_calls) == ("T0", 1) == (executor.tier(request)[0], 1)
    request.edits = {Tap("hidden", 1): nothing}
    assert executor.run(request).cost.tier == "T1" == executor.tier(request)[0]


def test_an_edit_that_fails_leaves_nothing_pending(executor):
    def broken(values: np.ndarray) -> None:
        raise MemoryError

    seq = executor.store.new()
    for tested in (executor, ReferenceExecutor(executor._checkpoint, capacity_pages=4)):
        seq = tested.store.new()
        with pytest.raises(MemoryError):
            step(tested, Segment(seq, random_tokens(3)), edits={Tap("hidden", 1): broken})
        assert tested.store.pending(seq) == 0
    wanted = step(executor, Segment(executor.store.new(), random_tokens(3))).logits.copy()
    assert np.array_equal(step(executor, Segment(executor.store.new(), random_tokens(3))).logits, wanted)


@pytest.mark.parametrize(
    ("tap", "message"),
    [
        (Tap("attention_mass", 0), r"attention_mass\[0\] cannot be edited: only hidden and query can"),
        (Tap("query", 1), r"query\[1\].*layers 0..0 only"),
        (Tap("hidden", 2), r"hidden\[2\].*layers 0..1 only"),
    ],
)
def test_edits_that_cannot_be_made_are_refused(executor, tap, message):
    for tested in (executor, ReferenceExecutor(executor._checkpoint, capacity_pages=4)):
        seq = tested.store.new()
        with pytest.raises(StepError, match=message):
            step(tested, Segment(seq, random_tokens(3)), last_layer=1, edits={tap: nothing})
        assert tested.store.pending(seq) == 0
