"""What is said about a name that does not exist."""

from __future__ import annotations

from collections.abc import Iterable

ALIKE = 0.6  # of two names: twice their common letters, over all letters
LISTED = 12  # names that are told when none is near


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that was most likely meant, or None when none is near."""
    import difflib  # only when something is wrong

    bare, by_bare = _bare(name), {_bare(one): one for one in known}
    near = difflib.get_close_matches(bare, by_bare, 1, ALIKE)
    if not near and len(bare) > 2:
        near = [one for one in by_bare if len(one) > 2 and (one.startswith(bare) or bare.startswith(one))][:1]
    return by_bare[near[0]] if near else None


def hint(name: str, known: Iterable[str]) -> str:
    """`; did you mean X?`, or which names there are, if they are few."""
    known = list(known)
    near = nearest(name, known)
    if near is not None:
        return f"; did you mean {near}?"
    return f"; there are {', '.join(known)}" if 0 < len(known) <= LISTED else ""


def _bare(name: str) -> str:
    return name.lower().lstrip("-").replace("_", "-")
