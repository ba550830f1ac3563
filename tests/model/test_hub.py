"""Models of the hub: which files are chosen, and fetching them from a hub that is served here."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

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
    return tmp_path / "models"


def serve(monkeypatch: pytest.MonkeyPatch, files: dict[str, bytes], sent: dict[str, bytes] | None = None) -> list[str]:
    """A hub of these files that sends `sent` in their place; the list gets the names that were fetched."""
    fetched: list[str] = []

    def download(_: str, name: str, revision: str, into: Path) -> None:
        assert revision == "abc"
        fetched.append(name)
        into.mkdir(parents=True, exist_ok=True)
        (into / name).write_bytes({**files, **(sent or {})}[name])

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
                for n, d in FILES.items()
            ]
            self._send(json.dumps({"id": "u/r", "sha": "a" * 40, "siblings": siblings, "tags": []}).encode(), {})
        elif path.startswith(f"/u/r/resolve/{'a' * 40}/") and path.rsplit("/", 1)[1] in FILES:
            data = FILES[path.rsplit("/", 1)[1]]
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


@pytest.fixture
def endpoint() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def _pull(model: str, endpoint: str, home: Path) -> subprocess.CompletedProcess[str]:
    """In a process of its own: the client reads its settings when it is imported."""
    code = f"from vivace.model import catalogue; print(catalogue.pull({model!r}))"
    settings = {"HF_ENDPOINT": endpoint, "HF_HUB_OFFLINE": "0", "HF_HOME": str(home), "NO_PROXY": "127.0.0.1"}
    env = os.environ | settings
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)


def test_the_real_client(endpoint: str, models: Path, tmp_path: Path) -> None:
    done = _pull("u/r:Q8_0", endpoint, tmp_path)
    assert done.returncode == 0, done.stderr
    path = Path(done.stdout.strip())
    assert path.is_relative_to(models) and path.read_bytes() == FILES["toy-Q8_0.gguf"]
    done = _pull("u/absent", endpoint, tmp_path)
    assert done.returncode == 1 and "ModelError: u/absent: the hub cannot be asked: " in done.stderr
