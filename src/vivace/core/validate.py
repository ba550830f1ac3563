"""What a request must be to run at all."""

from __future__ import annotations

from vivace.core.batch import pages_of
from vivace.core.request import Request, Sampling
from vivace.model.spec import ModelSpec


class RequestError(ValueError):
    """The request can never run here; the message says what is wrong, and by how much."""


def check_request(
    request: Request, samples: int, spec: ModelSpec, context: int, capacity_pages: int, rows: int
) -> None:
    """Raises RequestError when `samples` completions of the request can never run.

    `context`: the most tokens of a prompt and its completion. `rows`: the most that the cache ever holds of it.
    """
    prompt, wanted = len(request.prompt), request.sampling.max_tokens
    if not prompt:
        raise RequestError("the prompt is empty: give at least one token")
    for span in request.spans:
        if not 0 <= span.first <= span.last < prompt:
            raise RequestError(f"span {span.first}..{span.last} is not within the prompt's tokens 0..{prompt - 1}")
    sampling = request.sampling
    named = {"the prompt": request.prompt, "logit_bias": [token for token, _ in sampling.logit_bias]}
    named |= {name: getattr(sampling, name) for name in ("stop_token_ids", "allowed_token_ids", "banned_token_ids")}
    for name, ids in named.items():
        for token in ids:
            if not 0 <= token < spec.vocab:
                raise RequestError(f"{name}: token id {token} is outside the vocabulary 0..{spec.vocab - 1}")
    if prompt + wanted > context:
        larger = context < spec.max_context or not spec.max_context
        more = ", or load with a larger context" if larger else ""
        raise RequestError(
            f"a prompt of {prompt} tokens and max_tokens {wanted} need {prompt + wanted} positions, "
            f"{prompt + wanted - context} more than the context of {context}: "
            f"shorten the prompt or lower max_tokens{more}"
        )
    need = pages_of(rows)
    need += samples > 1  # the page in which a copy of the prompt is cut may be copied
    if need > capacity_pages:
        raise RequestError(
            f"a prompt of {prompt} tokens and max_tokens {wanted} need {need} pages of cache, {need - capacity_pages} "
            f"more than the {capacity_pages} there are: shorten the prompt, lower max_tokens or enlarge the cache"
        )


def check_text_rules(sampling: Sampling, end_ids: tuple[int, ...], has_text: bool) -> None:
    """Raises RequestError when rules about the text cannot be kept. `end_ids`: the tokens that end it."""
    for name in ("allowed_strings", "banned_strings"):
        if getattr(sampling, name) and not has_text:
            raise RequestError(f"{name} need a tokenizer, and this engine has none")
    if sampling.allowed_strings and not end_ids:
        raise RequestError(
            "allowed_strings need a token that ends the text: give stop_token_ids, or leave out ignore_eos"
        )
