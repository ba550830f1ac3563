"""The Python interface."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import vivace
from vivace.core.request import Span
from vivace.sampling.options import OPTIONS, options_for

sys.path.insert(0, str(Path(__file__).parent / "core"))
from scripted import CharTokenizer, ScriptedExecutor, random_brain, tiny_spec


def make(bos_id=256, brain=None, **options) -> vivace.LLM:
    spec = tiny_spec(258, 1000, eos_ids=(257,), bos_id=bos_id)
    return vivace.LLM(ScriptedExecutor(brain or random_brain(1, 258), spec, 64), CharTokenizer(), **options)


@pytest.fixture
def llm():
    with make() as made:
        yield made
        made.engine.check()
        assert not made.engine.busy
    assert made.executor.closed


def test_one_prompt_or_several(llm):
    one, two = llm.generate(["abc", [1, 2, 3]], max_tokens=5)
    assert llm.generate("abc", max_tokens=5)[0].text == one.text
    assert llm.generate([1, 2, 3], max_tokens=5)[0].token_ids == two.token_ids
    assert one.prompt_token_ids == [*b"abc"] and len(one.token_ids) == 5 and one.finish_reason == "length"
    assert llm.generate([], max_tokens=5) == []


def test_samples_stand_beside_each_other(llm):
    outs = llm.generate(["abc", "d"], n=[2, 1], temperature=1.0, seed=3, max_tokens=4)
    assert [bytes(out.prompt_token_ids) for out in outs] == [b"abc", b"abc", b"d"]
    assert outs[0].token_ids != outs[1].token_ids
    assert llm.generate("abc", temperature=1.0, seed=3, max_tokens=4)[0].token_ids == outs[0].token_ids


def test_options_may_differ_by_prompt(llm):
    outs = llm.generate(["a", "b", "c"], max_tokens=[1, 2, 3], stop=[["x"], None, ["y", "z"]], logprobs=[None, 0, 2])
    assert [len(out.token_ids) for out in outs] == [1, 2, 3]
    assert [out.logprobs and [len(d) for d in out.logprobs] for out in outs] == [None, [1, 1], [2, 2, 2]]


def test_streams_add_up(llm):
    prompts, options = ["abc", "é", "x"], {"max_tokens": 30, "temperature": 1.0, "n": 2, "stop": ["q", "\ufffd\ufffd"]}
    whole = llm.generate(prompts, **options)
    pieces = list(llm.stream(prompts, **options))
    for i, out in enumerate(whole):
        mine = [piece for piece in pieces if piece.index == i]
        assert "".join(piece.text for piece in mine) == out.text
        assert [token for piece in mine for token in piece.token_ids] == out.token_ids
        assert [piece.finish_reason for piece in mine[:-1]] == [None] * (len(mine) - 1)
        assert mine[-1].finish_reason == out.finish_reason


def test_streams_read_in_turns(llm):
    alone = ["".join(p.text for p in llm.stream(prompt, max_tokens=20)) for prompt in ("a", "b")]
    first, second = llm.stream("a", max_tokens=20), llm.stream("b", max_tokens=20)
    texts = ["", ""]
    for a, b in zip(first, second, strict=False):
        texts[0] += a.text
        texts[1] += b.text
    texts[0] += "".join(p.text for p in first)
    texts[1] += "".join(p.text for p in second)
    assert texts == alone


def test_an_abandoned_stream_is_cancelled(llm):
    stream = llm.stream("a", max_tokens=500)
    next(stream)
    assert llm.engine.busy
    stream.close()
    llm.stream("b")  # never read
    assert not llm.engine.busy


def test_an_interrupted_call_leaves_nothing_behind(llm):
    healthy = llm.executor.brain

    def interrupted(tokens):
        if len(tokens) > 10:
            raise KeyboardInterrupt
        return healthy(tokens)

    llm.executor.brain = interrupted
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["abc", "d"], max_tokens=50)
    llm.executor.brain = healthy
    assert not llm.engine.busy
    assert len(llm.generate("abc", max_tokens=20)[0].token_ids) == 20


def test_chat(llm):
    messages = [{"role": "user", "content": "hi"}]
    reply = llm.chat(messages, max_tokens=5)
    assert reply.prompt_token_ids == [256, *b"user:hi\n"]
    assert "".join(piece.text for piece in llm.stream_chat(messages, max_tokens=5)) == reply.text
    for call in (llm.chat, llm.stream_chat):
        with pytest.raises(TypeError, match="a chat finds the spans itself"):
            call(messages, spans=[])
    for wrong in ("Hi", messages[0], None):
        with pytest.raises(ValueError, match="a conversation is a list of messages, not"):
            llm.chat(wrong)
    with pytest.raises(ValueError, match="a message is a mapping with a role and a content, not 'Hi'"):
        llm.chat(["Hi"])
    with pytest.raises(ValueError, match="chat gives one reply"):
        llm.chat(messages, n=2)


def test_an_empty_prompt_is_the_start_token(llm):
    assert llm.generate("", max_tokens=1)[0].prompt_token_ids == [256]
    with pytest.raises(ValueError, match="no start token"):
        make(bos_id=None).generate("")


def test_a_completion_tells_what_it_cost(llm):
    (out,) = llm.generate("abcd", max_tokens=8)
    assert out.steps.target_forwards == 8 and out.steps.accepted_per_forward == 1.0
    assert out.timings.total_s >= out.timings.ttft_s > 0 and out.timings.decode_tok_s > 0
    assert out.memory.peak_rss_bytes > 1e6 and out.memory.kv_resident_bytes == 11 * llm.engine.store.spec.token_bytes()


def test_a_failed_request_raises_and_hands_over_the_others():
    healthy = random_brain(1, 258)
    llm = make(brain=lambda tokens: healthy(tokens) * (np.nan if tokens[0] == ord("b") else 1))
    with pytest.raises(vivace.RequestFailed, match="not numbers") as failed:
        llm.generate(["a", "b"], max_tokens=3)
    assert [out.finish_reason for out in failed.value.completions] == ["length", "error"]
    with pytest.raises(vivace.RequestFailed):
        list(llm.stream("b"))
    assert not llm.engine.busy


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_tokens": -1}, "max_tokens must be an integer of at least 0, not -1"),
        ({"max_tokens": 2.5}, "max_tokens must be an integer"),
        ({"max_tokens": True}, "max_tokens must be an integer"),
        ({"temperature": float("nan")}, "temperature must be a finite number"),
        ({"temperature": -0.1}, "temperature must be a finite number"),
        ({"temperature": "1"}, "temperature must be a finite number"),
        ({"top_p": 0}, "top_p must be a number above 0 and at most 1, not 0"),
        ({"top_p": 1.1}, "top_p must"),
        ({"top_k": -1}, "top_k must"),
        ({"min_p": 2}, "min_p must"),
        ({"repetition_penalty": 0}, "repetition_penalty must"),
        ({"stop": [""]}, "stop must be text"),
        ({"stop": 3}, "stop must be text"),
        ({"stop_token_ids": ["a"]}, "stop_token_ids must be a list of token ids"),
        ({"ignore_eos": 1}, "ignore_eos must be True or False"),
        ({"seed": None}, "seed must be an integer"),
        ({"n": 0}, "n must be an integer of at least 1"),
        ({"n": 10**9}, "n must be an integer of at most 16384"),
        ({"logprobs": -1}, "logprobs must"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens 9 is more than max_tokens 8"),
        ({"typical_p": 0}, "typical_p must be a number above 0"),
        ({"xtc_threshold": 0}, "xtc_threshold must"),
        ({"presence_penalty": float("inf")}, "presence_penalty must be a number from -100 to 100"),
        ({"dry_base": 0.5}, "dry_base must"),
        ({"dry_allowed_length": 0}, "dry_allowed_length must"),
        ({"dry_penalty_last_n": -2}, "dry_penalty_last_n must"),
        ({"logit_bias": [1, 2]}, "logit_bias has 2 values for 1 prompts"),
        ({"logit_bias": {"a": 1.0}}, r"logit_bias must be \{token id: number"),
        ({"logit_bias": {1: float("nan")}}, r"logit_bias must be \{token id: number"),
        ({"logit_bias": {258: 1.0}}, "logit_bias: token id 258 is outside the vocabulary"),
        ({"banned_token_ids": [3, 258]}, "banned_token_ids: token id 258 is outside the vocabulary"),
        ({"stop_token_ids": b"x"}, "stop_token_ids must be a list of token ids"),
        ({"allowed_token_ids": {1: 2}}, "allowed_token_ids must be a list of token ids"),
        ({"allowed_token_ids": []}, "allowed_token_ids must be None or not empty"),
        ({"allowed_strings": []}, "allowed_strings must be None or not empty"),
        ({"banned_strings": ["a\ufffd"]}, "banned_strings must be text without U"),
        ({"banned_strings": ["\ud800"]}, "banned_strings must be text without lone surrogates"),
        ({"stages": ["top_k", "temprature"]}, "there is no 'temprature'; did you mean temperature"),
        ({"stages": ["top_k", "top_k"]}, "each once"),
        ({"stages": ["temperature"], "top_k": 3}, "stages leaves out 'top_k', which the request asks for"),
        ({"allowed_strings": ["a"], "stop": "b"}, "leave out stop"),
        ({"allowed_strings": ["a"], "min_tokens": 1}, "leave out min_tokens"),
        ({"allowed_strings": ["a"], "banned_strings": ["b"]}, "leave out banned_strings"),
        ({"temperature": [0.0, 1.0]}, "temperature has 2 values for 1 prompts"),
        ({"max_tokens": 1000}, "3 more than the context of 1000"),
    ],
)
def test_wrong_values(llm, options, message):
    with pytest.raises(ValueError, match=message):
        llm.generate("abc", **options)


def test_wrong_names(llm):
    with pytest.raises(TypeError, match="unknown argument 'temprature'; did you mean temperature"):
        llm.generate("abc", temprature=1)
    with pytest.raises(TypeError, match="unknown argument 'zzz'"):
        llm.stream("abc", zzz=1)


def test_wrong_prompts(llm):
    with pytest.raises(ValueError, match="token id 258 is outside the vocabulary"):
        llm.generate([1, 258])
    with pytest.raises(ValueError, match="text or a list of token ids"):
        llm.generate([None])
    with pytest.raises(ValueError, match="more than the context of 1000"):
        llm.generate(["abc", "x" * 1000])


@pytest.mark.parametrize("prompt", [b"abc", bytearray(b"abc"), {"a": 1}, None, 5, ["abc", 1], ["abc", b"abc"], [True]])
def test_what_is_no_prompt(llm, prompt):
    with pytest.raises(ValueError, match="a prompt is text or a list of token ids, not"):
        llm.generate(prompt)


def test_a_closed_model_says_so():
    llm = make()
    stream = llm.stream("abc", max_tokens=50)
    next(stream)
    llm.close()
    llm.close()
    assert [piece.finish_reason for piece in stream] == ["cancelled"]
    for call in (lambda: llm.generate("a"), lambda: next(llm.stream("a")), lambda: llm.chat([])):
        with pytest.raises(ValueError, match="the model is closed: load it again"):
            call()


def test_stop_values():
    assert options_for(2, {"stop": "end"})[1].sampling.stop == ("end",)
    assert options_for(2, {"stop": ["a", "b"]})[1].sampling.stop == ("a", "b")
    assert options_for(2, {"stop": [["a"], ["b", "c"]]})[1].sampling.stop == ("b", "c")
    assert options_for(1, {"stop_token_ids": [5, 6]})[0].sampling.stop_token_ids == (5, 6)


def test_rules_and_stages_may_differ_by_prompt(llm):
    strings, ids = [["yes", "no"], None, ["maybe"]], [None, [*b"ab"], None]
    outs = llm.generate(
        ["a", "b", "c"],
        max_tokens=8,
        allowed_strings=strings,
        allowed_token_ids=ids,
        logit_bias=[{}, {98: 50.0}, None],
        stages=[None, ["temperature", "xtc"], None],
    )
    assert outs[0].text in ("yes", "no") and outs[1].text == "b" * 8 and outs[2].text == "maybe"
    (one,) = options_for(1, {"stages": ["temperature"], "logit_bias": {3: -1}, "banned_strings": "x"})
    assert one.sampling.stages == ("temperature",) and one.sampling.logit_bias == ((3, -1.0),)
    assert one.sampling.banned_strings == ("x",)


def test_every_option_has_the_default_of_the_sampling():
    assert options_for(1, {})[0].sampling == vivace.Sampling()
    fields = set(vivace.Sampling.__dataclass_fields__)
    assert set(OPTIONS) == fields | {"n", "add_special_tokens", "spans"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"plan": "no_such_method"}, "there is no method 'no_such_method'"),
        ({"executor": "cuda"}, "executor must be 'native' or 'reference'"),
        ({"threads": 0}, "threads must be an integer from 1 to 256, not 0"),
        ({"threads": 2**31}, "threads must be an integer from 1 to 256"),
        ({"plan": 5}, "plan must be text or a Plan, not 5"),
        ({"threads": "2"}, "threads must be an integer from 1 to 256"),
    ],
)
def test_load_checks_its_arguments_before_it_loads(arguments, message):
    with pytest.raises(ValueError, match=message):
        vivace.load("no-such-model", **arguments)


@pytest.mark.models
def test_a_real_model(smollm2):
    pytest.importorskip("vivace._native", reason="the native core is not built")
    with pytest.raises(ValueError, match="more than the 8192 tokens this model was made for"):
        vivace.load(str(smollm2), context=10**6)
    with vivace.load(str(smollm2), plan="", context=512) as llm:
        (out,) = llm.generate("The capital of France is", max_tokens=4)
        assert out.text.startswith(" Paris")
        streamed = "".join(piece.text for piece in llm.stream("The capital of France is", max_tokens=4))
        assert streamed == out.text
        assert "4" in llm.chat([{"role": "user", "content": "What is 2 + 2?"}], max_tokens=30).text


def test_labelled_spans_arrive_in_the_request(llm, monkeypatch):
    seen = []
    add = llm.engine.add
    monkeypatch.setattr(llm.engine, "add", lambda request, samples: seen.append(request.spans) or add(request, samples))
    messages = [{"role": "system", "content": "ab"}, {"role": "user", "content": "cd"}]
    llm.chat(messages, max_tokens=2)
    list(llm.stream_chat(messages, max_tokens=2))
    assert seen == [(Span(8, 9, "system"), Span(16, 17, "user"))] * 2
    llm.generate(["abc", "d"], max_tokens=1, spans=[[Span(0, 1, "tool")], None])
    llm.generate("abc", max_tokens=1, spans=[Span(0, 1, "tool")])
    assert seen[2:] == [(Span(0, 1, "tool"),), (), (Span(0, 1, "tool"),)]
    with pytest.raises(ValueError, match=r"span 1\.\.3 is not within the prompt's tokens 0\.\.2"):
        llm.generate("abc", spans=[Span(1, 3, "user")])
    with pytest.raises(ValueError, match="spans must be a list of Span"):
        llm.generate("abc", spans=["user"])


def test_a_second_turn_runs_only_what_is_new(llm):
    messages = [{"role": "user", "content": "x" * 200}]
    first = llm.chat(messages, max_tokens=30, ignore_eos=True)
    messages += [{"role": "assistant", "content": first.text}, {"role": "user", "content": "and?"}]
    second = llm.chat(messages, max_tokens=2)
    assert first.cached_tokens == 0
    assert second.cached_tokens >= 192, "the first prompt, and of the reply what its text gives again"


def test_the_context_chooses_the_rotary_factors(tmp_path, monkeypatch):
    """Models with two sets of them get the short ones, and the context those are made for, unless more is asked."""
    sys.path.insert(0, str(Path(__file__).parent / "model"))
    from hf_zoo import checkpoint_of, zoo_model

    from vivace.loading import _context

    model = zoo_model("phi3-3to1-partial-short-rope")
    model.save_pretrained(tmp_path)
    monkeypatch.setattr("vivace.model.weights.Checkpoint.tokenizer", CharTokenizer())
    for asked, context, positions in ((None, 64, 64), (64, 64, 1), (65, 65, 65), (128, 128, 128)):
        with vivace.load(str(tmp_path), context=asked) as llm:
            assert llm.engine.context == context
            assert llm.executor.spec.blocks == checkpoint_of(model, context=positions).spec.blocks
    with vivace.load(str(tmp_path)) as llm, pytest.raises(ValueError, match="or load with a larger context"):
        llm.generate([list(range(60))], max_tokens=5)
    plain = checkpoint_of(zoo_model("llama-3to1-tied")).spec
    assert (plain.short_context, _context(None, plain)) == (512, 512)
