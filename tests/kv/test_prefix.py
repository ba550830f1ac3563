from __future__ import annotations

import numpy as np
import pytest

from vivace.kv import prefix
from vivace.kv.prefix import PrefixCache
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


def test_whole_pages_are_found_again_and_rows_are_those_of_the_tokens(store, cache):
    tokens = list(range(150))
    assert serve(store, cache, tokens) == 0
    assert serve(store, cache, tokens) == 128
    assert serve(store, cache, [*tokens[:70], *range(500, 600)]) == 64
    assert serve(store, cache, [1, *tokens]) == 0
    assert (cache.queries, cache.hits, cache.hit_tokens) == (4, 2, 192)


def test_the_last_token_is_always_computed(store, cache):
    tokens = list(range(128))
    serve(store, cache, tokens)
    assert serve(store, cache, tokens) == 64


def test_keys_separate(store, cache):
    tokens = list(range(100))
    serve(store, cache, tokens, "model a")
    assert serve(store, cache, tokens, "model b") == 0
    assert serve(store, cache, tokens, "model a") == 64


def test_equal_hashes_are_told_apart_by_tokens(store, cache, monkeypatch):
    class Colliding(bytes):
        __slots__ = ()

        def __hash__(self) -> int:
            return 1

    blocks = prefix._blocks
    monkeypatch.setattr(prefix, "_blocks", lambda tokens: [Colliding(block) for block in blocks(tokens)])
    first, second = list(range(130)), list(range(1000, 1130))
    assert serve(store, cache, first) == 0
    assert serve(store, cache, second) == 0
    assert serve(store, cache, first) == serve(store, cache, second) == 128


def test_a_growing_conversation_keeps_one_snapshot(store, cache):
    tokens: list[int] = []
    for turn in range(5):
        tokens = [*tokens, *range(turn * 100, turn * 100 + 100)]
        assert serve(store, cache, tokens) == (len(tokens) - 100) // PAGE * PAGE
    assert len(store._sequences) == 1 and len(cache) == 500 // PAGE
    assert store.free_pages == 32 - 500 // PAGE


def test_eviction_forgets_the_least_recently_used_pages(store, cache):
    first, second = list(range(200)), list(range(1000, 1200))
    serve(store, cache, first)
    serve(store, cache, second)
    serve(store, cache, first)
    assert cache.evict(4) == 4
    assert cache.match(second, "m") is None
    assert cache.match(first, "m")[1] == 128
    assert cache.evict(100) == 2 and len(cache) == 0
    assert store.free_pages == 32
    store.check()


def test_pages_in_use_or_pinned_do_not_come_free(store, cache):
    first, second = list(range(200)), list(range(1000, 1200))
    serve(store, cache, first)
    serve(store, cache, second)
    assert cache.pin(first, "m") == 192
    living, _ = cache.fork(second, "m")
    assert cache.evict(100) == 0 and len(cache) == 3
    assert cache.match(first, "m")[1] == 192
    got, _ = store.gather(living, 0, 0, range(192))
    np.testing.assert_array_equal(got[:, 0], second[:192])
    cache.unpin(first, "m")
    assert cache.evict(100) == 3
    store.drop(living)
    assert store.free_pages == 32


def test_branches_share_the_pages_they_have_in_common(store, cache):
    system = list(range(128))
    for i in range(6):
        serve(store, cache, [*system, *[1000 + i] * 70])
    assert len(cache) == 2 + 6 and store.free_pages == 32 - 8
    assert cache.evict(7) == 7
    assert cache.match(system, "m")[1] == 64
    cache.clear()
    assert store.free_pages == 32 and not store._sequences


def test_evicted_or_shifted_sequences_are_no_prefixes(store, cache):
    tokens = list(range(200))
    seq = compute(store, store.new(), tokens)
    store.keep(seq, None, None, range(50, 200))
    with pytest.raises(ValueError, match="cannot be a prefix"):
        cache.insert(seq, tokens, "m")
