"""Rotary factors of every kind against `transformers`, and what a file may not say."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hf_zoo import LENGTH, checkpoint_of, longrope, random_tokens, zoo_model
from transformers import LlamaConfig, Phi3Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from vivace.core.step import Segment, StepRequest, all_rows
from vivace.exec.native import NativeExecutor
from vivace.exec.reference import ReferenceExecutor
from vivace.exec.rope import rope_table
from vivace.model.errors import ModelError
from vivace.model.keys import Keys
from vivace.model.rope import folder_rope, gguf_rope
from vivace.model.spec import RopeSpec

HEAD_DIM = 96


def frequencies(rope: RopeSpec) -> np.ndarray:
    plain = rope.theta ** -(np.arange(0, rope.dim, 2) / rope.dim)
    return plain / (1 if rope.factors is None else np.array(rope.factors))


def drawn(kind: str, seed: int) -> dict[str, Any]:
    """Random parameters of a kind; the optional ones come and go."""
    rng = np.random.default_rng(seed)
    given: dict[str, Any] = {"rope_type": kind, "rope_theta": float(10 ** rng.uniform(1, 6))}
    if kind != "longrope":
        given["factor"] = float(rng.uniform(1.1, 32))
    if kind in ("llama3", "yarn"):
        given["original_max_position_embeddings"] = int(2 ** rng.uniform(6, 13))
    if kind == "llama3":
        low = float(rng.uniform(0.5, 2))
        given |= {"low_freq_factor": low, "high_freq_factor": low + float(rng.uniform(0.5, 8))}
    if kind == "yarn":
        choices = {
            "beta_fast": float(rng.uniform(8, 64)),
            "beta_slow": float(rng.uniform(0.5, 4)),
            "truncate": False,
            "attention_factor": float(rng.uniform(0.5, 2)),
        }
        given |= {key: value for key, value in choices.items() if rng.random() < 0.5}
        if rng.random() < 0.5:
            given |= {"mscale": float(rng.uniform(0.5, 2)), "mscale_all_dim": float(rng.uniform(0.5, 2))}
    return given


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("kind", ["linear", "dynamic", "llama3", "yarn"])
def test_factors_of_a_folder(kind: str, seed: int) -> None:
    part = (1.0, 0.75, 0.5)[seed % 3]
    config = LlamaConfig(
        hidden_size=4 * HEAD_DIM, num_attention_heads=4, rope_parameters=drawn(kind, seed), partial_rotary_factor=part
    )
    wanted, attention = ROPE_INIT_FUNCTIONS[kind](config)
    rope = folder_rope(Keys("x", config.to_dict()), HEAD_DIM)
    assert rope.dim == int(part * HEAD_DIM)
    np.testing.assert_allclose(frequencies(rope), wanted.numpy(), rtol=2e-6)
    assert rope.attention_factor == pytest.approx(attention)


@pytest.mark.parametrize("given", [{}, {"factor": 3.0}, {"attention_factor": 1.25}], ids=str)
@pytest.mark.parametrize("part", [1.0, 0.75])
def test_both_sets_of_longrope(part: float, given: dict[str, float]) -> None:
    original, dim = 64, int(part * HEAD_DIM)
    values: dict[str, Any] = longrope(original, dim)
    values["rope_parameters"] |= given
    config = Phi3Config(
        hidden_size=4 * HEAD_DIM,
        num_attention_heads=4,
        max_position_embeddings=512,
        partial_rotary_factor=part,
        **values,
    )
    both = folder_rope(Keys("x", config.to_dict()), HEAD_DIM)
    for context in (1, original, original + 1, 512):
        wanted, attention = ROPE_INIT_FUNCTIONS["longrope"](config, seq_len=context)
        rope = both.for_context(context)
        assert rope.long_factors is None
        np.testing.assert_allclose(frequencies(rope), wanted.numpy(), rtol=2e-6)
        assert rope.attention_factor == pytest.approx(attention)


def test_longrope_follows_the_context_and_nothing_else() -> None:
    """The set is chosen once: a short text in a long context has the long factors, whatever its length."""
    model, tokens = zoo_model("phi3-3to1-partial-short-rope"), random_tokens(LENGTH)
    assert checkpoint_of(model, context=65).spec != checkpoint_of(model, context=64).spec

    def logits(context: int, executor: type[ReferenceExecutor | NativeExecutor]) -> np.ndarray:
        made = executor(checkpoint_of(model, context=context), capacity_pages=2)
        found = made.run(StepRequest([Segment(made.store.new(), tokens, logits=all_rows(LENGTH))])).logits
        return np.array(found)

    for executor in (ReferenceExecutor, NativeExecutor):
        short, long = logits(64, executor), logits(65, executor)
        np.testing.assert_array_equal(short, logits(LENGTH, executor))
        np.testing.assert_array_equal(long, logits(128, executor))
        assert np.abs(short - long).max() > 0.1


def test_a_model_with_two_sets_runs_only_after_the_choice() -> None:
    spec = checkpoint_of(zoo_model("phi3-3to1-partial-short-rope"), context=64).spec
    assert spec.short_context == spec.max_context == 128
    both = RopeSpec(1e4, 8, (1.0,) * 4, 1.0, (2.0,) * 4, 64)
    with pytest.raises(ValueError, match="for_context"):
        rope_table(both, np.arange(3))


def config_rope(rope: dict[str, object], **config: object) -> RopeSpec:
    values = {"max_position_embeddings": 512, "rope_scaling": rope} | config
    return folder_rope(Keys("config.json", values), 8)


def test_older_names_of_longrope() -> None:
    factors = {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    for kind in ({"type": "su"}, {"type": "yarn"}, {"rope_type": "longrope"}):
        rope = config_rope({**kind, **factors}, original_max_position_embeddings=64)
        assert (rope.factors, rope.long_factors, rope.original_context) == ((1.0,) * 4, (2.0,) * 4, 64)
        assert rope.attention_factor == pytest.approx(math.sqrt(1 + math.log(8) / math.log(64)))


@pytest.mark.parametrize(
    ("rope", "fact"),
    [
        ({"rope_type": "mrope"}, "'mrope'; supported: default, linear"),
        ({"rope_type": "linear"}, "'factor' is missing"),
        ({"rope_type": "linear", "factor": 2.0, "beta_fast": 32}, "'beta_fast' is not known .* type linear"),
        ({"rope_type": "default", "mrope_section": [1, 2]}, "'mrope_section' is not known"),
        (
            {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 4.0},
            "'high_freq_factor' is 4, not above",
        ),
        ({"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [1.0] * 3}, "not a list of 4 factors"),
        ({"rope_type": "longrope", "short_factor": [1.0, 1, 1, 0], "long_factor": [1.0] * 4}, "'short_factor' is not"),
        ({"rope_type": "longrope", "short_factor": [1.0] * 4}, "'long_factor' is not a list"),
    ],
    ids=str,
)
def test_what_a_folder_may_not_say(rope: dict[str, object], fact: str) -> None:
    with pytest.raises(ModelError, match=fact):
        config_rope(rope)


def test_two_places_for_the_rotation_are_refused() -> None:
    with pytest.raises(ModelError, match="'rope_scaling' stands beside rope_parameters"):
        config_rope({"rope_type": "linear", "factor": 2.0}, rope_parameters={"rope_theta": 1e4})


def file_rope(**keys: object) -> RopeSpec:
    values = {"x.context_length": 512} | {f"x.rope.{key.replace('__', '.')}": value for key, value in keys.items()}
    return gguf_rope(Keys("x.gguf", values, "x."), {}, 8)


def test_a_factor_without_a_type_is_linear() -> None:
    assert file_rope(scaling__factor=4.0).factors == (4.0,) * 4
    assert file_rope(scale_linear=4.0).factors == (4.0,) * 4
    assert file_rope(scaling__factor=4.0, scaling__type="none").factors is None
    assert file_rope().factors is None


def test_yarn_of_a_file_is_that_of_a_folder() -> None:
    yarn = {"scaling__type": "yarn", "scaling__factor": 4.0, "scaling__original_context_length": 128}
    folder = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
    assert file_rope(**yarn) == config_rope(folder)
    betas = {"scaling__yarn_beta_fast": 20.0, "scaling__yarn_beta_slow": 2.0}
    assert file_rope(**yarn, **betas) == config_rope(folder | {"beta_fast": 20.0, "beta_slow": 2.0})
    multiplier = file_rope(**yarn, scaling__yarn_log_multiplier=0.5)
    assert multiplier == config_rope(folder | {"mscale": 1.0, "mscale_all_dim": 0.5})


@pytest.mark.parametrize(
    ("keys", "fact"),
    [
        ({"scaling__type": "dynamic"}, "'dynamic'; supported: none, linear, yarn, longrope"),
        ({"scaling__alpha": 2.0}, "scaling.alpha' is not known"),
        ({"dimension_sections": [1, 1]}, "dimension_sections' is not known"),
        ({"scaling__yarn_beta_fast": 3.0}, "yarn_beta_fast' is not known .* type linear"),
        ({"scaling__type": "yarn", "scaling__attn_factor": 1.2}, "attn_factor' is not 1"),
        ({"scaling__type": "yarn", "scaling__yarn_ext_factor": 0.5}, "yarn_ext_factor' is not 1"),
        ({"scaling__type": "longrope"}, "no tensor of its factors"),
        ({"dimension_count": 3}, "rotates 3 values"),
        ({"dimension_count": 10}, "dimension_count' is 10, not between"),
    ],
    ids=str,
)
def test_what_a_file_may_not_say(keys: dict[str, object], fact: str) -> None:
    with pytest.raises(ModelError, match=fact):
        file_rope(**keys)
