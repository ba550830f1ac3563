"""Split GGUF models: the same at whichever part they are opened, and one clear error for parts that do not fit."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from gguf_writer import Raw, Written, save, toy_llama, write_gguf, write_split

from vivace.cli.models import describe
from vivace.model.errors import ModelError
from vivace.model.load import load_checkpoint
from vivace.model.load.split import GGUFModel

TENSORS = len(toy_llama()[1])


def parts(*counts: int, seed: int = 0, stem: str = "toy", **changes: object) -> dict[str, Written]:
    """The files of a toy split so, with metadata of its first part replaced."""
    metadata, tensors = toy_llama(seed=seed)
    return write_split(metadata | changes, tensors, counts or (3, 4, TENSORS - 7), stem)


def saved(folder: Path, files: Mapping[str, Written]) -> list[Path]:
    return [save(folder / name, written.data) for name, written in files.items()]


def with_metadata(written: Written, **changes: object) -> bytes:
    """A part with other values of its split keys, given without their prefix."""
    data = bytearray(written.data)
    for key, value in changes.items():
        name = f"split.{key.replace('_', '.')}"
        data[written.at[name] : written.at[name] + 4] = int(value).to_bytes(4, "little")  # type: ignore[call-overload]
    return bytes(data)


@pytest.mark.parametrize("counts", [(3, 4, TENSORS - 7), (0, TENSORS), (TENSORS, 0), (1,) * TENSORS])
@pytest.mark.parametrize("version", [2, 3])
def test_the_same_model_at_any_part(counts: tuple[int, ...], version: int, tmp_path: Path) -> None:
    metadata, tensors = toy_llama()
    whole = load_checkpoint(save(tmp_path / "whole.gguf", write_gguf(metadata, tensors, version=version).data))
    paths = saved(tmp_path, parts(*counts))
    found = [load_checkpoint(path) for path in paths]
    assert {checkpoint.fingerprint for checkpoint in found} == {found[0].fingerprint} != {whole.fingerprint}
    assert {(checkpoint.name, checkpoint.path) for checkpoint in found} == {("toy", str(paths[0]))}
    for checkpoint in found:
        assert checkpoint.spec == whole.spec and checkpoint.file_bytes == sum(path.stat().st_size for path in paths)
        for name, matrix in whole.matrices.items():
            np.testing.assert_array_equal(matrix.data, checkpoint.matrices[name].data)
            assert not checkpoint.matrices[name].data.flags.owndata  # a view of the mapped file
        for name, vector in whole.vectors.items():
            np.testing.assert_array_equal(vector, checkpoint.vectors[name])
    assert found[-1].tokenizer.encode("ab") == whole.tokenizer.encode("ab")
    assert describe(str(paths[-1]))["file_bytes"] == found[0].file_bytes


def test_the_fingerprint_covers_every_part(tmp_path: Path) -> None:
    files = parts()
    paths = saved(tmp_path, files)

    def fingerprint() -> str:
        for path in paths:
            os.utime(path, (1, 1))
        return load_checkpoint(paths[0]).fingerprint

    first = fingerprint()
    for path, written in zip(paths, files.values(), strict=True):
        changed = bytearray(written.data)
        changed[-1] ^= 1  # within the last tensor
        save(path, changed)
        assert fingerprint() != first
        save(path, written.data)
        assert fingerprint() == first
    os.utime(paths[2], (2, 2))
    assert load_checkpoint(paths[0]).fingerprint != first


NAMES = list(parts())


@pytest.mark.parametrize("opened", NAMES)
@pytest.mark.parametrize("absent", NAMES)
def test_a_part_is_missing(opened: str, absent: str, tmp_path: Path) -> None:
    saved(tmp_path, parts())
    (tmp_path / absent).unlink()
    number = NAMES.index(absent) + 1
    says = "no such file" if absent == opened else rf"{absent}: part {number} of 3 of a split model is missing$"
    with pytest.raises(ModelError, match=says):
        load_checkpoint(tmp_path / opened)


def other_parts() -> list[tuple[dict[str, bytes], str]]:
    """Files that replace some of the toy's, and what the error says."""
    first, second, third = parts().values()
    _, seventh = parts(3, TENSORS - 3).values()
    tensors = toy_llama()[1]
    split = {"split.no": 1, "split.count": 3, "split.tensors.count": TENSORS}

    def part(**changes: object) -> bytes:
        own = {key: value for key, value in (split | changes).items() if value is not None}
        return bytes(write_gguf(own, dict(list(tensors.items())[3:7])).data)

    return [
        ({NAMES[1]: bytes(third.data)}, r"has the name of part 2, but says it is part 3"),
        ({NAMES[1]: with_metadata(second, count=4)}, r"part of another model than .*: 'split\.count' differs"),
        ({NAMES[1]: bytes(seventh.data)}, r"part of another model than .*: 'split\.count' differs"),
        (
            {NAMES[1]: with_metadata(second, tensors_count=99)},
            r"another model than .*: 'split\.tensors\.count' differs",
        ),
        ({NAMES[1]: part(**{"general.architecture": "qwen2"})}, r"another model .*: 'general\.architecture' differs"),
        ({NAMES[1]: part(**{"split.no": None})}, r"'split\.no' is missing"),
        ({NAMES[1]: part(**{"split.tensors.count": None})}, r"only one has 'split\.tensors\.count'"),
        ({NAMES[1]: b"GGUF"}, "truncated"),
        ({NAMES[1]: bytes(second.data[:-1])}, "truncated: tensor"),
        ({NAMES[2]: with_metadata(second, no=2)}, "is also in another part"),
        ({name: with_metadata(w, tensors_count=13) for name, w in parts().items()}, "have 11 tensors, not 13"),
        ({NAMES[0]: with_metadata(first, no=3)}, r"claims to be part 4 of 3"),
        ({NAMES[0]: with_metadata(first, no=1)}, r"is part 2 of 3 of a split model; it must be named NAME-00002-of"),
        ({NAMES[0]: with_metadata(first, count=2)}, r"it must be named NAME-00001-of-00002\.gguf"),
        ({NAMES[0]: with_metadata(first, count=1 << 31)}, "not between 0 and 99999"),
    ]


