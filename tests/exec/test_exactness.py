"""The exactness gate: logits, bit for bit, whatever else runs, however rows are cut (docs/design/exactness.md)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from vivace.core.step import Mask, Segment, StepRequest, all_rows

native = pytest.importorskip("vivace.exec.native", reason="the native core is not built")

MODELS = Path(os.environ.get("VIVACE_MODELS", Path.home() / ".cache" / "vivace" / "models"))
FILES = ("SmolLM2-135M-Instruct.Q4_1.gguf", "gemma-3-270m.Q4_K_M.gguf")
PROMPTS = 50
COMBINATIONS = 200
LONGEST = 150


class Gate:
    """An executor, prompts of mixed lengths, and the logits of each prompt run alone in one step on two threads."""

    def __init__(self, path: Path) -> None:
        from vivace.model.load import load_checkpoint

        self.executor = native.NativeExecutor(load_checkpoint(path), capacity_pages=160, threads=2)
        self.store = self.executor.store
        random = np.random.default_rng(7)
        lengths = random.integers(1, LONGEST, PROMPTS)
        lengths[:6] = [1, 63, 64, 65, 128, 300]
        self.prompts = [random.integers(0, self.executor.spec.vocab, n).astype(np.int32) for n in lengths]
        self.alone = [self.run([i])[0] for i in range(PROMPTS)]

    def run(self, batch: list[int], *, chunks: list[int] | None = None, threads: int = 2, fork_at: int = 0):
        """Logits of the last rows of each prompt of the batch: rows of all its prompts share every step."""
        self.executor.set_threads(threads)
        chunks = chunks or [512] * len(batch)
        seqs = [self.store.new() for _ in batch]
        done = [0] * len(batch)
        kept: list[list[np.ndarray]] = [[] for _ in batch]
        while any(done[i] < len(self.prompts[p]) for i, p in enumerate(batch)):
            segments, active = [], []
            room = 512
            for i, p in enumerate(batch):
                rows = self.prompts[p][done[i] : done[i] + min(chunks[i], room)]
                if len(rows):
                    room -= len(rows)
                    segments.append(Segment(seqs[i], rows, logits=all_rows(len(rows))[-2:]))
                    active.append(i)
            result = self.executor.run(StepRequest(segments))
            for at, i in enumerate(active):
                self.store.commit(seqs[i])
                done[i] += segments[at].rows
                kept[i].append(result.of(at).copy())
                if fork_at and done[i] >= fork_at:
                    fork = self.store.fork(seqs[i])
                    self.store.drop(seqs[i])
                    seqs[i] = fork
        for seq in seqs:
            self.store.drop(seq)
        self.store.check()
        return [rows[-1][-1] for rows in kept]

    def check(self, batch: list[int], **factors) -> None:
        for p, logits in zip(batch, self.run(batch, **factors), strict=True):
            assert np.array_equal(logits, self.alone[p]), f"prompt {p} of {batch} with {factors}"


@pytest.fixture(scope="module", params=FILES)
def gate(request) -> Iterator[Gate]:
    path = MODELS / request.param
    if not path.exists():
        pytest.skip(f"{request.param} is not in $VIVACE_MODELS")
    made = Gate(path)
    yield made
    made.executor.close()


@pytest.mark.parametrize("size", [3, 16])
def test_batch(gate, size):
    for first in range(0, PROMPTS, size):
        gate.check(list(range(first, min(first + size, PROMPTS))))


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_chunks(gate, chunk):
    step = 16 if chunk == 1 else 1
    for first in range(0, PROMPTS, step):
        batch = list(range(first, min(first + step, PROMPTS)))
        gate.check(batch, chunks=[chunk] * len(batch))


def test_one_thread(gate):
    for p in range(PROMPTS):
        gate.check([p], threads=1)


def test_forks(gate):
    for first in range(0, PROMPTS, 4):
        batch = list(range(first, min(first + 4, PROMPTS)))
        gate.check(batch, chunks=[20] * len(batch), fork_at=20)


def test_trees_against_their_branches_alone(gate):
    random = np.random.default_rng(3)
    store, executor = gate.store, gate.executor
    executor.set_threads(2)
    for prompt in gate.prompts[:12]:
        seq = store.new()
        executor.run(StepRequest([Segment(seq, prompt)]))
        store.commit(seq)
        n = int(random.integers(2, 12))
        parents = np.array([random.integers(-1, i) if i else -1 for i in range(n)], np.int32)
        tokens = random.integers(0, executor.spec.vocab, n).astype(np.int32)
        tree = Segment(seq, tokens, mask=Mask.TREE, parents=parents, logits=all_rows(n))
        drafted = executor.run(StepRequest([tree])).logits.copy()
        store.rollback(seq)
        for leaf in range(n):
            branch = [leaf]
            while parents[branch[0]] >= 0:
                branch.insert(0, int(parents[branch[0]]))
            alone = store.fork(seq)
            result = executor.run(StepRequest([Segment(alone, tokens[branch])]))
            assert np.array_equal(result.logits[0], drafted[leaf]), f"branch {branch} of {parents}"
            store.drop(alone)
        store.drop(seq)
    store.check()


def test_random_combinations(gate):
    random = np.random.default_rng(11)
    short = [p for p in range(PROMPTS) if len(gate.prompts[p]) <= 70]
    for _ in range(COMBINATIONS):
        batch = random.choice(short, int(random.choice([1, 2, 3, 5])), replace=False).tolist()
        chunks = random.choice([7, 13, 64, 512], len(batch)).tolist()
        gate.check(batch, chunks=chunks, threads=int(random.integers(1, 3)), fork_at=int(random.choice([0, 10])))


def test_the_gate_sees_one_bit(gate):
    kept = gate.alone[0]
    gate.alone[0] = kept.copy()
    gate.alone[0].view(np.int32)[5] ^= 1
    with pytest.raises(AssertionError):
        gate.check([0])
    gate.alone[0] = kept
