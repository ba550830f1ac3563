"""Ctrl-C comes between the engine's calls, never within one: in the midst of the books it would leave them wrong."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


@contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Within it, a Ctrl-C waits until the end. Does nothing where no handler of Python's would be called."""
    handler: Any = signal.getsignal(signal.SIGINT)
    if not callable(handler) or threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[Any] = []
    signal.signal(signal.SIGINT, lambda *what: came.append(what))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if came:
            handler(*came[0])


def uninterrupted(call: Callable[P, T]) -> Callable[P, T]:
    """The function, run with interrupts deferred."""

    @wraps(call)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        with interrupts_deferred():
            return call(*args, **kwargs)

    return run
