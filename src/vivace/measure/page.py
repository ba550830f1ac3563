"""The report of a bench as one small page that needs nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape
from itertools import groupby
from typing import Any

STYLE = """\
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em }
:root { color-scheme: light dark }
table { border-collapse: collapse; margin: 1em 0 }
th, td { padding: .2em .8em; border-bottom: 1px solid #8886; text-align: left }
.number { text-align: right; font-variant-numeric: tabular-nums }
.bar { height: .9em; background: #888 }
.bar.vivace { background: #3a7 }"""


def page(title: str, text: str, rows: Iterable[dict[str, Any]]) -> str:
    """HTML of a report in markdown (paragraphs and tables only), and bars for the medians of its results."""
    body = [*_bars(rows), *_blocks(text)]
    head = f'<meta charset="utf-8">\n<title>{escape(title)}</title>\n<style>\n{STYLE}\n</style>'
    return "\n".join(["<!doctype html>", '<html lang="en">', head, f"<h1>{escape(title)}</h1>", *body, "</html>"])


def _bars(rows: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Each test has its own scale: its fastest engine is the whole width."""
    measured = [row for row in rows if row["median"] is not None]
    yield "<table>"
    for test, group in groupby(measured, lambda row: row["test"]):
        engines = list(group)
        most = max(row["median"] for row in engines)
        for row in engines:
            bar = f'<div class="bar {escape(row["engine"])}" style="width: {20 * row["median"] / most:.2f}em"></div>'
            cells = (
                f'<td>{escape(test)}<td>{escape(row["engine"])}<td class="number">{row["median"]:.1f} tok/s<td>{bar}'
            )
            yield f"<tr>{cells}"
    yield "</table>"


def _blocks(text: str) -> Iterator[str]:
    for block in text.split("\n\n"):
        lines = block.splitlines()
        if not lines[0].startswith("|"):
            yield f"<p>{escape(block)}"
            continue
        heads, marks, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
        kinds = [' class="number"' if mark.endswith(":") else "" for mark in marks]
        yield "<table>"
        for tag, cells in [("th", heads), *(("td", row) for row in rows)]:
            yield "<tr>" + "".join(f"<{tag}{kind}>{escape(c)}" for kind, c in zip(kinds, cells, strict=True))
        yield "</table>"
