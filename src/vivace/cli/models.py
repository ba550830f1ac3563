"""`vivace models`: the catalogue, fetching from it, and what a model is."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from typing import Any

from vivace.cli.parser import Parser, UsageError
from vivace.cli.terminal import note, progress, raise_on_interrupt


def parser() -> Parser:
    made = Parser("models", "List, fetch, describe and remove models.", "vivace models pull smollm2-135m")
    made.add_argument("action", choices=("list", "pull", "info", "rm"), nargs="?", default="list", help="default: list")
    made.add_argument("model", metavar="MODEL", nargs="?", help="alias or user/repo[:quant]; info takes a path too")
    made.add_argument("--json", action="store_true", help="JSON instead of text")
    return made


def run(args: argparse.Namespace) -> int:
    if args.action != "list" and not args.model:
        raise UsageError(f"which model? as in `vivace models {args.action} smollm2-135m`", "vivace models")
    if args.action == "list" and args.model:
        raise UsageError(
            f"unexpected argument {args.model!r}; did you mean `vivace models info {args.model}`?", "vivace models"
        )
    return {"list": _list, "pull": _pull, "info": _info, "rm": _remove}[args.action](args)


def _list(args: argparse.Namespace) -> int:
    from vivace.model import catalogue

    rows: list[dict[str, Any]] = []
    for entry in catalogue.entries():
        path = catalogue.present(entry)
        rows.append({"name": entry.name, "size": entry.size, "licence": entry.licence, "about": entry.about})
        rows[-1]["path"] = str(path) if path else None
    if args.json:
        print(json.dumps(rows))
        return 0
    for row in rows:
        here = "here" if row["path"] else ""
        print(f"{row['name']:20} {row['size'] / 1e6:6.0f} MB  {here:5} {row['licence']:14} {row['about']}")
    return 0


def _pull(args: argparse.Namespace) -> int:
    from vivace.model import catalogue

    def report(done: int, total: int) -> None:
        progress(f"{args.model}: {done / 1e6:.0f} of {total / 1e6:.0f} MB")

    with raise_on_interrupt():
        path = catalogue.pull(args.model, report)
    progress("")
    if args.json:
        print(json.dumps({"model": args.model, "path": str(path)}))
    else:
        note(f"{args.model} is at {path}")
    return 0


def _info(args: argparse.Namespace) -> int:
    data = describe(args.model)
    if args.json:
        print(json.dumps(data))
        return 0
    for name, value in data.items():
        print(f"{name.removesuffix('_bytes').replace('_', ' '):14}{_readable(name, value)}")
    return 0


def _readable(name: str, value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{count} {kind}" for kind, count in value.items())
    if isinstance(value, bool) or value is None:
        return "yes" if value else "no"
    if name.endswith("_bytes"):
        return f"{value / 1e6:.1f} MB" if value >= 1e6 else f"{value / 1e3:.1f} kB"
    return str(value)


def describe(model: str) -> dict[str, Any]:
    """What there is to know about a model's files, without loading the weights."""
    from vivace.kv.spec import KVSpec
    from vivace.model import catalogue
    from vivace.model.load import default_weights, load_checkpoint
    from vivace.model.load.quantise import type_at_load

    path = catalogue.resolve(model)
    checkpoint, weights = load_checkpoint(path), default_weights(path)
    spec = checkpoint.spec
    block = spec.blocks[0]
    entry = next((entry for entry in catalogue.entries() if model in (entry.name, str(catalogue.present(entry)))), None)
    return {
        "name": checkpoint.name,
        "path": checkpoint.path,
        "licence": entry.licence if entry else "see the model's source",
        "family": spec.family,
        "parameters": sum(rows * cols for _, rows, cols in spec.matrices()) + sum(n for _, n in spec.vectors()),
        "file_bytes": checkpoint.file_bytes,
        "layers": len(spec.blocks),
        "hidden": spec.hidden,
        "heads": block.attention.heads,
        "kv_heads": block.attention.kv_heads,
        "head_dim": block.attention.head_dim,
        "feed_forward": block.feed_forward.size,
        "vocab": spec.vocab,
        "context": spec.max_context,
        "window": next((b.attention.window for b in spec.blocks if b.attention.window), None),
        "cache_token_bytes": KVSpec.of(spec).token_bytes(),
        "tensors": dict(Counter(matrix.type for matrix in checkpoint.matrices.values())),
        "loaded_as": dict(
            Counter(type_at_load(name, m, weights, spec.tied_head) for name, m in checkpoint.matrices.items())
        ),
        "chat": checkpoint.tokenizer.has_chat_template,
    }


def _remove(args: argparse.Namespace) -> int:
    from vivace.model import catalogue

    path = catalogue.remove(args.model)
    if args.json:
        print(json.dumps({"model": args.model, "removed": str(path)}))
    else:
        note(f"removed {path}")
    return 0
