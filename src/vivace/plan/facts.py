"""The words in which methods say what they need, break and give. A plan fits when nobody breaks what another needs."""

from __future__ import annotations

FACTS = {
    "kv.append_only": "a committed row stays in the cache until its sequence ends",
    "kv.uniform": "all layers and heads hold the same rows",
    "kv.prefix_shareable": "requests that begin alike have the same rows for what they share",
    "kv.recomputable": "the rows of a sequence can be computed again from its tokens, bit for bit",
    "kv.rollback": "pending rows can be dropped again",
    "kv.base_type": "keys and values are stored in the base type",
    "kv.keys_readable": "stored keys can be read back as vectors",
    "kv.original_positions": "keys keep the positions they were computed at",
    "attn.full": "every row attends to all keys that it may see",
    "attn.masses": "the attention probability of every visible key can be told",
    "layers.all_run": "every layer runs for every row",
    "rows.one_path": "all rows of a step take the same layers and weights",
    "w.original": "the weights are those of the file",
    "w.readable": "weights can be read back as matrices",
    "w.resident": "all weights lie in memory",
    "logits.original": "the logits are those of the model that was loaded",
    "prompt.original": "the prompt is run as the user gave it",
    "batch.invariant": "a request's tokens do not depend on the requests beside it",
    "steps.one_token": "a round gives each sequence one token",
    "arch.dense": "feed-forward layers have no experts",
    "arch.attention": "every layer has softmax attention over its own cache",
    "arch.full_window": "no layer sees only a window of the last tokens",
}
