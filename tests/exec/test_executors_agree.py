"""The native executor does what the reference does, for every kind of row and tap: same calls, same numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hf_zoo import random_tokens
from test_reference import NAMES, all_logits, checkpoint, prefilled, step

from vivace.core.step import Executor, Mask, Segment, StepError, StepRequest, Write, all_rows
from vivace.core.taps import Tap
from vivace.exec.reference import ReferenceExecutor

native = pytest.importorskip("vivace.exec.native", reason="the native executor is not built")
PARENTS = np.array([-1, 0, 0, 2, -1, 4, 3], np.int32)
ALLOWED = np.random.default_rng(3).random((7, 7)) < 0.4
# Rounding of keys and values to half floats may fall to either side, and is carried through the layers above.
TOLERANCE = 1e-3
KINDS = ("hidden", "query", "attention_mass", "log_sum_exp")


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


def tapped(executor: Executor, *segments: Segment, kinds: tuple[str, ...] = KINDS, **request):
    """The logits of a step and what its taps show of every layer; minus infinity as a number of its own."""
    blocks = len(executor.spec.blocks)
    wanted = [Tap(kind, i) for kind in kinds for i in range(blocks + (kind == "hidden"))]
    result = step(executor, *segments, taps=frozenset(wanted), **request)
    return [result.logits.copy(), *(np.maximum(result.taps[tap], -50) for tap in wanted)]


def taps(executor: Executor):
    seq = prefilled(executor, random_tokens(257))
    yield from tapped(executor, Segment(seq, random_tokens(7)))


def taps_of_a_tree(executor: Executor):
    for length in (20, 255):
        seq = prefilled(executor, random_tokens(length))
        yield from tapped(executor, Segment(seq, random_tokens(7), mask=Mask.TREE, parents=PARENTS))


def evict(executor: Executor, seq: int) -> None:
    """Every head but those of the last layer loses keys of its own choice."""
    rng, length = np.random.default_rng(2), executor.store.length(seq)
    for layer, block in enumerate(executor.spec.blocks[:-1]):
        for head in range(block.attention.kv_heads):
            executor.store.keep(seq, layer, head, np.flatnonzero(rng.random(length) < rng.random()))


def bias(executor: Executor, seq: int) -> None:
    """Some keys of some heads, whether or not the head has a list of its own."""
    rng = np.random.default_rng(4)
    for layer in (0, len(executor.spec.blocks) - 1):
        keys = len(executor.store.positions(seq, layer, 0))
        chosen = rng.choice(keys, keys // 3, replace=False)
        executor.store.set_biases(seq, layer, 0, chosen, rng.normal(size=len(chosen)).astype(np.float32) * 3)


def layer_mask(executor: Executor, rows: int, seed: int = 1) -> np.ndarray:
    """A third of the rows skip each layer; of three or more layers all rows skip one, and none skips another."""
    blocks = len(executor.spec.blocks)
    mask = np.random.default_rng(seed).random((rows, blocks)) < 0.67
    if blocks > 2:
        mask[:, 1], mask[:, 2] = False, True
    return mask


def taps_of_a_tree_over_ragged_heads(executor: Executor):
    for length in (20, 300):
        seq = prefilled(executor, random_tokens(length))
        evict(executor, seq)
        yield from tapped(executor, Segment(seq, random_tokens(7), mask=Mask.TREE, parents=PARENTS))


def skipped_layers(executor: Executor):
    for length in (5, 250):
        seq = prefilled(executor, random_tokens(length))
        mask = layer_mask(executor, 40)
        yield from tapped(executor, all_logits(seq, random_tokens(40)), layer_mask=mask)
        executor.store.commit(seq)
        yield from tapped(executor, Segment(seq, random_tokens(1)), layer_mask=mask[3:4])


def skipped_layers_in_one_row(executor: Executor):
    seq = prefilled(executor, random_tokens(70))
    for skipped in (slice(1), slice(1, 3), slice(-1, None), slice(None)):
        mask = np.ones((1, len(executor.spec.blocks)), np.bool_)
        mask[0, skipped] = False
        yield from tapped(executor, Segment(seq, random_tokens(1), write=Write.SCRATCH), layer_mask=mask)


def skipped_layers_under_every_mask(executor: Executor):
    seq, mask = prefilled(executor, random_tokens(90)), layer_mask(executor, 7)
    ordinals = np.array([5, 6, 62, 63, 64, 80, 88], np.int32)
    fields = [
        {"mask": Mask.TREE, "parents": PARENTS},
        {"mask": Mask.BLOCK},
        {"mask": Mask.GIVEN, "allowed": ALLOWED},
    ]
    for field in fields:
        segment = all_logits(seq, random_tokens(7), write=Write.SCRATCH, **field)
        yield from tapped(executor, segment, layer_mask=mask)
    for field in ({}, fields[1], fields[2]):
        segment = all_logits(seq, random_tokens(7), write=Write.REPLACE, ordinals=ordinals, **field)
        yield from tapped(executor, segment, layer_mask=mask)
        executor.store.rollback(seq)


def biased_keys(executor: Executor):
    for length in (30, 300):
        seq = prefilled(executor, random_tokens(length))
        bias(executor, seq)
        yield from tapped(executor, all_logits(seq, random_tokens(5)))
        executor.store.commit(seq)
        yield from tapped(executor, Segment(seq, random_tokens(1)))


def everything_at_once(executor: Executor):
    """Trees, rows that skip layers, ragged heads and biased keys, beside a plain sequence and one of a single row."""
    lengths = (260, 40, 9, 70)
    seqs = [prefilled(executor, random_tokens(length, seed=length)) for length in lengths]
    for seq in seqs[:2]:
        evict(executor, seq)
        bias(executor, seq)
    bias(executor, seqs[3])
    yield from tapped(
        executor,
        all_logits(seqs[0], random_tokens(7), mask=Mask.TREE, parents=PARENTS),
        all_logits(seqs[1], random_tokens(20)),
        Segment(seqs[2], random_tokens(1)),
        all_logits(seqs[3], random_tokens(7), mask=Mask.GIVEN, allowed=ALLOWED),
        layer_mask=layer_mask(executor, 35),
    )


def changed(seed: int):
    """An edit that turns and shifts what it is given."""

    def edit(values: np.ndarray) -> None:
        shift = np.random.default_rng(seed).normal(size=values.shape[1:]).astype(np.float32)
        values *= np.float32(0.9)
        values += shift * np.float32(0.1) * np.abs(values).mean(axis=-1, keepdims=True)

    return edit


def edited(executor: Executor):
    blocks = len(executor.spec.blocks)
    for seed, tap in enumerate([Tap("hidden", 0), Tap("hidden", 1), Tap("hidden", blocks), Tap("query", 1)]):
        seq = prefilled(executor, random_tokens(70))
        for rows in (9, 1):
            yield from tapped(executor, all_logits(seq, random_tokens(rows)), edits={tap: changed(seed)})
    last = blocks - 1
    both = {Tap("query", 0): changed(5), Tap("hidden", last): changed(6), Tap("query", last): changed(7)}
    seq = prefilled(executor, random_tokens(70))
    yield from tapped(executor, all_logits(seq, random_tokens(9)), edits=both, layer_mask=layer_mask(executor, 9))


def edited_part_of_the_depth(executor: Executor):
    edits = {Tap("hidden", layer): changed(layer) for layer in (1, 2)}
    vectors = np.random.default_rng(5).normal(size=(3, executor.spec.hidden)).astype(np.float32)
    segment = Segment(executor.store.new(), None, vectors)
    taps = frozenset([Tap("hidden", 1), Tap("hidden", 2)])
    result = step(executor, segment, first_layer=1, last_layer=2, edits=edits, taps=taps)
    yield from (result.taps[tap].copy() for tap in sorted(taps, key=lambda tap: tap.layer))


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
    taps_of_a_tree_over_ragged_heads,
    skipped_layers,
    skipped_layers_in_one_row,
    skipped_layers_under_every_mask,
    biased_keys,
    everything_at_once,
    edited,
    edited_part_of_the_depth,
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_native_does_what_the_reference_does(scenario, name):
    reference = ReferenceExecutor(checkpoint(name), capacity_pages=32, value_bytes=2)
    wanted = [values.copy() for values in scenario(reference)]
    for threads in (1, 2):
        tested = native.NativeExecutor(checkpoint(name), capacity_pages=32, threads=threads)
        for i, (want, found) in enumerate(zip(wanted, scenario(tested), strict=True)):
            assert found.shape == want.shape, i
            assert np.abs(found - want).max() <= TOLERANCE * np.abs(want).max(), (i, threads)
        tested.store.check()
        tested.close()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("top", [0, 1, 40, 300])
def test_the_largest_logits_of_each_row(top, threads):
    executor = native.NativeExecutor(checkpoint(NAMES[0]), capacity_pages=8, threads=threads)
    request = StepRequest([all_logits(executor.store.new(), random_tokens(9))], top=top)
    result = executor.run(request)
    assert result.stats is not None and len(result.stats) == 9
    for row, stats in zip(result.logits, result.stats, strict=True):
        if not top:
            assert stats.top is None
            continue
        assert stats.top.tolist() == np.argsort(-row, kind="stable")[: min(top, native.MAX_TOP)].tolist()
    executor.close()


def test_a_step_of_more_than_max_rows_is_refused():
    executor = native.NativeExecutor(checkpoint(NAMES[0]), capacity_pages=8, max_rows=4)
    seq = executor.store.new()
    with pytest.raises(StepError, match="5 rows is over the 4"):
        step(executor, all_logits(seq, random_tokens(5)))
    assert step(executor, all_logits(seq, random_tokens(4))).cost.rows == 4


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kept", [None, range(3, 90, 4)], ids=["uniform", "ragged"])
@pytest.mark.parametrize("skips", [False, True], ids=["all layers", "some layers"])
def test_bytes_are_counted_alike(name, kept, skips):
    counts = []
    reference = ReferenceExecutor(checkpoint(name), capacity_pages=32, value_bytes=2)
    for executor in (reference, native.NativeExecutor(checkpoint(name), capacity_pages=32)):
        seqs = [prefilled(executor, random_tokens(length)) for length in (90, 11)]
        if kept is not None:
            executor.store.keep(seqs[0], 1, 0, np.array(kept))
        segments = [all_logits(seqs[0], random_tokens(30)), Segment(seqs[1], random_tokens(1))]
        cost = executor.run(StepRequest(segments, layer_mask=layer_mask(executor, 31) if skips else None)).cost
        assert cost.kv_read_bytes > 0
        counts.append((cost.kv_read_bytes, cost.kv_written_bytes, cost.weight_bytes))
    assert counts[0] == counts[1]
