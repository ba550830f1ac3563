"""From a finished sequence to what its user gets."""

from __future__ import annotations

from vivace.core.batch import Sequence
from vivace.core.machine import peak_rss_bytes
from vivace.core.request import Completion


def completion_of(sequence: Sequence, weights_bytes: int, load_s: float) -> Completion:
    """The completion of a sequence that has ended. `weights_bytes` and `load_s` (seconds): of its model."""
    assert sequence.finish_reason is not None, "the sequence has not ended"
    sequence.timings.load_s = load_s
    sequence.memory.weights_bytes = weights_bytes
    sequence.memory.peak_rss_bytes = peak_rss_bytes()
    return Completion(
        sequence.text,
        sequence.tokens[: sequence.prompt_length],
        sequence.generated,
        sequence.finish_reason,
        sequence.logprobs,
        sequence.prompt_logprobs,
        sequence.timings,
        sequence.steps,
        sequence.memory,
        sequence.cached_tokens,
    )
