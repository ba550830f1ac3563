"""Models of the hub: which files are chosen, and fetching them from a hub that is served here."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from vivace.model import catalogue, hub
from vivace.model.errors import ModelError
from vivace.model.hub import HubFile, HubModel, choose

FILES = {
    "toy-Q4_K_M.gguf": b"four bits",
    "toy-Q8_0.gguf": b"eight bits" * 1000,
    "README.md": b"no part of a model",
    "sub/x-Q8_0.gguf": b"elsewhere",
}
FOLDER = {"config.json": b"{}", "model.safetensors": b"weights", "tokenizer.json": b"{}", "train.py": b"no part"}


PARTS = ["toy-Q8_0-00001-of-00002.gguf", "toy-Q8_0-00002-of-00002.gguf"]
SHARDS = ["config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
SHARDS += ["model.safetensors.index.json"]


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VIVACE_MODELS", str(tmp_path / "models"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    return tmp_path / "models"


def serve(monkeypatch: pytest.MonkeyPatch, files: dict[str, bytes], sent: dict[str, bytes] | None = None) -> list[str]:
    """A hub of these files that sends `sent` in their place; the list gets the names that were fetched."""
    fetched: list[str] = []

    def download(_: str, name: str, revision: str, path: Path, progress: Callable[[int], None]) -> None:
        assert revision == "abc"
        fetched.append(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes({**files, **(sent or {})}[name])

    stated = {name: HubFile(len(data), hashlib.sha256(data).hexdigest()) for name, data in files.items()}
    monkeypatch.setattr(hub, "_list", lambda _: (stated, "abc"))
    monkeypatch.setattr(hub, "_download", download)
    return fetched


@pytest.mark.parametrize(
    ("names", "model", "chosen"),
    [
        (FILES, "u/r", ["toy-Q4_K_M.gguf"]),
        (FILES, "u/r:q8_0", ["toy-Q8_0.gguf"]),
        (FILES, "u/r:K_M", []),  # only a part of the name of a type
        (["toy_Q8_0.gguf", "toy_iq4_xs.gguf"], "u/r:IQ4_XS", ["toy_iq4_xs.gguf"]),
        (["toy_Q8_0.gguf", "toy_iq4_xs.gguf"], "u/r", ["toy_Q8_0.gguf"]),
        (PARTS[::-1], "u/r:Q8_0", PARTS),
        (PARTS, "u/r", PARTS),
        ([*PARTS, "toy-Q4_K_M.gguf"], "u/r:Q8_0", PARTS),
        ([*PARTS, "toy-Q8_0.gguf"], "u/r:Q8_0", []),
        ([*PARTS, "toy-Q8_0-00001-of-00003.gguf"], "u/r:Q8_0", PARTS),  # what is left of another way to split it
        (PARTS[1:], "u/r:Q8_0", []),
        (PARTS[1:], "u/r", []),
        (FILES, "u/r:Q5_0", []),
        (["a.Q8_0.gguf", "b.Q8_0.gguf"], "u/r:Q8_0", []),
        (["a.gguf"], "u/r", ["a.gguf"]),
        (["a-Q2_K.gguf", "a-Q3_K.gguf"], "u/r", []),
        (FOLDER, "u/r", ["config.json", "model.safetensors", "tokenizer.json"]),
        (SHARDS, "u/r", SHARDS),
        ([*SHARDS, "consolidated.safetensors"], "u/r", SHARDS),  # the same weights again
        (["a.safetensors", "config.json"], "u/r", ["a.safetensors", "config.json"]),
        (["config.json", "pytorch_model.bin"], "u/r", []),
    ],
)
def test_the_files_of_a_model(names: list[str], model: str, chosen: list[str]) -> None:
    parsed = HubModel.parse(model)
    assert parsed is not None and str(parsed) == model and choose(names, parsed) == chosen


@pytest.mark.parametrize("name", ["a", "a/b/c", "../b", "a/..", "a/b:", "/a", "a/b:c/d", "a b/c", "", "a/b:../c"])
def test_what_is_no_name_of_the_hub(name: str) -> None:
    assert HubModel.parse(name) is None


def test_pull_and_resolve(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched, seen = serve(monkeypatch, FILES), []
    path = catalogue.pull("u/r:Q8_0", lambda done, total: seen.append((done, total)))
    assert path == models / "hub/u/r/toy-Q8_0.gguf" and path.read_bytes() == FILES["toy-Q8_0.gguf"]
    assert seen == [(10000, 10000)] and catalogue.resolve("u/r:Q8_0") == path
    catalogue.pull("u/r:Q8_0")
    assert fetched == ["toy-Q8_0.gguf"]
    with pytest.raises(ModelError, match="not here yet"):
        catalogue.resolve("u/r:Q4_K_M")


def test_split_models(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(monkeypatch, {name: name.encode() for name in PARTS})
    path = catalogue.pull("u/r:Q8_0")
    assert path == models / "hub/u/r" / PARTS[0] == catalogue.resolve("u/r:Q8_0")
    assert [(path.parent / name).read_bytes() for name in PARTS] == [name.encode() for name in PARTS]
    (path.parent / PARTS[1]).unlink()  # as if it had been cut off
    with pytest.raises(ModelError, match="not here yet"):
        catalogue.resolve("u/r:Q8_0")


def test_a_folder(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(monkeypatch, FOLDER)
    path = catalogue.pull("u/r")
    assert path == models / "hub/u/r" == catalogue.resolve("u/r")
    assert {p.name for p in path.iterdir() if p.is_file()} - {".whole"} == set(FOLDER) - {"train.py"}
    (path / ".whole").unlink()  # as if it had been cut off
    with pytest.raises(ModelError, match="not here yet"):
        catalogue.resolve("u/r")


def test_what_is_not_as_stated(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(monkeypatch, FILES, sent={"toy-Q4_K_M.gguf": b"four bitz"})
    with pytest.raises(ModelError, match=r"toy-Q4_K_M\.gguf is not the file that the hub states"):
        catalogue.pull("u/r")
    assert not list(models.rglob("*.gguf"))


def test_what_the_hub_lacks(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(monkeypatch, FILES)
    with pytest.raises(ModelError, match=r"no single \.gguf file named Q2_K, .* there are .*toy-Q8_0\.gguf"):
        catalogue.pull("u/r:Q2_K")
    serve(monkeypatch, {"README.md": b""})
    with pytest.raises(ModelError, match=r"has neither \.gguf files nor"):
        catalogue.pull("u/r")


class _Hub(BaseHTTPRequestHandler):
    """The part of the hub's interface that its client uses for one repository."""

    files = FILES

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = self.path.split("?")[0]
        if path == "/api/models/u/r":
            siblings = [
                {
                    "rfilename": n,
                    "size": len(d),
                    "lfs": {"sha256": hashlib.sha256(d).hexdigest(), "size": len(d), "pointerSize": 1},
                }
                for n, d in self.files.items()
            ]
            self._send(json.dumps({"id": "u/r", "sha": "a" * 40, "siblings": siblings, "tags": []}).encode(), {})
        elif path.startswith(f"/u/r/resolve/{'a' * 40}/") and path.rsplit("/", 1)[1] in self.files:
            data = self.files[path.rsplit("/", 1)[1]]
            self._send(data, {"ETag": f'"{hashlib.sha256(data).hexdigest()}"', "X-Repo-Commit": "a" * 40})
        else:
            self.send_error(404)

    def _send(self, data: bytes, headers: dict[str, str]) -> None:
        self.send_response(200)
        for name, value in (headers | {"Content-Length": str(len(data))}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


class _BreakingHub(_Hub):
    """Sends at most `most` bytes of a file with one answer, and notes which part it was asked for."""

    files: ClassVar[dict[str, bytes]] = {"big.gguf": bytes(range(256)) * 4000}
    most = 300_000
    ranges = True
    asked: ClassVar[list[int]] = []
    tokens: ClassVar[list[str | None]] = []

    def _send(self, data: bytes, headers: dict[str, str]) -> None:
        self.tokens.append(self.headers.get("Authorization"))
        if "ETag" not in headers:
            super()._send(data, headers)
            return
        begin = self.headers.get("Range") if self.ranges else None
        first = int(begin.removeprefix("bytes=").rstrip("-")) if begin else 0
        self.asked.append(first)
        if first >= len(data):
            self.send_error(416)
            return
        self.send_response(206 if begin else 200)
        self.send_header("Content-Length", str(len(data) - first))
        self.end_headers()
        self.wfile.write(data[first : first + self.most])
        self.close_connection = True


BIG = _BreakingHub.files["big.gguf"]


@pytest.fixture
def breaking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[_BreakingHub]]:
    kind = type("Breaking", (_BreakingHub,), {"asked": [], "tokens": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    yield kind
    server.shutdown()
    server.server_close()


def test_a_broken_connection_is_taken_up_again(models: Path, breaking: type[_BreakingHub]) -> None:
    seen: list[int] = []
    path = catalogue.pull("u/r", lambda done, total: seen.append(done))
    assert path.read_bytes() == BIG and breaking.asked == [0, 300_000, 600_000, 900_000]
    assert seen == sorted(seen) and seen[-1] == len(BIG) and len(seen) > 4
    assert [p.name for p in path.parent.iterdir()] == ["big.gguf"]


def test_a_pull_that_was_killed_goes_on(models: Path, breaking: type[_BreakingHub]) -> None:
    """The process is killed when half of the file lies here; the next one asks for the rest alone."""
    code = """
import os, signal
from vivace.model import catalogue
catalogue.pull("u/r", lambda done, total: os.kill(os.getpid(), signal.SIGKILL) if done > total // 2 else None)
"""
    done = subprocess.run([sys.executable, "-c", code], check=False)
    assert done.returncode == -signal.SIGKILL and not list(models.rglob("r/*.gguf"))
    here = (models / "hub/u/r/.fetching/big.gguf").stat().st_size
    assert len(BIG) // 2 < here < len(BIG)
    breaking.asked.clear()
    assert catalogue.pull("u/r").read_bytes() == BIG
    assert breaking.asked[0] == here


@pytest.mark.parametrize(("ranges", "left"), [(False, b"old"), (True, BIG), (True, BIG[:500])])
def test_what_lies_there_already(models: Path, breaking: type[_BreakingHub], ranges: bool, left: bytes) -> None:
    breaking.ranges, breaking.most = ranges, len(BIG)
    waiting = models / "hub/u/r/.fetching/big.gguf"
    waiting.parent.mkdir(parents=True)
    waiting.write_bytes(left)
    assert catalogue.pull("u/r").read_bytes() == BIG


def test_what_lies_there_and_is_another_is_refused_once(models: Path, breaking: type[_BreakingHub]) -> None:
    breaking.most = len(BIG)
    waiting = models / "hub/u/r/.fetching/big.gguf"
    waiting.parent.mkdir(parents=True)
    waiting.write_bytes(b"another")
    with pytest.raises(ModelError, match="is not the file that the hub states; try again"):
        catalogue.pull("u/r")
    assert catalogue.pull("u/r").read_bytes() == BIG


def test_a_hub_that_gives_nothing_more(models: Path, breaking: type[_BreakingHub]) -> None:
    breaking.most = 0
    with pytest.raises(ModelError, match=r"u/r: big\.gguf cannot be fetched: "):
        catalogue.pull("u/r")
    assert len(breaking.asked) == 5


def test_two_pulls_at_once(models: Path, breaking: type[_BreakingHub]) -> None:
    waiting = models / "hub/u/r/.fetching/big.gguf"
    waiting.parent.mkdir(parents=True)
    with waiting.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(ModelError, match="another process is fetching it"):
            catalogue.pull("u/r")


def test_the_token_goes_to_its_own_host_alone(
    models: Path, breaking: type[_BreakingHub], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub sends its client on to where files lie, which is another host."""
    (models.parent / "token").write_text("secret\n")
    elsewhere = os.environ["HF_ENDPOINT"]

    class Sends(_BreakingHub):
        tokens: ClassVar[list[str | None]] = []

        def _send(self, data: bytes, headers: dict[str, str]) -> None:
            if "ETag" not in headers:
                super()._send(data, headers)
                return
            self.tokens.append(self.headers.get("Authorization"))
            self.send_response(302)
            self.send_header("Location", elsewhere + self.path)
            self.end_headers()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Sends)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    try:
        assert catalogue.pull("u/r").read_bytes() == BIG
    finally:
        server.shutdown()
        server.server_close()
    assert set(Sends.tokens) == {"Bearer secret"} and set(breaking.tokens) == {None}


def test_what_is_not_open_to_all(models: Path, breaking: type[_BreakingHub]) -> None:
    with pytest.raises(ModelError, match=r"u/absent: there is no u/absent, or it is not open to all: .* set HF_TOKEN"):
        catalogue.pull("u/absent")
