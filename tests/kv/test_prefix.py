from __future__ import annotations

import numpy as np
import pytest

from vivace.kv import prefix
from vivace.kv.prefix import WORTH, PrefixCache
from vivace.kv.spec import PAGE, KVSpec, LayerShape
from vivace.kv.store import KVStore

SPEC = KVSpec((LayerShape(1, 16),))


@pytest.fixture
def store() -> KVStore:
    return KVStore(SPEC, 32)


@pytest.fixture
def cache(store) -> PrefixCache:
    return PrefixCache(store)


def compute(store: KVStore, seq: int, tokens) -> int:
    """Rows whose values are the tokens, behind those that the sequence has."""
    n = store.length(seq)
    if len(tokens) > n:
        store.reserve(seq, np.arange(n, len(tokens), dtype=np.int32))
        values = np.repeat(np.asarray(tokens[n:], np.float32)[:, None], 16, axis=1)
        store.write(seq, 0, 0, n, values, values)
        store.commit(seq)
    return seq


def serve(store: KVStore, cache: PrefixCache, tokens, key: str = "m") -> int:
    """One request, as an engine does it; returns the tokens that came from the cache."""
    hit = cache.fork(tokens[:-1], key)
    seq, length = hit if hit else (store.new(), 0)
    compute(store, seq, tokens)
    got, _ = store.gather(seq, 0, 0, range(len(tokens)))
    np.testing.assert_array_equal(got[:, 0], tokens)
    cache.insert(seq, tokens, key)
    store.drop(seq)
    store.check()
    return length


def worth(length: int) -> int:
    """How much of a known run is taken over."""
    return length if length % PAGE >= WORTH else length - length % PAGE


def test_the_longest_run_is_found_again_and_rows_are_those_of_the_tokens(store, cache):
    tokens = list(range(150))
    assert serve(store, cache, tokens) == 0
    assert serve(store, cache, tokens) == 149
    assert serve(store, cache, [*tokens[:100], *range(500, 600)]) == 100
    assert serve(store, cache, [*tokens[:67], *range(700, 800)]) == 64  # three tokens are not worth a copied page
    assert serve(store, cache, [1, *tokens]) == 0


@pytest.mark.parametrize("length", [1, WORTH - 1, WORTH, 30, 63, 64, 65, 127, 128, 129])
def test_a_cut_anywhere(store, cache, length):
    tokens = list(range(200))
    serve(store, cache, tokens)
    other = [*tokens[:length], *range(500, 570)]
    assert serve(store, cache, other) == worth(length)
    assert serve(store, cache, tokens) == worth(199)


def test_the_last_token_is_always_computed(store, cache):
    tokens = list(range(128))
    serve(store, cache, tokens)
    assert serve(store, cache, tokens) == 127


def test_keys_separate(store, cache):
    tokens = list(range(100))
    serve(store, cache, tokens, "model a")
    assert serve(store, cache, tokens, "model b") == 0
    assert serve(store, cache, tokens, "model a") == 99


def test_equal_hashes_are_told_apart_by_tokens(store, cache, monkeypatch):
    class Colliding(bytes):
        __slots__ = ()

        def __hash__(self) -> int:
            return 1

    monkeypatch.setattr(prefix, "_name", lambda tokens: Colliding(tokens.tobytes()))
    first, second = list(range(130)), list(range(1000, 1130))
    assert serve(store, cache, first) == 0
    assert serve(store, cache, second) == 0
    assert serve(store, cache, first) == serve(store, cache, second) == 128


def test_a_growing_conversation_keeps_one_snapshot(store, cache):
    tokens: list[int] = []
    for turn in range(5):
        before = len(tokens)
        tokens = [*tokens, *range(turn * 100, turn * 100 + 100)]
        assert serve(store, cache, tokens) == worth(before)
    assert len(store._sequences) == 1 and len(cache) == 8
    assert store.free_pages == 32 - 8


def test_what_is_known_already_is_not_held_twice(store, cache):
    tokens = list(range(150))
    first, second = compute(store, store.new(), tokens), compute(store, store.new(), tokens)
    assert cache.insert(first, tokens, "m") == 150
    assert cache.insert(second, tokens, "m") == cache.insert(second, tokens[:140], "m") == 0
    store.drop(first)
    store.drop(second)
    assert store.free_pages == 32 - 3


