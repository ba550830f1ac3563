"""What the gated activations share: a function of the gate, times the other branch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from vivace.ops.spec import Array, Axes, Inputs, Op, Outputs


def _inputs(axes: Axes, random: np.random.Generator) -> Inputs:
    gate = (6 * random.standard_normal((axes["m"], axes["n"]))).astype(np.float32)
    extremes = np.array([0.0, -0.0, 1e-20, -1e-20, 30, -30, 90, -90, 300, -300], np.float32)[: axes["n"]]
    gate[0, : len(extremes)] = extremes
    return {"gate": gate, "up": random.standard_normal(gate.shape).astype(np.float32)}


def gated_op(name: str, summary: str, activation: Callable[[Array], Array]) -> Op:
    """The op activation(gate) * up over [m, n]; `activation` takes and returns float64."""

    def reference(axes: Axes, inputs: Inputs) -> Outputs:
        with np.errstate(over="ignore"):
            return (activation(inputs["gate"].astype(np.float64)) * inputs["up"],)

    return Op(
        name=name,
        summary=summary,
        axes=("m", "n"),
        inputs=_inputs,
        reference=reference,
        outputs=("out",),
        tolerances=(5e-7,),
        cases=tuple({"m": m, "n": n} for m in (1, 3) for n in (1, 15, 16, 17, 100, 1536, 4864)),
        bench=({"m": 1, "n": 8960}, {"m": 64, "n": 8960}),
        bytes=lambda axes: 12 * axes["m"] * axes["n"],
        flops=lambda axes: 10 * axes["m"] * axes["n"],
        row_inputs=("gate", "up"),
    )
