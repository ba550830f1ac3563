"""A tree grown over several steps is the same tree run in one step, and each of its branches alone."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hf_zoo import random_tokens
from test_reference import NAMES, all_logits, checkpoint, close, prefilled, step

from vivace.core.step import Mask, Segment
from vivace.exec.reference import ReferenceExecutor


@pytest.fixture(params=[(name, kind) for name in NAMES for kind in ("reference", "native")], ids="-".join)
def executor(request):
    name, kind = request.param
    if kind == "reference":
        made = ReferenceExecutor(checkpoint(name), capacity_pages=40)
    else:
        native = pytest.importorskip("vivace.exec.native", reason="the native core is not built")
        made = native.NativeExecutor(checkpoint(name), capacity_pages=40, threads=2)
    yield made
    made.store.check()
    made.close()


def same(executor, found: np.ndarray, wanted: np.ndarray) -> bool:
    """To the bit; torch sums in another order when the number of rows is another."""
    return np.array_equal(found, wanted) if executor.name == "native" else close(found, wanted)


def random_tree(n: int, levels: int, seed: int) -> tuple[np.ndarray, list[np.ndarray]]:
    """(parents, the rows of each level); parents come before their children."""
    random = np.random.default_rng(seed)
    bounds = [0, *sorted(random.choice(np.arange(1, n), levels - 1, replace=False).tolist()), n]
    rows = [np.arange(first, last) for first, last in pairwise(bounds)]
    parents = np.full(n, -1, np.int32)
    for above, level in pairwise(rows):
        parents[level] = random.choice([-1, *above], len(level)) if seed % 2 else random.choice(above, len(level))
    return parents, rows


def branch(parents: np.ndarray, leaf: int) -> list[int]:
    rows = [leaf]
    while parents[rows[0]] >= 0:
        rows.insert(0, int(parents[rows[0]]))
    return rows


def grow(executor, seq: int, tokens: np.ndarray, parents: np.ndarray, levels: list[np.ndarray]) -> np.ndarray:
    logits = [
        step(executor, all_logits(seq, tokens[level], mask=Mask.TREE, parents=parents[level])).logits.copy()
        for level in levels
    ]
    return np.concatenate(logits)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("length", [5, 60, 250])
def test_level_by_level_is_in_one_step_is_each_branch_alone(executor, length, seed):
    store, tokens = executor.store, random_tokens(13, seed=seed)
    parents, levels = random_tree(13, 4, seed)
    seq = prefilled(executor, random_tokens(length))
    other = store.fork(seq)
    found = grow(executor, seq, tokens, parents, levels)
    together = step(executor, all_logits(other, tokens, mask=Mask.TREE, parents=parents)).logits.copy()
    assert same(executor, found, together)
    assert store.positions(seq, pending=True).tolist() == store.positions(other, pending=True).tolist()
    store.rollback(other)
    for leaf in range(13):
        rows = branch(parents, leaf)
        alone = step(executor, all_logits(other, tokens[rows])).logits
        assert same(executor, found[leaf : leaf + 1], alone[-1:]), rows
        store.rollback(other)


@pytest.mark.parametrize("length", [5, 62])
def test_a_committed_path_of_a_grown_tree_is_its_text(executor, length):
    store, tokens, text = executor.store, random_tokens(13), random_tokens(length)
    parents, levels = random_tree(13, 4, seed=2)
    seq = prefilled(executor, text)
    grow(executor, seq, tokens, parents, levels)
    path = branch(parents, 12)
    store.commit(seq, path)
    found = step(executor, Segment(seq, tokens[:1])).logits.copy()
    plain = prefilled(executor, np.concatenate([text, tokens[path]]))
    assert same(executor, found, step(executor, Segment(plain, tokens[:1])).logits)
