"""The four real files: our logits against `transformers` on the same file, whose weights it de-quantises by itself."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from vivace.core.step import Executor, Segment, StepRequest, all_rows
from vivace.exec.reference import ReferenceExecutor
from vivace.measure.kl import kl
from vivace.model.load import load_checkpoint
from vivace.model.weights import Checkpoint

FOLDER = Path(os.environ.get("VIVACE_MODELS", Path.home() / ".cache/vivace/models"))
TEXT = Path(__file__).parents[1] / "data" / "sample.txt"
POSITIONS = 2000
ROWS = 125  # logits of a large vocabulary held at a time
FILES = [
    "SmolLM2-135M-Instruct.Q4_1.gguf",
    "gemma-3-270m.Q4_K_M.gguf",
    "Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf",
    pytest.param("Qwen2.5-Coder-1.5B-Instruct.Q4_K_M.gguf", marks=pytest.mark.slow),
]
GOALS = {"reference": 1e-8, "native": 2e-3}  # mean KL in nats


@pytest.fixture(params=FILES)
def model_file(request) -> Path:
    path = FOLDER / request.param
    if not path.exists():
        pytest.skip(f"{request.param} is not in $VIVACE_MODELS ({FOLDER})")
    return path


@cache
def theirs(path: Path) -> tuple[np.ndarray, torch.Tensor, torch.nn.Module]:
    """Tokens of the sample text, the final hidden states that transformers computes for them, and its head."""
    theirs.cache_clear()  # one model in memory at a time
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    tokens = AutoTokenizer.from_pretrained(**source)(TEXT.read_text()).input_ids[:POSITIONS]
    assert len(tokens) == POSITIONS
    model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32).eval()
    with torch.no_grad():
        hidden = model.model(torch.tensor([tokens])).last_hidden_state[0]
    assert getattr(model.config, "final_logit_softcapping", None) is None
    return np.array(tokens, np.int32), hidden, model.lm_head


def our_logits(executor: Executor, tokens: np.ndarray) -> Iterator[np.ndarray]:
    seq = executor.store.new()
    for first in range(0, len(tokens), ROWS):
        part = tokens[first : first + ROWS]
        yield executor.run(StepRequest([Segment(seq, part, logits=all_rows(len(part)))])).logits
        executor.store.commit(seq)


def made(kind: str, checkpoint: Checkpoint) -> Executor:
    pages = -(-POSITIONS // 64)
    if kind == "reference":
        return ReferenceExecutor(checkpoint, capacity_pages=pages)
    module = pytest.importorskip("vivace.exec.native", reason="the native executor is not built")
    return module.NativeExecutor(checkpoint, capacity_pages=pages)


@pytest.mark.models
@pytest.mark.parametrize("kind", list(GOALS))
def test_mean_kl(model_file, kind, record_property):
    executor = made(kind, load_checkpoint(model_file))
    tokens, hidden, head = theirs(model_file)
    rows = []
    for i, found in enumerate(our_logits(executor, tokens)):
        with torch.no_grad():
            wanted = head(hidden[i * ROWS : (i + 1) * ROWS]).numpy()
        rows.append(kl(wanted, found))
    executor.close()
    divergence = np.concatenate(rows)
    assert len(divergence) == POSITIONS
    print(f"{model_file.name} {kind}: mean KL {divergence.mean():.2e}, largest {divergence.max():.2e}")
    record_property("mean_kl", float(divergence.mean()))
    assert divergence.mean() <= GOALS[kind]
