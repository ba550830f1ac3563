"""Runs in the environment of another engine: loads a model once, then times tests. Imports nothing of vivace.

    serve.py DRIVER MODEL THREADS

One JSON line per request on standard input: {"kind": "pp" | "tg", "tokens", "batch", "depth"}; one per answer:
{"seconds", "peak_rss_bytes"} or {"error"}. The first line says that the model is loaded: {"version"}.
"""

import importlib
import json
import os
import resource
import signal
import sys


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C at a terminal reaches this process too: end without a word
    driver, model, threads = sys.argv[1:4]
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what the engine prints must not mix with the answers

    def answer(**fields: object) -> None:
        answers.write(json.dumps(fields) + "\n")

    try:
        engine = importlib.import_module(driver).Engine(model, int(threads))
    except Exception as error:
        answer(error=f"cannot load {os.path.basename(model)}: {_line(error)}")
        return
    answer(version=engine.version)
    for line in sys.stdin:
        test = json.loads(line)
        try:
            if test["kind"] == "pp":
                seconds = engine.prefill(test["tokens"], test["batch"], test["depth"])
            else:
                seconds = engine.decode(test["tokens"], test["batch"], test["depth"])
        except Exception as error:
            answer(error=_line(error))
            continue
        answer(seconds=seconds, peak_rss_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


def _line(error: Exception) -> str:
    return (str(error) or type(error).__name__).strip().splitlines()[0][:300]


if __name__ == "__main__":
    main()
