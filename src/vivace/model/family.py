"""What a family of models says about itself, and what the families share in reading it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vivace.model.errors import ModelError
from vivace.model.keys import MAX_POSITIONS, Keys
from vivace.model.spec import AttentionSpec, BlockSpec, ModelSpec, RopeSpec

if TYPE_CHECKING:
    from vivace.model.load.tensors import Tensor

Tensors = Mapping[str, "Tensor"]  # by the file's names

# Our names to the file's; {i} is the number of the block. "NAME.bias" follows from NAME. Of several names for one
# tensor each is a range of its rows, in the order of ModelSpec.matrices().
GGUF_NAMES: Mapping[str, str] = {
    "embed": "token_embd",
    "head": "output",
    "final_norm": "output_norm",
    "blocks.{i}.attention_norm": "blk.{i}.attn_norm",
    "blocks.{i}.q": "blk.{i}.attn_q",
    "blocks.{i}.k": "blk.{i}.attn_k",
    "blocks.{i}.v": "blk.{i}.attn_v",
    "blocks.{i}.o": "blk.{i}.attn_output",
    "blocks.{i}.q_norm": "blk.{i}.attn_q_norm",
    "blocks.{i}.k_norm": "blk.{i}.attn_k_norm",
    "blocks.{i}.post_attention_norm": "blk.{i}.post_attention_norm",
    "blocks.{i}.feed_forward_norm": "blk.{i}.ffn_norm",
    "blocks.{i}.gate": "blk.{i}.ffn_gate",
    "blocks.{i}.up": "blk.{i}.ffn_up",
    "blocks.{i}.down": "blk.{i}.ffn_down",
    "blocks.{i}.post_feed_forward_norm": "blk.{i}.post_ffw_norm",
}
FOLDER_NAMES: Mapping[str, str] = {
    "embed": "model.embed_tokens",
    "head": "lm_head",
    "final_norm": "model.norm",
    "blocks.{i}.attention_norm": "model.layers.{i}.input_layernorm",
    "blocks.{i}.q": "model.layers.{i}.self_attn.q_proj",
    "blocks.{i}.k": "model.layers.{i}.self_attn.k_proj",
    "blocks.{i}.v": "model.layers.{i}.self_attn.v_proj",
    "blocks.{i}.o": "model.layers.{i}.self_attn.o_proj",
    "blocks.{i}.q_norm": "model.layers.{i}.self_attn.q_norm",
    "blocks.{i}.k_norm": "model.layers.{i}.self_attn.k_norm",
    "blocks.{i}.feed_forward_norm": "model.layers.{i}.post_attention_layernorm",
    "blocks.{i}.gate": "model.layers.{i}.mlp.gate_proj",
    "blocks.{i}.up": "model.layers.{i}.mlp.up_proj",
    "blocks.{i}.down": "model.layers.{i}.mlp.down_proj",
}


@dataclass(frozen=True)
class Family:
    """Names and keys of one family; `from_gguf` and `from_config` leave the special tokens to the loader."""

    name: str
    architectures: frozenset[str]  # values of general.architecture in GGUF files
    model_types: frozenset[str]  # values of model_type in config.json
    from_gguf: Callable[[Keys, Tensors], ModelSpec]
    from_config: Callable[[Keys, Tensors], ModelSpec]
    gguf_names: Mapping[str, str]
    folder_names: Mapping[str, str]
    gguf_interleaved: bool = False  # GGUF rows of q and k are ordered for pairs (x[2i], x[2i + 1])
    folder_interleaved: bool = False  # and those of a folder
    folder_norm_offset: float = 0.0  # what a norm weight of a folder lacks of the factor itself


@dataclass(frozen=True)
class Dimensions:
    """The sizes that every family states, whatever it calls them."""

    vocab: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    feed_forward: int
    norm_eps: float
    context: int

    def attention(self, rope: RopeSpec | None, *, scale: float | None = None, **more: Any) -> AttentionSpec:
        """Attention of these heads; `scale` is that of the head's size unless given."""
        scale = self.head_dim**-0.5 if scale is None else scale
        return AttentionSpec(self.heads, self.kv_heads, self.head_dim, scale=scale, rope=rope, **more)

    def model(self, family: str, blocks: Iterable[BlockSpec], *, tied_head: bool, **more: Any) -> ModelSpec:
        return ModelSpec(
            family,
            self.vocab,
            self.hidden,
            tuple(blocks),
            norm_eps=self.norm_eps,
            tied_head=tied_head,
            max_context=self.context,
            **more,
        )


# Keys of GGUF files that change the arithmetic of a dense decoder.
_ARITHMETIC = frozenset(
    {
        "attention.clamp_kqv",
        "attention.max_alibi_bias",
        "attention.output_scale",
        "attention.scale",
        "attention.sliding_window",
        "attention.temperature_scale",
        "attn_logit_softcapping",
        "embedding_scale",
        "expert_count",
        "final_logit_softcapping",
        "logit_scale",
        "residual_scale",
        "use_parallel_residual",
    }
)
_MAX_LAYERS = 1 << 12
_MAX_HEADS = 1 << 12


