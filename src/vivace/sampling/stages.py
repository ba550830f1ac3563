"""Which stages a request asks for, and in which order they run.

First the rules: allowed and banned tokens and strings, `min_tokens` and biases. Then the stages, in the order that the
request gives or that of `vivace.core.request.STAGES`. Each works on what the one before it left; those that read
probabilities read them renormalised over that. Temperature keeps the order of logits, so it may stand behind top-k,
where it works on little.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from vivace.core.request import Sampling
from vivace.slots.logits import LogitStage

if TYPE_CHECKING:
    from vivace.sampling.token_texts import VocabularyBytes

GREEDY_BELOW = 1e-5  # a lower temperature puts all weight on the largest logit

# Stages are imported by the first request that has them: a first token need not wait for those of others.


def rules_of(
    sampling: Sampling, end_ids: tuple[int, ...], tokenizer: VocabularyBytes | None, drops_space: bool
) -> list[LogitStage]:
    """What the request allows and forbids.

    `end_ids`: the tokens that would end it. `drops_space`: its text begins after a space that its tokens begin with.
    """
    s = sampling
    about_ids = s.allowed_token_ids or s.banned_token_ids or s.min_tokens or s.logit_bias
    if not (about_ids or s.allowed_strings or s.banned_strings):
        return []
    from vivace.sampling.rules import AllowedIds, BannedIds, LogitBias, NoEndBefore, id_array

    ends, rules = id_array(end_ids), list[LogitStage]()
    if s.allowed_token_ids:
        rules.append(AllowedIds(id_array(s.allowed_token_ids)))
    if s.banned_token_ids:
        rules.append(BannedIds(id_array(s.banned_token_ids)))
    if s.min_tokens > 0 and end_ids:
        rules.append(NoEndBefore(ends, s.min_tokens))
    if s.allowed_strings or s.banned_strings:
        from vivace.sampling.strings import AllowedStrings, BannedStrings
        from vivace.sampling.token_texts import TokenTexts

        assert tokenizer is not None, "a request without text was checked for rules about it"
        texts = TokenTexts.of(tokenizer, s.skip_special_tokens)
        if s.allowed_strings:
            rules.append(AllowedStrings(s.allowed_strings, texts, ends, drops_space))
        if s.banned_strings:
            rules.append(BannedStrings(s.banned_strings, texts, ends[:0] if s.include_stop else ends))
    if s.logit_bias:
        rules.append(LogitBias.of(s.logit_bias))
    return rules


def stages_of(sampling: Sampling, sample: int, tokenizer: VocabularyBytes | None) -> list[LogitStage]:
    """The stages that can change what is chosen, in their order.

    A temperature of 0 and a top-k of 1 leave one token, so nothing that stands behind them counts.
    """
    stages, wanted, one_left = list[LogitStage](), sampling.wanted_stages, one_is_left_by(sampling)
    for name in sampling.stages:
        if name == one_left:
            break
        if name in wanted:
            stages.append(_stage(name, sampling, sample, tokenizer))
    while one_left and stages and stages[-1].keeps_argmax:
        stages.pop()
    return stages


def one_is_left_by(sampling: Sampling) -> str | None:
    """The first stage that leaves the largest logit alone, if there is one: then decoding is greedy."""
    alone = {"temperature": sampling.temperature < GREEDY_BELOW, "top_k": sampling.top_k == 1}
    return next((name for name in sampling.stages if alone.get(name)), None)


def _stage(name: str, s: Sampling, sample: int, tokenizer: VocabularyBytes | None) -> LogitStage:
    if name.endswith("_penalty"):
        from vivace.sampling.penalties import FrequencyPenalty, PresencePenalty, RepetitionPenalty

        penalties: dict[str, Callable[[float], LogitStage]] = {
            "repetition_penalty": RepetitionPenalty,
            "presence_penalty": PresencePenalty,
            "frequency_penalty": FrequencyPenalty,
        }
        return penalties[name](getattr(s, name))
    if name == "dry":
        from vivace.sampling.dry import Dry

        breakers, last_n = s.dry_sequence_breakers, s.dry_penalty_last_n
        return Dry(s.dry_multiplier, s.dry_base, s.dry_allowed_length, breakers, last_n, tokenizer)
    from vivace.sampling.filters import MinP, Temperature, TopK, TopNSigma, TopP, TypicalP, Xtc

    if name == "xtc":
        return Xtc(s.xtc_probability, s.xtc_threshold, s.seed, sample)
    filters: dict[str, Callable[[Any], LogitStage]] = {
        "top_n_sigma": TopNSigma,
        "top_k": TopK,
        "temperature": Temperature,
        "typical_p": TypicalP,
        "top_p": TopP,
        "min_p": MinP,
    }
    return filters[name](getattr(s, name))
