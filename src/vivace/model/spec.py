"""A model as data. A family file fills these in; executors interpret them; nothing here computes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

Activation = Literal["silu", "gelu_tanh"]


@dataclass(frozen=True)
class RopeSpec:
    """Rotary embedding of the first `dim` values of each head, half-split: (x[i], x[i + dim/2]) share an angle.

    `factors` divides the inverse frequencies one by one (length dim/2), `attention_factor` multiplies cos and sin.
    Models that have `long_factors` take those for contexts longer than `original_context`; which of the two it is has
    to be chosen (`for_context`) before anything is rotated.
    """

    theta: float
    dim: int
    factors: tuple[float, ...] | None = None
    attention_factor: float = 1.0
    long_factors: tuple[float, ...] | None = None
    original_context: int = 0

    def for_context(self, context: int) -> RopeSpec:
        """The rotation of every position in a context of `context` tokens."""
        if self.long_factors is None:
            return self
        long = context > self.original_context
        return RopeSpec(self.theta, self.dim, self.long_factors if long else self.factors, self.attention_factor)


@dataclass(frozen=True)
class AttentionSpec:
    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    rope: RopeSpec | None
    window: int | None = None  # a row sees keys at positions > position - window
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: bool = False  # RMS norm of each query and key head before rotation
    softcap: float | None = None


@dataclass(frozen=True)
class FeedForwardSpec:
    size: int
    activation: Activation


@dataclass(frozen=True)
class BlockSpec:
    """x += [post_norm] attention(norm(x)); x += [post_norm] feed_forward(norm(x))."""

    attention: AttentionSpec
    feed_forward: FeedForwardSpec
    post_norms: bool = False  # RMS norm of each branch's output before it is added


@dataclass(frozen=True)
class ModelSpec:
    """The whole model. RMS norms everywhere; a norm weight is the factor itself (Gemma's `1 + w` is folded in)."""

    family: str
    vocab: int
    hidden: int
    blocks: tuple[BlockSpec, ...]
    norm_eps: float
    tied_head: bool  # the head is the embedding matrix
    embed_scale: float = 1.0
    logit_softcap: float | None = None
    max_context: int = 0  # positions the model was made for
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()

    @property
    def short_context(self) -> int:
        """The longest context that needs no long rotary factors; `max_context` where there are none."""
        ropes = [block.attention.rope for block in self.blocks]
        return min((r.original_context for r in ropes if r and r.long_factors), default=self.max_context)

    def for_context(self, context: int) -> ModelSpec:
        """The model with the rotary factors for a context of `context` tokens; the same for all its positions."""

        def chosen(block: BlockSpec) -> BlockSpec:
            rope = block.attention.rope
            found = rope and rope.for_context(context)
            return block if found is rope else replace(block, attention=replace(block.attention, rope=found))

        return replace(self, blocks=tuple(chosen(block) for block in self.blocks))

    def matrices(self) -> Iterator[tuple[str, int, int]]:
        """(name, rows, cols) of every weight matrix; a product maps cols values to rows values."""
        yield "embed", self.vocab, self.hidden
        for i, block in enumerate(self.blocks):
            attention, size = block.attention, block.feed_forward.size
            width, kv_width = attention.heads * attention.head_dim, attention.kv_heads * attention.head_dim
            yield f"blocks.{i}.q", width, self.hidden
            yield f"blocks.{i}.k", kv_width, self.hidden
            yield f"blocks.{i}.v", kv_width, self.hidden
            yield f"blocks.{i}.o", self.hidden, width
            yield f"blocks.{i}.gate", size, self.hidden
            yield f"blocks.{i}.up", size, self.hidden
            yield f"blocks.{i}.down", self.hidden, size
        if not self.tied_head:
            yield "head", self.vocab, self.hidden

    def vectors(self) -> Iterator[tuple[str, int]]:
        """(name, length) of every norm weight and bias."""
        for i, block in enumerate(self.blocks):
            attention = block.attention
            width, kv_width = attention.heads * attention.head_dim, attention.kv_heads * attention.head_dim
            yield f"blocks.{i}.attention_norm", self.hidden
            yield f"blocks.{i}.feed_forward_norm", self.hidden
            if attention.qkv_bias:
                yield f"blocks.{i}.q.bias", width
                yield f"blocks.{i}.k.bias", kv_width
                yield f"blocks.{i}.v.bias", kv_width
            if attention.out_bias:
                yield f"blocks.{i}.o.bias", self.hidden
            if attention.qk_norm:
                yield f"blocks.{i}.q_norm", attention.head_dim
                yield f"blocks.{i}.k_norm", attention.head_dim
            if block.post_norms:
                yield f"blocks.{i}.post_attention_norm", self.hidden
                yield f"blocks.{i}.post_feed_forward_norm", self.hidden
        yield "final_norm", self.hidden
