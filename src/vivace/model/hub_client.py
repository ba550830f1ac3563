"""The hub over HTTP: what a repository holds, and fetching a file of it, going on where an earlier process stopped.

$HF_ENDPOINT, $HF_TOKEN, $HF_TOKEN_PATH and $HF_HOME mean what they mean to the hub's own client.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from vivace.model.errors import ModelError

_TIMEOUT = 20.0  # seconds without a byte
_TRIES = 5  # in a row without a byte
_BLOCK = 1 << 20


def list_files(repo: str) -> tuple[list[tuple[str, int, str | None]], str]:
    """(name, size, SHA-256 of a large one) of each file, and the revision. Raises ModelError, as `download` does."""
    try:
        with _open(f"{_endpoint()}/api/models/{quote(repo)}?blobs=true") as answer:
            data = json.loads(answer.read())
        files = [
            (str(file["rfilename"]), int(file.get("size") or 0), (file.get("lfs") or {}).get("sha256"))
            for file in data["siblings"]
        ]
        return files, str(data["sha"])
    except HTTPError as error:
        raise ModelError(_meaning(error, repo)) from None
    except (OSError, HTTPException, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ModelError(f"{_endpoint()} gives no list of files: {_reason(error)}") from None


def download(repo: str, name: str, revision: str, path: Path, progress: Callable[[int], None]) -> None:
    """The file in `path`, added to what lies there already; `progress` gets the bytes there are.

    What lies there is trusted to be of the same file: check the whole.
    """
    import fcntl

    url = f"{_endpoint()}/{quote(repo)}/resolve/{quote(revision)}/{quote(name)}"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab", buffering=0) as out:
        try:
            fcntl.flock(out, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ModelError("another process is fetching it") from None
        tries = 0
        while True:
            before = os.fstat(out.fileno()).st_size
            try:
                if _append(url, out, before, progress):
                    return
                reason = "the connection was closed too early"
            except HTTPError as error:
                if error.code == 416 and before:  # more lies here than the file has, or all of it
                    return
                raise ModelError(_meaning(error, repo)) from None
            except (OSError, HTTPException) as error:
                reason = _reason(error)
            tries = 0 if os.fstat(out.fileno()).st_size > before else tries + 1
            if tries == _TRIES:
                raise ModelError(reason)


def _append(url: str, out: Any, begin: int, progress: Callable[[int], None]) -> bool:
    """Adds what comes from `begin` on; whether that was all."""
    with _open(url, {"Range": f"bytes={begin}-"} if begin else {}) as answer:
        if begin and answer.status != 206:  # the whole file, as ranges are not understood
            begin = 0
            out.truncate(0)
        length = answer.headers.get("Content-Length")
        end = begin + int(length) if length else None
        while block := answer.read1(_BLOCK):  # what is there, rather than all of a block
            out.write(block)
            begin += len(block)
            progress(begin)
    return end is None or begin == end


class _Redirects(HTTPRedirectHandler):
    """Sends the token to no other host than the one it is for."""

    def redirect_request(self, req: Request, *args: Any) -> Request | None:
        request = super().redirect_request(req, *args)
        if request is not None and urlsplit(request.full_url).netloc != urlsplit(req.full_url).netloc:
            request.remove_header("Authorization")
        return request


def _open(url: str, headers: dict[str, str] | None = None) -> Any:
    request = Request(url, headers={"User-Agent": "vivace", "Accept-Encoding": "identity", **(headers or {})})
    token = _token()
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    return build_opener(_Redirects()).open(request, timeout=_TIMEOUT)


def _endpoint() -> str:
    return (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")


def _token() -> str:
    given = os.environ.get("HF_TOKEN")
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    try:
        return (given or Path(os.environ.get("HF_TOKEN_PATH") or home / "token").read_text()).strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _meaning(error: HTTPError, repo: str) -> str:
    if error.code in (401, 403, 404):
        # The hub says 401 of what does not exist, too, so that private names stay secret.
        asks = "set HF_TOKEN" if not _token() else "the token may not read it"
        return f"there is no {repo}, or it is not open to all: accept its terms at {_endpoint()}/{repo} and {asks}"
    return f"the hub answers {error.code} {error.reason}"


def _reason(error: Exception) -> str:
    reason = error.reason if isinstance(error, URLError) else error
    return str(getattr(reason, "strerror", None) or reason or type(error).__name__)
