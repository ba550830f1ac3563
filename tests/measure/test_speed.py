"""Names of tests, what they must cost, turns and ratios, reports; with runners that tell what time it is."""

from __future__ import annotations

import csv
import io
import json
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from toys import toy_checkpoint
from vivace.cli.doctor import advice
from vivace.core.step import StepRequest, StepResult
from vivace.kv.spec import PAGE, KVSpec
from vivace.kv.store import KVStore
from vivace.measure import peers, report
from vivace.measure.cases import SpeedTest, parse_tests
from vivace.measure.compare import alternate, ratios
from vivace.measure.curve import Point, row_curve
from vivace.measure.limits import Limits, cache_bytes, work
from vivace.measure.machine import Machine
from vivace.measure.peers import PeerRunner, check_name
from vivace.measure.profile import Share, profile
from vivace.measure.speed import CHUNK, EngineRunner, Interrupted, Timed, pages_needed
from vivace.model.spec import AttentionSpec, BlockSpec, FeedForwardSpec, ModelSpec
from vivace.model.weights import Checkpoint, StoredMatrix

LIMITS = Limits(1e9, 1e11)


def test_names() -> None:
    assert [str(test) for test in parse_tests("pp512, tg128@b8,tg64@d4096,tg4@d5@b6")] == [
        "pp512",
        "tg128@b8",
        "tg64@d4096",
        "tg4@b6@d5",
    ]
    assert SpeedTest.parse("tg4@b6@d5") == SpeedTest("tg", 4, 6, 5)


@pytest.mark.parametrize("name", ["pp", "tg0", "512", "tg1@x2", "tg1@b0", "pp512 tg1", "tg1@b"])
def test_wrong_names(name: str) -> None:
    with pytest.raises(ValueError, match="test"):
        SpeedTest.parse(name)


def test_what_a_model_or_a_step_cannot_hold() -> None:
    for name in ("pp64", "tg4@d60", "tg1@b512", "pp1@b600"):
        SpeedTest.parse(name).check(64, 512)
    SpeedTest.parse("pp65").check(0, 512)
    for name, says in [("pp65", "needs 65 positions"), ("tg5@d60", "context of the model is 64"), ("tg1@b513", "512")]:
        with pytest.raises(ValueError, match=says):
            SpeedTest.parse(name).check(64, 512)


def spec(window: int | None = None) -> ModelSpec:
    attention = AttentionSpec(heads=2, kv_heads=1, head_dim=16, scale=0.25, rope=None, window=window)
    block = BlockSpec(attention, FeedForwardSpec(64, "silu"))
    return ModelSpec("toy", vocab=100, hidden=32, blocks=(block, block), norm_eps=1e-5, tied_head=True)


def checkpoint(window: int | None = None) -> Checkpoint:
    made = spec(window)
    shapes = list(made.matrices())
    matrices = {n: StoredMatrix("F32", rows, cols, np.zeros((rows, 4 * cols), np.uint8)) for n, rows, cols in shapes}
    return Checkpoint("toy", "/toy", "f", made, matrices, {}, cast(Any, None), 12345)


def test_work_of_decoding_reads_all_weights_each_step() -> None:
    made = checkpoint()
    weights = sum(matrix.nbytes for matrix in made.matrices.values())
    values = weights // 4
    needed = work(made, SpeedTest("tg", 3, batch=2, depth=10))
    token = 2 * 2 * 16 * 2  # layers, keys and values, dimension, bytes
    assert needed.bytes == 3 * weights + 2 * (11 + 12 + 13) * token
    assert needed.ops == 2 * 6 * values


