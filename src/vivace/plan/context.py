"""What a method may know when its parts are made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vivace.plan.scope import Scope

if TYPE_CHECKING:
    from vivace.model.spec import ModelSpec
    from vivace.model.weights import Checkpoint


@dataclass(frozen=True)
class BindContext:
    """`checkpoint`: the model of this part's role, as it lies in the file.

    `add_model(role, name)` puts another model into the pool, by an alias or path, and returns its checkpoint; parts of
    the plan with that role in their scope apply to it.
    """

    checkpoint: Checkpoint
    scope: Scope
    threads: int
    add_model: Callable[[str, str], Checkpoint]

    @property
    def spec(self) -> ModelSpec:
        return self.checkpoint.spec

    @property
    def layers(self) -> list[int]:
        """The layers in the part's scope."""
        return self.scope.layers_of(len(self.spec.blocks))
