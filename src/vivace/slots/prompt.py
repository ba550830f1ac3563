"""Prompt passes: what may rewrite a prompt before it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from vivace.core.engine import Engine
    from vivace.core.request import Request


class PromptPass(Protocol):
    """Runs when a request is added, once for all its samples."""

    def rewrite(self, request: Request, engine: Engine) -> Request:
        """The request to run instead. Depends on the request alone. It may run steps on the engine's models, in

        sequences of its own that it drops again. Raises RequestError for a prompt that it cannot take.
        """
        ...
