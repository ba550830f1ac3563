"""What goes wrong with models: one sentence that names the file and the fact."""

from __future__ import annotations


class ModelError(ValueError):
    """A model cannot be found, fetched, read or trusted. The message is one line and says what to do where it can."""
