"""A GGUF model, whole or split over files NAME-00001-of-00003.gguf: opened at any of its parts, checked as one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from vivace.model.errors import ModelError, shown
from vivace.model.keys import Keys
from vivace.model.load.gguf import GGUFFile, Metadata
from vivace.model.load.tensors import Tensor
from vivace.model.part_names import PART_NAME, part_name

_MOST_PARTS = 99_999  # that five digits can count
_MOST_TENSORS = 1 << 31
_NUMBER, _COUNT, _TENSORS = "split.no", "split.count", "split.tensors.count"  # the first part has number 0


class GGUFModel:
    """The `parts` of a model in order, the `metadata` of its first part, and the `tensors` of all by name.

    Raises ModelError with one line that names the file and the fact.
    """

    def __init__(self, path: Path) -> None:
        opened = GGUFFile(path)
        count = _keys(opened).integer(_COUNT, 1, low=0, high=_MOST_PARTS)
        self.parts = [opened] if count < 2 else _parts(opened, count)
        self.path = self.parts[0].path
        named = PART_NAME.fullmatch(self.path.name)
        self.name = named["stem"] if named and count > 1 else path.stem
        self.metadata: Metadata = self.parts[0].metadata
        self.tensors: Mapping[str, Tensor] = self.parts[0].tensors if count < 2 else _joined(self.parts)


def _keys(file: GGUFFile) -> Keys:
    return Keys(str(file.path), file.metadata)


def _number(file: GGUFFile) -> int:
    keys = _keys(file)
    if _NUMBER not in keys:
        keys.fail(_NUMBER, "is missing: it is no whole part of a split model")
    return keys.integer(_NUMBER, low=0, high=_MOST_PARTS) + 1


def _parts(opened: GGUFFile, count: int) -> list[GGUFFile]:
    """All parts in order, given one of them."""
    number = _number(opened)
    named = PART_NAME.fullmatch(opened.path.name)
    if number > count:
        raise ModelError(f"{opened.path}: claims to be part {number} of {count}")
    if named is None or (int(named["number"]), int(named["count"])) != (number, count):
        wanted = part_name("NAME", number, count)
        raise ModelError(
            f"{opened.path}: is part {number} of {count} of a split model; it must be named {wanted}, like the others"
        )
    paths = [opened.path.with_name(part_name(named["stem"], i, count)) for i in range(1, count + 1)]
    for i, path in enumerate(paths, 1):
        if not path.exists():
            raise ModelError(f"{path}: part {i} of {count} of a split model is missing")
    files = [opened if path == opened.path else GGUFFile(path) for path in paths]
    for i, file in enumerate(files, 1):
        _check_part(file, i, files[0])
    return files


def _check_part(file: GGUFFile, number: int, first: GGUFFile) -> None:
    """That `file` says it is that part, and of the same model as the `first`."""
    for key in (_COUNT, _TENSORS):
        if (key in first.metadata) != (key in file.metadata):
            raise ModelError(f"{file.path}: is part of another model than {first.path.name}: only one has {shown(key)}")
    if _number(file) != number:
        raise ModelError(f"{file.path}: has the name of part {number}, but says it is part {_number(file)}")
    for key in file.metadata:
        # Alignment is each file's own matter.
        if key in (_NUMBER, "general.alignment") or key not in first.metadata:
            continue
        if file.metadata[key] != first.metadata[key]:
            raise ModelError(f"{file.path}: is part of another model than {first.path.name}: {shown(key)} differs")


def _joined(parts: list[GGUFFile]) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for part in parts:
        for name, tensor in part.tensors.items():
            if name in tensors:
                raise ModelError(f"{part.path}: tensor {shown(name)} is also in another part")
            tensors[name] = tensor
    stated = _keys(parts[0]).integer(_TENSORS, len(tensors), low=0, high=_MOST_TENSORS)
    if stated != len(tensors):
        raise ModelError(f"{parts[0].path}: the {len(parts)} parts have {len(tensors)} tensors, not {stated}")
    return tensors
