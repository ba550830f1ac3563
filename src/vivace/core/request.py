"""What a user asks for, and what comes back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

MAX_SAMPLES = 1 << 14  # completions of one prompt
FinishReason = Literal["stop", "length", "stop_sequence", "cancelled", "error"]


@dataclass(frozen=True)
class Span:
    """A labelled part of the prompt: token indices first..last and what they are ("system", "user", "tool", ...)."""

    first: int
    last: int
    label: str


# The stages between the model and the choice of a token, in the order in which they run unless the request says else.
STAGES = (
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "dry",
    "top_n_sigma",
    "top_k",
    "temperature",
    "typical_p",
    "top_p",
    "min_p",
    "xtc",
)


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen and when to stop. temperature 0 is greedy."""

    max_tokens: int = 128
    min_tokens: int = 0  # before them neither an end token nor a stop string ends the text
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0  # 0: all
    min_p: float = 0.0
    typical_p: float = 1.0
    top_n_sigma: float = 0.0  # 0: off
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    repetition_penalty: float = 1.0  # for tokens of the prompt too
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    dry_penalty_last_n: int = -1  # -1: all tokens
    stages: tuple[str, ...] = STAGES
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: tuple[int, ...] = ()  # empty: all
    banned_token_ids: tuple[int, ...] = ()
    allowed_strings: tuple[str, ...] = ()  # the completion is one of them; empty: anything
    banned_strings: tuple[str, ...] = ()  # none of them occurs in the completion
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop: bool = False
    ignore_eos: bool = False
    seed: int = 0
    logprobs: int | None = None  # K most probable per generated token, beside the chosen one; None: not wanted
    prompt_logprobs: int | None = None  # the same for the tokens of the prompt
    skip_special_tokens: bool = True

    @property
    def wanted_stages(self) -> frozenset[str]:
        """The stages that do something as their options stand."""
        does_something = {
            "repetition_penalty": self.repetition_penalty != 1,
            "presence_penalty": self.presence_penalty != 0,
            "frequency_penalty": self.frequency_penalty != 0,
            "dry": self.dry_multiplier > 0 and self.dry_penalty_last_n != 0,
            "top_n_sigma": self.top_n_sigma > 0,
            "top_k": self.top_k > 0,
            "temperature": self.temperature != 1,
            "typical_p": self.typical_p < 1,
            "top_p": self.top_p < 1,
            "min_p": self.min_p > 0,
            "xtc": self.xtc_probability > 0 and self.xtc_threshold <= 0.5,
        }
        return frozenset(name for name, does in does_something.items() if does)


@dataclass(slots=True)
class Request:
    """One completion to make. `sample` numbers the completions of one prompt (`n`), and enters every random draw."""

    prompt: list[int]
    sampling: Sampling = field(default_factory=Sampling)
    sample: int = 0
    spans: tuple[Span, ...] = ()
    salt: str = ""


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
    kv_resident_bytes: int = 0  # keys and values it held when it ended, shared ones included
    kv_read_bytes: int = 0  # by all its steps
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
    """New tokens of completion `index`, and the text that became certain, perhaps none.

    Only the last piece has a finish reason.
    """

    text: str
    token_ids: list[int]
    finish_reason: FinishReason | None = None
    index: int = 0
