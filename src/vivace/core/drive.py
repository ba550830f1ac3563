"""Runs a round's generator over the pool of models."""

from __future__ import annotations

from collections.abc import Generator

from vivace.core.batch import Batch, Sequence
from vivace.core.emit import Emit
from vivace.core.stats import EngineStats
from vivace.core.step import StepRequest, StepResult


def drive(
    steps: Generator[list[StepRequest], list[StepResult], list[Emit]], batch: Batch, stats: EngineStats
) -> list[Emit]:
    """Runs what the round yields until it returns. An exception of an executor closes the generator."""
    try:
        requests = next(steps)
        while True:
            results = _run(requests, batch)
            for request, result in zip(requests, results, strict=True):
                stats.step(request.role, result.cost, request.rows)
                _charge(request, result, batch)
            requests = steps.send(results)
    except StopIteration as end:
        emits: list[Emit] = end.value
        return emits
    finally:
        steps.close()


def _run(requests: list[StepRequest], batch: Batch) -> list[StepResult]:
    if len(requests) == 1:
        return [_step(requests[0], batch)]
    results = []
    for request in requests:
        result = _step(request, batch)
        result.logits = result.logits.copy()  # a later request may be for the same model, which reuses its buffer
        results.append(result)
    return results


def _step(request: StepRequest, batch: Batch) -> StepResult:
    hooks, members = batch.wiring.of(request.model), batch.members.get(request.model, {})
    for hook in hooks:
        hook.prepare(request, members)
    result = batch.models[request.model].run(request)
    for hook in hooks:
        hook.observe(request, result, members)
    return result


def _charge(request: StepRequest, result: StepResult, batch: Batch) -> None:
    """Book the step on the sequences in it: cache reads by their share of the keys.

    Steps of other models are of sequences that only the decoder knows: it counts them.
    """
    target = request.model == "target"
    by_seq = {turn.sequence.seq: turn.sequence for turn in batch.turns} if target else {}
    members: list[Sequence] = [by_seq[s.seq] for s in request.segments if s.seq in by_seq]
    keys = sum(sequence.length + 1 for sequence in members)
    for sequence in members:
        if request.role == "draft":
            sequence.steps.draft_forwards += 1
        else:
            sequence.steps.target_forwards += 1
        sequence.memory.kv_read_bytes += result.cost.kv_read_bytes * (sequence.length + 1) // keys
