"""From the name of a model and a plan to something that generates."""

from __future__ import annotations

from operator import index
from time import perf_counter
from typing import TYPE_CHECKING, Any, cast

from vivace.api import LLM
from vivace.core.batch import pages_of
from vivace.core.machine import MAX_THREADS, default_threads
from vivace.plan.bind import check
from vivace.plan.build import Role, build
from vivace.plan.plan import Plan, as_plan

if TYPE_CHECKING:
    from vivace.core.step import Executor
    from vivace.model.spec import ModelSpec
    from vivace.model.weights import Checkpoint

DEFAULT_CONTEXT = 8192  # tokens, or what the model was made for (without long rotary factors) if that is less
CACHE_TOKENS = 16384  # room for several requests at once; memory is used only when touched


def load(
    model: str,
    plan: str | Plan | None = None,
    threads: int | None = None,
    context: int | None = None,
    executor: str = "native",
    weights: str | None = None,
) -> LLM:
    """Load a model: an alias of the catalogue, a path to a `.gguf` file or a folder with safetensors.

    `plan`: acceleration methods, as text, the path of a YAML file, or a `vivace.plan.plan.Plan`; see `vivace methods`.
    `threads`: default is the CPU quota of this process. `context`: the most tokens of a prompt and its completion; of
    two sets of rotary factors (longrope) it chooses the one, and by default it is what the short ones are made for.
    `executor`: "native", or "reference" (torch, slow). `weights`: the type that float weights are loaded as ("Q8_0",
    "Q4_0", "Q4_1", "Q5_0", "Q5_1", "F16", "BF16"), or "keep"; default "Q8_0" for a folder, "keep" for a GGUF file.
    Raises ValueError for arguments that are not allowed, for a plan whose parts do not fit (PlanRefused), and for
    whatever is wrong with the model's files.
    """
    wanted = as_plan(plan)
    if executor not in ("native", "reference"):
        raise ValueError(f"executor must be 'native' or 'reference', not {executor!r}")
    threads = default_threads() if threads is None else _at_least_one("threads", threads, MAX_THREADS)
    start = perf_counter()
    from vivace.model.catalogue import resolve
    from vivace.model.load import load_checkpoint

    checkpoint = load_checkpoint(resolve(model), weights=weights)
    context = _context(context, checkpoint.spec)
    pages = pages_of(max(context, CACHE_TOKENS))

    def load_another(name: str) -> Checkpoint:
        other = load_checkpoint(resolve(name), weights=weights)
        return other.for_context(min(context, other.spec.max_context or context))

    def make_executor(role: Role) -> Executor:
        return _executor(executor, role.checkpoint, threads=threads, capacity_pages=pages, **role.kv_options)

    built = build(
        wanted, checkpoint.for_context(context), threads=threads, load=load_another, make_executor=make_executor
    )
    models = built.models
    return LLM(
        models["target"],
        checkpoint.tokenizer,
        context=context,
        model=checkpoint.name,
        weights_bytes=sum(role.checkpoint.weights_bytes for role in built.roles.values()),
        load_s=perf_counter() - start,
        report=check(wanted, checkpoint.spec),
        helpers={role: model for role, model in models.items() if role != "target"},
        wiring=built.wiring(),
    )


def _executor(name: str, checkpoint: Checkpoint, *, threads: int, **store: Any) -> Executor:
    if name == "reference":
        from vivace.exec.reference import ReferenceExecutor

        return ReferenceExecutor(checkpoint, **store)
    from vivace.exec.native import NativeExecutor

    return cast("Executor", NativeExecutor(checkpoint, threads=threads, **store))


def _context(asked: int | None, spec: ModelSpec) -> int:
    limit = spec.max_context
    if asked is None:
        return min(DEFAULT_CONTEXT, spec.short_context or DEFAULT_CONTEXT)
    asked = _at_least_one("context", asked)
    if limit and asked > limit:
        raise ValueError(f"context {asked} is {asked - limit} more than the {limit} tokens this model was made for")
    return asked


def _at_least_one(name: str, value: Any, most: int | None = None) -> int:
    try:
        number = index(value)
    except TypeError:
        number = 0
    if number < 1 or (most is not None and number > most):
        allowed = "of at least 1" if most is None else f"from 1 to {most}"
        raise ValueError(f"{name} must be an integer {allowed}, not {value!r}")
    return number
