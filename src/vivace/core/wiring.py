"""What a plan puts into an engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vivace.core.decoders.autoregressive import Autoregressive
from vivace.slots.hook import NO_BORDER

if TYPE_CHECKING:
    from vivace.core.batch import Turn
    from vivace.core.engine import Engine
    from vivace.core.request import Request
    from vivace.slots.decoder import Decoder
    from vivace.slots.hook import Member, StepHook
    from vivace.slots.logits import LogitStage
    from vivace.slots.prompt import PromptPass

StageMaker = Callable[["Request"], "LogitStage | None"]  # a stage of one request, which may keep state; None: not here


@dataclass(frozen=True)
class Wiring:
    """`hooks` by model of the pool, in order. `stages` stand between the rules of a request and its own stages.

    `key` names all of the plan that shapes keys and values: rows are shared only under equal keys.
    """

    decoder: Decoder = field(default_factory=Autoregressive)
    hooks: Mapping[str, Sequence[StepHook]] = field(default_factory=dict)
    stages: Sequence[StageMaker] = ()
    passes: Sequence[PromptPass] = ()
    key: str = ""

    def of(self, model: str) -> Sequence[StepHook]:
        return self.hooks.get(model, ())

    @property
    def shares_prefixes(self) -> bool:
        return all(hook.shares_prefixes for hook in self.of("target"))

    @property
    def plain_rows(self) -> bool:
        """A sequence can be run again from its tokens (see `Decoder.plain_rows`)."""
        return self.decoder.plain_rows and all(hook.recomputes for hook in self.of("target"))

    def rewrite(self, request: Request, engine: Engine) -> Request:
        for prompt_pass in self.passes:
            request = prompt_pass.rewrite(request, engine)
        return request

    def cut(self, turns: Iterable[Turn]) -> None:
        """Stop each turn at the border of its sequence."""
        for turn in turns:
            turn.stop_at(self.border("target", turn.sequence))

    def border(self, model: str, member: Member) -> int:
        return min((hook.border(member) for hook in self.of(model)), default=NO_BORDER)

    def most_rows(self, tokens: int, prompt: int) -> int:
        return min((hook.most_rows(tokens, prompt) for hook in self.of("target")), default=tokens)

    def settle(self, model: str, member: Member) -> None:
        for hook in self.of(model):
            hook.settle(member)