def test_work_of_a_prompt_reads_weights_once_a_chunk_and_the_head_once() -> None:
    made = checkpoint()
    head = made.matrices["embed"]
    inner = sum(matrix.nbytes for matrix in made.matrices.values()) - head.nbytes
    needed = work(made, SpeedTest("pp", CHUNK + 1))
    token = 2 * 2 * 16 * 2
    assert needed.bytes == 2 * inner + head.nbytes + (CHUNK + CHUNK + 1) * token
    assert needed.ops == 2 * ((CHUNK + 1) * inner // 4 + head.rows * head.cols)


def test_windows_bound_what_is_read() -> None:
    assert cache_bytes(checkpoint(8), SpeedTest("tg", 4, depth=100)) == 4 * 8 * 2 * 2 * 16 * 2


def test_limit_is_what_binds() -> None:
    needed = work(checkpoint(), SpeedTest("tg", 1))
    assert needed.seconds(Limits(1e9, 1e30)) == needed.bytes / 1e9
    assert needed.seconds(Limits(1e30, 1e9)) == needed.ops / 1e9


@dataclass
class Clockwork:
    """Takes the seconds it was given, one after another, and notes its turns."""

    name: str
    seconds: list[float]
    turns: list[str]
    problem: str | None = None
    closed: bool = False

    def run(self, test: SpeedTest) -> Timed:
        self.turns.append(self.name)
        if self.problem:
            raise ValueError(self.problem)
        return Timed(self.seconds.pop(0), 1000)

    def close(self) -> None:
        self.closed = True


def test_runners_take_turns_and_ratios_come_from_pairs() -> None:
    turns: list[str] = []
    ours = Clockwork("vivace", [9, 1, 2, 4], turns)
    peer = Clockwork("peer", [9, 3, 4, 4], turns)
    results = alternate([ours, peer], [SpeedTest("tg", 8)], 3, lambda: LIMITS)
    assert turns == ["peer", "vivace", "vivace", "peer", "peer", "vivace", "vivace", "peer"]
    assert results[0].tok_s == [8, 4, 2]
    (ratio,) = ratios(results)
    assert (ratio.median, ratio.low, ratio.high) == (2, 1, 3)
    assert not ratio.faster and not ratio.slower


def test_a_peer_that_cannot_do_a_test_is_left_out_of_it() -> None:
    turns: list[str] = []
    ours = Clockwork("vivace", [1.0] * 6, turns)
    peer = Clockwork("peer", [], turns, problem="cannot")
    results = alternate([ours, peer], [SpeedTest("tg", 8)], 2, lambda: LIMITS)
    assert results[1].problem == "cannot" and turns.count("peer") == 1 and ratios(results) == []


def test_our_own_failure_is_an_error() -> None:
    with pytest.raises(ValueError, match="broken"):
        alternate([Clockwork("vivace", [], [], problem="broken")], [SpeedTest("tg", 1)], 1, lambda: LIMITS)


class Interrupting(Clockwork):
    """Ctrl-C comes when no seconds are left."""

    def run(self, test: SpeedTest) -> Timed:
        if not self.seconds:
            raise KeyboardInterrupt
        return super().run(test)


def test_an_interrupt_leaves_whole_rounds() -> None:
    tests = [SpeedTest("tg", 8), SpeedTest("tg", 9), SpeedTest("tg", 10)]
    ours = Clockwork("vivace", [1.0] * 20, [])
    peer = Interrupting("peer", [2.0] * (4 + 3), [])  # a whole test, then a warm-up and two rounds
    cannot = Clockwork("not", [], [], problem="cannot")
    told: list[str] = []
    with pytest.raises(Interrupted) as caught:
        alternate([ours, peer, cannot], tests, 3, lambda: LIMITS, finished=lambda rows: told.append(str(rows[0].test)))
    results = caught.value.results
    assert [(str(row.test), row.engine, len(row.timed), len(row.limits)) for row in results] == [
        ("tg8", "vivace", 3, 3),
        ("tg8", "peer", 3, 3),
        ("tg8", "not", 0, 0),
        ("tg9", "vivace", 2, 2),
        ("tg9", "peer", 2, 2),
        ("tg9", "not", 0, 0),
    ]
    assert [ratio.median for ratio in ratios(results)] == [2, 2] and told == ["tg8"]


def test_an_interrupt_in_the_warm_up_leaves_nothing() -> None:
    with pytest.raises(Interrupted) as caught:
        alternate([Interrupting("vivace", [1.0], [])], [SpeedTest("tg", 8)], 3, lambda: LIMITS)
    assert caught.value.results == []


@pytest.fixture
def data() -> report.Record:
    ours = Clockwork("vivace", [1, 1, 1], [])
    peers = [Clockwork("slow", [3, 3, 2], []), Clockwork("same", [1, 0.5, 2], []), Clockwork("not", [], [], "cannot")]
    results = alternate([ours, *peers], [SpeedTest("tg", 8)], 2, lambda: LIMITS)
    machine = Machine("cpu", 2, 2, "portable", 1, None, "Linux", "3", "0")
    return report.record(machine, 2, checkpoint(), results, "T0")


def test_reports(data: report.Record) -> None:
    text = report.markdown(data)
    assert "| tg8 | slow | 2.50 | 2.00 to 3.00 | faster |" in text
    assert "| tg8 | same | 1.25 | 0.50 to 2.00 | no claim: the band includes 1 |" in text
    assert "| tg8 | not | – | cannot | – |" in text
    assert json.loads(report.FORMATS["json"](data)) == data
    lines = [json.loads(line) for line in report.json_lines(data).splitlines()]
    assert len(lines) == 4 + 2 and all(line["machine"]["processor"] == "cpu" for line in lines)
    rows = list(csv.DictReader(io.StringIO(report.spreadsheet(data))))
    assert len(rows) == 6 and rows[0]["tok_s"] == "8.000"
    share = data["results"][0]["share_of_limit"]
    assert share == pytest.approx(work(checkpoint(), SpeedTest("tg", 8)).seconds(LIMITS))


def test_a_page_has_all_of_the_report_and_trusts_no_text(data: report.Record) -> None:
    data["results"][3]["problem"] = "<b>a | b"
    text = report.FORMATS["html"](data)
    assert text.startswith("<!doctype html>") and "src=" not in text and "href=" not in text
    assert "<b>" not in text and "&lt;b&gt;a / b" in text
    assert text.count("<table>") == text.count("</table>") == 3
    assert '<td>tg8<td class="number">' not in text and '<td>tg8<td>slow<td class="number">2.50' in text
    assert '<div class="bar vivace" style="width: 16.00em">' in text and "width: 6.67em" in text


@dataclass
class CountingExecutor:
    """Writes nothing, but reserves as an executor does, and notes the shape of each step."""

    store: KVStore
    spec: ModelSpec
    steps: list[list[int]] = field(default_factory=list)
    wanted: int = 0  # rows of logits
    name: str = "counting"
    max_rows: int = 512

    def run(self, request: StepRequest) -> StepResult:
        self.steps.append([segment.rows for segment in request.segments])
        for segment in request.segments:
            self.wanted += 1 if segment.logits is None else len(segment.logits)
            assert segment.tokens is not None and segment.tokens.min() >= 0 and segment.tokens.max() < self.spec.vocab
            first = self.store.length(segment.seq)
            self.store.reserve(segment.seq, np.arange(first, first + segment.rows, dtype=np.int32))
        return StepResult(np.zeros((0, self.spec.vocab), np.float32), np.zeros(1, np.int32))

    def close(self) -> None: ...


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("pp600", [[512], [88]]),
        ("tg3@b2", [[1, 1]] * 3),
        ("tg2@d600", [[512], [88], [1], [1]]),
        ("pp4@b2", [[4], [4]]),
    ],
)
def test_the_engine_runs_what_the_name_says(name: str, steps: list[list[int]]) -> None:
    test = SpeedTest.parse(name)
    store = KVStore(KVSpec.of(spec()), pages_needed([test]))
    executor = CountingExecutor(store, spec())
    runner = EngineRunner(cast(Any, executor))
    runner.run(test)
    assert executor.steps == steps
    last_rows = test.batch * (1 if test.kind == "pp" else test.tokens) + (test.depth > 0)
    assert executor.wanted == last_rows  # a head for the last row of a prompt, and for each row of decoding
    free = store.free_pages
    executor.steps.clear()
    runner.run(test)
    assert store.free_pages == free  # nothing is left behind
    assert executor.steps == [step for step in steps if test.depth == 0 or max(step) == 1]  # the deep part is kept


