"""Randomness without a stream: a draw is a hash of what it is for, so nothing else can shift it."""

from __future__ import annotations

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15

TOKEN, XTC = 0, 1  # purposes: the choice of a token, a coin; methods use numbers of their own from 16 on


def mix(x: int) -> int:
    """The finaliser of SplitMix64: every input bit reaches every output bit."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def hash64(*parts: int) -> int:
    state = 0
    for part in parts:
        state = mix((state ^ mix(part & _MASK)) + _GOLDEN & _MASK)
    return state


def uniform(seed: int, sample: int, position: int, purpose: int = TOKEN) -> float:
    """In [0, 1), 53 bits, the same for the same arguments in every run and batch."""
    return (hash64(seed, sample, position, purpose) >> 11) * 2.0**-53
