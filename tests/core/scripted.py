"""Models that cost nothing: logits are a function of the tokens a row sees, read back from a real KVStore.

A key is a token id and its position, so that a wrong commit, fork or mask shows in the next logits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from vivace.core.request import Span
from vivace.core.step import Float32, StepCost, StepRequest, StepResult
from vivace.exec.rows import Rows, finish, layout
from vivace.kv.spec import KVSpec, LayerShape
from vivace.kv.store import KVStore
from vivace.model.chat import ChatPrompt
from vivace.model.spec import AttentionSpec, BlockSpec, FeedForwardSpec, ModelSpec, RopeSpec

Brain = Callable[[list[int]], Float32]  # the tokens a row sees, itself last -> logits [vocab]


def random_brain(seed: int, vocab: int, order: int = 3) -> Brain:
    """Logits drawn afresh from the last `order` tokens and their number."""

    def brain(tokens: list[int]) -> Float32:
        key = np.random.default_rng([seed, len(tokens), *tokens[-order:]])
        return key.standard_normal(vocab, dtype=np.float32) * 3

    return brain


def forced_brain(script: Sequence[int], prompt: int, vocab: int) -> Brain:
    """The token after `prompt + i` tokens is script[i], and then 0."""

    def brain(tokens: list[int]) -> Float32:
        logits = np.zeros(vocab, np.float32)
        index = len(tokens) - prompt
        logits[script[index] if 0 <= index < len(script) else 0] = 10
        return logits

    return brain


def tiny_spec(
    vocab: int, max_context: int = 4096, eos_ids: tuple[int, ...] = (), bos_id: int | None = None
) -> ModelSpec:
    block = BlockSpec(AttentionSpec(1, 1, 2, 1.0, RopeSpec(1e4, 2)), FeedForwardSpec(2, "silu"))
    return ModelSpec(
        "scripted", vocab, 2, (block,), 1e-6, True, max_context=max_context, eos_ids=eos_ids, bos_id=bos_id
    )


class ScriptedExecutor:
    """Runs a Brain, `max_rows` at a time. `batch_sizes` notes the rows of each step."""

    name = fingerprint = isa = "scripted"
    threads = 1
    max_rows = 512

    def __init__(self, brain: Brain, spec: ModelSpec, capacity_pages: int = 64) -> None:
        self.brain, self.spec = brain, spec
        self.store = KVStore(KVSpec((LayerShape(1, 2),), value_bytes=4), capacity_pages)
        self.batch_sizes: list[int] = []
        self.closed = False

    def run(self, request: StepRequest) -> StepResult:
        assert request.rows <= self.max_rows
        rows = layout(request, self.store, self.spec)
        try:
            self._write(rows)
            logits = [self.brain(self._seen(rows, int(row))) for row in rows.wanted]
        except BaseException:
            finish(request, rows, self.store, failed=True)
            raise
        finish(request, rows, self.store)
        self.batch_sizes.append(rows.count)
        cost = StepCost(rows.count, kv_read_bytes=rows.count, tier="T3")
        stacked = np.stack(logits) if logits else np.zeros((0, self.spec.vocab), np.float32)
        return StepResult(stacked, rows.starts, cost=cost)

    def _write(self, rows: Rows) -> None:
        for row in range(rows.count):
            cell = np.array([[rows.tokens[row], rows.positions[row]]], np.float32)
            self.store.write(int(rows.sequence[row]), 0, 0, int(rows.ordinals[row]), cell, cell)

    def _seen(self, rows: Rows, row: int) -> list[int]:
        ordinals = np.concatenate([np.arange(rows.span[row]), rows.extra_of(row)])
        keys, _ = self.store.gather(int(rows.sequence[row]), 0, 0, ordinals)
        keys = keys[keys[:, 1] <= rows.positions[row]]  # rows of a block see later ones, which say nothing here
        order = np.argsort(keys[:, 1], kind="stable")
        return keys[order, 0].astype(int).tolist()

    def tier(self, request: StepRequest) -> tuple[str, str]:
        return "T3", "scripted"

    def set_threads(self, threads: int) -> None:
        pass

    def close(self) -> None:
        self.closed = True


class CharTokenizer:
    """One token per byte; 256 is the start, 257 the end of text."""

    vocab_size = 258
    eos_ids = (257,)

    def encode(self, text: str, add_special: bool = True, **_: object) -> list[int]:
        return list(text.encode())

    def chat_prompt(self, messages: Sequence[dict[str, str]]) -> ChatPrompt:
        ids, spans = [256], []
        for message in messages:
            start = len(ids) + len(message["role"]) + 1
            ids += f"{message['role']}:{message['content']}\n".encode()
            spans.append(Span(start, len(ids) - 2, message["role"]))
        return ChatPrompt("", ids, tuple(spans))

    def drops_space_after(self, before: Sequence[int]) -> bool:
        return False

    def token_bytes(self, token: int, *, skip_special: bool = False) -> bytes:
        if token >= self.vocab_size:
            raise ValueError(f"token {token} is outside the vocabulary")
        return bytes([token]) if token < 256 else b"" if skip_special else b"<%d>" % token
