"""The reference executor against `transformers`, and the native one against it, on the zoo of tiny models."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from hf_zoo import COMMON, LENGTH, ZOO, checkpoint_of, random_tokens, zoo_model
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM

from vivace.core.step import Executor, Mask, Segment, StepRequest, all_rows
from vivace.core.taps import Tap
from vivace.exec.reference import ReferenceExecutor
from vivace.measure.kl import mean_kl
from vivace.model.weights import Checkpoint
from vivace.ops.quantise import quantise_rows

TOLERANCE = 1e-4  # of the largest logit
NAMES = list(ZOO)


@cache
def models(name: str):
    return zoo_model(name), checkpoint_of(zoo_model(name))


@cache
def outputs(name: str):
    """What transformers computes for the test's tokens."""
    tokens = torch.from_numpy(random_tokens(LENGTH)).long()[None]
    with torch.no_grad():
        return models(name)[0](tokens, output_hidden_states=True, output_attentions=True)


def hf_logits(name: str) -> np.ndarray:
    return outputs(name).logits[0].numpy()


def chunked(executor: Executor, tokens: np.ndarray, sizes: list[int]) -> np.ndarray:
    """Logits of every token, computed in chunks of these sizes (the last one repeats)."""
    seq, out, done = executor.store.new(), [], 0
    while done < len(tokens):
        part = tokens[done : done + sizes[min(len(out), len(sizes) - 1)]]
        out.append(executor.run(StepRequest([Segment(seq, part, logits=all_rows(len(part)))])).logits.copy())
        executor.store.commit(seq)
        done += len(part)
    executor.store.drop(seq)
    return np.concatenate(out)


def assert_close(found: np.ndarray, wanted: np.ndarray, tolerance: float = TOLERANCE) -> None:
    assert np.abs(found - wanted).max() <= tolerance * np.abs(wanted).max()


@pytest.mark.parametrize(
    "sizes", [[LENGTH], [7], [1], [20, 1]], ids=["whole", "chunks of 7", "one by one", "20 then 1"]
)
@pytest.mark.parametrize("name", NAMES)
def test_logits(name, sizes):
    executor = ReferenceExecutor(models(name)[1], capacity_pages=4)
    assert_close(chunked(executor, random_tokens(LENGTH), sizes), hf_logits(name))


@pytest.mark.parametrize("name", NAMES)
def test_the_path_without_a_store(name):
    executor = ReferenceExecutor(models(name)[1], capacity_pages=1)
    tokens = torch.from_numpy(np.stack([random_tokens(LENGTH), random_tokens(LENGTH, seed=1)]))
    with torch.no_grad():
        wanted = models(name)[0](tokens.long()).logits.numpy()
        assert_close(executor.forward(tokens).numpy(), wanted)


@pytest.mark.parametrize("name", NAMES)
def test_hidden_states_and_attention_mass(name):
    checkpoint = models(name)[1]
    blocks = len(checkpoint.spec.blocks)
    executor = ReferenceExecutor(checkpoint, capacity_pages=4)
    taps = frozenset(Tap(kind, i) for kind in ("hidden", "attention_mass") for i in range(blocks))
    result = executor.run(StepRequest([Segment(executor.store.new(), random_tokens(LENGTH))], taps=taps))
    for layer in range(blocks):
        wanted = outputs(name).hidden_states[layer][0].numpy()
        assert_close(result.taps[Tap("hidden", layer)], wanted)
        mass = result.taps[Tap("attention_mass", layer)]
        assert mass.flags.c_contiguous
        assert_close(mass, outputs(name).attentions[layer][0].numpy().transpose(1, 0, 2))


@pytest.mark.parametrize("name", NAMES)
def test_a_tree_against_its_branches(name):
    """Each path of a tree must give what transformers gives for that text alone."""
    model, checkpoint = models(name)
    executor = ReferenceExecutor(checkpoint, capacity_pages=4)
    prompt, drafts = random_tokens(20), random_tokens(9, seed=2)
    parents = np.array([-1, -1, 0, 0, 1, 2, 5, 6, 3], np.int32)
    seq = executor.store.new()
    executor.run(StepRequest([Segment(seq, prompt)]))
    executor.store.commit(seq)
    tree = Segment(seq, drafts, mask=Mask.TREE, parents=parents, logits=all_rows(len(drafts)))
    logits = executor.run(StepRequest([tree])).logits
    for row in range(len(drafts)):
        path, at = [], row
        while at >= 0:
            path.insert(0, at)
            at = parents[at]
        with torch.no_grad():
            text = torch.from_numpy(np.concatenate([prompt, drafts[path]])).long()[None]
            assert_close(logits[row], model(text).logits[0, -1].numpy())


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("llama")])
def test_a_block_against_a_mask_made_by_hand(name):
    model, checkpoint = models(name)
    executor = ReferenceExecutor(checkpoint, capacity_pages=4)
    tokens, block = random_tokens(30), 10
    seq = executor.store.new()
    executor.run(StepRequest([Segment(seq, tokens[:-block])]))
    executor.store.commit(seq)
    segment = Segment(seq, tokens[-block:], mask=Mask.BLOCK, logits=all_rows(block))
    logits = executor.run(StepRequest([segment])).logits
    seen = torch.ones(30, 30).tril()
    seen[-block:] = 1
    additive = (1 - seen)[None, None] * torch.finfo(torch.float32).min
    with torch.no_grad():
        wanted = model(torch.from_numpy(tokens).long()[None], attention_mask=additive).logits[0, -block:].numpy()
    assert_close(logits, wanted)
    with torch.no_grad():
        assert_close(executor.forward(torch.from_numpy(tokens)[None], seen.bool())[0, -block:].numpy(), wanted)


