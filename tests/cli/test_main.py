"""Exit status, and one line for everything that goes wrong."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from vivace.cli import main as cli
from vivace.cli.commands import COMMANDS
from vivace.core.machine import default_threads
from vivace.ops import registry

COMMAND = [sys.executable, "-m", "vivace"]


def vivace(*argv: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *argv], input=stdin, capture_output=True, text=True, check=False, timeout=120)


def fails(done: subprocess.CompletedProcess[str], status: int, *says: str) -> None:
    assert done.returncode == status, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("vivace: error: ")
    assert len(done.stderr.splitlines()) == status  # wrong usage adds where to look
    for text in says:
        assert text in done.stderr


def test_help_lists_what_exists() -> None:
    done = vivace("--help")
    assert done.returncode == 0 and all(f"\n  {name}" in done.stdout for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_commands(name: str) -> None:
    done = vivace(name, "--help")
    assert done.returncode == 0 and done.stdout.startswith(f"usage: vivace {name}") and not done.stderr


def test_no_command() -> None:
    assert vivace().returncode == 2


def test_unknown_command() -> None:
    fails(vivace("rnu"), 2, "unknown command 'rnu'", "did you mean run?")


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["run", "m", "-p", ""], "the prompt is empty"),
        (["run", "m"], "the prompt is empty"),
        (["run", "m", "-p", "x", "-f", "y"], "not allowed with"),
        (["run", "m", "-p", "x", "--logprobs", "2"], "add --json"),
        (["run", "m", "-p", "x", "--tmp", "1"], "did you mean --temp"),
        (["run", "m", "-p", "x", "--stop", ""], "--stop: must not be empty"),
        (["run", "m", "-p", "x", "-n", "2", "--min-tokens", "3"], "min_tokens 3 is more than max_tokens 2"),
        (["run", "m", "-p", "x", "--logit-bias", "5=nan"], "logit_bias must be"),
        (["chat", "m", "--stages", "top_k,top_k"], "each once"),
        (["ops", "tets"], "did you mean test"),
    ],
)
def test_wrong_usage(argv: list[str], says: str) -> None:
    fails(vivace(*argv), 2, says)


def test_missing_prompt_file() -> None:
    fails(vivace("run", "m", "-f", "/nonexistent"), 1, "/nonexistent: No such file or directory")


def test_prompt_that_is_not_text(tmp_path: Path) -> None:
    file = tmp_path / "p"
    file.write_bytes(b"ab\xff")
    fails(vivace("run", "m", "-f", str(file)), 1, "byte 2 is not UTF-8")


def test_missing_model(tmp_path: Path) -> None:
    fails(vivace("run", str(tmp_path / "none.gguf"), "-p", "x"), 1, "none.gguf")


def test_a_file_that_is_no_model(tmp_path: Path) -> None:
    file = tmp_path / "bad.gguf"
    file.write_bytes(b"not a model at all")
    fails(vivace("run", str(file), "-p", "x"), 1, "bad.gguf")


def test_unknown_models_are_wrong_usage() -> None:
    fails(vivace("run", "smolm2-135m", "-p", "x"), 2, "did you mean smollm2-135m")
    fails(vivace("bench", "-m", "zzz"), 2, "unknown model 'zzz'; there are")


@pytest.mark.parametrize(
    "argv", [["-p", "a\udcffb"], ["-p", "a", "--system", "\udcff"], ["-p", "a", "--stop", "\udcff"]]
)
def test_arguments_that_are_not_text(argv: list[str]) -> None:
    fails(vivace("run", "m", *argv), 2, "is not UTF-8")


def test_verbose_shows_where_an_error_arose() -> None:
    done = vivace("run", "/none.gguf", "-p", "x", "-v")
    assert done.returncode == 1 and done.stderr.startswith("Traceback") and "in resolve" in done.stderr
    assert done.stderr.endswith("vivace: error: /none.gguf: no such file or folder\n")


def test_plans_are_refused(tmp_path: Path) -> None:
    fails(vivace("run", "m", "-p", "x", "--plan", "no_such_method"), 1, "plan")
    fails(vivace("bench", "m", "--plan", "no_such_method"), 1, "plan")


def test_bench_names(tmp_path: Path) -> None:
    fails(vivace("bench", "m", "--tests", "pp512,xx1"), 2, "unknown test 'xx1'")
    fails(vivace("bench", "m", "--against", "llama"), 2, "did you mean llama.cpp")


@pytest.mark.parametrize("option", ["--profile", "--curve"])
@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_bench_drops_nothing(option: str, form: str) -> None:
    fails(vivace("bench", "m", option, "-o", form), 2, f"-o {form} cannot hold")


def test_ops_names() -> None:
    fails(vivace("ops", "bench", "--op", "matmull"), 2, "did you mean matmul")
    fails(vivace("ops", "support", "--isa", "avx513"), 2, "did you mean avx512")


def test_support_of_ops_is_what_the_registry_finds() -> None:
    done = vivace("ops", "support", "--op", "rope")
    assert done.returncode == 0
    heads, _, row = ([cell.strip() for cell in line.strip("|").split("|")] for line in done.stdout.splitlines())
    assert row[0] == "rope" and sum(head.endswith("*") for head in heads) == 1
    for isa, mark in zip(heads[1:-1], row[1:-1], strict=True):
        assert mark == ("yes" if registry.missing(isa.rstrip("*")) is None else "no")


def test_closed_outputs() -> None:
    def closing(streams: str, *argv: str) -> tuple[int, str, str]:
        shell = ["sh", "-c", f'exec "$@" {streams}', "sh"]
        done = subprocess.run([*shell, *COMMAND, *argv], capture_output=True, text=True, check=False, timeout=120)
        return done.returncode, done.stdout, done.stderr

    says = "vivace: error: standard output is closed: send it to a file, or to /dev/null\n"
    assert closing(">&-", "version") == (1, "", says)
    assert closing(">&- 2>&-", "version") == (1, "", "")
    assert closing("2>&-", "models", "lst") == (2, "", "")


def test_faults_of_the_program_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(argv: list[str]) -> int:
        raise TypeError("not the user's fault")

    monkeypatch.setattr(cli, "_dispatch", broken)
    with pytest.raises(TypeError):
        cli.main([])


def test_expected_errors_are_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def wrong(argv: list[str]) -> int:
        raise ValueError("two\nlines")

    monkeypatch.setattr(cli, "_dispatch", wrong)
    assert cli.main([]) == 1
    assert capsys.readouterr().err == "vivace: error: two lines\n"


def test_chat_without_standard_input() -> None:
    shell = ["sh", "-c", 'exec "$@" <&-', "sh", *COMMAND, "chat", "m"]
    fails(subprocess.run(shell, capture_output=True, text=True, check=False), 2, "standard input is closed")


INTERRUPT = "import os, signal, sys; from vivace.cli import entry; hit = lambda: os.kill(os.getpid(), signal.SIGINT)\n"
WHILE_IMPORTING = """
class Finder:
    def find_spec(self, name, *rest):
        if name == "vivace.cli.main":
            hit()
