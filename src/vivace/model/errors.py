"""What goes wrong with models: one sentence that names the file and the fact."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class ModelError(ValueError):
    """A model cannot be found, fetched, read or trusted. The message is one line and says what to do where it can."""

    def __init__(self, message: str) -> None:
        # Names out of a file may hold line breaks, terminal codes or lone surrogates.
        super().__init__("".join(c if c.isprintable() else repr(c)[1:-1] for c in message))


@contextmanager
def naming(source: str, kind: type[ValueError] = ModelError) -> Iterator[None]:
    """Makes errors of that kind within it ModelErrors that begin with the name of their `source`."""
    try:
        yield
    except kind as error:
        if isinstance(error, ModelError) and str(error).startswith(source):
            raise
        raise ModelError(f"{source}: {error}") from None


def shown(name: str) -> str:
    """A name out of a file as messages have it: quoted, escaped, and cut where it is long."""
    text = repr(name)
    return text if len(text) <= 80 else f"{text[:78]}…{text[-1]}"


class UnknownModel(ModelError):
    """A name that stands for no model."""
