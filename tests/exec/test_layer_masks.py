"""Rows that skip layers, bit for bit: as if each row had run alone and had been committed without its missing keys."""

from __future__ import annotations

import numpy as np
import pytest
from hf_zoo import random_tokens
from test_reference import NAMES, all_logits, checkpoint, prefilled, step

from vivace.core.step import Mask, Segment, StepError, StepRequest, Write
from vivace.core.taps import Tap

native = pytest.importorskip("vivace.exec.native", reason="the native core is not built")


@pytest.fixture(params=NAMES)
def executor(request):
    made = native.NativeExecutor(checkpoint(request.param), capacity_pages=80, threads=2)
    yield made
    made.store.check()
    made.close()


def random_mask(executor, rows: int, seed: int = 0, share: float = 0.7) -> np.ndarray:
    return np.random.default_rng(seed).random((rows, len(executor.spec.blocks))) < share


def one_by_one(executor, seq: int, tokens: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Logits [rows, vocab] of rows that run alone, one after another, in a fork of `seq`."""
    store, logits = executor.store, []
    fork = store.fork(seq)
    for token, runs in zip(tokens, mask, strict=True):
        result = step(executor, Segment(fork, np.array([token], np.int32)), layer_mask=runs[None])
        logits.append(result.logits[0].copy())
        store.commit(fork)
    store.drop(fork)
    return np.array(logits)


@pytest.mark.parametrize("length", [1, 60, 250])
@pytest.mark.parametrize("threads", [1, 2])
def test_rows_of_one_step_are_rows_alone(executor, length, threads):
    executor.set_threads(threads)
    seq, tokens, mask = prefilled(executor, random_tokens(length)), random_tokens(12), random_mask(executor, 12)
    wanted = one_by_one(executor, seq, tokens, mask)
    assert np.array_equal(step(executor, all_logits(seq, tokens), layer_mask=mask).logits, wanted)


def test_a_batch_is_its_sequences_alone(executor):
    lengths = (3, 64, 251, 128)
    seqs = [prefilled(executor, random_tokens(n, seed=n)) for n in lengths]
    texts = [random_tokens(n, seed=n + 1) for n in (1, 9, 33, 1)]
    masks = [random_mask(executor, len(text), seed=i) for i, text in enumerate(texts)]
    masks[0][:], masks[3][:] = True, False
    wanted = [one_by_one(executor, *each) for each in zip(seqs, texts, masks, strict=True)]
    segments = [all_logits(seq, text) for seq, text in zip(seqs, texts, strict=True)]
    result = step(executor, *segments, layer_mask=np.concatenate(masks))
    for i, logits in enumerate(wanted):
        assert np.array_equal(result.of(i), logits), i


@pytest.mark.parametrize("length", [5, 253])
def test_rows_of_a_tree_are_their_branches_alone(executor, length):
    random = np.random.default_rng(length)
    seq, n = prefilled(executor, random_tokens(length)), 11
    parents = np.array([random.integers(-1, i) if i else -1 for i in range(n)], np.int32)
    tokens, mask = random_tokens(n), random_mask(executor, n, seed=3)
    tree = all_logits(seq, tokens, mask=Mask.TREE, parents=parents, write=Write.SCRATCH)
    found = step(executor, tree, layer_mask=mask).logits.copy()
    for row in range(n):
        branch = [row]
        while parents[branch[0]] >= 0:
            branch.insert(0, int(parents[branch[0]]))
        assert np.array_equal(found[row], one_by_one(executor, seq, tokens[branch], mask[branch])[-1]), branch


def test_a_committed_path_of_a_tree_lacks_the_keys_its_rows_skipped(executor):
    store, random = executor.store, np.random.default_rng(5)
    seq, n = prefilled(executor, random_tokens(62)), 9
    parents = np.array([random.integers(-1, i) if i else -1 for i in range(n)], np.int32)
    tokens, mask = random_tokens(n), random_mask(executor, n, seed=6)
    branch = [n - 1]
    while parents[branch[0]] >= 0:
        branch.insert(0, int(parents[branch[0]]))
    both = np.concatenate([tokens[branch], random_tokens(1)]), np.concatenate([mask[branch], mask[:1] | True])
    wanted = one_by_one(executor, seq, *both)[-1:]
    step(executor, Segment(seq, tokens, mask=Mask.TREE, parents=parents), layer_mask=mask)
    store.commit(seq, branch)
    for layer in range(len(executor.spec.blocks)):
        kept = [62 + depth for depth, row in enumerate(branch) if mask[row, layer]]
        assert store.positions(seq, layer, 0).tolist() == [*range(62), *kept]
    assert np.array_equal(step(executor, Segment(seq, both[0][-1:])).logits, wanted)


def test_drafts_that_skip_the_same_layers_may_grow_and_others_are_refused(executor):
    """Nothing reads the keys that are not there: not even what a page held before."""
    store, tokens = executor.store, random_tokens(4)
    seq, mask = prefilled(executor, random_tokens(30)), random_mask(executor, 1, share=1)
    mask[0, 1] = False
    wanted = one_by_one(executor, seq, tokens, mask.repeat(4, 0))
    for token, logits in zip(tokens, wanted, strict=True):
        assert np.array_equal(step(executor, Segment(seq, np.array([token])), layer_mask=mask).logits[0], logits)
    with pytest.raises(StepError, match=r"pending rows of sequence .* skipped layer 1"):
        step(executor, Segment(seq, tokens))
    assert store.pending(seq) == 4
    store.rollback(seq, 0)
    step(executor, Segment(seq, tokens))
    assert store.pending(seq) == 4


def test_a_mask_that_skips_nothing_changes_nothing(executor):
    seq, tokens = prefilled(executor, random_tokens(30)), random_tokens(8)
    plain = step(executor, all_logits(seq, tokens, write=Write.SCRATCH)).logits.copy()
    masked = step(executor, all_logits(seq, tokens), layer_mask=random_mask(executor, 8, share=1)).logits
    assert np.array_equal(masked, plain)


def test_rows_before_those_that_skip_are_not_touched(executor):
    """Nor is a sequence beside them."""
    seqs, tokens = [prefilled(executor, random_tokens(n)) for n in (30, 66)], random_tokens(8)
    segments = [all_logits(seq, tokens, write=Write.SCRATCH) for seq in seqs]
    plain = step(executor, *segments).logits.copy()
    mask = random_mask(executor, 16, share=1)
    mask[5:8, :-1] = False
    masked = step(executor, *segments, layer_mask=mask).logits
    assert np.array_equal(masked[:5], plain[:5])
    assert np.array_equal(masked[8:], plain[8:])
    assert not np.array_equal(masked[5:8], plain[5:8])


def test_a_layer_that_no_row_runs_reads_no_weights(executor):
    seq, mask = prefilled(executor, random_tokens(3)), random_mask(executor, 4, share=1)
    request = StepRequest([all_logits(seq, random_tokens(4), write=Write.SCRATCH)], layer_mask=mask)
    whole = executor.run(request).cost
    mask[:, 0] = False
    some = executor.run(request).cost
    layer = sum(
        part.nbytes
        for parts in (executor._checkpoint.matrices, executor._checkpoint.vectors)
        for name, part in parts.items()
        if name.startswith("blocks.0.")
    )
    assert whole.weight_bytes - some.weight_bytes == layer
    assert (some.tier, some.native_calls) == ("T0", 1)


def test_the_stream_passes_a_skipped_layer_unchanged(executor):
    seq, mask = prefilled(executor, random_tokens(3)), random_mask(executor, 6, share=1)
    mask[2:4, 1] = False
    below, above = Tap("hidden", 1), Tap("hidden", 2)
    taps = step(executor, all_logits(seq, random_tokens(6)), layer_mask=mask, taps=frozenset([below, above])).taps
    same = (taps[below] == taps[above]).all(1)
    assert same.tolist() == [False, False, True, True, False, False]