def test_the_row_curve_has_every_step_and_its_limits() -> None:
    executor = CountingExecutor(KVStore(KVSpec.of(spec()), 4), spec())
    probed: list[Limits] = []

    def probe() -> Limits:
        probed.append(Limits(1e9 * (len(probed) % 2 + 1), 1e11))  # 1 GB/s before each few points, 2 GB/s after
        return probed[-1]

    points = row_curve(cast(Any, executor), checkpoint(), probe, repeats=2)
    assert [point.rows for point in points] == list(range(1, 65))
    assert executor.steps == [[rows] for rows in range(1, 65) for _ in range(3)]  # a warm-up, and twice
    needed = work(checkpoint(), SpeedTest("tg", 1, batch=9))
    assert points[8].reading == needed.bytes / 1.5e9 and points[8].arithmetic == needed.ops / 1e11
    assert executor.store.free_pages == 4


def test_a_profile_is_of_the_test_and_not_of_filling_the_cache() -> None:
    native = pytest.importorskip("vivace.exec.native", reason="the native core is not built")
    test = SpeedTest("tg", 3, batch=2, depth=40)
    executor = native.NativeExecutor(toy_checkpoint("qwen2", 0), capacity_pages=pages_needed([test]))
    ours = EngineRunner(executor)
    with ours.prepared(test) as repetition:
        executor.op_times(True)
        repetition()
        counted = executor.op_times(False)
    shares = profile(executor, ours, test)
    assert {share.op for share in shares} == {name for name, _, _ in counted}
    assert sum(share.share for share in shares) == pytest.approx(1)
    assert [share.seconds for share in shares] == sorted((share.seconds for share in shares), reverse=True)
    assert all(ns == 0 for _, _, ns in executor.op_times(False))
    ours.close()


