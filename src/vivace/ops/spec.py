"""What an op is: one object that tests, benchmarks and documentation read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Inputs = dict[str, Array]
Outputs = tuple[Array, ...]
Axes = Mapping[str, Any]  # sizes by name; a weight type by its name

Call = Callable[[], Outputs]
Prepare = Callable[[str, Axes, Inputs], Call]  # (instruction set, axes, inputs); packing happens here, outside the call


@dataclass(frozen=True)
class Op:
    """An op with its meaning, its cases and its cost.

    `reference(axes, inputs)` is plain numpy in double precision. `tolerances` holds, for each output, the largest error
    allowed as a share of the largest absolute value of the reference; 0 asks for equality. `row_inputs` names the
    inputs whose first axis is the row: a row's outputs must have the same bits when it is computed alone.
    """

    name: str
    summary: str
    axes: tuple[str, ...]
    inputs: Callable[[Axes, np.random.Generator], Inputs]
    reference: Callable[[Axes, Inputs], Outputs]
    outputs: tuple[str, ...]
    tolerances: tuple[float, ...]
    cases: tuple[Axes, ...]
    bench: tuple[Axes, ...]
    bytes: Callable[[Axes], int]
    flops: Callable[[Axes], int]
    row_inputs: tuple[str, ...] = field(default=())


def describe(axes: Axes) -> str:
    """`rows=16 cols=576`, for reports and test names."""
    return " ".join(f"{name}={value}" for name, value in axes.items())


def normal(random: np.random.Generator, *shape: int) -> NDArray[np.float32]:
    return random.standard_normal(shape, np.float32)
