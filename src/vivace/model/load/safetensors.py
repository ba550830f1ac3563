"""Hugging Face folders: config.json and safetensors, one file or many. Checked as hard as GGUF files are."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from vivace.model.errors import ModelError, shown
from vivace.model.keys import Keys
from vivace.model.load.tensors import Tensor, check_regular, map_file

# dtype: (our name of the type, bytes of a value)
_DTYPES: Mapping[str, tuple[str, int]] = {
    "F32": ("F32", 4),
    "F16": ("F16", 2),
    "BF16": ("BF16", 2),
    **{name: (name, 1) for name in ("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2")},
    **{name: (name, 2) for name in ("I16", "U16")},
    **{name: (name, 4) for name in ("I32", "U32")},
    **{name: (name, 8) for name in ("I64", "U64", "F64")},
}
_MAX_HEADER = 100_000_000  # the format's own limit
_MAX_JSON = 1 << 26
_MAX_DIMENSIONS = 8
_MAX_SIZE = 1 << 48
_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_ADAPTER = "adapter_model.safetensors"  # may lie beside the model, and is none


class SafetensorsFile:
    """One mapped file whose header has been checked: `tensors` as views by name, and the bytes of the `header`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.bytes = map_file(path)
        size = len(self.bytes)
        if size < 8:
            self._fail(f"truncated: {size} bytes cannot hold a safetensors header")
        length = int.from_bytes(self.bytes[:8].tobytes(), "little")
        if length > min(size - 8, _MAX_HEADER):
            self._fail(f"claims a header of {length} bytes, file has {size}; truncated, or not a safetensors file")
        self.header = self.bytes[: 8 + length].data
        entries = _parse_json(self.header[8:].tobytes(), f"{path}: the header")
        entries.pop("__metadata__", None)
        self.tensors = self._read_tensors(entries, 8 + length)

    def _fail(self, fact: str) -> NoReturn:
        raise ModelError(f"{self.path}: {fact}")

    def _read_tensors(self, entries: dict[str, object], start: int) -> dict[str, Tensor]:
        end = 0
        tensors: dict[str, Tensor] = {}
        found = [(name, *self._read_entry(name, entry)) for name, entry in entries.items()]
        for name, kind, shape, first, last in sorted(found, key=lambda entry: entry[3:]):
            if first != end:
                self._fail(f"tensor {shown(name)} begins at {first}, the one before ends at {end}")
            end = last
            if start + last > len(self.bytes):
                self._fail(f"truncated: tensor {shown(name)} ends at byte {start + last}, file has {len(self.bytes)}")
            tensors[name] = Tensor(name, kind, shape, self.bytes[start + first : start + last])
        if start + end != len(self.bytes):
            self._fail(f"has {len(self.bytes) - start - end} bytes after its last tensor")
        return tensors

    def _read_entry(self, name: str, entry: object) -> tuple[str, tuple[int, ...], int, int]:
        """(type, shape, first byte, one past the last byte) of one entry of the header."""
        if not isinstance(entry, dict):
            self._fail(f"the entry of tensor {shown(name)} is not an object")
        dtype = entry.get("dtype")
        if not isinstance(dtype, str) or dtype not in _DTYPES:
            self._fail(f"dtype {dtype!r:.40} of tensor {shown(name)} is not supported")
        kind, width = _DTYPES[dtype]
        shape, offsets = self._naturals(name, entry, "shape"), self._naturals(name, entry, "data_offsets")
        if len(shape) > _MAX_DIMENSIONS or math.prod(shape) >= _MAX_SIZE:
            self._fail(f"tensor {shown(name)} has an impossible shape")
        if len(offsets) != 2 or offsets[1] - offsets[0] != math.prod(shape) * width:
            self._fail(f"tensor {shown(name)} has offsets that do not fit its shape {list(shape)} of {dtype}")
        return kind, shape, offsets[0], offsets[1]

    def _naturals(self, name: str, entry: Mapping[str, object], key: str) -> tuple[int, ...]:
        values = entry.get(key)
        if not isinstance(values, list) or any(type(v) is not int or not 0 <= v < _MAX_SIZE for v in values):
            self._fail(f"'{key}' of tensor {shown(name)} is not a list of sizes")
        return tuple(values)


class Folder:
    """A folder with a model: `config`, `generation` (empty when there is none) and the `tensors` of every shard."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not (path / "config.json").exists():
            if (path / "adapter_config.json").exists():
                raise ModelError(f"{path}: is an adapter; merge it into its model, and give the folder of that")
            raise ModelError(
                f"{path}: has no config.json; give a .gguf file, or a folder with config.json and safetensors"
            )
        self.config = read_keys(path / "config.json")
        generation = path / "generation_config.json"
        self.generation = read_keys(generation) if generation.exists() else Keys(str(generation), {})
        index = path / _INDEX
        # With both there, the one file is the model, as it is for `transformers`.
        sharded = index.exists() and not (path / _SINGLE).exists()
        weight_map = read_keys(index).section("weight_map") if sharded else None
        names = _single(path) if weight_map is None else _shards(weight_map)
        self.files = [SafetensorsFile(path / name) for name in names]
        tensors: dict[str, Tensor] = {}
        for file in self.files:
            for name, tensor in file.tensors.items():
                if name in tensors:
                    raise ModelError(f"{file.path}: tensor {shown(name)} is also in another shard")
                tensors[name] = tensor
        self.tensors: Mapping[str, Tensor] = tensors
        if weight_map is not None:
            for file in self.files:
                _check_index(weight_map, file)


def _check_index(weight_map: Keys, file: SafetensorsFile) -> None:
    for name in weight_map:
        if weight_map.text(name) == file.path.name and name not in file.tensors:
            raise ModelError(f"{weight_map.source}: tensor {shown(name)} is not in {file.path.name}")


def read_keys(path: Path) -> Keys:
    """A JSON file whose top is an object."""
    try:
        check_regular(path)
        if path.stat().st_size > _MAX_JSON:
            raise ModelError(f"{path}: is larger than {_MAX_JSON} bytes")
        text = path.read_bytes()
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror or error}") from None
    return Keys(str(path), _parse_json(text, str(path)))


def _parse_json(text: bytes, what: str) -> dict[str, object]:
    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise ModelError(f"{what} has a key twice")
        return found

    try:
        value = json.loads(text, object_pairs_hook=unique)
    except ModelError:
        raise
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{what} is not valid JSON: {error!s:.100}") from None
    if not isinstance(value, dict):
        raise ModelError(f"{what} is not a JSON object")
    return value


def _single(path: Path) -> list[str]:
    """The one safetensors file of a folder without an index."""
    names = sorted(entry.name for entry in path.glob("*.safetensors") if entry.name != _ADAPTER)
    if _SINGLE in names:
        return [_SINGLE]
    if len(names) != 1:
        raise ModelError(
            f"{path}: has {len(names)} .safetensors files and no {_INDEX}"
            if names
            else f"{path}: has no .safetensors file of a model; other weight formats are not supported"
        )
    return names


def _shards(weight_map: Keys) -> list[str]:
    names = sorted({weight_map.text(name) for name in weight_map})
    for name in names:
        if name != Path(name).name or not name.endswith(".safetensors"):
            raise ModelError(f"{weight_map.source}: names a shard {shown(name)}, which is no file of its folder")
    return names
