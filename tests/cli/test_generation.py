"""From the command line to the options of `LLM.generate`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vivace.cli import run
from vivace.cli.generation import options_of
from vivace.cli.parser import UsageError
from vivace.core.request import Sampling
from vivace.sampling.options import options_for


def sampling_of(*argv: str) -> Sampling:
    (option,) = options_for(1, options_of(run.parser().parse(["m", *argv])))
    return option.sampling


def test_the_defaults_are_those_of_python() -> None:
    assert sampling_of() == Sampling()


EACH: dict[str, tuple[list[str], Any]] = {
    "max_tokens": (["-n", "7"], 7),
    "min_tokens": (["--min-tokens", "3"], 3),
    "seed": (["--seed", "9"], 9),
    "temperature": (["--temp", "0.5"], 0.5),
    "top_p": (["--top-p", "0.5"], 0.5),
    "top_k": (["--top-k", "5"], 5),
    "min_p": (["--min-p", "0.5"], 0.5),
    "typical_p": (["--typical", "0.5"], 0.5),
    "top_n_sigma": (["--top-nsigma", "1.5"], 1.5),
    "xtc_probability": (["--xtc-probability", "0.5"], 0.5),
    "xtc_threshold": (["--xtc-threshold", "0.2"], 0.2),
    "repetition_penalty": (["--repeat-penalty", "1.5"], 1.5),
    "presence_penalty": (["--presence-penalty", "-0.5"], -0.5),
    "frequency_penalty": (["--frequency-penalty", "0.5"], 0.5),
    "dry_multiplier": (["--dry-multiplier", "0.8"], 0.8),
    "dry_base": (["--dry-base", "2"], 2.0),
    "dry_allowed_length": (["--dry-allowed-length", "3"], 3),
    "dry_penalty_last_n": (["--dry-penalty-last-n", "100"], 100),
    "dry_sequence_breakers": (["--dry-sequence-breaker", "x", "--dry-sequence-breaker", "y"], ("x", "y")),
    "stages": (["--stages", "xtc, temperature"], ("xtc", "temperature")),
    "logit_bias": (["--logit-bias", "5=-2.5", "--logit-bias", "6=1"], ((5, -2.5), (6, 1.0))),
    "allowed_token_ids": (["--allowed-token", "5", "--allowed-token", "6"], (5, 6)),
    "banned_token_ids": (["--banned-token", "5"], (5,)),
    "allowed_strings": (["--allowed-string", "a", "--allowed-string", "b"], ("a", "b")),
    "banned_strings": (["--banned-string", "a"], ("a",)),
    "stop": (["--stop", "a", "--stop", "b"], ("a", "b")),
}


@pytest.mark.parametrize("name", EACH)
def test_each_flag_is_an_option(name: str) -> None:
    argv, value = EACH[name]
    assert sampling_of(*argv) == Sampling(**{name: value})


def test_values_from_a_file_and_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("logit-bias: ['5=1', '6=2']\nstages: top_k,temperature\nmin_tokens: 2\n")
    monkeypatch.setenv("VIVACE_BANNED_STRING", "x")
    found = sampling_of("--config", str(file))
    assert found.logit_bias == ((5, 1.0), (6, 2.0)) and found.stages == ("top_k", "temperature")
    assert found.min_tokens == 2 and found.banned_strings == ("x",)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--logit-bias", "5"], "must be ID=BIAS, as in 198=-5, not '5'"),
        (["--logit-bias", "x=1"], "must be ID=BIAS"),
        (["--stages", "top_k,typical"], "there is no 'typical'; did you mean typical_p"),
        (["--typical", "0"], "above 0"),
        (["--banned-string", ""], "must not be empty"),
    ],
)
def test_wrong_values_are_wrong_usage(argv: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        sampling_of(*argv)