def gguf_dimensions(keys: Keys, tensors: Tensors, reads: frozenset[str] = frozenset()) -> Dimensions:
    """Sizes from GGUF keys. A key that changes the arithmetic and is not among those the family reads is an error."""
    for key in sorted(_ARITHMETIC - reads):
        if key in keys and keys.number(key, low=-1e30, high=1e30) != 0:
            keys.fail(key, "is not supported for this architecture")
    if not keys.flag("attention.causal", True):
        keys.fail("attention.causal", "is false; only causal models are supported")
    hidden = keys.integer("embedding_length", high=1 << 20)
    heads = keys.integer("attention.head_count", high=_MAX_HEADS)
    head_dim = keys.integer("attention.key_length", _share(hidden, heads), high=1 << 14)
    if keys.integer("attention.value_length", head_dim) != head_dim:
        keys.fail("attention.value_length", f"differs from the key length {head_dim}; equal lengths are supported")
    if "token_embd.weight" not in tensors:
        raise ModelError(f"{keys.source}: tensor 'token_embd.weight' is missing")
    vocab = tensors["token_embd.weight"].shape[0]
    if keys.integer("vocab_size", vocab) != vocab:
        keys.fail("vocab_size", f"is {keys.integer('vocab_size')}, but the embedding has {vocab} rows")
    return _checked(
        keys,
        "attention.head_count_kv",
        Dimensions(
            vocab=vocab,
            hidden=hidden,
            layers=keys.integer("block_count", high=_MAX_LAYERS),
            heads=heads,
            kv_heads=keys.integer("attention.head_count_kv", heads, high=_MAX_HEADS),
            head_dim=head_dim,
            feed_forward=keys.integer("feed_forward_length"),
            norm_eps=keys.number("attention.layer_norm_rms_epsilon", high=1.0),
            context=keys.integer("context_length", high=MAX_POSITIONS),
        ),
    )


def folder_dimensions(config: Keys, head_dim: int | None = None) -> Dimensions:
    """Sizes from the keys of config.json; `head_dim` where it is absent, else the share of each head, as for null."""
    if "quantization_config" in config:
        config.fail("quantization_config", "is not supported; use a folder of F32, F16 or BF16 weights, or a GGUF file")
    hidden = config.integer("hidden_size", high=1 << 20)
    heads = config.integer("num_attention_heads", high=_MAX_HEADS)
    default = None if config.is_null("head_dim") else head_dim
    return _checked(
        config,
        "num_key_value_heads",
        Dimensions(
            vocab=config.integer("vocab_size"),
            hidden=hidden,
            layers=config.integer("num_hidden_layers", high=_MAX_LAYERS),
            heads=heads,
            kv_heads=config.integer("num_key_value_heads", heads, high=_MAX_HEADS),
            head_dim=config.integer("head_dim", default or _share(hidden, heads), high=1 << 14),
            feed_forward=config.integer("intermediate_size"),
            norm_eps=config.number("rms_norm_eps", high=1.0),
            context=config.integer("max_position_embeddings", high=MAX_POSITIONS),
        ),
    )


def require_silu(config: Keys) -> None:
    if config.text("hidden_act", "silu") != "silu":
        config.fail("hidden_act", f"is '{config.text('hidden_act'):.40}'; supported: silu")


def sliding_layers(config: Keys, layers: int) -> tuple[bool, ...]:
    """Which layers see a window only, by config.json's layer_types; empty when it does not say."""
    types = config.items("layer_types")
    if types and len(types) != layers:
        config.fail("layer_types", f"has {len(types)} entries for {layers} layers")
    for kind in types:
        if kind not in ("full_attention", "sliding_attention"):
            config.fail("layer_types", f"names {kind!r:.60}; supported: full_attention, sliding_attention")
    return tuple(kind == "sliding_attention" for kind in types)


def all_but_every(layers: int, nth: int) -> tuple[bool, ...]:
    """True for all layers but every `nth` one."""
    return tuple((i + 1) % nth != 0 for i in range(layers))


def gguf_window(keys: Keys) -> int | None:
    """The window of all layers of a GGUF file; 0, too, is none."""
    return keys.integer("attention.sliding_window", 0, low=0, high=MAX_POSITIONS) or None


def folder_window(config: Keys) -> int | None:
    """The window of all layers by config.json; null is none."""
    return config.integer("sliding_window", high=MAX_POSITIONS) if "sliding_window" in config else None


def tensor_name(names: Mapping[str, str], ours: str) -> str:
    """The file's name of one of our tensors, suffix included."""
    stem, suffix = (ours[:-5], ".bias") if ours.endswith(".bias") else (ours, ".weight")
    if stem.startswith("blocks."):
        _, block, part = stem.split(".")
        return names["blocks.{i}." + part].replace("{i}", block) + suffix
    return names[stem] + suffix


def _share(hidden: int, heads: int) -> int | None:
    """The head dimension when it is not stated, or None (then it must be stated)."""
    return None if hidden % heads else hidden // heads


def _checked(keys: Keys, kv_key: str, found: Dimensions) -> Dimensions:
    if found.heads % found.kv_heads:
        keys.fail(kv_key, f"is {found.kv_heads}, which does not divide the {found.heads} query heads")
    return found
