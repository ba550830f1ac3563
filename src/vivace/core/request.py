"""What a user asks for, and what comes back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

FinishReason = Literal["stop", "length", "stop_sequence", "cancelled", "error"]


@dataclass(frozen=True)
class Span:
    """A labelled part of the prompt: token indices first..last and what they are ("system", "user", "tool", ...)."""

    first: int
    last: int
    label: str


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen and when to stop. temperature 0 is greedy."""

    max_tokens: int = 128
    min_tokens: int = 0
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0  # 0: all
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop: bool = False
    ignore_eos: bool = False
    seed: int = 0
    logprobs: int | None = None  # K most probable per generated token, beside the chosen one; None: not wanted
    prompt_logprobs: int | None = None  # the same for the tokens of the prompt
    skip_special_tokens: bool = True


@dataclass(slots=True)
class Request:
    """One completion to make. `sample` numbers the completions of one prompt (`n`), and enters every random draw."""

    prompt: list[int]
    sampling: Sampling = field(default_factory=Sampling)
    sample: int = 0
    spans: tuple[Span, ...] = ()
    program: str = ""
    tenant: str = ""
    salt: str = ""
    priority: int = 0
    deadline: float | None = None


@dataclass(slots=True)
class Timings:
    load_s: float = 0.0
    ttft_s: float = 0.0
    prefill_tok_s: float = 0.0
    decode_tok_s: float = 0.0
    total_s: float = 0.0


@dataclass(slots=True)
class Steps:
    target_forwards: int = 0
    draft_forwards: int = 0
    accepted_per_forward: float = 0.0


@dataclass(slots=True)
class Memory:
    weights_bytes: int = 0
    kv_resident_bytes: int = 0
    kv_read_bytes: int = 0
    peak_rss_bytes: int = 0


@dataclass(slots=True)
class Completion:
    """`logprobs`: per generated token, {token id: natural log-probability} under the model's own distribution.

    `token_ids` and `logprobs` hold every generated token, the one that ended the text included; `text` leaves out the
    stop sequence or stop token unless `include_stop` asked for it. `prompt_logprobs[0]` is None: nothing precedes it.
    """

    text: str
    prompt_token_ids: list[int]
    token_ids: list[int]
    finish_reason: FinishReason
    logprobs: list[dict[int, float]] | None = None
    prompt_logprobs: list[dict[int, float] | None] | None = None
    timings: Timings = field(default_factory=Timings)
    steps: Steps = field(default_factory=Steps)
    memory: Memory = field(default_factory=Memory)
    cached_tokens: int = 0


@dataclass(slots=True)
class Piece:
    """Some newly certain text of a stream. Only the last piece has a finish reason."""

    text: str
    token_ids: list[int]
    finish_reason: FinishReason | None = None
    index: int = 0
