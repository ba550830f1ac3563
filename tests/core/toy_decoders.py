"""Two decoders unlike each other and unlike the built-in one: proof that the round fits them."""

from __future__ import annotations

from collections.abc import Generator

import numpy as np

from vivace.core.batch import Batch, Sequence, Turn
from vivace.core.decoders.plain import absorb_plain, plain_segment
from vivace.core.emit import Emit
from vivace.core.step import NO_LOGITS, Mask, Segment, StepRequest, StepResult, Write, all_rows
from vivace.kv.store import KVStore

Round = Generator[list[StepRequest], list[StepResult], list[Emit]]


def ready(turn: Turn) -> bool:
    """Only the next token is due, so that there is something to guess."""
    return turn.chooses and turn.rows == 1


class TreeSpeculative:
    """A drafter of the pool proposes a chain, with its second best choice beside each token; the target checks all."""

    plain_rows = True

    def __init__(self, store: KVStore, depth: int = 4) -> None:
        self.store, self.depth = store, depth  # the drafter's store
        self.extra_rows = 2 * depth
        self.drafting: dict[Sequence, int] = {}

    def round(self, batch: Batch, budget: int) -> Round:
        guessing = [turn for turn in batch.turns if ready(turn)]
        trees = yield from self._draft([turn.sequence for turn in guessing], batch)
        segments = [
            self._tree_segment(turn, *trees[turn.sequence]) if turn.sequence in trees else plain_segment(turn)
            for turn in batch.turns
        ]
        (result,) = yield [StepRequest(segments)]
        store, emits = batch.models["target"].store, []
        for i, turn in enumerate(batch.turns):
            if turn.sequence in trees:
                emits.append(self._accept(turn.sequence, *trees[turn.sequence], result.of(i), store))
            else:
                emits.append(absorb_plain(turn, store, result.of(i), None))
        return emits

    def _draft(self, sequences: list[Sequence], batch: Batch):
        """{sequence: (tokens, parents)}; row 0 is the token that is due. The drafter's cache catches up lazily."""
        store = self.store
        for s in sequences:
            yield from self._catch_up(s, batch.models["draft"].max_rows // len(sequences))
        trees = {sequence: ([sequence.tokens[-1]], [-1]) for sequence in sequences}
        tips = dict.fromkeys(sequences, 0)
        for level in range(self.depth):
            drafting = [s for s in sequences if level < s.remaining - 1]
            if not drafting:
                break
            segments = [self._draft_segment(s, level, trees[s][0][tips[s]], store) for s in drafting]
            (result,) = yield [StepRequest(segments, model="draft", role="draft")]
            for i, s in enumerate(drafting):
                if level == 0:
                    store.commit(self.drafting[s])
                best = np.argsort(-result.of(i)[-1], kind="stable")[:2]
                tokens, parents = trees[s]
                tokens += best.tolist()
                parents += [tips[s], tips[s]]
                tips[s] = len(tokens) - 2
                s.steps.draft_forwards += 1
        for s in sequences:
            if s in self.drafting:
                store.rollback(self.drafting[s])
        return trees

    def _catch_up(self, s: Sequence, rows: int):
        """Leaves at most so many rows for the first step of drafting, which all sequences share."""
        if s not in self.drafting:
            self.drafting[s] = self.store.new()
        seq = self.drafting[s]
        while len(s.tokens) - (done := self.store.length(seq)) > rows:
            tokens = np.array(s.tokens[done : done + rows], np.int32)
            yield [StepRequest([Segment(seq, tokens, logits=NO_LOGITS)], model="draft", role="draft")]
            self.store.commit(seq)

    def _draft_segment(self, s: Sequence, level: int, tip: int, store) -> Segment:
        seq = self.drafting[s]
        tokens = s.tokens[store.length(seq) :] if level == 0 else [tip]
        return Segment(seq, np.array(tokens, np.int32))

    def _tree_segment(self, turn: Turn, tokens: list[int], parents: list[int]) -> Segment:
        return Segment(
            turn.sequence.seq,
            np.array(tokens, np.int32),
            mask=Mask.TREE,
            parents=np.array(parents, np.int32),
            logits=all_rows(len(tokens)),
        )

    def _accept(self, s: Sequence, tokens: list[int], parents: list[int], logits, store) -> Emit:
        """Walk from the root to the child that holds what the target chooses, as far as there is one."""
        path, choices = [0], []
        while True:
            choice = s.choose(logits[path[-1]], path=tuple(tokens[row] for row in path[1:]))
            choices.append(choice)
            children = [r for r, parent in enumerate(parents) if parent == path[-1] and tokens[r] == choice.token]
            if not children:
                break
            path.append(children[0])
        s.commit(store, np.array(path, np.int32), len(path))
        return Emit(s, choices)

    def forget(self, sequence: Sequence) -> None:
        if sequence in self.drafting:
            self.store.drop(self.drafting.pop(sequence))


class BlockFixedPoint:
    """Guesses a block of zeros, then replaces it by what the model would choose until nothing changes (greedy only)."""

    plain_rows = False

    def __init__(self, block: int = 6) -> None:
        self.block = block
        self.extra_rows = block

    def round(self, batch: Batch, budget: int) -> Round:
        store = batch.models["target"].store
        emits = []
        for turn in batch.turns:
            if ready(turn) and turn.sequence.remaining > 1:
                emits.append((yield from self._refine(turn.sequence, store)))
            else:
                (result,) = yield [StepRequest([plain_segment(turn)])]
                emits.append(absorb_plain(turn, store, result.logits, None))
        return emits

    def _refine(self, s: Sequence, store):
        size = min(self.block, s.remaining)
        tokens = np.array([s.tokens[-1]] + [0] * (size - 1), np.int32)
        block = Segment(s.seq, tokens, mask=Mask.BLOCK, logits=all_rows(size))
        (result,) = yield [StepRequest([block])]
        s.commit(store, None, size)
        ordinals = np.arange(s.length - size, s.length, dtype=np.int32)
        while True:
            better = np.append(tokens[:1], result.logits.argmax(1)[:-1]).astype(np.int32)
            if np.array_equal(better, tokens):
                store.commit(s.seq)
                path = tuple(tokens[1:].tolist())
                return Emit(s, [s.choose(row, path=path[:i]) for i, row in enumerate(result.logits)])
            tokens = better
            block = Segment(
                s.seq, tokens, mask=Mask.BLOCK, write=Write.REPLACE, ordinals=ordinals, logits=all_rows(size)
            )
            (result,) = yield [StepRequest([block])]

    def forget(self, sequence: Sequence) -> None:
        pass