def test_reports_of_profiles_and_curves() -> None:
    machine = Machine("cpu", 2, 2, "portable", 1, None, "Linux", "3", "0")
    results = alternate([Clockwork("vivace", [1, 1], [])], [SpeedTest("tg", 8)], 1, lambda: LIMITS)
    profiles = {SpeedTest("tg", 8): [Share("attend", 0.003, 0.75), Share("head", 0.001, 0.25)]}
    made = report.record(machine, 2, checkpoint(), results, "T0", profiles, [Point(3, 0.010, 0.008, 0.002)])
    text = report.markdown(made)
    assert "| operation of tg8 | ms | share |" in text and "| attend | 3.00 | 75.0 % |" in text
    assert "| 3 | 10.00 | 8.00 | 2.00 | 80 % |" in text
    assert json.loads(report.FORMATS["json"](made)) == made


def test_pages_suffice_for_the_deepest_batch() -> None:
    test = SpeedTest.parse("tg130@b3@d100")
    store = KVStore(KVSpec.of(spec()), pages_needed([test]))
    EngineRunner(cast(Any, CountingExecutor(store, spec()))).run(test)
    assert store.capacity_pages * PAGE >= 3 * 230


def test_peer_names() -> None:
    assert check_name("llama.cpp") == "llama.cpp"
    with pytest.raises(ValueError, match=r"did you mean llama\.cpp"):
        check_name("lama.cpp")


def test_a_driver_that_cannot_load_says_why(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^cannot load none\.gguf"):
        PeerRunner("openvino", sys.executable, str(tmp_path / "none.gguf"), 1)
    failed = peers.start("openvino", sys.executable, str(tmp_path / "none.gguf"), 1)
    assert failed.name == "openvino" and failed.version is None
    with pytest.raises(ValueError, match=r"^cannot load none\.gguf"):
        failed.run(SpeedTest("pp", 4))
    failed.close()


def test_a_driver_answers_line_by_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(peers.DRIVERS / "serve.py", tmp_path)
    (tmp_path / "with_toy.py").write_text(
        "class Engine:\n    version = '1'\n    def __init__(self, model, threads):\n        print('noise')\n"
        "    def prefill(self, *shape):\n        print('noise')\n        return float(sum(shape))\n"
        "    def decode(self, *shape):\n        raise RuntimeError('too deep')\n"
    )
    monkeypatch.setattr(peers, "DRIVERS", tmp_path)
    monkeypatch.setattr(peers, "PEERS", {"toy": ("toy", "with_toy")})
    peer = PeerRunner("toy", sys.executable, "model", 1)
    try:
        assert peer.version == "1"
        assert peer.run(SpeedTest("pp", 4, 2, 1)).seconds == 7
        with pytest.raises(ValueError, match=r"^too deep"):
            peer.run(SpeedTest("tg", 1))
        assert peer.run(SpeedTest("pp", 5)).seconds == 6
    finally:
        peer.close()


def test_an_interrupted_driver_ends_without_a_word(tmp_path: Path) -> None:
    shutil.copy(peers.DRIVERS / "serve.py", tmp_path)
    engine = (
        "import os, signal\nclass Engine:\n    def __init__(self, *_):\n        os.kill(os.getpid(), signal.SIGINT)\n"
    )
    (tmp_path / "with_toy.py").write_text(engine)
    argv = [sys.executable, str(tmp_path / "serve.py"), "with_toy", "model", "1"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_advice() -> None:
    good = {"isa": "avx2", "isas": ["portable", "avx2"], "governor": "performance", "threads": 2, "cores": 2}
    good["models"] = [{"present": True}]
    assert advice(good) == []
    bad = good | {"isa": "portable", "governor": "powersave", "threads": 1, "models": []}
    assert len(advice(bad)) == 4 and "faster avx2" in advice(bad)[0]
    assert "portable ones are slow" in advice(bad | {"isas": ["portable"]})[0]
