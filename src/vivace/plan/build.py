"""From a plan that fits to what an engine runs: other weights, forms of the cache, hooks, a decoder, stages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

from vivace.core.wiring import StageMaker, Wiring
from vivace.plan.bind import check
from vivace.plan.context import BindContext
from vivace.plan.errors import PlanRefused
from vivace.plan.plan import Plan, Use
from vivace.plan.scope import Scope
from vivace.plan.slots import SLOTS

if TYPE_CHECKING:
    from vivace.core.step import Executor
    from vivace.model.weights import Checkpoint
    from vivace.slots.decoder import Decoder
    from vivace.slots.hook import StepHook
    from vivace.slots.prompt import PromptPass

# Topics are modules of `vivace.slots` (protocols) and of `vivace.plan.assembly` (what becomes of their parts). The
# first ones shape the executors, the others need them. Hooks run in this order.
BEFORE_LOADING = ("weights", "kv_codec")
AFTER_LOADING = (
    "depth", "attention", "kv_evict", "edit", "logits", "prompt", "speculative", "router", "link", "analyser",
)  # fmt: skip


@dataclass(frozen=True)
class Part:
    """What fills a slot, of which method, and where it applies."""

    slot: str
    filler: Any
    method: str
    scope: Scope


@dataclass
class Role:
    """One model of the pool on its way: `checkpoint` becomes `executor`, whose store is made with `kv_options`."""

    checkpoint: Checkpoint
    kv_options: dict[str, Any] = field(default_factory=dict)
    hooks: list[StepHook] = field(default_factory=list)
    executor: Executor | None = None


@dataclass
class Build:
    """`key` names the plan in prefix keys and in tables of measured costs."""

    plan: Plan
    threads: int
    roles: dict[str, Role]
    parts: list[Part] = field(default_factory=list)
    decoder: Decoder | None = None
    stages: list[StageMaker] = field(default_factory=list)
    passes: list[PromptPass] = field(default_factory=list)

    def of(self, *slots: str, role: str | None = None) -> list[Part]:
        """The parts that fill these slots, in the order of the plan."""
        return [p for p in self.parts if p.slot in slots and (role is None or p.scope.role == role)]

    def one(self, slot: str, role: str = "target") -> Any:
        """What fills a slot that takes one part, or None."""
        return next((part.filler for part in self.of(slot, role=role)), None)

    def executor(self, role: str) -> Executor:
        executor = self.roles[role].executor
        assert executor is not None, f"the executor of {role} is not made yet"
        return executor

    @property
    def models(self) -> dict[str, Executor]:
        return {role: self.executor(role) for role in self.roles}

    def wiring(self) -> Wiring:
        hooks = {name: tuple(role.hooks) for name, role in self.roles.items() if role.hooks}
        decoder = {} if self.decoder is None else {"decoder": self.decoder}
        return Wiring(hooks=hooks, stages=tuple(self.stages), passes=tuple(self.passes), key=self.plan.key, **decoder)


def build(
    plan: Plan,
    checkpoint: Checkpoint,
    *,
    threads: int,
    load: Callable[[str], Checkpoint],
    make_executor: Callable[[Role], Executor],
) -> Build:
    """Everything that an engine with this plan needs. Raises PlanRefused with reasons and remedies.

    `load` reads another model by its name; `make_executor` runs a role's checkpoint.
    """
    report = check(plan, checkpoint.spec)
    if report.verdict == "refused":
        raise PlanRefused("; ".join(str(reason) for reason in report.reasons if reason.verdict == "refused"))
    made = Build(plan, threads, {"target": Role(checkpoint)})

    def add_model(role: str, name: str) -> Checkpoint:
        if role in made.roles:
            raise PlanRefused(f"two parts of the plan bring a model as {role}: leave one of them out")
        made.roles[role] = Role(load(name))
        return made.roles[role].checkpoint

    for use in sorted(plan.uses, key=lambda use: use.scope.role != "target"):
        made.parts += _parts(use, made, add_model)
    _assemble(BEFORE_LOADING, made)
    for role in made.roles.values():
        role.executor = make_executor(role)
    _assemble(AFTER_LOADING, made)
    return made


def _parts(use: Use, made: Build, add_model: Callable[[str, str], Checkpoint]) -> list[Part]:
    role = made.roles.get(use.scope.role)
    if role is None:
        known = ", ".join(made.roles)
        raise PlanRefused(f"{use.text}: the plan has no model of role {use.scope.role}, only {known}: add one to it")
    context = BindContext(role.checkpoint, use.scope, made.threads, add_model)
    make = getattr(use.method, "parts", None)
    fillers = dict.fromkeys(use.method.card.fills, use.method) if make is None else make(context)
    unknown = set(fillers) - set(use.method.card.fills)
    if unknown:
        raise TypeError(f"{use.name} fills {', '.join(sorted(unknown))}, which its card does not say")
    return [Part(slot, filler, use.name, use.scope) for slot, filler in fillers.items()]


def _assemble(topics: tuple[str, ...], made: Build) -> None:
    filled = {SLOTS[part.slot].topic for part in made.parts}
    for topic in topics:
        if topic in filled:
            import_module(f"vivace.plan.assembly.{topic}").assemble(made)
