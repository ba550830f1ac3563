"""The help names everything that can be given."""

from __future__ import annotations

import argparse

import pytest

from vivace.cli import commands
from vivace.cli.commands import COMMANDS, Command, Family
from vivace.cli.config import variable
from vivace.cli.main import main
from vivace.cli.parser import Parser, UsageError, whole

ALL: dict[str, Command] = {}
for name in COMMANDS:
    found = commands.load(name)
    ALL |= {f"{name} {a}": c for a, c in found.actions.items()} if isinstance(found, Family) else {name: found}


def words(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("name", ALL)
def test_every_option_is_told(name: str) -> None:
    parser = ALL[name].parser()
    text = words(parser.help_text("all"))
    assert text.startswith(f"usage: vivace {name}") and f"example: {parser.example}" in text
    for action in parser.options:
        assert action.help, f"{action.dest} has no text"
        if action.help is not argparse.SUPPRESS:
            assert action.option_strings[-1] in text and variable(action) in text
            if isinstance(action.default, (int, float)) and not isinstance(action.default, bool):
                assert f"default {action.default}; {variable(action)}" in text


@pytest.mark.parametrize("name", ALL)
def test_examples_can_be_given(name: str) -> None:
    program, *example = ALL[name].parser().example.replace("'", "").split()
    assert program == "vivace"
    command, rest = commands.find(example)
    assert command is ALL[name] or command.what == ALL[name].what
    command.parser().parse(rest)


def test_actions_differ() -> None:
    pull, remove = (ALL[f"models {action}"].parser().help_text() for action in ("pull", "rm"))
    assert pull != remove and "--offline" in pull and "--offline" not in remove


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["help"], "usage: vivace COMMAND"),
        (["--help"], "usage: vivace COMMAND"),
        (["help", "run"], "usage: vivace run MODEL"),
        (["help", "models"], "usage: vivace models [ACTION]"),
        (["models", "--help"], "usage: vivace models [ACTION]"),
        (["help", "models", "rm"], "usage: vivace models rm MODEL"),
        (["models", "rm", "x", "-h"], "usage: vivace models rm MODEL"),
    ],
)
def test_ways_to_ask(argv: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        assert main(argv) == 0
    except SystemExit as done:
        assert done.code == 0
    assert capsys.readouterr().out.startswith(says)


def test_a_topic_alone(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["run", "--help=generation"])
    out = capsys.readouterr().out
    assert "--temp" in out and "--config" not in out and "usage" not in out
    with pytest.raises(UsageError, match="unknown topic 'genration' of --help; did you mean generation"):
        ALL["run"].parser().parse(["--help=genration"])


def test_what_is_rare_is_shown_when_asked_for() -> None:
    parser = Parser("x", "About x.", "vivace x")
    parser.add_rare_group("tuning").add_argument("--deep", metavar="N", type=whole(0), help="how deep")
    parser.add_rare_group("empty")
    assert "--deep" not in parser.help_text() and "--help=tuning" in parser.help_text()
    assert "empty" not in parser.help_text("all")
    assert all("--deep N" in parser.help_text(topic) for topic in ("tuning", "all"))


def test_a_word_that_only_looks_like_help() -> None:
    assert ALL["run"].parser().parse(["m", "-p", "say --help"]).prompt == "say --help"
