"""The slots that methods fill: how many may fill one, in which order, and who may choose.

The protocol of a slot is in `vivace.slots`, by the module named here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Grain = Literal["engine", "request"]


@dataclass(frozen=True)
class Slot:
    """`many`: several parts may fill it; `ordered`: then their order counts; `exclusive`: in different places only.

    `scopes`: how a part of it may be confined, beside the role.

    `requires`: slots that have to be filled too for this one to mean anything (any of them).
    grain: "request" when each request of a server may choose, "engine" when it is fixed at load.
    """

    protocol: str
    what: str
    many: bool = False
    ordered: bool = False
    grain: Grain = "engine"
    requires: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ()
    exclusive: bool = False

    @property
    def topic(self) -> str:
        """The module of `vivace.slots`, and of `vivace.plan.assembly`."""
        return self.protocol.split(".")[0]


_LAYERS = ("layers",)

SLOTS = {
    "proposer": Slot("speculative.Proposer", "drafts tokens; of several, the first that has a draft", True, True),
    "acceptor": Slot("speculative.Acceptor", "decides which drafted tokens stay", requires=("proposer",)),
    "draft_shape": Slot("speculative.DraftShape", "how many tokens are drafted", requires=("proposer",)),
    "kv_scorer": Slot("kv_evict.KVScorer", "how much each cached row matters", scopes=_LAYERS),
    "kv_budget": Slot("kv_evict.KVBudget", "the rows to keep of each layer and head", requires=("kv_scorer",)),
    "kv_trigger": Slot("kv_evict.KVTrigger", "when rows are evicted", requires=("kv_scorer",)),
    "kv_merger": Slot("kv_evict.KVMerger", "puts what is lost into what is kept", requires=("kv_scorer",)),
    "kv_codec": Slot("kv_codec.KVCodec", "the stored form of whole pages", True, scopes=_LAYERS, exclusive=True),
    "key_selector": Slot("attention.KeySelector", "the keys that a row reads", True, scopes=_LAYERS, exclusive=True),
    "weight_pass": Slot("weights.WeightPass", "makes other weights, in the order of phases", True, scopes=_LAYERS),
    "ff_sparsity": Slot("depth.FeedForwardSparsity", "the neurons of a feed-forward layer that run"),
    "depth_policy": Slot("depth.DepthPolicy", "the layers that a row runs"),
    "hidden_edit": Slot("edit.HiddenEdit", "changes the stream between layers", True, True, scopes=_LAYERS),
    "logit_stage": Slot("logits.LogitStage", "changes the distribution before the draw", True, True, "request"),
    "prompt_pass": Slot("prompt.PromptPass", "rewrites the prompt before it runs", True, True, "request"),
    "request_router": Slot("router.RequestRouter", "chooses the model that gives the next token or answer"),
    "link": Slot("link.Link", "carries the cache of a sequence from one place to another"),
    "analyser": Slot("analyser.Analyser", "measures something about the model and changes nothing", True),
}
