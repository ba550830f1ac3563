"""GGUF files. Every count, length, offset and type is checked against the file before it is used."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from struct import Struct
from struct import error as StructError
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from vivace.model.errors import ModelError, shown
from vivace.model.load.tensors import BLOCKS, Tensor, map_file, row_bytes

_TYPES = """
F32 F16 Q4_0 Q4_1 Q4_2 Q4_3 Q5_0 Q5_1 Q8_0 Q8_1 Q2_K Q3_K Q4_K Q5_K Q6_K Q8_K IQ2_XXS IQ2_XS IQ3_XXS IQ1_S IQ4_NL IQ3_S
IQ2_S IQ4_XS I8 I16 I32 I64 F64 IQ1_M BF16 Q4_0_4_4 Q4_0_4_8 Q4_0_8_8 TQ1_0 TQ2_0 IQ4_NL_4_4 IQ4_NL_4_8 IQ4_NL_8_8 MXFP4
NVFP4 Q1_0
"""
TYPE_NAMES: Mapping[int, str] = dict(enumerate(_TYPES.split()))

_BOOL, _STRING, _ARRAY = 7, 8, 9
_CODES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", _BOOL: "B", 10: "Q", 11: "q", 12: "d"}
_SCALARS: Mapping[int, Struct] = {kind: Struct("<" + code) for kind, code in _CODES.items()}
_U32, _U64 = _SCALARS[4], _SCALARS[10]

_MAX_STRING = 1 << 24  # the longest strings in use are chat templates
_MAX_NAME = 1 << 10
_MAX_DIMENSIONS = 4
_MAX_ALIGNMENT = 1 << 20
_LEAST_ENTRY = 8 + 1 + 4 + 1  # key length, key, type, value
_LEAST_TENSOR = 8 + 1 + 4 + 8 + 4 + 8  # name length, name, dimensions, one size, type, offset


class _Array:
    """An array in the file whose bounds are known and whose values are not read yet."""

    def __init__(self, kind: int, count: int, first: int, last: int) -> None:
        self.kind, self.count, self.first, self.last = kind, count, first, last


class Metadata(Mapping[str, object]):
    """Key-value pairs of a file: int, float, bool, str, or list of one of them. Lists are decoded when first read."""

    def __init__(self, path: Path, buffer: memoryview, values: dict[str, object]) -> None:
        self._path, self._buffer, self._values = path, buffer, values

    def __getitem__(self, key: str) -> object:
        value = self._values[key]
        if isinstance(value, _Array):
            value = self._values[key] = self._decode(key, value)
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def count(self, key: str) -> int | None:
        """Length of the array `key` without reading it, or None when it is absent or no array."""
        value = self._values.get(key)
        if isinstance(value, _Array):
            return value.count
        return len(value) if isinstance(value, list) else None

    def _decode(self, key: str, array: _Array) -> list[object]:
        if array.kind == _STRING:
            return self._strings(key, array)
        view = self._buffer[array.first : array.last]
        values = np.frombuffer(view, np.dtype(_SCALARS[array.kind].format).newbyteorder("<"))
        if array.kind == _BOOL:
            if values.size and values.max() > 1:
                raise ModelError(f"{self._path}: an entry of {shown(key)} is neither true nor false")
            values = values.astype(np.bool_)
        result: list[object] = values.tolist()
        return result

    def _strings(self, key: str, array: _Array) -> list[object]:
        data = bytes(self._buffer[array.first : array.last])
        unpack, position = _U64.unpack_from, 0
        strings: list[object] = []
        append = strings.append
        try:
            for _ in range(array.count):
                start = position + 8
                position = start + unpack(data, position)[0]
                append(data[start:position].decode())
        except UnicodeDecodeError:
            raise ModelError(f"{self._path}: entry {len(strings)} of {shown(key)} is not UTF-8") from None
        return strings


class GGUFFile:
    """A mapped file whose header has been checked: `metadata`, and `tensors` as views by name.

    Raises ModelError with one line that names the file and the fact.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.bytes: NDArray[np.uint8] = map_file(path)
        self._buffer = self.bytes.data
        self._position = 0
        self._size = len(self.bytes)
        entries, tensors = self._read_counts()
        self.metadata = Metadata(path, self._buffer, self._read_metadata(entries))
        self.data_start = 0
        self.tensors: Mapping[str, Tensor] = self._read_tensors(tensors)

    def _fail(self, fact: str) -> NoReturn:
        raise ModelError(f"{self.path}: {fact}")

    def _skip(self, length: int, what: str) -> int:
        """Moves past `length` bytes that must be there; returns where they start."""
        start = self._position
        if length > self._size - start:
            self._fail(f"truncated: {what} ends at byte {start + length}, file has {self._size}")
        self._position = start + length
        return start

    def _u32(self, what: str) -> int:
        return int(_U32.unpack_from(self._buffer, self._skip(4, what))[0])

    def _u64(self, what: str) -> int:
        return int(_U64.unpack_from(self._buffer, self._skip(8, what))[0])

    def _string(self, what: str, limit: int = _MAX_STRING) -> str:
        length = self._u64(f"the length of {what}")
        if length > limit:
            self._fail(f"{what} claims {length} bytes; at most {limit} are allowed")
        start = self._skip(length, what)
        try:
            return str(self._buffer[start : start + length], "utf-8")
        except UnicodeDecodeError:
            self._fail(f"{what} is not UTF-8")

    def _read_counts(self) -> tuple[int, int]:
        if bytes(self._buffer[:4]) != b"GGUF":
            self._fail("not a GGUF file")
        self._position = 4
        version = self._u32("the version")
        if version not in (2, 3):
            if version in (2 << 24, 3 << 24):
                self._fail("is big-endian; only little-endian GGUF files are supported")
            self._fail(f"GGUF version {version} is not supported; supported: 2, 3")
        tensors = self._u64("the number of tensors")
        entries = self._u64("the number of metadata entries")
        left = self._size - self._position
        if entries > left // _LEAST_ENTRY:
            self._fail(f"claims {entries} metadata entries, more than its {self._size} bytes can hold")
        if tensors > left // _LEAST_TENSOR:
            self._fail(f"claims {tensors} tensors, more than its {self._size} bytes can hold")
        return entries, tensors

    def _read_metadata(self, entries: int) -> dict[str, object]:
        values: dict[str, object] = {}
        for index in range(entries):
            key = self._string(f"metadata key {index}", _MAX_NAME)
            if not key:
                self._fail(f"metadata key {index} is empty")
            if key in values:
                self._fail(f"metadata key {shown(key)} occurs twice")
            values[key] = self._read_value(key, self._u32(f"the type of {shown(key)}"))
        return values

    def _read_value(self, key: str, kind: int) -> object:
        if kind == _STRING:
            return self._string(shown(key))
        if kind == _ARRAY:
            return self._read_array(key)
        if kind not in _SCALARS:
            self._fail(f"{shown(key)} has the unknown type {kind}")
        scalar = _SCALARS[kind]
        (value,) = scalar.unpack_from(self._buffer, self._skip(scalar.size, shown(key)))
        if kind == _BOOL:
            if value > 1:
                self._fail(f"{shown(key)} is neither true nor false")
            return bool(value)
        return value

    def _read_array(self, key: str) -> _Array:
        kind = self._u32(f"the element type of {shown(key)}")
        count = self._u64(f"the length of {shown(key)}")
        if kind != _STRING and kind not in _SCALARS:
            self._fail(f"{shown(key)} is an array of {'arrays' if kind == _ARRAY else f'unknown type {kind}'}")
        first = self._position
        least = 8 if kind == _STRING else _SCALARS[kind].size
        if count > (self._size - first) // least:
            self._fail(f"truncated: {shown(key)} claims {count} entries, file has {self._size} bytes")
        if kind == _STRING:
            self._position = self._end_of_strings(key, first, count)
        else:
            self._position += count * least
        return _Array(kind, count, first, self._position)

    def _end_of_strings(self, key: str, position: int, count: int) -> int:
        buffer, unpack = self._buffer, _U64.unpack_from
        try:
            for _ in range(count):
                position += 8 + unpack(buffer, position)[0]
        except (StructError, OverflowError):
            position = self._size + 1
        if position > self._size:
            self._fail(f"truncated: a string of {shown(key)} ends beyond the file's {self._size} bytes")
        return position

    def _alignment(self) -> int:
        alignment = self.metadata.get("general.alignment", 32)
        if (
            not isinstance(alignment, int)
            or isinstance(alignment, bool)
            or not 8 <= alignment <= _MAX_ALIGNMENT
            or alignment & (alignment - 1)
        ):
            self._fail(f"general.alignment is {alignment!r:.60}; it must be a power of two from 8 to {_MAX_ALIGNMENT}")
        return alignment

    def _read_tensors(self, count: int) -> dict[str, Tensor]:
        infos: dict[str, tuple[str, tuple[int, ...], int, int]] = {}
        for index in range(count):
            name = self._string(f"the name of tensor {index}", _MAX_NAME)
            if not name or name in infos:
                self._fail(f"tensor name {shown(name)} occurs twice" if name else f"tensor {index} has no name")
            infos[name] = self._read_tensor_info(name)
        alignment = self._alignment()
        self.data_start = -(-self._position // alignment) * alignment
        tensors: dict[str, Tensor] = {}
        end, before = 0, ""
        for name, (kind, shape, offset, size) in sorted(infos.items(), key=lambda item: item[1][2]):
            if offset % alignment:
                self._fail(f"tensor {shown(name)} starts at offset {offset}, not a multiple of {alignment}")
            if offset < end:
                self._fail(f"tensors {shown(before)} and {shown(name)} overlap")
            end, before = offset + size, name
            if self.data_start + end > self._size:
                where = f"ends at byte {self.data_start + end}, file has {self._size}"
                self._fail(f"truncated: tensor {shown(name)} {where}")
            start = self.data_start + offset
            tensors[name] = Tensor(name, kind, shape, self.bytes[start : start + size])
        return tensors

    def _read_tensor_info(self, name: str) -> tuple[str, tuple[int, ...], int, int]:
        """(type, shape, offset, bytes) of the tensor whose name was just read."""
        what = f"the description of tensor {shown(name)}"
        dimensions = self._u32(what)
        if not 1 <= dimensions <= _MAX_DIMENSIONS:
            self._fail(f"tensor {shown(name)} has {dimensions} dimensions; 1 to {_MAX_DIMENSIONS} are allowed")
        shape = tuple(self._u64(what) for _ in range(dimensions))[::-1]
        type_id = self._u32(what)
        offset = self._u64(what)
        kind = TYPE_NAMES.get(type_id, f"number {type_id}")
        if kind not in BLOCKS:
            self._fail(f"type {kind} of tensor {shown(name)} is not supported; supported: {', '.join(BLOCKS)}")
        if 0 in shape or math.prod(shape) >= 1 << 48:
            self._fail(f"tensor {shown(name)} has the impossible shape {list(shape)}")
        if shape[-1] % BLOCKS[kind][0]:
            self._fail(f"tensor {shown(name)} has rows of {shape[-1]} values, not a multiple of the {kind} block")
        return kind, shape, offset, row_bytes(kind, shape[-1]) * math.prod(shape[:-1])
