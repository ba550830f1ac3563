"""Rotary embeddings as model files describe them: a base, and a factor for each inverse frequency."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vivace.model.keys import MAX_POSITIONS, Keys
from vivace.model.spec import RopeSpec

if TYPE_CHECKING:
    from vivace.model.load.tensors import Tensor

Floats = NDArray[np.float64]

_MAX_THETA = 1e12
_MAX_FACTOR = 1e6
_ORIGINAL = "original_max_position_embeddings"

# What config.json may say about each kind; anything else would be dropped silently.
_CONFIG_KEYS: Mapping[str, frozenset[str]] = {
    "default": frozenset(),
    "linear": frozenset({"factor"}),
    "dynamic": frozenset({"factor"}),
    "llama3": frozenset({"factor", "low_freq_factor", "high_freq_factor", _ORIGINAL}),
    "yarn": frozenset(
        {"factor", "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate", "finetuned"}
        | {_ORIGINAL}
    ),
    "longrope": frozenset({"factor", "attention_factor", "short_factor", "long_factor", _ORIGINAL}),
}
_COMMON_KEYS = frozenset({"rope_theta", "rope_type", "type", "partial_rotary_factor"})

# And GGUF keys after "rope."; "finetuned" changes nothing.
_GGUF_KEYS = frozenset(
    {"dimension_count", "freq_base", "scale_linear", "scaling.type", "scaling.factor", "scaling.attn_factor"}
    | {"scaling.original_context_length", "scaling.finetuned", "scaling.yarn_log_multiplier", "scaling.yarn_ext_factor"}
    | {"scaling.yarn_attn_factor", "scaling.yarn_beta_fast", "scaling.yarn_beta_slow"}
)
FACTOR_TENSORS = frozenset({"rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight"})


def folder_rope(
    config: Keys, head_dim: int, layer_type: str = "", *, theta_key: str = "rope_theta", theta: float = 10000.0
) -> RopeSpec:
    """Rotation from `rope_parameters` (of `layer_type`, where there are several) or from the older keys.

    The older keys give `theta_key` (or `theta`) to a layer type, and rope_scaling to those that read "rope_theta".
    """
    if "rope_parameters" in config and "rope_scaling" in config:
        config.fail("rope_scaling", "stands beside rope_parameters; one of them is needed")
    rope = config.section("rope_parameters")
    if layer_type in rope:
        rope = rope.section(layer_type)
    if "rope_scaling" in config and theta_key == "rope_theta":
        rope = config.section("rope_scaling")
    theta = rope.number("rope_theta", config.number(theta_key, theta, high=_MAX_THETA), high=_MAX_THETA)
    part = rope.number("partial_rotary_factor", config.number("partial_rotary_factor", 1.0, high=1.01), high=1.01)
    dim = _even(config, "partial_rotary_factor", int(head_dim * part))
    kind = rope.text("rope_type", rope.text("type", "default"))
    if kind == "su" or (kind == "yarn" and "long_factor" in rope):
        kind = "longrope"  # its older names
    if kind not in _CONFIG_KEYS:
        config.fail("rope_scaling", f"is of type '{kind:.40}'; supported: {', '.join(_CONFIG_KEYS)}")
    for key in rope:
        if key in rope and key not in _CONFIG_KEYS[kind] | _COMMON_KEYS:
            rope.fail(key, f"is not known for rotary embeddings of type {kind}")
    if kind in ("default", "dynamic"):  # dynamic begins beyond the context that the file states, which is our limit
        return RopeSpec(theta, dim)
    context = config.integer("max_position_embeddings", high=MAX_POSITIONS)
    original = config.integer(_ORIGINAL, rope.integer(_ORIGINAL, context, high=MAX_POSITIONS), high=MAX_POSITIONS)
    if kind == "longrope":
        factor = rope.number("factor", context / original, high=_MAX_FACTOR)
        attention = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
        short, long = (_numbers(rope, key, dim // 2) for key in ("short_factor", "long_factor"))
        return RopeSpec(theta, dim, short, rope.number("attention_factor", attention, high=1e3), long, original)
    factor = rope.number("factor", high=_MAX_FACTOR)
    if kind == "linear":
        return RopeSpec(theta, dim, (factor,) * (dim // 2))
    if kind == "llama3":
        low, high = rope.number("low_freq_factor", high=1e6), rope.number("high_freq_factor", high=1e6)
        if high <= low:
            rope.fail("high_freq_factor", f"is {high:g}, not above the low_freq_factor of {low:g}")
        return RopeSpec(theta, dim, _tuple(_llama3(_wavelengths(theta, dim), factor, low, high, original)))
    ramp = _yarn_ramp(
        theta, dim, original, rope.number("beta_fast", 32.0), rope.number("beta_slow", 1.0), rope.flag("truncate", True)
    )
    attention = _yarn_attention(factor, 1.0)
    if "mscale" in rope and "mscale_all_dim" in rope:
        attention = _yarn_attention(factor, rope.number("mscale"))
        attention /= _yarn_attention(factor, rope.number("mscale_all_dim"))
    return RopeSpec(
        theta, dim, _tuple(_yarn(ramp, factor)), rope.number("attention_factor", attention, low=-1.0, high=1e3)
    )


def gguf_rope(
    keys: Keys, tensors: Mapping[str, Tensor], head_dim: int, reads: frozenset[str] = frozenset()
) -> RopeSpec:
    """Rotation of layers that follow the file's own keys. `reads`: keys after "rope." that the family reads itself.

    Factors in a tensor (Llama 3's, and the two sets of longrope) come before what the scaling keys say.
    """
    kind = keys.text("rope.scaling.type", "linear")  # a factor alone is linear
    for key in keys.under("rope."):
        if key not in _GGUF_KEYS | reads or (key.startswith("scaling.yarn_") and kind != "yarn"):
            keys.fail(f"rope.{key}", f"is not known for rotary embeddings of type {kind:.40}")
    theta = keys.number("rope.freq_base", 10000.0, high=_MAX_THETA)
    dim = _even(keys, "rope.dimension_count", keys.integer("rope.dimension_count", head_dim, high=head_dim))
    factor = keys.number("rope.scaling.factor", keys.number("rope.scale_linear", 1.0, high=1e6), high=_MAX_FACTOR)
    if kind not in ("none", "linear", "yarn", "longrope"):
        keys.fail("rope.scaling.type", f"is '{kind:.40}'; supported: none, linear, yarn, longrope")
    attention = keys.number("rope.scaling.attn_factor", 1.0, high=1e3)
    original = keys.integer(
        "rope.scaling.original_context_length", keys.integer("context_length", high=MAX_POSITIONS), high=MAX_POSITIONS
    )
    stored = {name: _stored(keys, tensors[name], dim // 2) for name in FACTOR_TENSORS if name in tensors}
    scale = stored.get("rope_freqs.weight", np.ones(dim // 2))
    if kind == "yarn":
        ramp, attention = _gguf_yarn(keys, theta, dim, factor, original)
        scale = scale * _yarn(ramp, factor)
    elif kind == "linear":
        scale = scale * factor
    short, long = stored.get("rope_factors_short.weight"), stored.get("rope_factors_long.weight")
    if kind == "longrope" and short is None and long is None:
        keys.fail("rope.scaling.type", "is 'longrope', but the file has no tensor of its factors")
    if short is None and long is None:
        return RopeSpec(theta, dim, None if (scale == 1).all() else _tuple(scale), attention)
    if short is None or long is None:
        keys.fail("rope.scaling.type", "is longrope, but one of the two tensors of its factors is missing")
    attention = keys.number("rope.scaling.attn_factor", high=1e3)
    return RopeSpec(theta, dim, _tuple(scale * short), attention, _tuple(scale * long), original)


def _gguf_yarn(keys: Keys, theta: float, dim: int, factor: float, original: int) -> tuple[Floats, float]:
    """The ramp, and what multiplies cosine and sine."""
    for key in ("attn_factor", "yarn_attn_factor", "yarn_ext_factor"):
        if keys.number(f"rope.scaling.{key}", 1.0, low=-2.0) != 1:
            keys.fail(f"rope.scaling.{key}", "is not 1; exporters disagree on what another one means with yarn")
    multiplier = keys.number("rope.scaling.yarn_log_multiplier", 0.0, low=-1.0, high=1e3)
    fast = keys.number("rope.scaling.yarn_beta_fast", 32.0)
    ramp = _yarn_ramp(theta, dim, original, fast, keys.number("rope.scaling.yarn_beta_slow", 1.0), True)
    return ramp, _yarn_attention(factor, 1.0) / _yarn_attention(factor, multiplier)


def _wavelengths(theta: float, dim: int) -> Floats:
    wavelengths: Floats = 2 * math.pi * theta ** (np.arange(0, dim, 2) / dim)
    return wavelengths


def _llama3(wavelengths: Floats, factor: float, low: float, high: float, original: int) -> Floats:
    """Waves longer than original / low are slowed by the factor, those shorter than original / high are not."""
    smooth = np.clip((original / wavelengths - low) / (high - low), 0, 1)
    factors: Floats = 1 / ((1 - smooth) / factor + smooth)
    return factors


def _yarn_ramp(theta: float, dim: int, original: int, fast: float, slow: float, whole: bool) -> Floats:
    """0 for frequencies that turn more than `fast` times within the original context, 1 below `slow` times."""

    def index(turns: float) -> float:
        return dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    first, last = index(fast), index(slow)
    if whole:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, dim - 1)
    span = last - first or 0.001
    ramp: Floats = np.clip((np.arange(dim // 2) - first) / span, 0, 1)
    return ramp


def _yarn(ramp: Floats, factor: float) -> Floats:
    factors: Floats = 1 / (ramp / factor + 1 - ramp)
    return factors


def _yarn_attention(factor: float, multiplier: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * multiplier * math.log(factor) + 1


def _even(keys: Keys, key: str, dim: int) -> int:
    if dim < 2 or dim % 2:
        keys.fail(key, f"rotates {dim} values of a head; an even number is needed")
    return dim


def _tuple(factors: Iterable[float]) -> tuple[float, ...]:
    return tuple(float(factor) for factor in factors)


def _numbers(keys: Keys, key: str, count: int) -> tuple[float, ...]:
    """A list of `count` factors."""
    values = keys.items(key)
    numbers = [
        float(v) for v in values if isinstance(v, int | float) and not isinstance(v, bool) and 0 < v < _MAX_FACTOR
    ]
    if len(numbers) != len(values) or len(values) != count:
        keys.fail(key, f"is not a list of {count} factors above 0")
    return tuple(numbers)


def _stored(keys: Keys, tensor: Tensor, count: int) -> Floats:
    """The factors in a tensor of a GGUF file."""
    from vivace.model.load.dequantise import dequantise

    if tensor.shape != (count,) or tensor.type != "F32":
        keys.fail("rope.dimension_count", f"needs {count} F32 factors; {tensor.name} has {tensor.type} {tensor.shape}")
    values = dequantise("F32", tensor.data, count).astype(np.float64)
    if not ((values > 0) & (values < _MAX_FACTOR)).all():
        keys.fail("rope.scaling.type", f"goes with factors in {tensor.name} that are not above 0")
    return values
