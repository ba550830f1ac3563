"""The JSON of `vivace run`, and conversations from a pipe."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from vivace.cli.main import main


def test_json_has_the_promised_shape(smollm2: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(smollm2), "-p", "Hello", "-n", "6", "--json", "--logprobs", "3"]) == 0
    out = capsys.readouterr().out
    record = json.loads(out)
    assert out.count("\n") == 1
    keys = "text token_ids finish_reason usage timings steps memory plan plan_key tier tier_reason model seed logprobs"
    assert set(record) == set(keys.split())
    assert set(record["usage"]) == {"prompt_tokens", "completion_tokens", "cached_tokens"}
    assert set(record["timings"]) == {"load_s", "ttft_s", "prefill_tok_s", "decode_tok_s", "total_s"}
    assert set(record["steps"]) == {"target_forwards", "draft_forwards", "accepted_per_forward"}
    assert set(record["memory"]) == {"weights_bytes", "kv_resident_bytes", "kv_read_bytes", "peak_rss_bytes"}
    assert record["usage"]["completion_tokens"] == len(record["token_ids"]) == len(record["logprobs"]) <= 6
    assert record["finish_reason"] in ("stop", "length")
    assert all(record["timings"][name] > 0 for name in record["timings"])
    for token, row in zip(record["token_ids"], record["logprobs"], strict=True):
        assert str(token) in row and 3 <= len(row) <= 4
        assert sum(math.exp(value) for value in row.values()) <= 1.0001


def test_ids_are_those_of_the_json(smollm2: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["run", str(smollm2), "-p", "Hello", "-n", "6", "--json"])
    record = json.loads(capsys.readouterr().out)
    main(["run", str(smollm2), "-p", "Hello", "-n", "6", "--ids"])
    assert [int(word) for word in capsys.readouterr().out.split()] == record["token_ids"]
