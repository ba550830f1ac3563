"""Ctrl-C comes between the engine's calls, never within one: in the midst of the books it would leave them wrong."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from functools import wraps
from types import FrameType
from typing import Any, ParamSpec, TypeVar

try:  # without the enumerations of `signal`, which take longer than all else in a step of the engine
    from _signal import signal as set_handler  # type: ignore[import-not-found]
except ImportError:
    from signal import signal as set_handler

P = ParamSpec("P")
T = TypeVar("T")


class InterruptsDeferred:
    """Within it, a Ctrl-C waits until the end. Does nothing where no handler of Python's would be called."""

    def __enter__(self) -> None:
        self._came: list[tuple[int, FrameType | None]] = []
        self._handler: Any = None
        if threading.current_thread() is threading.main_thread():
            self._handler = set_handler(signal.SIGINT, self._note)
            if not callable(self._handler):
                set_handler(signal.SIGINT, self._handler)

    def __exit__(self, *_: object) -> None:
        if callable(self._handler):
            set_handler(signal.SIGINT, self._handler)
            if self._came:
                self._handler(*self._came[0])

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came.append((number, frame))


def uninterrupted(call: Callable[P, T]) -> Callable[P, T]:
    """The function, run with interrupts deferred."""

    @wraps(call)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        with InterruptsDeferred():
            return call(*args, **kwargs)

    return run
