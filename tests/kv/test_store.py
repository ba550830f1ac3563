"""What the store promises, one fact a test. Random histories are in test_store_fuzz.py."""

from __future__ import annotations

import resource
import timeit

import numpy as np
import pytest

from vivace.kv.spec import PAGE, KVSpec, LayerShape
from vivace.kv.store import KVStore, OutOfPages, TransactionError, UnknownSequence

SPEC = KVSpec((LayerShape(2, 32), LayerShape(1, 64)))  # a cell: 8 KiB in layer 0, 16 KiB in layer 1; a page: 32 KiB
PAGE_BYTES = 32 * 1024
KEYS = ((0, 0), (0, 1), (1, 0))


def positions(first: int, n: int) -> np.ndarray:
    return np.arange(first, first + n, dtype=np.int32)


def rows(store: KVStore, layer: int, marks) -> np.ndarray:
    """Rows whose values are all equal to their mark."""
    return np.repeat(np.asarray(marks, np.float32)[:, None], store.spec.layers[layer].head_dim, axis=1)


def fill(store: KVStore, seq: int, marks, commit: bool = True, at: np.ndarray | None = None) -> None:
    """Appends rows with these marks: keys hold the mark, values its negative."""
    n = len(marks)
    pending = store.pending(seq)
    store.reserve(seq, positions(store.next_position(seq) + pending, n) if at is None else at)
    for layer, head in KEYS:
        own = store.overrides(seq).get((layer, head))
        first = (own.length if own else store.length(seq)) + pending
        store.write(seq, layer, head, first, rows(store, layer, marks), -rows(store, layer, marks))
    if commit:
        store.commit(seq)


def marks(store: KVStore, seq: int, layer: int = 0, head: int = 0) -> list[int]:
    n = len(store.positions(seq, layer, head))
    k, v = store.gather(seq, layer, head, range(n))
    assert (k == k[:, :1]).all() and (v == -k).all()
    return k[:, 0].astype(int).tolist()


@pytest.fixture
def store() -> KVStore:
    return KVStore(SPEC, 16)


