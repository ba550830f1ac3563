"""Which stages a request asks for, and in which order they run.

First the rules: allowed and banned tokens and strings, `min_tokens` and biases. Then the stages, in the order that the
request gives or that of `vivace.core.request.STAGES`. Each works on what the one before it left; those that read
probabilities read them renormalised over that. Temperature keeps the order of logits, so it may stand behind top-k,
where it works on little.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from vivace.core.request import Sampling
from vivace.sampling.dry import Dry
from vivace.sampling.filters import GREEDY_BELOW, MinP, Temperature, TopK, TopNSigma, TopP, TypicalP, Xtc
from vivace.sampling.penalties import FrequencyPenalty, PresencePenalty, RepetitionPenalty
from vivace.sampling.rules import AllowedIds, BannedIds, LogitBias, NoEndBefore, id_array
from vivace.sampling.strings import AllowedStrings, BannedStrings
from vivace.sampling.token_texts import TokenTexts, VocabularyBytes
from vivace.sampling.trail import TokenCounts
from vivace.slots.logits import LogitStage


def rules_of(sampling: Sampling, end_ids: tuple[int, ...], tokenizer: VocabularyBytes | None) -> list[LogitStage]:
    """What the request allows and forbids. `end_ids`: the tokens that would end it."""
    ends, rules = id_array(end_ids), list[LogitStage]()
    if sampling.allowed_token_ids:
        rules.append(AllowedIds(id_array(sampling.allowed_token_ids)))
    if sampling.banned_token_ids:
        rules.append(BannedIds(id_array(sampling.banned_token_ids)))
    if sampling.min_tokens > 0 and end_ids:
        rules.append(NoEndBefore(ends, sampling.min_tokens))
    if sampling.allowed_strings or sampling.banned_strings:
        assert tokenizer is not None, "a request without text was checked for rules about it"
        texts = TokenTexts.of(tokenizer, sampling.skip_special_tokens)
        if sampling.allowed_strings:
            rules.append(AllowedStrings(sampling.allowed_strings, texts, ends))
        if sampling.banned_strings:
            silent = ends[:0] if sampling.include_stop else ends
            rules.append(BannedStrings(sampling.banned_strings, texts, silent))
    if sampling.logit_bias:
        ids, biases = zip(*sorted(sampling.logit_bias), strict=True)
        rules.append(LogitBias(np.array(ids, np.int32), np.array(biases, np.float32)))
    return rules


def stages_of(sampling: Sampling, sample: int, tokenizer: VocabularyBytes | None) -> list[LogitStage]:
    """The stages that can change what is chosen, in their order.

    A temperature of 0 and a top-k of 1 leave one token, so nothing that stands behind them counts.
    """
    generated = TokenCounts(with_prompt=False)
    s = sampling
    make: dict[str, Callable[[], LogitStage]] = {
        "repetition_penalty": lambda: RepetitionPenalty(s.repetition_penalty),
        "presence_penalty": lambda: PresencePenalty(s.presence_penalty, generated),
        "frequency_penalty": lambda: FrequencyPenalty(s.frequency_penalty, generated),
        "dry": lambda: Dry(
            s.dry_multiplier,
            s.dry_base,
            s.dry_allowed_length,
            s.dry_sequence_breakers,
            s.dry_penalty_last_n,
            tokenizer,
        ),
        "top_n_sigma": lambda: TopNSigma(s.top_n_sigma),
        "top_k": lambda: TopK(s.top_k),
        "temperature": lambda: Temperature(max(s.temperature, GREEDY_BELOW)),
        "typical_p": lambda: TypicalP(s.typical_p),
        "top_p": lambda: TopP(s.top_p),
        "min_p": lambda: MinP(s.min_p),
        "xtc": lambda: Xtc(s.xtc_probability, s.xtc_threshold, s.seed, sample),
    }
    stages, wanted, one_left = list[LogitStage](), sampling.wanted_stages, one_is_left_by(sampling)
    for name in sampling.stages:
        if name == one_left:
            break
        if name in wanted:
            stages.append(make[name]())
    while one_left and stages and stages[-1].keeps_argmax:
        stages.pop()
    return stages


def one_is_left_by(sampling: Sampling) -> str | None:
    """The first stage that leaves the largest logit alone, if there is one: then decoding is greedy."""
    alone = {"temperature": sampling.temperature < GREEDY_BELOW, "top_k": sampling.top_k == 1}
    return next((name for name in sampling.stages if alone.get(name)), None)