sys.meta_path.insert(0, Finder())
entry.main()
"""
WHILE_CLOSING = """
from vivace.cli.terminal import raise_on_interrupt
with raise_on_interrupt():
    try:
        hit()
    finally:
        hit()
"""
TWICE_IN_A_GENERATION = """
from vivace.cli.terminal import StopOnInterrupt
with StopOnInterrupt() as interrupt:
    hit()
    assert interrupt.stopped
    hit()
"""


@pytest.mark.parametrize("code", [WHILE_IMPORTING, WHILE_CLOSING, TWICE_IN_A_GENERATION])
def test_interrupts_end_the_process_in_one_line(code: str) -> None:
    argv = [sys.executable, "-c", INTERRUPT + code]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "vivace: interrupted\n")


# With the default model


@pytest.mark.parametrize("test", ["pp8193", "tg1@d99999", "tg1@b100000"])
def test_bench_checks_all_tests_first(smollm2: Path, test: str) -> None:
    fails(vivace("bench", str(smollm2), "--tests", f"pp1,{test}"), 2, f"test {test} needs")


def test_run_prints_text_only(smollm2: Path) -> None:
    done = vivace("run", str(smollm2), "-p", "The capital of France is", "--raw", "-n", "8")
    assert done.returncode == 0, done.stderr
    assert "Paris" in done.stdout
    assert "tok/s" in done.stderr and "\x1b" not in done.stderr


def test_run_reads_a_pipe_and_repeats_itself(smollm2: Path) -> None:
    argv = ("run", str(smollm2), "-n", "12", "--temp", "0.9", "-s", "7")
    one = vivace(*argv, stdin="Name a colour.")
    two = vivace(*argv, "-p", "Name a colour.", "-t", "1")
    assert one.returncode == two.returncode == 0, one.stderr
    assert one.stdout == two.stdout != ""


def test_stop_text(smollm2: Path) -> None:
    argv = ("run", str(smollm2), "-p", "1, 2, 3, 4,", "--raw", "-n", "24")
    whole = vivace(*argv).stdout
    assert "7" in whole
    assert vivace(*argv, "--stop", "7").stdout.rstrip("\n") == whole.partition("7")[0]


def test_context_overflow_says_by_how_much(smollm2: Path) -> None:
    done = vivace("run", str(smollm2), "-p", "a b c", "--raw", "-n", "100", "-c", "64")
    fails(done, 1, "more than the context of 64")


def test_the_locale_does_not_change_text(smollm2: Path) -> None:
    argv = [*COMMAND, "run", str(smollm2), "-p", "Les élèves étaient", "--raw", "-n", "8"]
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}
    outs = [subprocess.run(argv, env=os.environ | env, capture_output=True, check=True).stdout for env in ({}, plain)]
    assert outs[0] == outs[1] and "é" in outs[0].decode()


def test_more_threads_than_processors(smollm2: Path) -> None:
    threads = default_threads() + 1
    done = vivace("run", str(smollm2), "-p", "Hi", "-n", "1", "-t", str(threads))
    assert done.returncode == 0 and f"{threads} threads share the {threads - 1} processors" in done.stderr


@pytest.mark.parametrize(
    "argv", [["--tests", "tg2,tg3", "--reps", "500"], ["--prompts", "chat", "-n", "2", "--reps", "99"]]
)
def test_an_interrupted_bench_prints_what_it_has(smollm2: Path, tmp_path: Path, argv: list[str]) -> None:
    """Ctrl-C comes by itself, after some repetitions."""
    code = """
