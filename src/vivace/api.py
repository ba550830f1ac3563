"""The Python interface: load a model, generate, stream, chat."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import replace
from operator import index
from typing import TYPE_CHECKING, Any, cast

from vivace.core.batch import Sequence
from vivace.core.engine import Engine
from vivace.core.interrupts import uninterrupted
from vivace.core.pieces import pieces
from vivace.core.report import completion_of
from vivace.core.request import Completion, Piece, Request
from vivace.plan.bind import check
from vivace.plan.plan import Plan
from vivace.sampling.options import PromptOptions, options_for

if TYPE_CHECKING:
    from vivace.core.step import Executor
    from vivace.model.chat import ChatPrompt
    from vivace.model.tokenizer import Tokenizer
    from vivace.plan.report import Report

Prompt = str | list[int]
Message = Mapping[str, Any]


class RequestFailed(RuntimeError):
    """A request ended with an error. `completions` has all that the call produced, finished or not."""

    def __init__(self, message: str, completions: list[Completion]) -> None:
        super().__init__(message)
        self.completions = completions


class LLM:
    """A loaded model. A context manager: leaving it, or `close()`, frees the weights.

    Not for use from several threads at once; several streams of one thread may be read in turns.
    """

    def __init__(
        self,
        executor: Executor,
        tokenizer: Tokenizer,
        *,
        context: int | None = None,
        model: str = "",
        weights_bytes: int = 0,
        load_s: float = 0.0,
        report: Report | None = None,
        helpers: Mapping[str, Executor] | None = None,
        **engine_options: Any,
    ) -> None:
        self.executor, self.tokenizer, self.model = executor, tokenizer, model
        self.weights_bytes, self.load_s = weights_bytes, load_s
        self.closed = False
        self._report = report or check(Plan())
        models = {"target": executor, **(helpers or {})}
        self.engine = Engine(models, tokenizer=tokenizer, context=context, **engine_options)

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Frees the weights. Requests that run are cancelled; nothing can be asked of it afterwards."""
        if not self.closed:
            self._cancel([*self.engine.waiting, *self.engine.running.values()])
            for model in self.engine.models.values():
                model.close()
        self.closed = True

    def check(self) -> Report:
        """What binding says of this model's plan: verdict, tier, reasons, and the memory it takes."""
        kv = self.executor.store.spec
        memory = {
            "weights_bytes": self.weights_bytes,
            "kv_token_bytes": kv.token_bytes(),
            "kv_context_bytes": kv.token_bytes() * self.engine.context,
        }
        return replace(self._report, memory=memory)

    def generate(self, prompts: Prompt | Seq[Prompt], **options: Any) -> list[Completion]:
        """Complete each prompt (text or token ids); `n` > 1 gives the completions of a prompt beside each other.

        Options, each one value or a list with one per prompt (`vivace.Sampling` has the defaults):

        - length and end: max_tokens, min_tokens, stop, stop_token_ids, include_stop, ignore_eos
        - the choice of a token: temperature, top_k, top_p, min_p, typical_p, top_n_sigma, xtc_probability,
          xtc_threshold, seed, and the order of it all, stages
        - repetition: repetition_penalty, presence_penalty, frequency_penalty, dry_multiplier, dry_base,
          dry_allowed_length, dry_sequence_breakers, dry_penalty_last_n
        - what may be said: logit_bias {id: number}, allowed_token_ids, banned_token_ids, banned_strings (none of them
          occurs in the text), allowed_strings (the text is one of them)
        - what comes back: n, logprobs, prompt_logprobs, skip_special_tokens
        - the prompt: add_special_tokens, spans

        Raises TypeError and ValueError for what is not allowed, RequestFailed when a request failed on the way.
        """
        requests, handles = self._requests(prompts, options), list[Sequence]()
        try:
            self._add(requests, handles)
            while not all(handle.finished for handle in handles):
                self.engine.step()
        finally:
            self._cancel(handles)
        completions = [self.completion(handle) for handle in handles]
        _raise_first_error(handles, completions)
        return completions

    def completion(self, handle: Sequence) -> Completion:
        """What became of a request that was added to the engine and has ended."""
        return completion_of(handle, self.weights_bytes, self.load_s)

    def stream(self, prompts: Prompt | Seq[Prompt], **options: Any) -> Iterator[Piece]:
        """Yield tokens as they come and text as it becomes certain.

        `Piece.index` says of which completion, in the order of `generate`. The pieces of a completion add up to what
        `generate` returns. Abandoning the iterator cancels the rest.
        """
        return self._stream(self._requests(prompts, options))

    def chat(self, messages: Seq[Message], **options: Any) -> Completion:
        """Reply to a conversation: dictionaries with `role` and `content`, put together by the model's own template."""
        _no_spans(options)
        if options.get("n", 1) != 1:
            raise ValueError("chat gives one reply: for n > 1 give the ids of `chat_prompt` to generate")
        prompt = self.chat_prompt(messages)
        (reply,) = self.generate([prompt.ids], spans=[prompt.spans], **options)
        return reply

    def stream_chat(self, messages: Seq[Message], **options: Any) -> Iterator[Piece]:
        """Like `chat`, as a stream."""
        _no_spans(options)
        prompt = self.chat_prompt(messages)
        return self.stream([prompt.ids], spans=[prompt.spans], **options)

    def chat_prompt(self, messages: Seq[Message]) -> ChatPrompt:
        """A conversation ready for the reply: its text, token ids, and the spans of each message's content."""
        if isinstance(messages, (str, Mapping)) or not isinstance(messages, Iterable):
            raise ValueError(f"a conversation is a list of messages, not {type(messages).__name__}")
        listed = list(messages)
        for message in listed:
            if not isinstance(message, Mapping):
                raise ValueError(f"a message is a mapping with a role and a content, not {message!r:.60}")
        return self.tokenizer.chat_prompt([dict(message) for message in listed])

    def _requests(self, prompts: Prompt | Seq[Prompt], options: Mapping[str, Any]) -> list[tuple[Request, int]]:
        """(request, samples) of each prompt, all of them checked before any of them runs."""
        if self.closed:
            raise ValueError("the model is closed: load it again")
        listed = _listed(prompts)
        requests = []
        for prompt, option in zip(listed, options_for(len(listed), options), strict=True):
            request = Request(self._encode(prompt, option), option.sampling, spans=option.spans)
            self.engine.validate(request, option.samples)
            requests.append((request, option.samples))
        return requests

    @uninterrupted
    def _add(self, requests: list[tuple[Request, int]], handles: list[Sequence]) -> None:
        for request, samples in requests:
            handles += self.engine.add(request, samples)

    def _encode(self, prompt: Prompt, option: PromptOptions) -> list[int]:
        if isinstance(prompt, str):
            ids = self.tokenizer.encode(prompt, option.add_special_tokens)
        else:
            ids = [_token_id(i, self.executor.spec.vocab) for i in _listed_ids(prompt)]
        bos = self.executor.spec.bos_id
        if not ids and bos is None:
            raise ValueError("the prompt is empty and this model has no start token: give at least one token")
        return ids or [cast("int", bos)]

    def _stream(self, requests: list[tuple[Request, int]]) -> Iterator[Piece]:
        handles: list[Sequence] = []
        try:
            self._add(requests, handles)
            for gained in pieces(self.engine, handles):
                yield from gained
        finally:
            self._cancel(handles)
        _raise_first_error(handles, [])

    @uninterrupted
    def _cancel(self, handles: list[Sequence]) -> None:
        for handle in handles:
            self.engine.cancel(handle)


