"""The native executor does what the reference does, for every kind of row and tap: same calls, same numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hf_zoo import random_tokens
from test_reference import NAMES, all_logits, checkpoint, prefilled, step

from vivace.core.step import Executor, Mask, Segment, StepError, Write, all_rows
from vivace.core.taps import Tap
from vivace.exec.reference import ReferenceExecutor

native = pytest.importorskip("vivace.exec.native", reason="the native executor is not built")
PARENTS = np.array([-1, 0, 0, 2, -1, 4, 3], np.int32)
ALLOWED = np.random.default_rng(3).random((7, 7)) < 0.4
# Rounding of keys and values to half floats may fall to either side, and is carried through the layers above.
TOLERANCE = 1e-3


def causal(executor: Executor):
    seq = prefilled(executor, random_tokens(300))
    yield step(executor, all_logits(seq, random_tokens(9))).logits


def explicit_positions(executor: Executor):
    positions = np.cumsum(np.random.default_rng(1).integers(1, 6, 40)).astype(np.int32)
    seq = prefilled(executor, random_tokens(30), positions=positions[:30])
    yield step(executor, all_logits(seq, random_tokens(10), positions=positions[30:])).logits


def tree(executor: Executor):
    for length in (11, 253):
        seq = prefilled(executor, random_tokens(length))
        yield step(executor, all_logits(seq, random_tokens(7), mask=Mask.TREE, parents=PARENTS)).logits
        executor.store.commit(seq, [0, 2, 3])
        yield step(executor, all_logits(seq, random_tokens(2))).logits


def block_and_given(executor: Executor):
    seq = prefilled(executor, random_tokens(70))
    yield step(executor, all_logits(seq, random_tokens(7), mask=Mask.BLOCK, write=Write.SCRATCH)).logits
    yield step(executor, all_logits(seq, random_tokens(7), mask=Mask.GIVEN, allowed=ALLOWED)).logits


def replaced(executor: Executor):
    seq, ordinals = prefilled(executor, random_tokens(90)), np.array([5, 6, 62, 63, 64, 80, 88], np.int32)
    for mask in (Mask.BLOCK, Mask.CAUSAL):
        yield step(
            executor, all_logits(seq, random_tokens(7), mask=mask, write=Write.REPLACE, ordinals=ordinals)
        ).logits
    executor.store.commit(seq)
    yield step(executor, all_logits(seq, random_tokens(3))).logits


def ragged(executor: Executor):
    seq, rng = prefilled(executor, random_tokens(140)), np.random.default_rng(2)
    for layer, block in enumerate(executor.spec.blocks[:-1]):
        for head in range(block.attention.kv_heads):
            executor.store.keep(seq, layer, head, np.flatnonzero(rng.random(140) < rng.random()))
    yield step(executor, all_logits(seq, random_tokens(5))).logits
    executor.store.commit(seq)
    yield step(executor, all_logits(seq, random_tokens(7), mask=Mask.TREE, parents=PARENTS)).logits


def mixed_sequences(executor: Executor):
    seqs = [prefilled(executor, random_tokens(n, seed=n)) for n in (1, 64, 257)]
    vectors = np.random.default_rng(5).normal(size=(3, executor.spec.hidden)).astype(np.float32)
    result = step(
        executor,
        Segment(seqs[0], random_tokens(4)),
        all_logits(seqs[1], random_tokens(7), mask=Mask.TREE, parents=PARENTS),
        Segment(seqs[2], random_tokens(1)),
    )
    yield result.logits
    yield step(executor, Segment(executor.store.new(), None, vectors, logits=all_rows(3))).logits


def part_of_the_depth(executor: Executor):
    seq, tap = executor.store.new(), Tap("hidden", 1)
    lower = step(executor, Segment(seq, random_tokens(9)), last_layer=1, taps=frozenset([tap])).taps[tap].copy()
    yield lower
    executor.store.commit(seq)
    upper = Segment(seq, None, lower, write=Write.REPLACE, ordinals=all_rows(9), logits=all_rows(9))
    yield step(executor, upper, first_layer=1).logits


def tapped(executor: Executor, segment: Segment, *kinds: str):
    blocks = len(executor.spec.blocks)
    wanted = [Tap(kind, i) for kind in kinds for i in range(blocks + (kind == "hidden"))]
    found = step(executor, segment, taps=frozenset(wanted)).taps
    return [found[tap].copy() for tap in wanted]


def taps(executor: Executor):
    seq = prefilled(executor, random_tokens(257))
    yield from tapped(executor, Segment(seq, random_tokens(7)), "hidden", "query", "attention_mass", "log_sum_exp")


def taps_of_a_tree(executor: Executor):
    seq = prefilled(executor, random_tokens(20))
    segment = Segment(seq, random_tokens(7), mask=Mask.TREE, parents=PARENTS)
    yield from tapped(executor, segment, "hidden", "query", "log_sum_exp")


def mass_of_a_tree(executor: Executor):
    seq = prefilled(executor, random_tokens(20))
    segment = Segment(seq, random_tokens(7), mask=Mask.TREE, parents=PARENTS)
    yield from tapped(executor, segment, "attention_mass")


SCENARIOS = [
    causal,
    explicit_positions,
    tree,
    block_and_given,
    replaced,
    ragged,
    mixed_sequences,
    part_of_the_depth,
    taps,
    taps_of_a_tree,
    mass_of_a_tree,
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_native_does_what_the_reference_does(scenario, name):
    reference = ReferenceExecutor(checkpoint(name), capacity_pages=32, value_bytes=2)
    tested = native.NativeExecutor(checkpoint(name), capacity_pages=32)
    for i, (wanted, found) in enumerate(zip(scenario(reference), scenario(tested), strict=True)):
        assert found.shape == wanted.shape, i
        assert np.abs(found - wanted).max() <= TOLERANCE * np.abs(wanted).max(), i
    tested.store.check()
    tested.close()


def test_biased_keys_are_refused_not_ignored():
    executor = native.NativeExecutor(checkpoint(NAMES[0]), capacity_pages=32)
    seq = prefilled(executor, random_tokens(20))
    executor.store.set_biases(seq, 1, 0, [2, 17], [0.7, -3.0])
    with pytest.raises(StepError, match="biases"):
        step(executor, all_logits(seq, random_tokens(3)))
    assert executor.store.pending(seq) == 0


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kept", [None, range(3, 90, 4)], ids=["uniform", "ragged"])
def test_cache_bytes_are_counted_alike(name, kept):
    counts = []
    reference = ReferenceExecutor(checkpoint(name), capacity_pages=32, value_bytes=2)
    for executor in (reference, native.NativeExecutor(checkpoint(name), capacity_pages=32)):
        seq = prefilled(executor, random_tokens(90))
        if kept is not None:
            executor.store.keep(seq, 1, 0, np.array(kept))
        cost = step(executor, all_logits(seq, random_tokens(5))).cost
        assert cost.kv_read_bytes > 0
        counts.append((cost.kv_read_bytes, cost.kv_written_bytes))
    assert counts[0] == counts[1]
