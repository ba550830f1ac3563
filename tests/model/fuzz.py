"""Broken model files through everything that reads them: each case ends in a ModelError of one line, or it runs.

`make fuzz CASES=200000` does it with the native core under sanitizers; test_fuzz.py does a few with the ordinary one.
Case number i of a seed is always the same, whatever ran before it.
"""

from __future__ import annotations

import argparse
import importlib.util
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from types import FrameType

import numpy as np
from fuzz_mutations import change_bytes, change_contents
from fuzz_samples import Files, Model, sample, write

from vivace.core.step import Segment, StepRequest
from vivace.model.chat_template import ChatError
from vivace.model.errors import ModelError
from vivace.model.load.convert import KEEP, WEIGHTS

SECONDS = 20  # of a case, sanitizers included; most take milliseconds
MEMORY = 256 << 20  # that the peak may grow by in a group of cases
GROUP = 64  # asking for the peak takes as long as a case


def load_native(path: str) -> None:
    """Takes the extension module from `path`, in place of the one that is installed."""
    import vivace

    spec = importlib.util.spec_from_file_location("vivace._native", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules["vivace._native"] = vivace._native = module  # type: ignore[attr-defined]


@lru_cache(maxsize=1)
def _model(seed: int, number: int) -> Model:
    """Making one costs as much as a case: eight cases begin with the same."""
    return sample(random.Random(f"model {seed}:{number}"))


def make(seed: int, number: int) -> tuple[Files, random.Random]:
    """The files of a case, and what draws the rest of it."""
    draw = random.Random(f"{seed}:{number}")
    model = _model(seed, number // 8)
    model = Model(model.kind, dict(model.metadata), dict(model.tensors))
    for _ in range(draw.choice((0, 0, 1, 1, 1, 2))):
        if model.tensors and model.metadata:
            change_contents(model, draw)
    files = write(model, draw)
    for _ in range(draw.choice((0, 0, 0, 1, 1, 2))):
        change_bytes(files, draw)
    return files, draw


def use(path: Path, draw: random.Random) -> str:
    """Loads a model and does with it what the engine does, in small; returns how far it came."""
    from vivace import _native
    from vivace.exec.native import NativeExecutor
    from vivace.model.load import load_checkpoint

    checkpoint = load_checkpoint(path, weights=draw.choice((*WEIGHTS, KEEP, KEEP)))
    try:
        for matrix in checkpoint.matrices.values():
            assert matrix.dequantise().shape == (matrix.rows, matrix.cols)
            # A copy ends where the matrix ends, so that the sanitizer sees what is read beyond it.
            _native.pack(matrix.type, np.array(matrix.data), matrix.cols)
        executor = NativeExecutor(checkpoint, capacity_pages=2, max_rows=4)
    except ModelError as error:
        raise Refused("weights", error) from error
    seq = executor.store.new()
    count = min(3, checkpoint.spec.max_context)
    tokens = np.array([draw.randrange(checkpoint.spec.vocab) for _ in range(count)], np.int32)
    result = executor.run(StepRequest([Segment(seq, tokens)]))
    assert result.logits.shape == (1, checkpoint.spec.vocab)
    executor.close()
    try:
        tokenizer = checkpoint.tokenizer
        tokenizer.decode(tokenizer.encode("ab <|x|> é", True))
    except ModelError as error:
        raise Refused("tokenizer", error) from error
    if tokenizer.has_chat_template:
        try:
            tokenizer.chat_prompt([{"role": "user", "content": "a"}])
        except ChatError:
            return "ran without its chat template"
    return "ran"


class Refused(Exception):
    """A ModelError from one stage of a load."""

    def __init__(self, stage: str, error: ModelError) -> None:
        super().__init__(str(error))
        self.stage = stage


def outcome(files: Files, draw: random.Random, folder: Path) -> str:
    """Runs one case in an empty folder. "ran", "refused: STAGE", or a "fault: ..."."""
    for name, data in files.data.items():
        (folder / name).write_bytes(data)
    begin = time.monotonic()
    try:
        with limited(), np.errstate(all="ignore"):
            found = use(folder / files.opened, draw)
    except (ModelError, Refused) as error:
        found = f"refused: {error.stage if isinstance(error, Refused) else 'file'}"
        text = str(error)
        if not text.startswith(str(folder)) or not text.isprintable() or len(text) > len(str(folder)) + 700:
            found = f"fault: message {text!r:.300}"
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        found = f"fault: {type(error).__name__} {error!s:.200} in {Path(where.filename).name}:{where.lineno}"
    if time.monotonic() - begin > SECONDS:
        return f"fault: took {time.monotonic() - begin:.0f} s ({found})"
    return found


@contextmanager
def limited() -> Iterator[None]:
    """Ends a case that takes too long, at least where Python runs."""

    def late(_: int, frame: FrameType | None) -> None:
        raise TimeoutError("too slow")

    old = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def run(seed: int, numbers: range, folder: Path, *, verbose: bool = False) -> tuple[Counter[str], list[str]]:
    """Counts by outcome, and one line for each fault."""
    counts, faults, peak = Counter[str](), list[str](), _peak()

    def fault(text: str) -> None:
        counts["fault"] += 1
        faults.append(f"seed {seed} {text}")
        if verbose:
            print(faults[-1], flush=True)

    for number in numbers:
        # A new folder each time: a mapping must never see another file's bytes. What crashes leaves its files there.
        place = folder / f"{seed}-{number}"
        place.mkdir(parents=True)
        found = outcome(*make(seed, number), place)
        if found.startswith("fault"):
            fault(f"case {number}: {found}")
        else:
            counts[found] += 1
        shutil.rmtree(place)
        if number % GROUP == GROUP - 1 or number == numbers[-1]:
            before, peak = peak, _peak()
            if peak - before > MEMORY:
                fault(f"case {number} or just before it: memory grew by {(peak - before) >> 20} MiB")
        if verbose and sum(counts.values()) % 10_000 == 0:
            print(sum(counts.values()), dict(counts), flush=True)
    return counts, faults


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--native", help="the extension module to use, built with sanitizers")
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.native:
        load_native(args.native)
    begin = time.monotonic()
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="vivace-fuzz-", dir=memory if memory.is_dir() else None))
    print(f"files of a case that ends the process stay in {folder}", flush=True)
    counts, faults = run(args.seed, range(args.first, args.first + args.cases), folder, verbose=True)
    folder.rmdir()
    for name, count in sorted(counts.items()):
        print(f"{count:8} {name}")
    print(f"{args.cases} cases in {time.monotonic() - begin:.0f} s; peak memory {_peak() >> 20} MiB")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
