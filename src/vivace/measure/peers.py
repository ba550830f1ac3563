"""Other engines, measured the same way: each in a process of its own that loads the model once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vivace.core.machine import cache_folder
from vivace.core.names import hint
from vivace.measure.cases import SpeedTest
from vivace.measure.speed import Timed

DRIVERS = Path(__file__).parent / "drivers"

# Name on the command line: the module that must be importable, and the driver.
PEERS: Mapping[str, tuple[str, str]] = {
    "llama.cpp": ("llama_cpp", "with_llama_cpp"),
    "transformers": ("transformers", "with_transformers"),
    "openvino": ("openvino_genai", "with_openvino"),
}


def check_name(name: str) -> str:
    """The name, if there is such a peer; raises ValueError with the nearest match."""
    if name not in PEERS:
        raise ValueError(f"unknown engine {name!r}{hint(name, PEERS)}")
    return name


def pythons() -> list[str]:
    """Interpreters that may have peers: the one that $VIVACE_PEERS names, or the running one and the peers' own."""
    named = os.environ.get("VIVACE_PEERS")
    if named:
        return [named]
    own = cache_folder() / "peers" / "bin" / "python"
    return [sys.executable, *([str(own)] if own.exists() else [])]


def installed() -> dict[str, str]:
    """Peers that can be imported: name to interpreter."""
    found: dict[str, str] = {}
    for python in pythons():
        code = "import importlib.util as u, sys; print(*[m for m in sys.argv[1:] if u.find_spec(m)])"
        modules = [module for module, _ in PEERS.values()]
        try:
            done = subprocess.run(
                [python, "-I", "-c", code, *modules], capture_output=True, text=True, timeout=60, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ValueError(f"{python}: cannot be run to look for other engines: {error}") from None
        for name, (module, _) in PEERS.items():
            if module in done.stdout.split():
                found.setdefault(name, python)
    return found


class PeerRunner:
    """A driver process; it answers one JSON line per test. Raises ValueError when the engine cannot load the model."""

    def __init__(self, name: str, python: str, model: str, threads: int) -> None:
        self.name = name
        command = [python, str(DRIVERS / "serve.py"), PEERS[name][1], model, str(threads)]
        quiet = os.environ | {"TQDM_DISABLE": "1"}
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=quiet)
        try:
            self.version = str(self._read()["version"])
        except ValueError:
            self.close()
            raise

    def run(self, test: SpeedTest) -> Timed:
        assert self._process.stdin is not None
        request = {"kind": test.kind, "tokens": test.tokens, "batch": test.batch, "depth": test.depth}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = self._read()
        return Timed(float(answer["seconds"]), int(answer["peak_rss_bytes"]))

    def close(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise ValueError(f"ended without an answer (exit status {self._process.wait()})")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise ValueError(answer["error"])
        return answer


@dataclass
class FailedPeer:
    """An engine that could not load the model: it fails every test with that reason."""

    name: str
    problem: str
    version: str | None = None

    def run(self, test: SpeedTest) -> Timed:
        raise ValueError(self.problem)

    def close(self) -> None: ...


def start(name: str, python: str, model: str, threads: int) -> PeerRunner | FailedPeer:
    """The engine with the model loaded, or with the reason why it cannot load it."""
    try:
        return PeerRunner(name, python, model, threads)
    except ValueError as error:
        return FailedPeer(name, str(error))
