"""`vivace models`: what there is, fetching it, what a model is, names of one's own, and removing."""

from __future__ import annotations

import argparse
import json
import os
from collections import Counter
from typing import Any

from vivace.cli.commands import Command, Family
from vivace.cli.completion import installable, known
from vivace.cli.parser import MODEL, Parser
from vivace.cli.terminal import note, progress, raise_on_interrupt

NAME = "name of the catalogue, or user/repo[:quant] of the hub"


def _list_parser() -> Parser:
    about = "Names that MODEL may be, with size, licence and whether it is here: the catalogue, the hub, your aliases."
    return _with_json(Parser("models list", about, "vivace models list --json"))


def _pull_parser() -> Parser:
    about = "Fetch a model unless it is here whole, and check it by SHA-256. A pull that was cut off goes on."
    made = Parser("models pull", about, "vivace models pull smollm2-135m")
    made.add_model(NAME)
    made.suggest["model"] = installable
    made.add_offline()
    return _with_json(made)


def _info_parser() -> Parser:
    made = Parser("models info", "What a model is, without loading its weights.", "vivace models info smollm2-135m")
    made.add_model(MODEL)
    return _with_json(made)


def _remove_parser() -> Parser:
    about = "Delete what was fetched of a model, or an alias. Nothing is asked; files that you put elsewhere stay."
    made = Parser("models rm", about, "vivace models rm smollm2-135m")
    made.add_model("alias, name of the catalogue, or user/repo[:quant]; without quant all of that repository")
    made.suggest["model"] = known
    return _with_json(made)


def _alias_parser() -> Parser:
    about = "Give a model a name of your own. `vivace models rm NAME` takes the name away, and leaves the model."
    made = Parser("models alias", about, "vivace models alias mine ~/models/some.Q8_0.gguf")
    made.add_argument("name", metavar="NAME", help="letters, digits, '.', '-' and '_'")
    made.add_model(MODEL)
    return _with_json(made)


def _with_json(made: Parser) -> Parser:
    made.add_argument_group("output").add_argument("--json", action="store_true", help="JSON instead of text")
    return made


def _list(args: argparse.Namespace) -> int:
    from vivace.model.shelf import listing

    models = listing()
    if args.json:
        print(json.dumps([vars(model) | {"path": str(model.path) if model.path else None} for model in models]))
        return 0
    width = max(len(model.name) for model in models) + 2
    for model in models:
        state = "here" if model.path else f"{_bytes(model.partial)} so far" if model.partial else "-"
        size = _bytes(model.size) if model.size else "-"
        about = f"alias of {model.about}" if model.kind == "alias" else model.about or "from the hub"
        print(f"{model.name:{width}}{size:>9}  {state:16}{model.licence or '-':15}{about}")
    return 0


def _pull(args: argparse.Namespace) -> int:
    from vivace.model import catalogue

    def report(done: int, total: int) -> None:
        progress(f"{args.model}: {done / 1e6:.0f} of {total / 1e6:.0f} MB")

    try:
        with raise_on_interrupt():
            path = catalogue.pull(args.model, report)
    finally:
        progress("")
    _say(args, {"model": args.model, "path": str(path)}, f"{args.model} is at {path}")
    return 0


def _info(args: argparse.Namespace) -> int:
    data = describe(args.model)
    if args.json:
        print(json.dumps(data))
    else:
        rows = ((name.removesuffix("_bytes").replace("_", " "), _readable(name, value)) for name, value in data.items())
        print("\n".join(f"{name:14}{value}" for name, value in rows))
    return 0


def _remove(args: argparse.Namespace) -> int:
    from vivace.model.shelf import remove

    gone, freed = remove(args.model)
    what = f"{', '.join(map(str, gone))}; {_bytes(freed)} are free again" if gone else f"the alias {args.model}"
    _say(args, {"model": args.model, "removed": [str(path) for path in gone], "freed_bytes": freed}, f"removed {what}")
    return 0


def _alias(args: argparse.Namespace) -> int:
    from vivace.model import aliases, catalogue
    from vivace.model.errors import ModelError

    if args.name in {entry.name for entry in catalogue.entries()}:
        raise ModelError(f"{args.name} is a name of the catalogue; choose another for the alias")
    target = catalogue.named(os.path.expanduser(args.model))
    if os.path.exists(target):
        target = os.path.abspath(target)
    elif catalogue.hub_model(target) is None:
        if "/" in target or target.endswith(".gguf"):
            raise ModelError(f"{target}: no such file or folder")
        catalogue.find(target)
    aliases.add(args.name, target)
    _say(args, {"name": args.name, "model": target}, f"{args.name} now means {target}")
    return 0


def _say(args: argparse.Namespace, data: dict[str, Any], text: str) -> None:
    if args.json:
        print(json.dumps(data))
    else:
        note(text)


def _bytes(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{count / 1e3:.1f} kB"


def _readable(name: str, value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{count} {kind}" for kind, count in value.items())
    if isinstance(value, bool) or value is None:
        return "yes" if value else "no"
    return _bytes(value) if name.endswith("_bytes") else str(value)


def describe(model: str) -> dict[str, Any]:
    """What there is to know about a model's files, without loading the weights."""
    from vivace.kv.spec import KVSpec
    from vivace.model import catalogue
    from vivace.model.load import load_checkpoint
    from vivace.model.load.convert import default_weights, type_at_load

    path = catalogue.resolve(model)
    checkpoint, weights = load_checkpoint(path), default_weights(path)
    spec = checkpoint.spec
    block = spec.blocks[0]
    entry = next((entry for entry in catalogue.entries() if path == catalogue.present(entry)), None)
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


FAMILY = Family(
    "models",
    "List, fetch, describe, name and remove models.",
    {
        "list": Command(_list_parser, _list, "what there is: name, size, licence, whether it is here"),
        "pull": Command(_pull_parser, _pull, "fetch a model"),
        "info": Command(_info_parser, _info, "what a model is: family, layers, types, context"),
        "alias": Command(_alias_parser, _alias, "give a model a name of your own"),
        "rm": Command(_remove_parser, _remove, "delete what was fetched of a model, or an alias"),
    },
    example="vivace models pull smollm2-135m",
    default="list",
)