import os, signal, sys
from vivace.cli import entry
from vivace.measure import real_prompts, speed
left = 4
def after(call):
    def counted(*args):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGINT)
        return call(*args)
    return counted
speed.EngineRunner.run = after(speed.EngineRunner.run)
real_prompts._round = after(real_prompts._round)
sys.exit(entry.main())
"""
    command = [sys.executable, "-c", code, "bench", str(smollm2), "-o", "json", *argv]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 130 and done.stderr.endswith("vivace: interrupted\n"), done.stderr
    assert all(len(row["tok_s"]) == 2 for row in json.loads(done.stdout)["results"])


def test_bench_tells_of_each_test_when_nobody_watches(smollm2: Path) -> None:
    done = vivace("bench", str(smollm2), "--tests", "tg2,pp3", "--reps", "1")
    assert [line.split(":")[0] for line in done.stderr.splitlines()] == ["tg2", "pp3"] and "\r" not in done.stderr


def test_a_closed_pipe(smollm2: Path) -> None:
    process = subprocess.Popen(
        [*COMMAND, "run", str(smollm2), "-p", "Count to a hundred.", "-n", "200"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    message = process.stderr.read()
    assert process.wait(60) == 1
    assert message == "vivace: error: standard output was closed\n"


def test_interrupt_ends_generation_cleanly(smollm2: Path) -> None:
    process = subprocess.Popen(
        [*COMMAND, "run", str(smollm2), "-p", "Tell a very long story.", "-n", "4000", "--temp", "1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    first = process.stdout.read(20)
    process.send_signal(signal.SIGINT)
    text, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert len(first) == 20 and text.endswith("\n")
    assert "cancelled" in errors and errors.endswith("vivace: interrupted\n") and "Traceback" not in errors


def test_json_of_commands_that_need_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever lies in the folder of models, `doctor` and `version` print one JSON object."""
    from vivace.model import catalogue

    monkeypatch.setenv("VIVACE_MODELS", str(tmp_path))
    for entry in catalogue.entries():
        with (tmp_path / entry.file).open("wb") as file:
            file.truncate(entry.size)
    doctor = json.loads(vivace("doctor", "--json").stdout)
    assert {model["name"] for model in doctor["models"]} == {entry.name for entry in catalogue.entries()}
    assert all(model["present"] is True for model in doctor["models"])
    assert list(json.loads(vivace("version", "--json").stdout)) == ["version"]


def test_what_info_says_can_be_read(smollm2: Path) -> None:
    by_name, by_path = vivace("models", "info", "smollm2-135m").stdout, vivace("models", "info", str(smollm2)).stdout
    assert (
        "cache token   23.0 kB\n" in by_name
        and "file          98.4 MB\n" in by_name
        and "chat          yes\n" in by_name
    )
    assert "licence       Apache-2.0\n" in by_name and "licence       Apache-2.0\n" in by_path
