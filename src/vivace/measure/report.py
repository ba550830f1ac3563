"""Measurements as a record, and the record as a table, lines or a spreadsheet."""

from __future__ import annotations

import csv
import io
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from types import MappingProxyType
from typing import Any

from vivace.measure.cases import SpeedTest
from vivace.measure.compare import Result, ratios
from vivace.measure.curve import Point
from vivace.measure.limits import Limits, work
from vivace.measure.machine import Machine
from vivace.measure.page import page
from vivace.measure.profile import Share
from vivace.model.weights import Checkpoint

Record = dict[str, Any]


def head(machine: Machine, threads: int, checkpoint: Checkpoint, limits: Sequence[Limits]) -> Record:
    """What was measured on what: the part of a record that stands before the results."""
    measured = {
        "threads": threads,
        "bandwidth_bytes_s": statistics.median(limit.bytes_s for limit in limits),
        "int8_ops_s": statistics.median(limit.int8_ops_s for limit in limits),
    }
    model = {"name": checkpoint.name, "family": checkpoint.spec.family, "file_bytes": checkpoint.file_bytes}
    return {"machine": machine.record() | measured, "model": model | {"fingerprint": checkpoint.fingerprint}}


def record(
    machine: Machine,
    threads: int,
    checkpoint: Checkpoint,
    results: Sequence[Result],
    tier: str,
    profiles: Mapping[SpeedTest, Sequence[Share]] = MappingProxyType({}),
    curve: Sequence[Point] = (),
) -> Record:
    """The object of `vivace bench -o json`; the first engine of `results` is ours."""
    limits = [limit for row in results for limit in row.limits]
    data = head(machine, threads, checkpoint, limits) | {
        "results": [_row(checkpoint, row, tier) for row in results],
        "ratios": [
            {"plan": "", "against": r.against, "test": str(r.test), "median": r.median, "low": r.low, "high": r.high}
            for r in ratios(results)
        ],
    }
    if profiles:
        data["profiles"] = {str(test): [asdict(share) for share in shares] for test, shares in profiles.items()}
    if curve:
        data["curve"] = [asdict(point) for point in curve]
    return data


def _row(checkpoint: Checkpoint, row: Result, tier: str) -> Record:
    out: Record = {"plan": "", "test": str(row.test), "engine": row.engine, "tok_s": row.tok_s}
    if row.problem:
        return out | {"median": None, "share_of_limit": None, "problem": row.problem}
    needed = work(checkpoint, row.test)
    shares = [needed.seconds(limit) / timed.seconds for limit, timed in zip(row.limits, row.timed, strict=True)]
    ours = row.engine == "vivace"
    return out | {
        "median": row.median,
        "share_of_limit": statistics.median(shares),
        "tier": tier if ours else None,
        "steps": {"target_forwards": row.test.tokens} if row.test.kind == "tg" else None,
        "memory": {
            "weights_bytes": sum(matrix.nbytes for matrix in checkpoint.matrices.values()) if ours else None,
            "peak_rss_bytes": max(timed.peak_rss_bytes for timed in row.timed),
        },
    }


def markdown(data: Record) -> str:
    machine = data["machine"]
    lines = [
        f"{data['model']['name']} on {machine['processor']}, {machine['threads']} threads, {machine['isa']}; reads "
        f"{machine['bandwidth_bytes_s'] / 1e9:.1f} GB/s, {machine['int8_ops_s'] / 1e9:.0f} int8 GOP/s (medians)",
        "",
        "| test | engine | tok/s | low to high | share of limit |",
        "| --- | --- | ---: | ---: | ---: |",
    ]
    for row in data["results"]:
        if row["median"] is None:
            lines.append(f"| {row['test']} | {row['engine']} | – | {row['problem'].replace('|', '/')} | – |")
            continue
        band = f"{min(row['tok_s']):.1f} to {max(row['tok_s']):.1f}"
        share = "–" if row["share_of_limit"] is None else f"{100 * row['share_of_limit']:.0f} %"
        lines.append(f"| {row['test']} | {row['engine']} | {row['median']:.1f} | {band} | {share} |")
    if data["ratios"]:
        lines += ["", "| test | against | ratio | low to high | says |", "| --- | --- | ---: | ---: | --- |"]
    for row in data["ratios"]:
        band = f"{row['low']:.2f} to {row['high']:.2f}"
        lines.append(f"| {row['test']} | {row['against']} | {row['median']:.2f} | {band} | {verdict(row)} |")
    for test, shares in data.get("profiles", {}).items():
        lines += ["", f"| operation of {test} | ms | share |", "| --- | ---: | ---: |"]
        lines += [f"| {s['op']} | {1e3 * s['seconds']:.2f} | {100 * s['share']:.1f} % |" for s in shares]
    if "curve" in data:
        lines += [
            "",
            "| rows | step ms | reading ms | arithmetic ms | share of limit |",
            "| ---: | ---: | ---: | ---: | ---: |",
        ]
    for p in data.get("curve", ()):
        times = " | ".join(f"{1e3 * p[name]:.2f}" for name in ("seconds", "reading", "arithmetic"))
        share = max(p["reading"], p["arithmetic"]) / p["seconds"]
        lines.append(f"| {p['rows']} | {times} | {100 * share:.0f} % |")
    return "\n".join(lines)


def verdict(ratio: Mapping[str, Any]) -> str:
    if ratio["low"] > 1:
        return "faster"
    return "slower" if ratio["high"] < 1 else "no claim: the band includes 1"


def json_lines(data: Record) -> str:
    """A line per result and per ratio, each with the machine and the model."""
    head = {"machine": data["machine"], "model": data["model"]}
    kinds = (("result", data["results"]), ("ratio", data["ratios"]))
    return "\n".join(json.dumps({"kind": kind} | row | head) for kind, rows in kinds for row in rows)


def spreadsheet(data: Record) -> str:
    """A line per repetition."""
    out = io.StringIO()
    table = csv.writer(out, lineterminator="\n")
    table.writerow(["model", "test", "engine", "repetition", "tok_s", "share_of_limit"])
    for row in data["results"]:
        for i, rate in enumerate(row["tok_s"]):
            table.writerow([data["model"]["name"], row["test"], row["engine"], i, f"{rate:.3f}", row["share_of_limit"]])
    return out.getvalue().rstrip("\n")


FORMATS: Mapping[str, Callable[[Record], str]] = {
    "md": markdown,
    "json": lambda data: json.dumps(data, indent=2),
    "jsonl": json_lines,
    "csv": spreadsheet,
    "html": lambda data: page(f"vivace bench {data['model']['name']}", markdown(data), data["results"]),
}