@pytest.mark.parametrize("name", ["llama-4to1-biased-wide-heads", "qwen2-1to1-window", "gemma3-3to1-softcap"])
def test_gradients(name):
    """The gradient of a loss with respect to embeddings, biases and norms is that of transformers."""
    model, checkpoint = models(name)
    executor = ReferenceExecutor(checkpoint, capacity_pages=1)
    tokens = torch.from_numpy(random_tokens(LENGTH)).clamp(min=1)[None]  # theirs gives the padding token 0 no gradient
    weights = {key: executor.weights[key].clone().requires_grad_() for key in executor.weights}
    loss = torch.nn.functional.cross_entropy(executor.forward(tokens, weights=weights)[0, :-1], tokens[0, 1:].long())
    loss.backward()
    model.zero_grad()
    model(tokens.long(), labels=tokens.long()).loss.backward()
    wanted = {key: value.grad for key, value in model.named_parameters()}
    last = len(checkpoint.spec.blocks) - 1
    pairs = {
        "embed": "model.embed_tokens.weight",
        "final_norm": "model.norm.weight",
        "blocks.0.q": "model.layers.0.self_attn.q_proj.weight",
        f"blocks.{last}.down": f"model.layers.{last}.mlp.down_proj.weight",
        "blocks.1.attention_norm": "model.layers.1.input_layernorm.weight",
        "blocks.0.k.bias": "model.layers.0.self_attn.k_proj.bias",
        "blocks.0.k_norm": "model.layers.0.self_attn.k_norm.weight",
    }
    for ours, theirs in pairs.items():
        if theirs in wanted:
            assert_close(weights[ours].grad.numpy(), wanted[theirs].numpy(), 1e-3)
    assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in weights.values())


def native(checkpoint: Checkpoint) -> Executor:
    module = pytest.importorskip("vivace.exec.native", reason="the native executor is not built")
    return module.NativeExecutor(checkpoint, capacity_pages=4)


def native_kl(name: str, weight_type: str, **reference_options: int) -> float:
    """Mean KL of native from the reference over a text computed whole and in pieces."""
    checkpoint = checkpoint_of(models(name)[0], weight_type)
    executor, tokens = native(checkpoint), random_tokens(LENGTH)
    wanted = chunked(ReferenceExecutor(checkpoint, capacity_pages=4, **reference_options), tokens, [LENGTH])
    found = [mean_kl(wanted, chunked(executor, tokens, [cut])) for cut in (LENGTH, 5)]
    executor.close()
    assert found[0] == found[1]
    return found[0]


@pytest.mark.parametrize("name", NAMES)
def test_native_with_float_weights(name):
    assert native_kl(name, "F32") <= 1e-3


def test_native_with_quantised_weights():
    """What rounding the activations to 8 bits costs; on small models with random weights it varies.

    It adds up over the layers.
    """
    found = {name: native_kl(name, "Q8_0") for name in NAMES}
    by_layer = [kl / len(models(name)[1].spec.blocks) for name, kl in found.items()]
    assert np.mean(list(found.values())) <= 1e-3 and max(by_layer) <= 7e-4, found


@pytest.mark.parametrize("head_dim", [24, 100])
def test_heads_that_the_native_executor_does_not_take(head_dim):
    """Its vectors hold 16 values; other sizes are refused, as long as they would be computed wrongly."""
    sizes = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    model = LlamaForCausalLM(LlamaConfig(**COMMON, **sizes, head_dim=head_dim))
    with pytest.raises(ValueError, match=f"heads of {head_dim} values are not supported; a multiple of 16"):
        native(checkpoint_of(model))


class RoundedLinear:
    """`torch.nn.functional` whose products round their input rows as the native products do."""

    def __getattr__(self, name: str) -> object:
        return getattr(functional, name)

    def linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        q, d, z, _ = quantise_rows(x.flatten(0, -2).numpy())
        rows = (q + z.repeat(32, axis=1)) * d.repeat(32, axis=1)
        return functional.linear(torch.from_numpy(rows.astype(np.float32)).view_as(x), weight, bias)


@pytest.mark.parametrize("name", NAMES)
def test_native_loses_nothing_but_the_rounding(name, monkeypatch):
    """Values near a border between two codes round to either side, so that a little is left."""
    monkeypatch.setattr("vivace.exec.reference.functional", RoundedLinear())
    assert native_kl(name, "Q8_0", value_bytes=2) <= 3e-4
