"""What the engine counts."""

from __future__ import annotations

from dataclasses import dataclass, field

from vivace.core.batch import Sequence
from vivace.core.step import StepCost


@dataclass(slots=True)
class RoleStats:
    """Sums over all steps of one role (target, draft, ...)."""

    forwards: int = 0
    rows: int = 0
    weight_bytes: int = 0
    kv_read_bytes: int = 0
    kv_written_bytes: int = 0
    native_calls: int = 0
    seconds: float = 0.0

    def add(self, cost: StepCost, rows: int) -> None:
        self.forwards += 1
        self.rows += rows
        self.weight_bytes += cost.weight_bytes
        self.kv_read_bytes += cost.kv_read_bytes
        self.kv_written_bytes += cost.kv_written_bytes
        self.native_calls += cost.native_calls
        self.seconds += cost.seconds


@dataclass(slots=True)
class EngineStats:
    rounds: int = 0
    requests: int = 0
    finished: dict[str, int] = field(default_factory=dict)
    prompt_tokens: int = 0
    generated_tokens: int = 0
    prefix_queries: int = 0  # sequences started,
    prefix_hits: int = 0  # those that began with known rows,
    cached_tokens: int = 0  # and how many
    preemptions: int = 0
    tier: str = ""
    roles: dict[str, RoleStats] = field(default_factory=dict)

    def step(self, role: str, cost: StepCost, rows: int) -> None:
        if role not in self.roles:
            self.roles[role] = RoleStats()
        self.roles[role].add(cost, rows)
        self.tier = cost.tier or self.tier

    def start(self, sequence: Sequence) -> None:
        self.prefix_queries += 1
        self.prefix_hits += sequence.cached_tokens > 0
        self.cached_tokens += sequence.cached_tokens

    def end(self, sequence: Sequence) -> None:
        reason = sequence.finish_reason or "error"
        self.finished[reason] = self.finished.get(reason, 0) + 1
        self.prompt_tokens += sequence.prompt_length
        self.generated_tokens += len(sequence.tokens) - sequence.prompt_length


def close_timings(sequence: Sequence, now: float) -> None:
    """Fill the timings of a sequence that ends now. A rate that cannot be told stays 0."""
    timings, count = sequence.timings, len(sequence.tokens) - sequence.prompt_length
    timings.total_s = now - sequence.arrived
    first = sequence.first_token or now
    timings.ttft_s = first - sequence.arrived if count else 0.0
    if sequence.started and first > sequence.started:
        timings.prefill_tok_s = (sequence.prompt_length - sequence.cached_tokens) / (first - sequence.started)
    if count > 1 and now > first:
        timings.decode_tok_s = (count - 1) / (now - first)
    if sequence.emitting_rounds:
        sequence.steps.accepted_per_forward = count / sequence.emitting_rounds