def test_planes_have_the_layout_that_kernels_read(store):
    seq = store.new()
    fill(store, seq, range(1, 70))
    page, slot = store.pages(seq)[68 // PAGE], 68 % PAGE
    for layer, head in KEYS:
        dim = SPEC.layers[layer].head_dim
        plane = store.planes[layer]
        assert plane.shape == (SPEC.layers[layer].kv_heads, 16, 2, dim * PAGE)
        assert plane.flags.c_contiguous and plane.ctypes.data % 64 == 0
        cell = plane[head, page].view(np.float16)
        assert (cell[0].reshape(dim, PAGE)[:, slot] == 69).all()
        assert (cell[1].reshape(PAGE, dim)[slot] == -69).all()


def test_half_floats_round_to_even_clamp_and_keep_nan(store):
    seq = store.new()
    store.reserve(seq, positions(0, 1))
    values = np.zeros((1, 32), np.float32)
    values[0, :6] = [2049, 2051, 65520, -1e30, np.inf, np.nan]
    store.write(seq, 0, 0, 0, values, values)
    for got in store.gather(seq, 0, 0, [0]):
        np.testing.assert_array_equal(got[0, :6], [2048, 2052, 65504, -65504, 65504, np.nan])


def test_float32_values_are_stored_as_they_are():
    store = KVStore(KVSpec(SPEC.layers, 4), 2)
    seq = store.new()
    store.reserve(seq, positions(0, 1))
    values = np.float32(np.pi) * np.ones((1, 32), np.float32)
    store.write(seq, 0, 1, 0, values, values)
    np.testing.assert_array_equal(store.gather(seq, 0, 1, [0])[0], values)


def test_all_heads_of_a_layer_at_once(store):
    seq = store.new()
    store.reserve(seq, positions(0, 3))
    k = np.arange(2 * 3 * 32, dtype=np.float32).reshape(2, 3, 32)
    store.write(seq, 0, None, 0, k, -k)
    got_k, got_v = store.gather(seq, 0, None, [2, 0])
    np.testing.assert_array_equal(got_k, k[:, [2, 0]])
    np.testing.assert_array_equal(got_v, -k[:, [2, 0]])


def test_a_tree_built_in_steps_commits_its_path(store):
    seq = store.new()
    fill(store, seq, range(62))
    fill(store, seq, [100, 101, 102], commit=False, at=np.array([62, 62, 62], np.int32))
    fill(store, seq, [200, 201, 202], commit=False, at=np.array([63, 63, 63], np.int32))
    fill(store, seq, [300], commit=False, at=np.array([64], np.int32))
    store.commit(seq, [1, 5, 6])
    for key in KEYS:
        assert marks(store, seq, *key) == [*range(62), 101, 202, 300]
    assert store.positions(seq)[-3:].tolist() == [62, 63, 64] and store.next_position(seq) == 65
    store.check()


def test_rows_that_lack_a_key_are_left_out_of_its_lists_by_a_commit(store):
    """Even where a fork shares the page that they lie in: nothing has to be copied."""
    state, seq = Recorder(), store.new()
    fill(store, seq, range(62))
    store.keep(seq, 0, 0, range(1, 62))
    lacks = np.array([[True, False], [False, True], [False, False], [True, False]])
    store.reserve(seq, positions(62, 4), lacks=lacks)
    for layer, head in KEYS:
        new = rows(store, layer, [100, 101, 102, 103])
        store.write(seq, layer, head, len(store.positions(seq, layer, head)), new, -new)
    assert store.lacks(seq).tolist() == [True, True]
    child = store.fork(seq)
    store.attach(state)
    store.commit(seq, [0, 2, 3])
    assert store.lacks(seq) is None and (store.length(seq), store.length(child)) == (65, 62)
    assert marks(store, seq, 0, 0) == [*range(1, 62), 102] and marks(store, child, 0, 0) == list(range(1, 62))
    assert marks(store, seq, 0, 1) == [*range(62), 102] and store.positions(seq, 0, 1)[-1] == 64
    assert marks(store, seq, 1, 0) == [*range(62), 100, 102, 103]
    assert list(store.overrides(seq)) == [(0, 0), (0, 1)]
    assert state.calls == [
        ("commit", seq, [0, 2, 3]),
        ("keep", seq, 0, 0, [*range(61), 62]),
        ("keep", seq, 0, 1, [*range(62), 63]),
    ]
    store.check()
    store.retract(seq, 2)
    assert [len(store.positions(seq, *key)) for key in KEYS] == [61, 62, 63]
    store.check()


def test_scratch_rows_go_without_touching_earlier_pending_ones(store):
    seq = store.new()
    fill(store, seq, [1, 2], commit=False)
    fill(store, seq, range(70), commit=False)
    assert store.bytes().resident == 2 * PAGE_BYTES
    store.rollback(seq, 2)
    assert store.bytes().resident == PAGE_BYTES
    store.commit(seq)
    assert marks(store, seq) == [1, 2]


@pytest.mark.parametrize("wrong", [3, -1, [0, 0], [2], [-1], [1, 0]])
def test_rows_that_cannot_be_committed(store, wrong):
    seq = store.new()
    fill(store, seq, [7, 8], commit=False)
    with pytest.raises(TransactionError):
        store.commit(seq, wrong)
    store.check()
    store.commit(seq)
    assert marks(store, seq) == [7, 8]


def test_committed_positions_ascend_from_the_last(store):
    seq = store.new()
    fill(store, seq, [1], at=np.array([5], np.int32))
    store.reserve(seq, np.array([5], np.int32))
    with pytest.raises(TransactionError, match="from 6 on"):
        store.commit(seq)


def test_out_of_pages_says_how_many_and_changes_nothing(store):
    seq, other = store.new(), store.new()
    fill(store, seq, range(14 * PAGE - 1))
    fill(store, other, [1])
    with pytest.raises(OutOfPages, match=r"2 page\(s\) short of 16") as error:
        store.reserve(seq, positions(14 * PAGE - 1, 1 + 3 * PAGE))
    assert error.value.short == 2
    assert (store.length(seq), store.pending(seq), store.free_pages) == (14 * PAGE - 1, 0, 1)
    store.check()
    fill(store, seq, range(1 + PAGE))


def test_forks_share_pages_and_copy_only_the_last_when_written(store):
    seq = store.new()
    fill(store, seq, range(70))
    child = store.fork(seq)
    assert store.bytes().resident == store.bytes().shared == 2 * PAGE_BYTES
    fill(store, child, [500])
    assert store.bytes().resident == 3 * PAGE_BYTES and store.bytes().shared == PAGE_BYTES
    fill(store, seq, [600])
    assert store.bytes().resident == 3 * PAGE_BYTES  # the parent is now alone on its last page
    assert marks(store, seq) == [*range(70), 600] and marks(store, child) == [*range(70), 500]
    store.drop(seq)
    assert marks(store, child) == [*range(70), 500]
    store.check()


def test_reserving_nothing_does_not_open_a_shared_page(store):
    seq = store.new()
    fill(store, seq, [1])
    child = store.fork(seq)
    store.reserve(seq, positions(1, 0))
    store.check()
    fill(store, seq, [2])
    fill(store, child, [3])
    assert marks(store, seq) == [1, 2] and marks(store, child) == [1, 3]


@pytest.mark.parametrize("back", ["truncate", "keep", "keep in one list", "truncate one list"])
def test_going_back_into_a_shared_page_does_not_write_to_it(store, back):
    seq, n = store.new(), PAGE
    fill(store, seq, range(n))
    if back == "truncate one list":  # only the override ends with a full page, which stays shared
        n += 10
        fill(store, seq, range(PAGE, n))
        store.keep(seq, 0, 0, range(PAGE))
    child = store.fork(seq)
    fill(store, seq, range(100))
    if back == "keep":
        store.keep(seq, None, None, range(30))
    elif back == "keep in one list":
        store.keep(seq, 0, 0, range(30))
    else:
        store.truncate(seq, 30)
    store.check()
    fill(store, seq, [7])
    assert marks(store, seq) == [*range(30), 7]
    assert marks(store, child, 0, 1) == list(range(n)) and marks(store, child) == list(range(PAGE))
    store.check()


def test_a_full_last_page_is_not_copied(store):
    seq = store.new()
    fill(store, seq, range(PAGE))
    child = store.fork(seq)
    fill(store, child, [1])
    assert store.bytes().resident == 2 * PAGE_BYTES
    assert store.pages(child)[0] == store.pages(seq)[0]


def test_a_fork_leaves_pending_rows_to_the_parent(store):
    seq = store.new()
    fill(store, seq, [1, 2])
    fill(store, seq, [3, 4], commit=False)
    child = store.fork(seq)
    fill(store, child, [9])
    fill(store, seq, [5], commit=False)
    store.commit(seq, [0, 2])
    assert marks(store, seq) == [1, 2, 3, 5] and marks(store, child) == [1, 2, 9]
    store.check()


def test_a_parent_with_pending_rows_in_a_shared_page_copies_it_before_it_adds_more(store):
    seq = store.new()
    fill(store, seq, [1])
    fill(store, seq, range(64), commit=False)
    child = store.fork(seq)
    fill(store, seq, [2], commit=False)
    store.check()
    store.rollback(seq)
    fill(store, seq, [3])
    fill(store, child, [4])
    assert marks(store, seq) == [1, 3] and marks(store, child) == [1, 4]
    store.check()


def test_a_storm_of_forks_comes_back_to_nothing(store):
    alive = [store.new()]
    fill(store, alive[0], range(PAGE + 3))
    for i in range(200):
        alive.append(store.fork(alive[i % len(alive)]))
        if i % 3 == 0:
            fill(store, alive[-1], [i])
            store.truncate(alive[-1], PAGE + 3)
        if len(alive) > 12:
            store.drop(alive.pop(i % 12))
        store.check()
        assert marks(store, alive[-1]) == list(range(PAGE + 3))
    for seq in alive:
        store.drop(seq)
    store.check()
    assert store.free_pages == 16 and store.bytes().resident == 0


def test_replaced_rows_come_back_on_rollback_and_forks_never_see_them(store):
    seq = store.new()
    fill(store, seq, range(130))
    child = store.fork(seq)
    store.replace(seq, [3, 65])
    row_bytes = PAGE_BYTES // PAGE
    assert store.bytes().undo == 2 * row_bytes
    for layer, head in KEYS:
        store.write(seq, layer, head, 3, rows(store, layer, [77]), -rows(store, layer, [77]))
        store.write(seq, layer, head, 65, rows(store, layer, [78]), -rows(store, layer, [78]))
    with pytest.raises(TransactionError, match="row 4"):
        store.write(seq, 0, 0, 4, rows(store, 0, [1]), rows(store, 0, [1]))
    for refused in (store.fork, lambda s: store.truncate(s, 0), lambda s: store.keep(s, 0, 0, [])):
        with pytest.raises(TransactionError):
            refused(seq)
    assert marks(store, seq)[3] == 77 and marks(store, child) == list(range(130))
    store.rollback(seq)
    assert marks(store, seq) == list(range(130)) and store.bytes().undo == 0
    store.replace(seq, [129])
    store.write(seq, 0, 0, 129, rows(store, 0, [79]), -rows(store, 0, [79]))
    store.commit(seq)
    assert marks(store, seq)[129] == 79
    store.check()


def test_rows_replaced_twice_come_back_as_they_were(store):
    seq = store.new()
    fill(store, seq, range(4))
    for mark in (50, 60):
        store.replace(seq, [2])
        store.write(seq, 0, 0, 2, rows(store, 0, [mark]), -rows(store, 0, [mark]))
    store.rollback(seq)
    assert marks(store, seq) == [0, 1, 2, 3]


def test_dropping_pending_rows_leaves_replaced_ones_and_restoring_leaves_pending_ones(store):
    seq = store.new()
    fill(store, seq, range(4))
    for mark in (50, 60):
        store.replace(seq, [2])
        store.write(seq, 0, 0, 2, rows(store, 0, [mark]), -rows(store, 0, [mark]))
    fill(store, seq, [7, 8], commit=False)
    store.rollback(seq, 0)
    assert (marks(store, seq)[2], store.pending(seq)) == (60, 0)
    fill(store, seq, [9], commit=False)
    store.restore(seq, 1)
    assert (marks(store, seq)[2], store.pending(seq)) == (50, 1)
    with pytest.raises(TransactionError, match="undo 2 replaces: sequence 0 has 1"):
        store.restore(seq, 2)
    store.restore(seq)
    store.commit(seq)
    assert marks(store, seq) == [0, 1, 2, 3, 9]
    store.check()


def test_retract_takes_back_a_provisional_commit(store):
    seq = store.new()
    fill(store, seq, range(66))
    store.retract(seq, 3)
    assert (store.length(seq), store.next_position(seq)) == (63, 63)
    fill(store, seq, [9])
    assert marks(store, seq) == [*range(63), 9]
    store.check()


def test_retract_is_refused_for_folded_and_evicted_rows(store):
    seq = store.new()
    fill(store, seq, range(70))
    store.seal(seq, 64)
    with pytest.raises(TransactionError, match="6 follow"):
        store.retract(seq, 7)
    store.keep(seq, 1, 0, range(30))
    fill(store, seq, [1])
    with pytest.raises(TransactionError, match="1 follow"):
        store.retract(seq, 2)
    store.retract(seq, 1)
    assert marks(store, seq, 1) == list(range(30))


def test_eviction_of_one_head_frees_its_cells_and_others_reuse_them(store):
    seq, cell = store.new(), 8 * 1024
    fill(store, seq, range(4 * PAGE))
    kept = [0, *range(200, 256)]
    store.keep(seq, 0, 1, kept)
    assert store.bytes().resident == 4 * PAGE_BYTES - 3 * cell
    assert marks(store, seq, 0, 1) == kept and marks(store, seq, 0, 0) == list(range(256))
    assert store.positions(seq, 0, 1).tolist() == kept
    own = store.overrides(seq)[0, 1]
    assert (own.length, len(own.pages)) == (57, 1)
    assert store.read_bytes(seq, 0) == (256 + 57) * cell // PAGE
    assert store.read_bytes(seq, 0, window=100) == (100 + 57) * cell // PAGE
    fill(store, seq, range(300, 310))
    assert marks(store, seq, 0, 1) == [*kept, *range(300, 310)]
    assert own.pages[1] in store.pages(seq)  # in its own lane, a cell that the common list had left
    assert store.free_pages == 11
    store.check()


def test_a_sequence_of_overrides_only_has_no_common_pages(store):
    seq = store.new()
    fill(store, seq, range(200))
    child = store.fork(seq)
    for layer in range(2):
        store.keep(seq, layer, None, range(0, 200, 2))
    assert len(store.pages(seq)) == 0 and store.length(seq) == 200
    fill(store, seq, range(200, 264))
    for key in KEYS:
        assert marks(store, seq, *key) == [*range(0, 200, 2), *range(200, 264)]
        assert marks(store, child, *key) == list(range(200))
    store.truncate(seq, 100)
    assert marks(store, seq, 1) == list(range(0, 100, 2))
    store.truncate(seq, 0)
    assert not store.overrides(seq)
    fill(store, seq, [4])
    assert marks(store, seq) == [4]
    store.check()


def test_keeping_everything_changes_nothing(store):
    seq = store.new()
    fill(store, seq, range(100))
    for layer, head in ((None, None), (0, None), (1, 0)):
        store.keep(seq, layer, head, range(100))
    assert not store.overrides(seq)
    store.retract(seq, 1)


@pytest.mark.parametrize("wrong", [[5, 4], [3, 3], [-1, 2], [99, 100], list(range(1, 101))])
def test_ordinals_that_cannot_be_kept(store, wrong):
    seq = store.new()
    fill(store, seq, range(100))
    for layer in (None, 0):
        with pytest.raises(TransactionError, match="ascend"):
            store.keep(seq, layer, None, wrong)
    fill(store, seq, [1], commit=False)
    with pytest.raises(TransactionError, match="transaction"):
        store.keep(seq, 0, None, [0])


def test_eviction_of_the_common_list_remembers_the_next_position(store):
    seq = store.new()
    fill(store, seq, range(100))
    store.keep(seq, None, None, range(50))
    assert (store.length(seq), store.next_position(seq)) == (50, 100)
    fill(store, seq, [1])
    store.retract(seq, 1)
    assert store.next_position(seq) == 100 and store.bytes().resident == PAGE_BYTES
    store.truncate(seq, 40)
    assert store.next_position(seq) == 40
    fill(store, seq, range(20))
    store.retract(seq, 10)
    assert store.next_position(seq) == 50


def test_eviction_that_cannot_copy_shared_pages_changes_nothing(store):
    seq = store.new()
    fill(store, seq, range(15 * PAGE))
    child = store.fork(seq)
    for layer, head in ((None, None), (0, None), (1, 0)):
        with pytest.raises(OutOfPages) as error:
            store.keep(seq, layer, head, range(1, 3 * PAGE))
        assert error.value.short == 2
    store.check()
    assert not store.overrides(seq) and store.free_pages == 1
    store.keep(seq, 0, None, range(1, PAGE))
    assert marks(store, seq) == list(range(1, PAGE)) and marks(store, child) == list(range(15 * PAGE))


def test_a_new_common_page_leaves_a_cell_to_each_override(store):
    seq, other = store.new(), store.new()
    fill(store, other, [1])
    fill(store, seq, range(14 * PAGE))
    store.keep(seq, 0, 0, range(14 * PAGE - 1))
    fill(store, seq, range(PAGE))  # the last free page id serves the common list and, in its own lane, the override
    assert store.free_pages == 0 and store.pages(seq)[-1] == store.overrides(seq)[0, 0].pages[-1]
    with pytest.raises(OutOfPages, match="1 page"):
        store.reserve(seq, positions(15 * PAGE, 1))
    store.check()


def test_biases_follow_their_rows(store):
    seq = store.new()
    fill(store, seq, range(80))
    assert store.biases(seq, 0, 1) is None
    store.set_biases(seq, 0, 1, [3, 70], [1.5, 2.5])
    fill(store, seq, range(80, 90))
    store.keep(seq, 0, None, [2, 3, 4, 70, 85])
    assert store.biases(seq, 0, 1).tolist() == [0, 1.5, 0, 2.5, 0]
    child = store.adopt(store.export(store.fork(seq)))
    with pytest.raises(TransactionError, match="0 follow"):
        store.retract(child, 1)
    store.truncate(child, 60)
    assert store.biases(child, 0, 1).tolist() == [0, 1.5, 0] and store.biases(child, 0, 0) is None


def test_biases_follow_an_eviction_of_the_common_list(store):
    seq = store.new()
    fill(store, seq, range(10))
    store.set_biases(seq, 1, 0, [4], [2.0])
    store.keep(seq, None, None, [1, 4, 9])
    assert store.biases(seq, 1, 0).tolist() == [0, 2, 0]


def test_page_callbacks_come_when_a_commit_makes_a_page_whole(store):
    seen = []
    store.on_page(lambda seq, page: seen.append((page, store.length(seq))))
    seq = store.new()
    fill(store, seq, range(63))
    fill(store, seq, range(2), commit=False)
    assert seen == []
    store.commit(seq, 1)
    fill(store, seq, range(130))
    assert seen == [(0, 64), (1, 194), (2, 194)]


def test_exact_bytes_and_trim(store):
    seq = store.new()
    assert store.bytes().reserved == 16 * PAGE_BYTES
    fill(store, seq, range(3 * PAGE))
    assert store.bytes().resident == 3 * PAGE_BYTES
    store.truncate(seq, 10)
    assert store.bytes().resident == PAGE_BYTES
    assert store.trim() == 2 * PAGE_BYTES
    assert marks(store, seq) == list(range(10))
    store.check()


def test_memory_is_committed_lazily_and_given_back():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    store = KVStore(KVSpec((LayerShape(8, 128),) * 32), 16384)  # 128 GiB of address space
    assert store.bytes().reserved == 128 << 30
    seq = store.new()
    store.reserve(seq, positions(0, 1))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024


def test_export_and_adopt_move_uniform_and_ragged_sequences(store):
    seq = store.new()
    fill(store, seq, range(100))
    whole = store.export(seq)
    store.keep(seq, 0, 1, range(40))
    ragged = store.export(seq)
    other = KVStore(SPEC, 4)
    moved = other.adopt(ragged)
    fill(other, moved, [100])
    assert marks(other, moved, 0, 1) == [*range(40), 100] and marks(other, moved, 1) == list(range(101))
    assert list(other.overrides(moved)) == [(0, 1)]
    with pytest.raises(OutOfPages):
        KVStore(SPEC, 1).adopt(whole)
    again = other.adopt(whole)
    assert not other.overrides(again) and marks(other, again) == list(range(100))
    other.check()
    layer = KVStore(KVSpec(SPEC.layers[1:]), 4)
    assert layer.length(layer.adopt(store.export(seq, [1]))) == 100


@pytest.mark.parametrize("what", ["shape", "dtype", "missing", "order", "next"])
def test_a_blob_that_does_not_fit_is_refused(store, what):
    seq = store.new()
    fill(store, seq, range(10))
    blob = store.export(seq)
    rows_ = blob.lists[0, 0]
    if what == "shape":
        blob = store.export(seq, [0])
    elif what == "dtype":
        object.__setattr__(rows_, "k", rows_.k.astype(np.float32))
    elif what == "missing":
        del blob.lists[1, 0]
    elif what == "order":
        blob.positions[3] = 9
    else:
        object.__setattr__(blob, "next_position", 5)
    with pytest.raises(ValueError):
        store.adopt(blob)
    store.check()
    assert store.bytes().resident == PAGE_BYTES


def test_unknown_sequences(store):
    seq = store.new()
    store.drop(seq)
    for call in (store.drop, store.fork, store.length, store.commit, store.pages):
        with pytest.raises(UnknownSequence, match="no sequence 0"):
            call(seq)


class Recorder:
    def __init__(self, name: str = "recorder", fail: bool = False) -> None:
        self.name = name
        self.calls: list[tuple] = []
        self.fail = fail

    def reserve(self, seq, positions):
        self.calls.append(("reserve", seq, positions.tolist()))
        if self.fail:
            raise MemoryError("no room")

    def can_cut(self, seq, length):
        return True

    def __getattr__(self, name):
        return lambda *arguments: self.calls.append(
            (name, *(list(a) if isinstance(a, (range, list, np.ndarray)) else a for a in arguments))
        )


def test_participants_see_each_transaction(store):
    state = Recorder()
    store.attach(state)
    seq = store.new()
    store.reserve(seq, positions(0, 3))
    store.reserve(seq, positions(3, 1))
    store.rollback(seq, 3)
    store.commit(seq, [0, 2])
    store.reserve(seq, positions(3, 2))
    store.commit(seq, 1)
    child = store.fork(seq)
    store.keep(seq, 0, None, [1, 2])
    store.truncate(seq, 2)
    store.retract(child, 1)
    store.replace(child, [0])
    store.replace(child, [1])
    store.restore(child, 1)
    store.reserve(child, positions(3, 1))
    store.rollback(child)
    store.drop(seq)
    assert state.calls == [
        ("reserve", 0, [0, 1, 2]),
        ("reserve", 0, [3]),
        ("rollback", 0, 3),
        ("commit", 0, [0, 2]),
        ("reserve", 0, [3, 4]),
        ("commit", 0, [0]),
        ("fork", 0, 1),
        ("keep", 0, 0, None, [1, 2]),
        ("truncate", 0, 2),
        ("truncate", 1, 2),
        ("replace", 1, [0]),
        ("replace", 1, [1]),
        ("restore", 1, [1]),
        ("reserve", 1, [3]),
        ("restore", 1, [0]),
        ("rollback", 1, 0),
        ("drop", 0),
    ]


def test_a_participant_that_cannot_reserve_stops_all(store):
    good, bad = Recorder("good"), Recorder("bad", fail=True)
    seq = store.new()
    fill(store, seq, [1, 2])
    store.attach(good)
    store.attach(bad)
    with pytest.raises(MemoryError):
        store.reserve(seq, positions(2, 100))
    assert good.calls == [("reserve", seq, list(range(2, 102))), ("rollback", seq, 0)]
    assert (store.length(seq), store.pending(seq), store.bytes().resident) == (2, 0, PAGE_BYTES)
    store.check()
    bad.fail = False
    fill(store, seq, range(100))
    good.calls.clear()
    with pytest.raises(OutOfPages):
        store.reserve(seq, positions(102, 16 * PAGE))
    assert good.calls == []


def test_check_notices_a_lost_reference_and_a_wrong_length(store):
    seq = store.new()
    fill(store, seq, range(70))
    page = int(store.pages(seq)[0])
    store.pool.refs[1, page] += 1
    with pytest.raises(AssertionError, match=f"cell {page} of lane 1"):
        store.check()
    store.pool.refs[1, page] -= 1
    store.check()
    store._sequences[seq].main.length = 10
    with pytest.raises(AssertionError, match="2 pages for 10 rows"):
        store.check()


def test_one_row_costs_microseconds():
    store = KVStore(KVSpec((LayerShape(3, 64),) * 30), 64)
    at = [positions(i, 1) for i in range(2000)]

    def decode() -> None:
        seq = store.new()
        for one in at:
            store.reserve(seq, one)
            store.commit(seq, 1)
        store.drop(seq)

    assert min(timeit.repeat(decode, number=1, repeat=9)) / len(at) < 5e-6