def _listed(prompts: Prompt | Seq[Prompt]) -> list[Prompt]:
    """One prompt, as text or ids, is a list of one."""
    if isinstance(prompts, str):
        return [prompts]
    if isinstance(prompts, (bytes, bytearray, Mapping)) or not isinstance(prompts, Iterable):
        raise ValueError(f"a prompt is text or a list of token ids, not {type(prompts).__name__}")
    listed = list(prompts)
    if listed and not isinstance(listed[0], (str, list, tuple)):
        return [cast("list[int]", listed)]
    return cast("list[Prompt]", listed)


def _listed_ids(prompt: Any) -> Iterable[Any]:
    """The items of a prompt that is no text."""
    if isinstance(prompt, (bytes, bytearray, Mapping)) or not isinstance(prompt, Iterable):
        raise ValueError(f"a prompt is text or a list of token ids, not {prompt!r:.60}")
    return prompt


def _no_spans(options: Mapping[str, Any]) -> None:
    if "spans" in options:
        raise TypeError("a chat finds the spans itself; give `spans` to generate")


def _token_id(value: Any, vocab: int) -> int:
    try:
        if isinstance(value, bool):
            raise TypeError
        number = index(value)
    except TypeError:
        raise ValueError(f"a prompt is text or a list of token ids, not a list with {value!r}") from None
    if not 0 <= number < vocab:
        raise ValueError(f"token id {number} is outside the vocabulary 0..{vocab - 1}")
    return number


def _raise_first_error(handles: list[Sequence], completions: list[Completion]) -> None:
    for handle in handles:
        if handle.error is not None:
            raise RequestFailed(str(handle.error), completions) from handle.error
