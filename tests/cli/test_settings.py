"""For every option of every command: the command line beats the environment, which beats the file."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest
import yaml

from vivace.cli.config import key, variable
from vivace.cli.parser import Parser, UsageError

from .test_help import ALL
from .test_main import vivace

CASES = [(name, action.dest) for name, command in ALL.items() for action in command.parser().options]
GUESSES = ("3", "7", "11", "0.25", "0.5", "0.75", "a", "b", "c", "3=1", "7=2", "11=3", "top_k", "top_p", "min_p")
# Three of them any option takes.


def values(parser: Parser, action: argparse.Action) -> list[str]:
    """Three different values, as they are typed."""
    if action.choices is not None:
        return [*map(str, action.choices)][:3]
    found = []
    for guess in GUESSES:
        try:
            parser._get_value(action, guess)
        except argparse.ArgumentError:
            continue
        found.append(guess)
    return found[:3]


def words_of(parser: Parser) -> list[str]:
    """Words that have to be there."""
    places = [a for a in parser._positionals._group_actions if not a.option_strings and a.dest != "MODEL"]
    words = ["1" if a.dest == "index" else "word" for a in places if a.nargs is None]
    return words if "model" not in {a.dest for a in parser.options} else [*words, "--model", "m"]


def option(parser: Parser, dest: str) -> argparse.Action:
    (action,) = (action for action in parser.options if action.dest == dest)
    return action


@pytest.mark.parametrize(("name", "dest"), CASES)
def test_precedence(name: str, dest: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parser = ALL[name].parser()
    action = option(parser, dest)
    words = words_of(parser) if dest != "model" else words_of(parser)[:-2]

    def parsed(*argv: str) -> Any:
        return getattr(parser.parse([*words, *argv]), dest)

    file = tmp_path / "c.yaml"
    if action.nargs == 0:
        file.write_text(f"{key(action)}: yes\n")
        assert parsed("--config", str(file)) is True and parsed() is False
        monkeypatch.setenv(variable(action), "no")
        assert parsed("--config", str(file)) is False
        assert parsed("--config", str(file), action.option_strings[-1]) is True
        return
    low, middle, high = values(parser, action)
    as_given = [[parser._get_value(action, text)] for text in (low, middle, high)]
    expected = as_given if isinstance(action, argparse._AppendAction) else [value for (value,) in as_given]
    file.write_text(yaml.safe_dump({key(action): low}))
    assert parsed("--config", str(file)) == expected[0]
    monkeypatch.setenv(variable(action), middle)
    assert parsed("--config", str(file)) == expected[1]
    assert parsed("--config", str(file), action.option_strings[-1], high) == expected[2]


@pytest.mark.parametrize("name", ALL)
def test_a_dumped_config_gives_the_same(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parser = ALL[name].parser()
    argv, taken = words_of(parser), {"model", "verbose"}
    rivals = [{a.dest for a in group._group_actions} for group in parser._mutually_exclusive_groups]
    for action in parser.options:
        if action.dest in taken:
            continue
        argv += [action.option_strings[-1], *([] if action.nargs == 0 else values(parser, action)[:1])]
        taken |= {dest for group in rivals if action.dest in group for dest in group}
    with pytest.raises(SystemExit):
        parser.parse([*argv, "--dump-config"])
    text = capsys.readouterr().out
    assert set(yaml.safe_load(text)) == {key(action) for action in parser.options}
    file = tmp_path / "c.yaml"
    file.write_text(text)
    words = [word for word in words_of(parser) if word not in ("--model", "m")]
    again, first = vars(parser.parse([*words, "--config", str(file)])), vars(parser.parse(argv))
    assert {**again, "config": None} == first


TEXTS = [f"a{break_}b" for break_ in ("\n", "\r\n", "\r", "\x85", "\u2028", "\u2029")] + [
    " ",
    "\x85",
    "é",
    "null",
    "1e3",
]


@pytest.mark.parametrize("stop", TEXTS, ids=ascii)
def test_a_dumped_text_is_the_same(stop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIVACE_STOP", stop)
    file = tmp_path / "c.yaml"
    file.write_bytes(vivace("run", "m", "--dump-config").stdout.encode())
    monkeypatch.delenv("VIVACE_STOP")
    again = vivace("run", "--config", str(file), "--dump-config").stdout
    assert yaml.safe_load(again)["stop"] == [stop]


@pytest.mark.parametrize("name", ALL)
def test_an_unknown_key_is_named(name: str, tmp_path: Path) -> None:
    parser = ALL[name].parser()
    file = tmp_path / "c.yaml"
    file.write_text("verbsoe: yes\n")
    with pytest.raises(UsageError, match="unknown option 'verbsoe'; did you mean verbose"):
        parser.parse([*words_of(parser), "--config", str(file)])


@pytest.mark.parametrize("text", ["temp: 2024-99-99\n", 'temp: !!int "x"\n', "temp: " + "[" * 10_000])
def test_what_is_no_yaml(text: str, tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(text)
    with pytest.raises(UsageError, match=r"c\.yaml: is not YAML"):
        ALL["run"].parser().parse(["model", "--config", str(file)])


def test_a_model_out_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("model: in-the-file\n")
    parse = ALL["run"].parser().parse
    assert parse(["--config", str(file)]).model == "in-the-file"
    assert parse(["--config", str(file), "typed"]).model == "typed" == parse(["-m", "typed"]).model
    for argv in ([], ["-n", "3"]):
        with pytest.raises(UsageError, match="which MODEL"):
            parse(argv)
    with pytest.raises(UsageError, match="given twice: a and -m b"):
        parse(["a", "-m", "b"])
