"""The reference executor over the store: every kind of row, against a second model written with loops (naive.py)."""

from __future__ import annotations

import dataclasses
from functools import cache

import numpy as np
import pytest
from hf_zoo import checkpoint_of, random_tokens, zoo_model
from naive import Naive, Rules

from vivace.core.step import Mask, Segment, StepError, StepRequest, StepResult, Write, all_rows
from vivace.core.taps import Tap, UndeclaredTap
from vivace.exec import reference
from vivace.exec.reference import ReferenceExecutor
from vivace.model.weights import Checkpoint

NAMES = ["llama-4to1-biased-wide-heads", "qwen2-1to1-window", "gemma3-3to1-softcap"]


@cache
def checkpoint(name: str) -> Checkpoint:
    """A zoo model, changed to what no family has yet: half-turned heads, rope factors, soft-capped attention."""
    plain = checkpoint_of(zoo_model(name))

    def changed(block):
        attention, rope = block.attention, block.attention.rope
        dim = rope.dim // 2
        factors = tuple(1 + 0.25 * j for j in range(dim // 2))
        rope = dataclasses.replace(rope, dim=dim, factors=factors, attention_factor=1.1)
        return dataclasses.replace(block, attention=dataclasses.replace(attention, rope=rope, softcap=1.5))

    blocks = tuple(changed(block) for block in plain.spec.blocks)
    return dataclasses.replace(plain, spec=dataclasses.replace(plain.spec, blocks=blocks))


@pytest.fixture(params=NAMES)
def executor(request) -> ReferenceExecutor:
    return ReferenceExecutor(checkpoint(request.param), capacity_pages=16)


def naive(executor: ReferenceExecutor, tokens, positions=None, sees=None, **rules) -> np.ndarray:
    """Logits [rows, vocab] of rows that see those before them, or those that `sees` says."""
    positions = np.arange(len(tokens)) if positions is None else positions
    return Naive(executor._checkpoint).run(
        np.asarray(tokens), np.asarray(positions), Rules(sees or (lambda layer, head, row, key: key <= row), **rules)
    )


def step(executor: ReferenceExecutor, *segments: Segment, **request) -> StepResult:
    return executor.run(StepRequest(list(segments), **request))


def all_logits(seq: int, tokens, **fields) -> Segment:
    return Segment(seq, np.asarray(tokens, np.int32), logits=all_rows(len(tokens)), **fields)


def prefilled(executor: ReferenceExecutor, tokens, **fields) -> int:
    seq = executor.store.new()
    step(executor, Segment(seq, np.asarray(tokens, np.int32), **fields))
    executor.store.commit(seq)
    return seq


def close(found: np.ndarray, wanted: np.ndarray) -> bool:
    return found.shape == wanted.shape and bool(np.abs(found - wanted).max() <= 1e-5 * np.abs(wanted).max())


def stored(executor: ReferenceExecutor, seq: int) -> list[np.ndarray]:
    store, n = executor.store, executor.store.length(seq)
    layers = range(len(executor.spec.blocks))
    return [x for layer in layers for x in store.gather(seq, layer, None, np.arange(n))]


def test_causal_rows(executor):
    tokens = random_tokens(30)
    seq = executor.store.new()
    assert close(step(executor, all_logits(seq, tokens)).logits, naive(executor, tokens))


def test_explicit_positions_and_windows_by_position(executor):
    tokens, positions = random_tokens(14), np.array([0, 1, 2, 7, 8, 9, 10, 15, 16, 17, 30, 31, 32, 60], np.int32)
    seq = prefilled(executor, tokens[:9], positions=positions[:9])
    result = step(executor, all_logits(seq, tokens[9:], positions=positions[9:]))
    assert close(result.logits, naive(executor, tokens, positions)[9:])


def test_tree(executor):
    tokens, parents = random_tokens(18), np.array([-1, 0, 0, 2, -1, 4, 3], np.int32)
    seq = prefilled(executor, tokens[:11])
    result = step(executor, all_logits(seq, tokens[11:], mask=Mask.TREE, parents=parents))
    paths = [{0}, {0, 1}, {0, 2}, {0, 2, 3}, {4}, {4, 5}, {0, 2, 3, 6}]
    positions = [*range(11), *(10 + len(path) for path in paths)]

    def sees(layer, head, row, key):
        return key <= row if row < 11 else key < 11 or key - 11 in paths[row - 11]

    assert close(result.logits, naive(executor, tokens, positions, sees)[11:])


def test_a_committed_path_of_a_tree_is_its_text(executor):
    tokens, parents = random_tokens(17), np.array([-1, 0, 0, 2, 3], np.int32)
    seq = prefilled(executor, tokens[:11])
    step(executor, Segment(seq, tokens[11:16], mask=Mask.TREE, parents=parents))
    executor.store.commit(seq, [0, 2, 3])
    text = np.concatenate([tokens[:11], tokens[[11, 13, 14, 16]]])
    assert close(step(executor, Segment(seq, tokens[16:])).logits, naive(executor, text)[-1:])


def test_block_and_given(executor):
    tokens = random_tokens(16)
    seq = prefilled(executor, tokens[:10])
    block = all_logits(seq, tokens[10:], mask=Mask.BLOCK, write=Write.SCRATCH)

    def sees_block(layer, head, row, key):
        return key <= row or row >= 10

    assert close(step(executor, block).logits, naive(executor, tokens, sees=sees_block)[10:])
    allowed = np.random.default_rng(3).random((6, 6)) < 0.4

    def sees_given(layer, head, row, key):
        return key <= row if row < 10 else key < 10 or key == row or allowed[row - 10, key - 10]

    given = all_logits(seq, tokens[10:], mask=Mask.GIVEN, allowed=allowed)
    assert close(step(executor, given).logits, naive(executor, tokens, sees=sees_given)[10:])


def test_vectors_stand_for_tokens(executor):
    tokens = random_tokens(8)
    vectors = executor.weights["embed"].numpy()[tokens] * np.float32(executor.spec.embed_scale)
    as_tokens = step(executor, all_logits(executor.store.new(), tokens)).logits
    as_vectors = Segment(executor.store.new(), None, vectors, logits=all_rows(8))
    both = step(executor, Segment(executor.store.new(), tokens[:3]), as_vectors)
    assert close(both.of(1), as_tokens)
    assert close(both.of(0), as_tokens[2:3])


def test_segments_of_one_step_do_not_touch_each_other(executor):
    texts = [random_tokens(n, seed=n) for n in (3, 13, 1)]
    prompts = [random_tokens(n, seed=n) for n in (9, 1, 20)]
    seqs = [prefilled(executor, prompt) for prompt in prompts]
    wanted = [naive(executor, np.concatenate(pair))[-len(pair[1]) :] for pair in zip(prompts, texts, strict=True)]
    result = step(executor, *(all_logits(seq, text) for seq, text in zip(seqs, texts, strict=True)))
    for i in range(3):
        assert close(result.of(i), wanted[i])


def test_pending_rows_are_seen(executor):
    tokens = random_tokens(12)
    seq = executor.store.new()
    for token in tokens:
        result = step(executor, Segment(seq, np.array([token], np.int32)))
    assert executor.store.pending(seq) == 12
    assert close(result.logits, naive(executor, tokens)[-1:])


def test_scratch_rows_leave_nothing(executor):
    tokens = random_tokens(12)
    seq = prefilled(executor, tokens[:8])
    step(executor, Segment(seq, tokens[8:10]))
    before = stored(executor, seq)
    result = step(executor, all_logits(seq, tokens[10:], write=Write.SCRATCH))
    assert close(result.logits, naive(executor, tokens)[10:])
    assert (executor.store.length(seq), executor.store.pending(seq)) == (8, 2)
    assert all(np.array_equal(x, y) for x, y in zip(stored(executor, seq), before, strict=True))
    executor.store.check()


def test_replaced_rows(executor):
    """A block in the middle of a text, computed anew with other tokens: it sees all keys, the later ones too."""
    old, new = random_tokens(14), random_tokens(14)
    new[[5, 6, 9]] = (new[[5, 6, 9]] + 1) % executor.spec.vocab
    seq = prefilled(executor, old, mask=Mask.BLOCK)
    before = stored(executor, seq)
    ordinals = np.array([5, 6, 9], np.int32)
    request = all_logits(seq, new[ordinals], mask=Mask.BLOCK, write=Write.REPLACE, ordinals=ordinals)
    found = step(executor, request).logits
    fresh = ReferenceExecutor(executor._checkpoint, capacity_pages=4)
    # The rest of the text keeps keys of the old text, so a copy is built that way: old keys pending before new rows.
    other = prefilled(fresh, old, mask=Mask.BLOCK)
    for layer in range(len(fresh.spec.blocks)):
        fresh.store.keep(other, layer, None, np.setdiff1d(np.arange(14), ordinals))
    wanted = all_logits(other, new[ordinals], mask=Mask.BLOCK, positions=ordinals)
    assert close(found, step(fresh, wanted).logits)
    executor.store.rollback(seq)
    assert all(np.array_equal(x, y) for x, y in zip(stored(executor, seq), before, strict=True))


def test_replacing_every_row_is_a_new_text(executor):
    old, new = random_tokens(9), random_tokens(9, seed=4)
    seq = prefilled(executor, old)
    step(executor, Segment(seq, new, write=Write.REPLACE, ordinals=all_rows(9)))
    executor.store.commit(seq)
    tokens = np.append(new, np.int32(7))
    assert close(step(executor, Segment(seq, tokens[-1:])).logits, naive(executor, tokens)[-1:])


def test_part_of_the_depth(executor):
    """Layers 0..1, then the rest over the same rows, is the whole model; then both parts' keys are read."""
    tokens = random_tokens(11)
    seq = executor.store.new()
    lower = step(executor, Segment(seq, tokens[:10]), last_layer=1, taps=frozenset([Tap("hidden", 1)]))
    assert lower.logits.shape == (0, executor.spec.vocab)
    executor.store.commit(seq)
    upper = Segment(seq, None, lower.taps[Tap("hidden", 1)], write=Write.REPLACE, ordinals=all_rows(10))
    upper.logits = all_rows(10)
    wanted = naive(executor, tokens)
    assert close(step(executor, upper, first_layer=1).logits, wanted[:10])
    executor.store.commit(seq)
    assert close(step(executor, Segment(seq, tokens[10:])).logits, wanted[10:])


def test_the_head_alone(executor):
    blocks = len(executor.spec.blocks)
    last = Tap("hidden", blocks)
    result = step(executor, all_logits(executor.store.new(), random_tokens(5)), taps=frozenset([last]))
    head = Segment(executor.store.new(), None, result.taps[last], write=Write.SCRATCH, logits=all_rows(5))
    assert np.array_equal(step(executor, head, first_layer=blocks).logits, result.logits)


def test_rows_that_skip_layers(executor):
    """A skipped block leaves the row as it is; its key there is absent in this step and later."""
    tokens = random_tokens(15)
    mask = np.random.default_rng(1).random((9, len(executor.spec.blocks))) < 0.6
    mask[:, 1] = False

    def skips(layer, row):
        return 5 <= row < 14 and not mask[row - 5, layer]

    wanted = naive(executor, tokens, skips=skips)
    seq = prefilled(executor, tokens[:5])
    taps = frozenset(Tap(kind, 1) for kind in ("query", "attention_mass", "log_sum_exp"))
    result = step(executor, all_logits(seq, tokens[5:14]), layer_mask=mask, taps=taps)
    assert close(result.logits, wanted[5:14])
    assert not result.taps[Tap("query", 1)].any()
    assert not result.taps[Tap("attention_mass", 1)].any()
    assert np.isneginf(result.taps[Tap("log_sum_exp", 1)]).all()
    executor.store.commit(seq)
    assert close(step(executor, Segment(seq, tokens[14:])).logits, wanted[14:])


def test_ragged_heads(executor):
    """After each list lost other keys, new rows see what is left, by the window of its position."""
    store, tokens = executor.store, random_tokens(24)
    seq = prefilled(executor, tokens[:18])
    rng, kept = np.random.default_rng(2), {}
    for layer, block in enumerate(executor.spec.blocks):
        for head in range(block.attention.kv_heads):
            kept[layer, head] = np.flatnonzero(rng.random(18) < rng.random())
            store.keep(seq, layer, head, kept[layer, head])

    def sees(layer, head, row, key):
        return key <= row and (row < 18 or key >= 18 or key in kept[layer, head])

    wanted = naive(executor, tokens, sees=sees)
    assert close(step(executor, all_logits(seq, tokens[18:22])).logits, wanted[18:22])
    store.commit(seq)
    assert close(step(executor, all_logits(seq, tokens[22:])).logits, wanted[22:])
    store.check()


def test_a_tree_over_ragged_heads(executor):
    store, tokens, parents = executor.store, random_tokens(15), np.array([-1, 0, 0, 1], np.int32)
    seq = prefilled(executor, tokens[:11])
    kept = np.array([0, 3, 4, 10])
    store.keep(seq, 1, 0, kept)
    paths = [{0}, {0, 1}, {0, 2}, {0, 1, 3}]

    def sees(layer, head, row, key):
        if row < 11:
            return key <= row
        return key - 11 in paths[row - 11] if key >= 11 else (layer, head) != (1, 0) or key in kept

    positions = [*range(11), 11, 12, 12, 13]
    result = step(executor, all_logits(seq, tokens[11:], mask=Mask.TREE, parents=parents))
    assert close(result.logits, naive(executor, tokens, positions, sees)[11:])


def test_biases_of_keys(executor):
    tokens = random_tokens(12)
    seq = prefilled(executor, tokens[:10])
    executor.store.set_biases(seq, 1, 0, [2, 7], [0.7, -3.0])
    given = {2: 0.7, 7: -3.0}

    # A prefilled row never saw the bias, so the rows that did are compared through a second store-free text: only new
    # rows are affected, whose keys in later layers follow from them.
    model = Naive(executor._checkpoint)
    plain = Rules(lambda layer, head, row, key: key <= row)
    biased = Rules(plain.sees, bias=lambda layer, head, key: given.get(key, 0.0) if (layer, head) == (1, 0) else 0.0)
    x = old = model.w["embed"][tokens] * executor.spec.embed_scale
    for layer in range(len(executor.spec.blocks)):
        old = model.block(layer, old, np.arange(12), plain)
        mixed = model.block(layer, x, np.arange(12), biased)
        x = np.concatenate([old[:10], mixed[10:]])
    wanted = model.norm(x, "final_norm") @ model.w["embed" if executor.spec.tied_head else "head"].T
    cap = executor.spec.logit_softcap
    wanted = wanted if cap is None else cap * np.tanh(wanted / cap)
    assert close(step(executor, all_logits(seq, tokens[10:])).logits, wanted[10:])


def test_taps_of_attention_agree_with_the_stored_keys(executor):
    tokens = random_tokens(20)
    seq = prefilled(executor, tokens[:15])
    layer = 1
    block = executor.spec.blocks[layer].attention
    query, mass, lse = (Tap(kind, layer) for kind in ("query", "attention_mass", "log_sum_exp"))
    taps = step(executor, Segment(seq, tokens[15:]), taps=frozenset([query, mass, lse])).taps
    assert taps[query].shape == (5, block.heads, block.head_dim)
    assert taps[mass].shape == (5, block.heads, 20)
    assert np.abs(taps[mass].sum(-1) - 1).max() < 1e-5
    k, _ = executor.store.gather(seq, layer, None, np.arange(20))
    group = block.heads // block.kv_heads
    for head in range(block.heads):
        logits = block.softcap * np.tanh(taps[query][:, head] @ k[head // group].T / block.softcap)
        mass_ = np.exp(logits - taps[lse][:, head, None])
        seen = taps[mass][:, head] > 0
        assert np.abs((taps[mass][:, head] - mass_)[seen]).max() < 1e-5
    with pytest.raises(UndeclaredTap):
        taps[Tap("hidden", 0)]


def test_the_cost_is_exact(executor):
    spec, tokens = executor.spec, random_tokens(40)
    seq = prefilled(executor, tokens[:37])
    result = step(executor, Segment(seq, tokens[37:]))
    matrices = sum(rows * cols * 4 for name, rows, cols in spec.matrices() if name not in ("embed", "head"))
    vectors = sum(length * 4 for _, length in spec.vectors())
    keys = sum(
        block.attention.kv_heads * block.attention.head_dim * min(40, (block.attention.window or 40) + 2)
        for block in spec.blocks
    )
    width = sum(block.attention.kv_heads * block.attention.head_dim for block in spec.blocks)
    cost = result.cost
    assert cost.weight_bytes == matrices + vectors + (spec.vocab + 3) * spec.hidden * 4
    assert (cost.kv_read_bytes, cost.kv_written_bytes, cost.rows) == (keys * 8, width * 8 * 3, 3)
    assert cost.seconds > 0
    assert executor.tier(StepRequest([])) == (cost.tier, "reference executor")


def test_part_of_the_depth_costs_its_part(executor):
    tokens = random_tokens(3)
    depths = (1, len(executor.spec.blocks))
    one, all_ = (step(executor, Segment(executor.store.new(), tokens), last_layer=i).cost for i in depths)
    assert one.weight_bytes < all_.weight_bytes
    assert all_.kv_written_bytes == len(executor.spec.blocks) * one.kv_written_bytes


def test_a_cache_of_half_floats_is_read_as_stored(executor):
    """Rows of one step see each other's keys, and their own, after rounding."""
    halves = ReferenceExecutor(executor._checkpoint, capacity_pages=4, value_bytes=2)
    tokens, seq, layer = random_tokens(8), halves.store.new(), 1
    query, lse = Tap("query", layer), Tap("log_sum_exp", layer)
    result = step(halves, all_logits(seq, tokens), taps=frozenset([query, lse]))
    whole = step(executor, all_logits(executor.store.new(), tokens)).logits
    assert 1e-5 < np.abs(result.logits - whole).max() / np.abs(whole).max() < 5e-3
    block = halves.spec.blocks[layer].attention
    k, _ = halves.store.gather(seq, layer, None, np.arange(8))
    for row in range(8):
        for head in range(block.heads):
            logits = k[head // (block.heads // block.kv_heads), : row + 1] @ result.taps[query][row, head]
            logits = block.softcap * np.tanh(logits / block.softcap)
            assert abs(np.log(np.exp(logits).sum()) - result.taps[lse][row, head]) < 2e-6


def test_forks_share_what_was_computed(executor):
    tokens = random_tokens(12)
    seq = prefilled(executor, tokens[:9])
    child = executor.store.fork(seq)
    step(executor, Segment(seq, random_tokens(3, seed=8)))
    assert close(step(executor, all_logits(child, tokens[9:])).logits, naive(executor, tokens)[9:])


def test_a_step_that_fails_midway_leaves_nothing_pending(executor, monkeypatch):
    def broken(*_):
        raise MemoryError

    monkeypatch.setattr(reference, "head", broken)
    seq = executor.store.new()
    with pytest.raises(MemoryError):
        step(executor, Segment(seq, random_tokens(3)))
    assert executor.store.pending(seq) == 0
    executor.store.check()


def test_a_wrong_request_is_refused(executor):
    with pytest.raises(StepError, match="context of 512 tokens by 9"):
        step(executor, Segment(executor.store.new(), random_tokens(1), positions=np.array([520], np.int32)))
