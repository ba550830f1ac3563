"""The shape of a cache: known, and its bytes countable, before anything is allocated."""

from __future__ import annotations

from dataclasses import dataclass

from vivace.model.spec import ModelSpec

PAGE = 64  # tokens of a page


@dataclass(frozen=True)
class LayerShape:
    kv_heads: int
    head_dim: int


@dataclass(frozen=True)
class KVSpec:
    """Layers, and the bytes of one stored value (2: half floats, the native form; 4: float32, the reference's)."""

    layers: tuple[LayerShape, ...]
    value_bytes: int = 2

    @classmethod
    def of(cls, model: ModelSpec, value_bytes: int = 2) -> KVSpec:
        shapes = tuple(LayerShape(b.attention.kv_heads, b.attention.head_dim) for b in model.blocks)
        return cls(shapes, value_bytes)

    def cell_bytes(self, layer: int) -> int:
        """Keys and values of one page of one head of one layer."""
        return 2 * PAGE * self.layers[layer].head_dim * self.value_bytes

    def page_bytes(self) -> int:
        """Keys and values of one page over all layers and heads."""
        return sum(self.cell_bytes(i) * layer.kv_heads for i, layer in enumerate(self.layers))

    def token_bytes(self) -> int:
        return self.page_bytes() // PAGE
