"""The model once more, in float64 numpy with loops over rows and heads, so that every visibility rule can be stated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from vivace.model.spec import BlockSpec, ModelSpec
from vivace.model.weights import Checkpoint


@dataclass
class Rules:
    """What attends to what, on top of sliding windows; rows that skip a layer; what is added to attention logits."""

    sees: Callable[[int, int, int, int], bool]  # layer, kv_head, row, key
    skips: Callable[[int, int], bool] = lambda layer, row: False
    bias: Callable[[int, int, int], float] = lambda layer, kv_head, key: 0.0


class Naive:
    def __init__(self, checkpoint: Checkpoint) -> None:
        self.spec: ModelSpec = checkpoint.spec
        self.w = {name: matrix.dequantise().astype(np.float64) for name, matrix in checkpoint.matrices.items()}
        self.w |= {name: vector.astype(np.float64) for name, vector in checkpoint.vectors.items()}

    def norm(self, x: np.ndarray, name: str) -> np.ndarray:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.spec.norm_eps) * self.w[name]

    def turn(self, x: np.ndarray, block: BlockSpec, position: int) -> np.ndarray:
        rope = block.attention.rope
        if rope is None:
            return x
        out, half = x.copy(), rope.dim // 2
        for i in range(half):
            angle = position / (rope.theta ** (2 * i / rope.dim)) / (rope.factors[i] if rope.factors else 1.0)
            c, s = np.cos(angle) * rope.attention_factor, np.sin(angle) * rope.attention_factor
            out[i], out[i + half] = x[i] * c - x[i + half] * s, x[i] * s + x[i + half] * c
        return out

    def run(self, tokens: np.ndarray, positions: np.ndarray, rules: Rules) -> np.ndarray:
        """Logits [rows, vocab]."""
        x = self.w["embed"][tokens] * self.spec.embed_scale
        for layer in range(len(self.spec.blocks)):
            x = self.block(layer, x, positions, rules)
        logits = self.norm(x, "final_norm") @ self.w["embed" if self.spec.tied_head else "head"].T
        cap = self.spec.logit_softcap
        return logits if cap is None else cap * np.tanh(logits / cap)

    def block(self, layer: int, x: np.ndarray, positions: np.ndarray, rules: Rules) -> np.ndarray:
        block = self.spec.blocks[layer]
        a, name = block.attention, f"blocks.{layer}."
        h = self.norm(x, name + "attention_norm")

        def heads(part: str, count: int, norm: str | None) -> np.ndarray:
            y = (h @ self.w[name + part].T + self.w.get(f"{name}{part}.bias", 0)).reshape(len(x), count, a.head_dim)
            return self.norm(y, name + norm) if norm and a.qk_norm else y

        q, k = heads("q", a.heads, "q_norm"), heads("k", a.kv_heads, "k_norm")
        v = heads("v", a.kv_heads, None)
        out = np.zeros((len(x), a.heads, a.head_dim))
        for row in range(len(x)):
            for head in range(a.heads):
                kv = head // (a.heads // a.kv_heads)
                query = self.turn(q[row, head], block, positions[row]) * a.scale
                logits, values = [], []
                for key in range(len(x)):
                    near = a.window is None or positions[key] > positions[row] - a.window
                    if near and not rules.skips(layer, key) and rules.sees(layer, kv, row, key):
                        logit = query @ self.turn(k[key, kv], block, positions[key])
                        logit = logit if a.softcap is None else a.softcap * np.tanh(logit / a.softcap)
                        logits.append(logit + rules.bias(layer, kv, key))
                        values.append(v[key, kv])
                if logits:
                    weights = np.exp(np.array(logits) - max(logits))
                    out[row, head] = weights @ np.array(values) / weights.sum()
        y = x + self.branch(
            out.reshape(len(x), -1) @ self.w[name + "o"].T + self.w.get(name + "o.bias", 0), name, "attention"
        )
        h = self.norm(y, name + "feed_forward_norm")
        gate, up = h @ self.w[name + "gate"].T, h @ self.w[name + "up"].T
        if block.feed_forward.activation == "silu":
            gate = gate / (1 + np.exp(-gate))
        else:
            gate = 0.5 * gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))
        y = y + self.branch((gate * up) @ self.w[name + "down"].T, name, "feed_forward")
        skipped = np.array([rules.skips(layer, row) for row in range(len(x))])
        return np.where(skipped[:, None], x, y)

    def branch(self, y: np.ndarray, name: str, part: str) -> np.ndarray:
        post = f"{name}post_{part}_norm"
        return self.norm(y, post) if post in self.w else y
