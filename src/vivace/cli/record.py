"""A completion as the JSON of `vivace run`."""

from __future__ import annotations

import argparse
import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vivace.api import LLM
    from vivace.core.request import Completion


def record(llm: LLM, done: Completion, args: argparse.Namespace, seed: int) -> dict[str, Any]:
    """What `vivace run --json` promises, ready to be printed."""
    report = llm.check()
    found: dict[str, Any] = {
        "text": done.text,
        "token_ids": done.token_ids,
        "finish_reason": done.finish_reason,
        "usage": {
            "prompt_tokens": len(done.prompt_token_ids),
            "completion_tokens": len(done.token_ids),
            "cached_tokens": done.cached_tokens,
        },
        "timings": dataclasses.asdict(done.timings),
        "steps": dataclasses.asdict(done.steps),
        "memory": dataclasses.asdict(done.memory),
        "plan": report.plan,
        "plan_key": report.key,
        "tier": report.tier,
        "tier_reason": report.tier_reason,
        "model": llm.model,
        "seed": seed,
    }
    if done.logprobs is not None:
        found["logprobs"] = done.logprobs
    return found
