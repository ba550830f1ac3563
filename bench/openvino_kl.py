#!/usr/bin/env python3
"""What OpenVINO's re-quantisation of a GGUF file costs: mean KL to the weights of the file in float32.

    PYTHONPATH=src ~/.cache/vivace/peers/bin/python bench/openvino_kl.py MODEL.gguf [--text FILE] [--positions N]

Runs in the environment of the other engines (docs/guides/bench.md). OpenVINO GenAI converts the file and saves its
model in a temporary folder; that model gives the logits of every position of the text. They are compared, once computed
in float32 (the cost of its weights alone) and once with its defaults (what its users get), to those of transformers in
float32 on the de-quantised file. Prints one JSON line: nats a position, and in how many positions the most probable
token differs.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import openvino_genai
import torch
import transformers

from vivace.measure.kl import kl

ROOT = Path(__file__).resolve().parents[1]
ROWS = 125  # positions whose logits are held at a time
FLOAT32 = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}


def expected(file: Path, text: str, positions: int) -> tuple[np.ndarray, list[np.ndarray]]:
    """Token ids of the text and the float32 logits of each position, `ROWS` at a time."""
    source: dict[str, Any] = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    ids = transformers.AutoTokenizer.from_pretrained(**source)(text).input_ids[:positions]
    if len(ids) < positions:
        raise SystemExit(f"the text has only {len(ids)} tokens, not {positions}")
    model = transformers.AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32).eval()
    with torch.inference_mode():
        hidden = model.model(torch.tensor([ids])).last_hidden_state[0]
        return np.array(ids), [model.lm_head(part).numpy() for part in hidden.split(ROWS)]


def convert(file: Path, folder: Path) -> Path:
    """Lets OpenVINO GenAI re-quantise the file, and returns the model that it saves beside the file."""
    link = folder / file.name
    link.symlink_to(file)
    openvino_genai.LLMPipeline(str(link), "CPU", enable_save_ov_model=True)
    return folder / "openvino_model.xml"


def found(model: Path, ids: np.ndarray, config: dict[str, Any]) -> Iterator[np.ndarray]:
    request = openvino.Core().compile_model(str(model), "CPU", config).create_infer_request()
    for first in range(0, len(ids), ROWS):
        part = ids[None, first : first + ROWS]
        end = first + part.shape[1]
        inputs = {
            "input_ids": part,
            "attention_mask": np.ones((1, end), np.int64),
            "position_ids": np.arange(first, end)[None],
            "beam_idx": np.zeros(1, np.int32),
        }
        yield request.infer(inputs)["logits"][0].astype(np.float32)


def weights(model: Path) -> dict[str, int]:
    """How many matrices have which type and group size."""
    kinds: dict[str, int] = {}
    for node in openvino.Core().read_model(str(model)).get_ops():
        if node.get_type_name() == "Constant" and len(node.shape) in (2, 3) and node.shape[-1] > 1 < node.shape[0]:
            group = f" in groups of {node.shape[-1]}" if len(node.shape) == 3 else ""
            kind = f"{node.get_element_type().get_type_name()}{group}"
            kinds[kind] = kinds.get(kind, 0) + 1
    return kinds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--text", type=Path, default=ROOT / "tests" / "data" / "sample.txt")
    parser.add_argument("--positions", type=int, default=2000)
    args = parser.parse_args()
    file = args.model.resolve()
    with tempfile.TemporaryDirectory() as folder:
        try:
            model = convert(file, Path(folder))
        except RuntimeError as error:
            raise SystemExit(f"OpenVINO does not read {file.name}: {str(error).strip().splitlines()[-1]}") from None
        ids, wanted = expected(file, args.text.read_text(), args.positions)
        record: dict[str, Any] = {"model": file.name, "openvino": openvino_genai.__version__, "positions": len(ids)}
        record["weights"] = weights(model)
        for name, config in (("float32", FLOAT32), ("default", {})):
            rows, differ = [], 0
            for want, have in zip(wanted, found(model, ids, config), strict=True):
                rows.append(kl(want, have))
                differ += int((want.argmax(-1) != have.argmax(-1)).sum())
            divergence = np.concatenate(rows)
            record[name] = {"mean_kl": divergence.mean(), "largest": divergence.max(), "top_token_differs": differ}
    print(json.dumps(record))


if __name__ == "__main__":
    main()
