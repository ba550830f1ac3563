"""What is done to a model before it is read: to its contents before they are written, and to the bytes after."""

from __future__ import annotations

import json
import random
import struct
from typing import Any

import numpy as np
from fuzz_samples import Files, Model
from gguf_writer import BLOCKS, TYPES, Raw

NUMBERS = (0, 1, 2, 3, 7, 8, 31, 32, 33, 63, 64, 127, 128, 255, 256, 4096, 65535, 1 << 20, (1 << 24) + 1, (1 << 31) - 1)
WIDE = (*NUMBERS, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 53) + 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-30, 1e30, -1e30, float("inf"), float("-inf"), float("nan"))
TEXTS = ("", "a", "\n", "\x1b[2J", "x" * 2000, "{% for i in range(9**9) %}x{% endfor %}", "../x", "é\u2028", "\x00")
NAMES = ("general.alignment", "split.count", "split.no", "general.architecture", "tokenizer.ggml.model", "x", "")


def change_contents(model: Model, draw: random.Random) -> None:
    if draw.random() < 0.5:
        _change_tensors(model, draw)
    elif model.kind in ("gguf", "split"):
        _change_metadata(model.metadata, draw)
    else:
        name = draw.choice(["config.json", "config.json", *model.metadata])
        model.metadata[name] = change_json(model.metadata[name], draw)


def change_bytes(files: Files, draw: random.Random) -> None:
    name = draw.choice(list(files.data))
    data = bytearray(files.data[name])
    places = files.fields.get(name, [0])
    match draw.randrange(9):
        case 0:
            _flip(data, draw, places[-1] if len(places) > 1 else len(data))
        case 1 | 2 | 3 if len(places) > 1:
            _overwrite(data, draw, draw.choice(places))
        case 4:
            del data[draw.randrange(len(data) + 1) :]
        case 5:
            at = draw.randrange(len(data) + 1)
            del data[at : at + draw.choice((1, 2, 4, 8, 100))]
        case 6:
            at = draw.randrange(len(data) + 1)
            data[at:at] = draw.randbytes(draw.choice((1, 2, 4, 8, 100)))
        case 7:
            _overwrite(data, draw, draw.randrange(max(1, len(data) - 8)))
        case _:
            _change_header(data, draw) if name.endswith(".safetensors") else _flip(data, draw, len(data))
    files.data[name] = bytes(data)
    if len(files.data) > 1 and draw.random() < 0.02:
        del files.data[name]


def change_json(value: Any, draw: random.Random) -> Any:
    """The same value with one node of it, at any depth, replaced, removed, renamed or doubled."""
    if not isinstance(value, dict | list) or not value or draw.random() < 0.15:
        return _anything(draw, 2)
    if isinstance(value, list):
        at = draw.randrange(len(value))
        match draw.randrange(4):
            case 0:
                return value[:at] + value[at + 1 :]
            case 1:
                return [*value, value[at]]
            case _:
                return [*value[:at], change_json(value[at], draw), *value[at + 1 :]]
    key = draw.choice(list(value))
    match draw.randrange(6):
        case 0:
            return {k: v for k, v in value.items() if k != key}
        case 1:
            return {k if k != key else draw.choice((*NAMES, *TEXTS)): v for k, v in value.items()}
        case 2:
            return value | {draw.choice((*NAMES, *TEXTS)): _anything(draw, 2)}
        case _:
            return value | {key: change_json(value[key], draw)}


def _anything(draw: random.Random, depth: int) -> Any:
    match draw.randrange(9 if depth else 6):
        case 0 | 1:
            return draw.choice(WIDE)
        case 2:
            return draw.choice(FLOATS)
        case 3:
            return draw.choice(TEXTS)
        case 4:
            return draw.choice((True, False, None))
        case 5:
            return -draw.choice(WIDE)
        case 6:
            return [_anything(draw, depth - 1) for _ in range(draw.randrange(3))]
        case 7:
            return {draw.choice(TEXTS): _anything(draw, depth - 1)}
        case _:
            return {"type": draw.choice(("ByteLevel", "Replace", "Sequence", "NFC", "linear", "yarn", "x"))}


def _change_metadata(metadata: dict[str, Any], draw: random.Random) -> None:
    key = draw.choice([key for key in metadata if not key.startswith("split.")])
    match draw.randrange(6):
        case 0:
            del metadata[key]
        case 1:
            metadata[draw.choice([n for n in NAMES if n])] = _gguf_value(draw)
        case 2 if isinstance(metadata[key], list):
            metadata[key] = metadata[key][: draw.randint(1, len(metadata[key]))] * draw.choice((1, 1, 2))
        case _:
            metadata[key] = _gguf_value(draw)


def _gguf_value(draw: random.Random) -> Any:
    """Of a type that a GGUF file can hold; a list has one type."""
    kind = draw.choice((WIDE[: WIDE.index(1 << 32)], NUMBERS, FLOATS[:8], TEXTS, (True, False)))
    one: Any = draw.choice(kind)
    return [draw.choice(kind) for _ in range(draw.choice((1, 2, 8)))] if draw.random() < 0.2 else one


def _change_tensors(model: Model, draw: random.Random) -> None:
    tensors = model.tensors
    name = draw.choice(list(tensors))
    raw = tensors[name]
    match draw.randrange(8):
        case 0:
            del tensors[name]
        case 1:
            tensors[draw.choice(TEXTS[1:]) + name] = raw
        case 2:
            tensors[name] = Raw(draw.choice(list(TYPES)), raw.shape, raw.data)
        case 3:
            tensors[name] = Raw(raw.type, raw.shape[::-1], raw.data)
        case 4:
            tensors[name] = Raw(raw.type, tuple(draw.choice((n, *NUMBERS)) for n in raw.shape), raw.data)
        case 5:
            tensors[name] = Raw(raw.type, raw.shape, draw.randbytes(len(raw.data)))
        case 6:
            fill = draw.choice((b"\0", b"\xff", b"\x00\x7c", b"\x80\x7f\x80\x7f"))
            tensors[name] = Raw(raw.type, raw.shape, (fill * len(raw.data))[: len(raw.data)])
        case _:
            shape = (*raw.shape[:-1], max(1, raw.shape[-1] + draw.choice((-1, 1, 32, -32))))
            values, size = BLOCKS[raw.type]
            tensors[name] = Raw(raw.type, shape, bytes(int(np.prod(shape)) // values * size))


def _flip(data: bytearray, draw: random.Random, end: int) -> None:
    for _ in range(draw.choice((1, 1, 2, 8))):
        if data:
            data[draw.randrange(min(max(end, 1), len(data)))] ^= 1 << draw.randrange(8)


def _overwrite(data: bytearray, draw: random.Random, at: int) -> None:
    layout, value = draw.choice((("<I", draw.choice(NUMBERS)), ("<Q", draw.choice(WIDE)), ("<f", draw.choice(FLOATS))))
    field = struct.pack(layout, value)
    data[at : at + len(field)] = field


def _change_header(data: bytearray, draw: random.Random) -> None:
    """The JSON of a safetensors file, well formed; its length is kept true most of the time."""
    length = int.from_bytes(data[:8], "little")
    try:
        header = json.loads(data[8 : 8 + length])
    except ValueError:
        return
    text = json.dumps(change_json(header, draw)).encode()
    stated = len(text) + draw.choice((0, 0, 0, 0, -1, 1))
    data[: 8 + length] = max(0, stated).to_bytes(8, "little") + text
