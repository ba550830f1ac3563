"""`vivace doctor`: what this machine is and can do, and what would make the engine faster here."""

from __future__ import annotations

import argparse
import json
from typing import Any

from vivace.cli.parser import Parser


def parser() -> Parser:
    made = Parser("doctor", "Measure this machine and look at what is installed.", "vivace doctor --json")
    made.add_argument_group("output").add_argument("--json", action="store_true", help="one JSON object")
    return made


def run(args: argparse.Namespace) -> int:
    data = examine()
    print(json.dumps(data, indent=2) if args.json else _text(data))
    return 0


def examine() -> dict[str, Any]:
    from vivace.measure import machine, peers
    from vivace.model import catalogue
    from vivace.ops.registry import native

    facts, entries = machine.describe(), catalogue.entries()
    limits = machine.probe(facts.threads)
    single = machine.probe(1)
    data: dict[str, Any] = facts.record() | {
        "isas": native().isas(),
        "bandwidth_bytes_s": limits.bytes_s,
        "int8_ops_s": limits.int8_ops_s,
        "bandwidth_one_thread_bytes_s": single.bytes_s,
        "int8_one_thread_ops_s": single.int8_ops_s,
        "engines": peers.installed(),
        "models": [{"name": entry.name, "present": catalogue.present(entry) is not None} for entry in entries],
    }
    return data | {"advice": advice(data)}


def advice(data: dict[str, Any]) -> list[str]:
    """Sentences about what stands in the way of speed; none when nothing does."""
    found = []
    if data["isa"] != (best := data["isas"][-1]):
        found.append(f"$VIVACE_ISA is {data['isa']}, but the faster {best} kernels run here too; unset it")
    elif data["isa"] == "portable":
        found.append("the processor has no instruction set that the fast kernels need; the portable ones are slow")
    if data["governor"] not in (None, "performance"):
        found.append(f"the CPU governor is {data['governor']}; `performance` gives steadier and higher speed")
    if data["threads"] < data["cores"]:
        found.append(f"{data['threads']} of {data['cores']} processors may be used (affinity or CPU quota)")
    if not any(model["present"] for model in data["models"]):
        found.append("no model is here yet: vivace models pull smollm2-135m")
    return found


def _text(data: dict[str, Any]) -> str:
    here = [model["name"] for model in data["models"] if model["present"]]
    rows = {
        "processor": data["processor"],
        "kernels": f"{data['isa']} (runs {', '.join(data['isas'])})",
        "threads": f"{data['threads']} of {data['cores']}",
        "memory": f"{data['memory_bytes'] / 2**30:.1f} GiB",
        "bandwidth": f"{data['bandwidth_bytes_s'] / 1e9:.1f} GB/s, one thread "
        f"{data['bandwidth_one_thread_bytes_s'] / 1e9:.1f}",
        "int8 peak": f"{data['int8_ops_s'] / 1e9:.0f} GOP/s, one thread {data['int8_one_thread_ops_s'] / 1e9:.0f}",
        "governor": data["governor"] or "not told by the system",
        "engines": ", ".join(data["engines"]) or "no other engine to measure against",
        "models": ", ".join(here) or "none",
        "version": f"vivace {data['vivace']}, Python {data['python']}, {data['system']}",
    }
    lines = [f"{name:11}{value}" for name, value in rows.items()]
    return "\n".join([*lines, *(f"{'advice':11}{sentence}" for sentence in data["advice"])])