def test_eviction_forgets_the_least_recently_used_pages(store, cache):
    first, second = list(range(200)), list(range(1000, 1200))
    serve(store, cache, first)
    serve(store, cache, second)
    serve(store, cache, first)
    assert cache.evictable() == 8
    assert cache.evict(5) == 5
    assert cache.match(second, "m") is None
    assert cache.match(first, "m")[1] == 192
    assert cache.evict(100) == 3 and len(cache) == 0
    assert store.free_pages == 32
    store.check()


def test_pages_in_use_or_pinned_do_not_come_free(store, cache):
    first, second = list(range(192)), list(range(1000, 1200))
    serve(store, cache, first)
    serve(store, cache, second)
    assert cache.pin(first, "m") == 192
    living, _ = cache.fork(second[:150], "m")
    assert cache.evictable() == cache.evict(100) == 1  # the last page of the second
    assert cache.match(first, "m")[1] == 192
    assert cache.match(second, "m")[1] == 192
    got, _ = store.gather(living, 0, 0, range(150))
    np.testing.assert_array_equal(got[:, 0], second[:150])
    cache.unpin(first, "m")
    assert cache.evictable() == cache.evict(100) == 3
    store.drop(living)
    assert cache.evict(100) == 3
    assert store.free_pages == 32


def test_branches_share_the_pages_they_have_in_common(store, cache):
    system = list(range(128))
    for i in range(6):
        serve(store, cache, [*system, *[1000 + i] * 70])
    assert len(cache) == 2 + 2 * 6 and store.free_pages == 32 - 14
    assert cache.evict(13) == 13
    assert cache.match(system, "m")[1] == 64
    cache.clear()
    assert store.free_pages == 32 and not store._sequences


def test_evicted_or_shifted_sequences_are_no_prefixes(store, cache):
    tokens = list(range(200))
    seq = compute(store, store.new(), tokens)
    store.keep(seq, None, None, range(50, 200))
    with pytest.raises(ValueError, match="cannot be a prefix"):
        cache.insert(seq, tokens, "m")
    assert not cache.accepts(seq, 150) and not cache.accepts(compute(store, store.new(), tokens[:50]), 51)


@pytest.mark.parametrize("seed", range(20))
def test_random_use(store, cache, seed):
    """Requests that begin alike, living sequences, evictions: rows are right and the counts exact."""
    random = np.random.default_rng(seed)
    living: list[tuple[int, list[int]]] = []
    seen: list[list[int]] = [[]]
    for _ in range(60):
        base = seen[random.integers(len(seen))]
        tokens = [*base[: random.integers(len(base) + 1)], *random.integers(0, 3, random.integers(1, 150)).tolist()]
        tokens = tokens[:400]
        if random.random() < 0.3 and living:
            store.drop(living.pop(random.integers(len(living)))[0])
        need = len(tokens) // PAGE + 2
        promised = cache.evictable() + store.free_pages
        if store.free_pages < need:
            cache.evict(need - store.free_pages)
            assert store.free_pages >= min(need, promised)
        if store.free_pages < need:
            continue
        hit = cache.fork(tokens[:-1], "m")
        seq, length = hit if hit else (store.new(), 0)
        assert length < len(tokens)
        compute(store, seq, tokens)
        got, _ = store.gather(seq, 0, 0, range(len(tokens)))
        np.testing.assert_array_equal(got[:, 0], tokens)
        if random.random() < 0.8:
            whole = bool(random.integers(2))
            cache.insert(seq, tokens[: len(tokens) // PAGE * PAGE] if whole else tokens, "m")
            assert cache.match(tokens, "m")[1] >= len(tokens) // PAGE * PAGE if len(tokens) >= PAGE else True
            seen.append(tokens)
        if random.random() < 0.3:
            living.append((seq, tokens))
        else:
            store.drop(seq)
        store.check()
        held = {page for s in cache._snapshots for page in store.pages(s.seq).tolist()}
        held |= {page for s, _ in living for page in store.pages(s).tolist()}
        assert store.capacity_pages - store.free_pages == len(held)
    for seq, tokens in living:
        got, _ = store.gather(seq, 0, 0, range(len(tokens)))
        np.testing.assert_array_equal(got[:, 0], tokens)
        store.drop(seq)
    assert cache.evictable() == store.capacity_pages - store.free_pages == cache.evict(10**6)
    assert store.free_pages == store.capacity_pages and not cache._snapshots and not cache._roots
