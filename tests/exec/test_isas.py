"""Whole steps with each instruction set: what the reference computes, and the same bits whatever shares a step."""

from __future__ import annotations

import numpy as np
import pytest
from hf_zoo import random_tokens
from test_executors_agree import TOLERANCE
from test_reference import NAMES, all_logits, checkpoint, prefilled, step

from vivace.core.step import Executor, StepRequest
from vivace.exec.reference import ReferenceExecutor
from vivace.ops import registry

native = pytest.importorskip("vivace.exec.native", reason="the native executor is not built")


def made(name: str, isa: str) -> Executor:
    if why := registry.missing(isa):
        pytest.skip(why)
    executor: Executor = native.NativeExecutor(checkpoint(name), capacity_pages=40, threads=2, isa=isa)
    assert executor.isa == isa
    return executor


def logits(executor: Executor) -> np.ndarray:
    """Of a prompt that reaches into a second chunk of keys, and of what follows it."""
    seq = prefilled(executor, random_tokens(300))
    return np.array(step(executor, all_logits(seq, random_tokens(9))).logits)


@pytest.mark.parametrize("isa", registry.ISAS)
@pytest.mark.parametrize("name", NAMES)
def test_agrees_with_the_reference(name: str, isa: str) -> None:
    got = logits(made(name, isa))
    want = logits(ReferenceExecutor(checkpoint(name), capacity_pages=40))
    np.testing.assert_allclose(got, want, rtol=0, atol=TOLERANCE * np.abs(want).max())


@pytest.mark.parametrize("isa", registry.ISAS)
@pytest.mark.parametrize("name", NAMES)
def test_company_does_not_show(name: str, isa: str) -> None:
    executor = made(name, isa)
    alone = logits(executor)
    one, two = (prefilled(executor, random_tokens(n)) for n in (300, 77))
    both = StepRequest((all_logits(two, random_tokens(5)), all_logits(one, random_tokens(9))))
    assert executor.run(both).logits[5:].tobytes() == alone.tobytes()
