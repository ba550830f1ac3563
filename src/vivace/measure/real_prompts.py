"""Speed on real prompts: greedy generation of whole requests, one after another, as `vivace run` does it."""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vivace.api import LLM
from vivace.core.names import hint
from vivace.core.request import Completion
from vivace.measure.speed import Interrupted

SUITES = Path(__file__).parent / "prompts"


@dataclass(frozen=True)
class Prompts:
    name: str
    texts: tuple[str, ...]


def read(source: str) -> Prompts:
    """The prompts of a suite, or of a file: a prompt a line; in `.jsonl` files an object a line, with a `prompt`.

    Raises ValueError when there are none, with the nearest suite for a name that is neither.
    """
    path, suites = Path(source), sorted(file.stem for file in SUITES.glob("*.txt"))
    if source in suites and not path.exists():
        path = SUITES / f"{source}.txt"
    elif not path.exists():
        raise ValueError(f"{source}: no such file or suite of prompts{hint(source, suites)}")
    try:
        lines = [line for line in path.read_text().splitlines() if line.strip()]
    except UnicodeDecodeError:
        raise ValueError(f"{source}: is not UTF-8 text") from None
    texts = [_prompt(line, source) for line in lines] if path.suffix == ".jsonl" else lines
    if not texts:
        raise ValueError(f"{source}: has no prompts")
    return Prompts(path.stem, tuple(texts))


def _prompt(line: str, source: str) -> str:
    try:
        prompt = json.loads(line)["prompt"]
    except (json.JSONDecodeError, TypeError, KeyError, RecursionError):
        prompt = None
    if not isinstance(prompt, str) or not prompt:
        raise ValueError(f'{source}: each line must be an object like {{"prompt": "text"}}, not {line[:60]}')
    return prompt


def run(llm: LLM, prompts: Prompts, tokens: int, reps: int, tier: str) -> list[dict[str, Any]]:
    """Rows of a bench report: prompt tokens a second up to the first token, then decoded tokens a second.

    Each rate is over all prompts of a repetition, after one as warm-up. No request ends before `tokens` (2 or more).
    Raises Interrupted on Ctrl-C, with the rows of the repetitions that were done, if any.
    """
    encoded = [_encode(llm, text) for text in prompts.texts]
    rounds: list[list[Completion]] = []
    try:
        for _ in range(reps + 1):
            rounds.append(_round(llm, encoded, tokens))
    except KeyboardInterrupt:
        raise Interrupted(_rows(prompts, rounds[1:], tokens, tier) if len(rounds) > 1 else []) from None
    return _rows(prompts, rounds[1:], tokens, tier)


def _rows(prompts: Prompts, rounds: list[list[Completion]], tokens: int, tier: str) -> list[dict[str, Any]]:
    prefill = [sum(len(d.prompt_token_ids) for d in done) / sum(d.timings.ttft_s for d in done) for done in rounds]
    decode = [len(done) * (tokens - 1) / sum((tokens - 1) / d.timings.decode_tok_s for d in done) for done in rounds]
    last = rounds[-1]
    steps = {
        "target_forwards": sum(done.steps.target_forwards for done in last),
        "draft_forwards": sum(done.steps.draft_forwards for done in last),
        "accepted_per_forward": len(last) * tokens / sum(tokens / done.steps.accepted_per_forward for done in last),
    }
    shared: dict[str, Any] = {"plan": "", "engine": "vivace", "share_of_limit": None, "tier": tier}
    shared |= {"steps": steps, "memory": asdict(last[-1].memory)}
    tests = ((f"{prompts.name} prompts", prefill), (f"{prompts.name} tg{tokens}", decode))
    return [shared | {"test": test, "tok_s": rates, "median": statistics.median(rates)} for test, rates in tests]


def _encode(llm: LLM, text: str) -> list[int]:
    if llm.tokenizer.has_chat_template:
        return llm.chat_prompt([{"role": "user", "content": text}]).ids
    return llm.tokenizer.encode(text, True)


def _round(llm: LLM, prompts: list[list[int]], tokens: int) -> list[Completion]:
    return [llm.generate(ids, max_tokens=tokens, ignore_eos=True)[0] for ids in prompts]