OTHERS = other_parts()


@pytest.mark.parametrize(("files", "says"), OTHERS, ids=[f"{i} {says}" for i, (_, says) in enumerate(OTHERS)])
def test_parts_that_do_not_fit(files: dict[str, bytes], says: str, tmp_path: Path) -> None:
    saved(tmp_path, parts())
    for name, data in files.items():
        (tmp_path / name).unlink()
        save(tmp_path / name, data)
    with pytest.raises(ModelError, match=says) as caught:
        load_checkpoint(tmp_path / NAMES[0])
    assert str(caught.value).startswith(str(tmp_path)) and "\n" not in str(caught.value)


def test_a_part_under_another_name(tmp_path: Path) -> None:
    paths = saved(tmp_path, parts())
    lonely = paths[1].rename(tmp_path / "mine.gguf")
    with pytest.raises(ModelError, match=r"part 2 of 3 of a split model; it must be named NAME-00002-of-00003\.gguf"):
        load_checkpoint(lonely)


def test_alignment_is_that_of_each_part(tmp_path: Path) -> None:
    metadata, tensors = toy_llama()
    names, items = ("a-00001-of-00002.gguf", "a-00002-of-00002.gguf"), list(tensors.items())
    own = {"split.count": 2, "split.tensors.count": TENSORS}
    first = write_gguf(metadata | own | {"split.no": 0, "general.alignment": 64}, dict(items[:6]), alignment=64)
    second = write_gguf(own | {"split.no": 1}, dict(items[6:]))
    paths = saved(tmp_path, dict(zip(names, (first, second), strict=True)))
    file = GGUFModel(paths[1])
    assert {name: file.tensors[name].data.tobytes() for name in tensors} == {n: raw.data for n, raw in tensors.items()}


def test_a_part_that_counts_to_one_is_whole(tmp_path: Path) -> None:
    metadata, tensors = toy_llama()
    data = write_gguf(metadata | {"split.no": 0, "split.count": 1, "split.tensors.count": TENSORS}, tensors).data
    assert load_checkpoint(save(tmp_path / "toy-00001-of-00001.gguf", data)).name == "toy-00001-of-00001"


def test_a_tensor_in_no_part(tmp_path: Path) -> None:
    metadata, tensors = toy_llama()
    fewer: dict[str, Raw] = {name: raw for name, raw in tensors.items() if name != "blk.0.ffn_up.weight"}
    paths = saved(tmp_path, write_split(metadata, fewer, (4, 7)))
    with pytest.raises(ModelError, match=r"tensor 'blk\.0\.ffn_up\.weight' is missing"):
        load_checkpoint(paths[1])
