"""Where a model goes beyond what the native core can do: one line that names the file, or the same as without."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest
from gguf_writer import save, toy_llama, write_gguf

from toys import toy_checkpoint
from vivace.core.step import Segment, StepRequest
from vivace.exec.native import NativeExecutor
from vivace.model.errors import ModelError
from vivace.model.load import load_checkpoint
from vivace.model.weights import Checkpoint


def test_head_sizes(tmp_path: Path) -> None:
    path = save(tmp_path / "toy.gguf", write_gguf(*toy_llama(hidden=96, heads=4)).data)
    says = f"^{re.escape(str(path))}: heads of 24 values are not supported; a multiple of 16 is needed$"
    with pytest.raises(ModelError, match=says):
        NativeExecutor(load_checkpoint(path), capacity_pages=1)


def test_windows_wider_than_positions_go() -> None:
    plain = toy_checkpoint("gemma3", 0)

    def windowed(window: int | None) -> Checkpoint:
        def block(old):
            return dataclasses.replace(old, attention=dataclasses.replace(old.attention, window=window))

        return dataclasses.replace(
            plain, spec=dataclasses.replace(plain.spec, blocks=tuple(map(block, plain.spec.blocks)))
        )

    tokens = np.arange(100, dtype=np.int32)
    found = []
    for window in (None, 1 << 31, 1 << 40):
        executor = NativeExecutor(windowed(window), capacity_pages=2)
        found.append(np.array(executor.run(StepRequest([Segment(executor.store.new(), tokens)])).logits))
        executor.close()
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])
