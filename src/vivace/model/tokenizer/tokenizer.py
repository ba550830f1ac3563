"""The tokenizer that the rest of the engine sees."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from vivace.model.errors import ModelError
from vivace.model.tokenizer.matcher import Accept, Matcher
from vivace.model.tokenizer.vocabulary import Kind, SpacePrefix, Swallows, Vocabulary

if TYPE_CHECKING:
    from vivace.model.chat import ChatPrompt, Message

EncodePlain = Callable[[str], Sequence[int]]

_NOTHING = Swallows(before=False, after=False)
_WHITE = "".join(map(chr, (*range(9, 14), 32, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029)))
_WHITE += "\u202f\u205f\u3000"


class Tokenizer:
    """Ids of a text, and the text of ids.

    `encode_plain` knows nothing of control and user-defined tokens: texts are split at those first. All texts go
    through UTF-8 bytes, so `decode` equals what `TextStream` shows token by token.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        encode_plain: EncodePlain,
        *,
        aliases: Mapping[str, int] | None = None,
        swallows: Mapping[int, Swallows] | None = None,
        space_prefix: SpacePrefix | None = None,
        normalisation: Literal["NFC"] | None = None,
        bos_id: int | None = None,
        eos_ids: tuple[int, ...] = (),
        adds_bos: bool = False,
        adds_eos: bool = False,
        named_tokens: Mapping[str, str] | None = None,
        chat_template: str | None = None,
    ) -> None:
        """aliases: other spellings of user-defined tokens. swallows: of control and user-defined tokens, by id.
        named_tokens: what templates call "bos_token" and so on."""
        self.vocabulary = vocabulary
        self.bos_id, self.eos_ids = bos_id, eos_ids
        self.chat_template = chat_template
        self.named_tokens = dict(named_tokens or {})
        self.normalisation = normalisation
        self._encode_plain = encode_plain
        self._adds_bos, self._adds_eos = adds_bos, adds_eos
        control = vocabulary.ids(Kind.CONTROL)
        self._control = frozenset(control)
        fixed = {vocabulary.tokens[token]: token for token in vocabulary.ids(Kind.USER_DEFINED)} | dict(aliases or {})
        self._fixed_ids = self._control.union(fixed.values())
        self._swallows, self._space_prefix = dict(swallows or {}), space_prefix
        self._user_defined = Matcher(fixed)
        self._control_texts = {vocabulary.tokens[token]: token for token in control}
        self._all_fixed = Matcher(fixed | self._control_texts)

    @staticmethod
    def from_gguf(metadata: Mapping[str, object]) -> Tokenizer:
        """From the `tokenizer.*` keys of a GGUF file. Raises ModelError when they cannot be used."""
        from vivace.model.tokenizer.gguf import tokenizer_from_gguf

        return tokenizer_from_gguf(metadata)

    @staticmethod
    def from_folder(path: str | Path) -> Tokenizer:
        """From tokenizer.json and the files beside it. Raises ModelError when they cannot be used."""
        from vivace.model.tokenizer.folder import tokenizer_from_folder

        return tokenizer_from_folder(Path(path))

    @property
    def vocab_size(self) -> int:
        return len(self.vocabulary)

    @property
    def has_chat_template(self) -> bool:
        return self.chat_template is not None

    @property
    def control_texts(self) -> Mapping[str, int]:
        return self._control_texts

    def is_control(self, token: int) -> bool:
        self._check(token)
        return token in self._control

    def encode(self, text: str, add_special: bool = True, *, parse_special: bool = False) -> list[int]:
        """Ids of `text`. The text of a control token becomes that token only with `parse_special`.

        add_special: put BOS before and EOS after, if the model's files say so. Raises ValueError for a text with lone
        surrogates, which no UTF-8 can hold.
        """
        ids = self.encode_where(text, None if parse_special else self._refuse_control)
        if add_special and self._adds_bos and self.bos_id is not None:
            ids.insert(0, self.bos_id)
        if add_special and self._adds_eos and self.eos_ids:
            ids.append(self.eos_ids[0])
        return ids

    def encode_where(self, text: str, accept: Accept | None) -> list[int]:
        """Ids of `text`; `accept(token, start, end)` says where control and user-defined tokens may be matched."""
        return [token for ids, _ in self.segments(text, accept) for token in ids]

    def segments(self, text: str, accept: Accept | None) -> Iterator[tuple[Sequence[int], int]]:
        """(ids, bytes) of each fixed token and of each text between them, in order.

        bytes: how many more `text` has there than the ids spell: white space that a token swallows, or -1 for a space
        that was put before.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"the text has a lone surrogate (U+{ord(text[error.start]):04X}) at character {error.start}"
            ) from None
        matcher = self._user_defined if accept == self._refuse_control else self._all_fixed
        done = 0
        for token, start, end in matcher.find(text, accept):
            swallows = self._swallows.get(token, _NOTHING)
            plain = text[done:start]
            kept = plain.rstrip(_WHITE) if swallows.before else plain
            if kept:
                yield self._encode_checked(kept, first=done == 0)
            done = end
            if swallows.after:
                done = len(text) - len(text[end:].lstrip(_WHITE))
            yield (token,), len(plain[len(kept) :].encode()) + len(text[end:done].encode())
        if done < len(text):
            yield self._encode_checked(text[done:], first=done == 0)

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """The text of `ids`; bytes that are no UTF-8 become U+FFFD. Control tokens show with `skip_special` off."""
        data = b"".join([self.token_bytes(token, skip_special=skip_special) for token in ids])
        return (data.removeprefix(b" ") if self._space_prefix else data).decode(errors="replace")

    def drops_space_after(self, before: Sequence[int]) -> bool:
        """Whether a space at the beginning of what follows `before` is one that encoding puts there."""
        return self._space_prefix is not None and (not before or before[-1] in self._fixed_ids)

    def token_bytes(self, token: int, *, skip_special: bool = False) -> bytes:
        """The bytes that `token` adds to a text; they may be a part of a character."""
        self._check(token)
        return b"" if skip_special and token in self._control else self.vocabulary.content(token)

    def token_text(self, token: int) -> str:
        """The token for people to read; bytes that are no whole character show as U+FFFD."""
        return self.token_bytes(token).decode(errors="replace")

    def encode_chat(self, messages: Sequence[Message], **options: Any) -> list[int]:
        """The ids of `chat_prompt`."""
        return self.chat_prompt(messages, **options).ids

    def chat_prompt(self, messages: Sequence[Message], **options: Any) -> ChatPrompt:
        """A conversation through the model's chat template; see `vivace.model.chat.encode`."""
        from vivace.model.chat import encode

        return encode(self, messages, **options)

    def normalise(self, text: str) -> str:
        """The text as it is before it is cut into tokens, and so what decoding its ids gives back."""
        return unicodedata.normalize(self.normalisation, text) if self.normalisation else text

    def _refuse_control(self, token: int, _start: int, _end: int) -> bool:
        return token not in self._control

    def _encode_checked(self, text: str, *, first: bool) -> tuple[Sequence[int], int]:
        """Ids of a text without fixed tokens, and the space put before it as -1 byte."""
        prefix = self._space_prefix
        put = prefix is not None and (first or prefix.after_fixed)
        if prefix is not None and not prefix.doubles and text[0] in " ▁":
            put = False
        ids = self._encode_plain(" " + text if put else text)
        if not self._control.isdisjoint(ids):
            token = next(token for token in ids if token in self._control)
            raise ModelError(
                f"the vocabulary writes plain text as the control token {self.vocabulary.tokens[token]!r}; "
                "such a model cannot be used safely"
            )
        return ids, -put

    def _check(self, token: int) -> None:
        if not 0 <= token < len(self.vocabulary):
            raise ValueError(f"token {token} is outside the vocabulary of {len(self.vocabulary)}")
