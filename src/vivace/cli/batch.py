"""`vivace run` for many prompts: they share the engine's steps."""

from __future__ import annotations

import argparse
import json
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from time import perf_counter
from typing import TYPE_CHECKING, Any

from vivace.cli.generation import options_of
from vivace.cli.prompts import Line, Prompt, prompt_of
from vivace.cli.record import record
from vivace.cli.terminal import StopOnInterrupt, bar, emit, note, progress
from vivace.core.machine import peak_rss_bytes

if TYPE_CHECKING:
    from vivace.api import LLM
    from vivace.cli.answers import Answers
    from vivace.core.batch import Sequence as Handle
    from vivace.core.request import Span

REFRESH = 0.1  # seconds between two looks at the bar
AHEAD = 2  # times as many prompts are in the engine as it runs at once

Encode = Callable[[str | list[dict[str, Any]]], tuple[list[int], tuple["Span", ...]]]


@dataclass(eq=False)
class Job:
    """A line on its way: one handle for each completion, or why there are none."""

    line: Line
    prompt: Prompt | None = None
    handles: list[Handle] = field(default_factory=list)
    error: str | None = None
    seed: int = 0

    @property
    def done(self) -> bool:
        return all(handle.finished for handle in self.handles)

    @property
    def tokens(self) -> int:
        """Generated so far."""
        return sum(len(handle.tokens) - handle.prompt_length for handle in self.handles)


class Batch:
    """Runs lines of prompts; `write` gets each job as soon as it is done, `in_order` also those before it."""

    def __init__(
        self, llm: LLM, args: argparse.Namespace, encode: Encode, write: Callable[[Job], None], in_order: bool
    ) -> None:
        self.llm, self.args, self.encode, self.write, self.in_order = llm, args, encode, write, in_order
        self.failed = self.written = self.tokens = 0
        self.seconds = 0.0

    def run(self, lines: Sequence[Line]) -> bool:
        """Whether all were run; after a Ctrl-C, what is not finished is dropped and the rest written."""
        engine, jobs, to_come = self.llm.engine, deque[Job](), iter(lines)
        start = told = perf_counter()
        try:
            with StopOnInterrupt() as interrupt:
                while not interrupt.stopped and self._fill(jobs, to_come):
                    for job in self._ready(jobs):
                        jobs.remove(job)
                        self._write(job)
                    engine.step()
                    now = perf_counter()
                    if now > told + REFRESH:
                        told, tokens = now, self.tokens + sum(job.tokens for job in jobs)
                        bar(self.written, len(lines), f"· {tokens} tokens, {tokens / (now - start):.0f} tok/s")
                for job in [job for job in jobs if job.done]:
                    self._write(job)
        finally:
            progress("")
            for handle in (handle for job in jobs for handle in job.handles):
                engine.cancel(handle)
        self.seconds = perf_counter() - start
        return self.written == len(lines)

    def summary(self, asked: int, known: int) -> str:
        failed = f", {self.failed} failed" if self.failed else ""
        before = f", {known} were answered before" if known else ""
        rate = self.tokens / self.seconds if self.seconds else 0.0
        memory = f"peak memory {peak_rss_bytes() / 1e6:.0f} MB"
        done = f"{self.written} of {asked} prompts{failed}{before}"
        return f"{done} · {self.tokens} tokens {rate:.1f} tok/s · {self.seconds:.2f} s · {memory}"

    def _fill(self, jobs: deque[Job], to_come: Iterator[Line]) -> bool:
        """Keeps the engine supplied; False when nothing is left to run or to write."""
        engine = self.llm.engine
        while len(engine.waiting) + len(engine.running) < AHEAD * engine.max_sequences:
            line = next(to_come, None)
            if line is None:
                break
            jobs.append(self._start(line))
        return bool(jobs)

    def _ready(self, jobs: deque[Job]) -> list[Job]:
        done = takewhile if self.in_order else filter
        return list(done(lambda job: job.done, jobs))

    def _start(self, line: Line) -> Job:
        from vivace.core.request import Request
        from vivace.sampling.options import options_for

        job = Job(line, seed=self.args.seed)
        try:
            job.prompt = prompt_of(line)
            ids, spans = self.encode(job.prompt.content)
            asked = options_of(self.args) | {"n": self.args.samples, "logprobs": self.args.logprobs}
            (option,) = options_for(1, asked | dict(job.prompt.options) | {"spans": [spans]})
            job.seed = option.sampling.seed
            job.handles = self.llm.engine.add(Request(ids, option.sampling, spans=option.spans), option.samples)
        except (ValueError, TypeError) as error:  # of what the line asks for
            job.error = " ".join(str(error).split())
        return job

    def _write(self, job: Job) -> None:
        progress("")
        errors = (str(handle.error) for handle in job.handles if handle.error is not None)
        job.error = job.error or next(errors, None)
        self.failed += job.error is not None
        self.written += 1
        self.tokens += job.tokens
        self.write(job)


def run(llm: LLM, args: argparse.Namespace, lines: Sequence[Line], encode: Encode) -> int:
    """Runs the lines, all that go well even if others do not. The exit status is 1 when one failed."""
    answers, known = None, 0
    if args.out:
        from vivace.cli.answers import Answers

        answers = Answers(args.out, _setting(llm, args))
        asked, lines = len(lines), answers.missing(lines)
        known = asked - len(lines)

    def write(job: Job) -> None:
        _show(llm, args, job, answers)

    batch = Batch(llm, args, encode, write, in_order=answers is None)
    try:
        complete = batch.run(lines)
    finally:
        if answers is not None:
            answers.close()
    note(batch.summary(len(lines), known))
    if not complete:
        raise KeyboardInterrupt
    return 1 if batch.failed else 0


def _setting(llm: LLM, args: argparse.Namespace) -> dict[str, Any]:
    """What decides the answers, beside the prompts."""
    names = ("chat", "raw", "system", "samples", "logprobs")
    return options_of(args) | {name: getattr(args, name) for name in names} | {"model": repr(llm.engine.room.key)}


def records(llm: LLM, args: argparse.Namespace, job: Job) -> list[dict[str, Any]]:
    """An object for each completion of a line, or one with its error."""
    head: dict[str, Any] = {"line": job.line.number}
    if job.prompt is not None and job.prompt.id is not None:
        head["id"] = job.prompt.id
    if job.error is not None:
        return [head | {"error": job.error}]
    done = map(llm.completion, job.handles)
    return [head | {"sample": i} | record(llm, one, args, job.seed) for i, one in enumerate(done)]


def _show(llm: LLM, args: argparse.Namespace, job: Job, answers: Answers | None) -> None:
    """The job into its file, or on standard output: JSON, or text below a line that says of which prompt it is."""
    if job.error is not None:
        note(f"vivace: error: {args.prompts or 'the prompt'}:{job.line.number}: {job.error}")
    if answers is not None:
        if job.error is None:
            answers.add(job.line, records(llm, args, job))
    elif args.json:
        emit("".join(json.dumps(found, ensure_ascii=False) + "\n" for found in records(llm, args, job)))
    elif job.error is None:
        for i, done in enumerate(map(llm.completion, job.handles)):
            number = f"{job.line.number}.{i + 1}" if len(job.handles) > 1 else f"{job.line.number}"
            text = " ".join(map(str, done.token_ids)) if args.ids else done.text.rstrip()
            emit(f"==> {number}: {job.prompt.title if job.prompt else ''} <==\n{text}\n\n")
