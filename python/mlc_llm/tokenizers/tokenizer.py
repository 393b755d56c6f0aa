"""`Tokenizer`, the class that other folders use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import compress
from pathlib import Path

from mlc_llm.errors import ContextLengthExceeded, InvalidField, UnsupportedModel
from mlc_llm.tokenizers.control import ControlFinder
from mlc_llm.tokenizers.frame import Frame
from mlc_llm.tokenizers.from_gguf import parts_of_flat, parts_of_metadata
from mlc_llm.tokenizers.parts import Parts, Prefix, check_unicode, library_ids


class Tokenizer:
    """Text to token ids and back. It never changes; several threads may use it at once.

    It never adds a begin-of-text token: `add_bos` says whether the model needs one.
    """

    def __init__(self, path: Path | str) -> None:
        """Open a folder with a tokenizer, or its tokenizer.json. `folder` says which of several
        files is taken. (For a `.gguf` file use `from_gguf_metadata`.)

        Raises `ModelNotFound`, `ModelFileError`, `UnsupportedModel`.
        """
        from mlc_llm.tokenizers.folder import parts_of_folder

        path = Path(path)
        if path.suffix == ".gguf":
            raise UnsupportedModel(f"{path}: open the file and pass its metadata to Tokenizer")
        self._set_up(parts_of_folder(path.parent if path.name == "tokenizer.json" else path))

    @classmethod
    def from_gguf_metadata(cls, metadata: Mapping[str, object]) -> Tokenizer:
        """Build the tokenizer that the keys `tokenizer.ggml.*` describe.

        Raises `ModelFileError`, which names the broken key, or `UnsupportedModel`.
        """
        made = cls.__new__(cls)
        made._set_up(parts_of_metadata(metadata))
        return made

    @classmethod
    def from_flat(cls, data: memoryview, metadata: Mapping[str, object]) -> Tokenizer:
        """The tokenizer of `metadata`, from its flat form `data` (see `from_gguf.flat_form`). It
        opens faster and does the rest of the work when it is needed. Raises ValueError, KeyError,
        TypeError or struct.error if the data has another form."""
        made = cls.__new__(cls)
        made._set_up(parts_of_flat(data, metadata))
        return made

    def complete(self) -> None:
        """Build everything now that the encoding of a later text would build first."""
        if self._parts.prepared is None:
            self._parts.backends()

    def _set_up(self, parts: Parts) -> None:
        self._parts = parts
        self._bytes: dict[int, bytes] = {}
        self._longest: int | None = None
        self._control = ControlFinder(parts.special_tokens, parts.whole_words)
        self.vocab_size = parts.vocab_size
        self.special_tokens = parts.special_tokens
        """Text of each control token -> its id."""
        self.bos_token_id = parts.bos_token_id
        self.eos_token_id = parts.eos_token_id
        """The one that the files name; others may end an answer too."""
        self.eos_token_ids = parts.eos_token_ids
        """Every token that ends an answer."""
        self.add_bos = parts.add_bos
        bos = parts.bos_token_id if parts.add_bos else None
        self.frame = parts.frame or Frame(() if bos is None else (bos,))
        """What the model wants around a text that stands alone, or around a pair."""
        self.strips_leading_space = parts.strips_leading_space
        """Whether the encoding adds a first space, which decoding removes."""

    def encode(
        self, text: str, *, special: bool = False, max_tokens: int | None = None
    ) -> list[int]:
        """Token ids of a text; see `encode_batch`.

        max_tokens: raise `ContextLengthExceeded` before encoding if so long a text cannot fit. The
        error has the fewest tokens it could have. Encoding takes about a second for two million
        characters.
        """
        if max_tokens is not None:
            self.check_size([text], max_tokens)
        return self.encode_batch([text], special=special)[0]

    def encode_batch(self, texts: Sequence[str], *, special: bool = False) -> list[list[int]]:
        """Token ids of several texts.

        special: names of control tokens in the texts are control tokens, otherwise ordinary text.
        Other threads run meanwhile. Raises `InvalidField` for a text with a lone surrogate.
        """
        known = self._word_by_word(texts, special=special)
        if known is not None:
            return known
        if self._parts.prepared is not None:
            pieces = [self.split_control(text) if special else [text] for text in texts]
            return [self._encode_prepared(one) for one in pieces]
        backends = self._parts.backends()
        return library_ids(backends.recognising if special else backends.plain, texts)

    def _word_by_word(
        self, texts: Sequence[str], *, special: bool = False
    ) -> list[list[int]] | None:
        """As `encode_batch`, for short texts; None if they need the backends."""
        words = self._parts.words
        if words is None or not all(map(words.can_cut, texts)):
            return None
        if not special:
            return words.encode(texts)
        pieces = [self.split_control(text) for text in texts]
        coded = words.encode([one for text in pieces for one in text if isinstance(one, str)])
        if coded is None:
            return None
        ids = iter(coded)
        return [
            [id for one in text for id in (next(ids) if isinstance(one, str) else (one,))]
            for text in pieces
        ]

    def encode_prompt(self, text: str) -> list[int]:
        """Token ids of a text at the start of a prompt, as ordinary text: with the begin-of-text
        token where the model wants one."""
        bos = self.bos_token_id if self.add_bos else None
        ids = self.encode(text)
        return ids if bos is None else [bos, *ids]

    def encode_segments(self, segments: Sequence[str | int]) -> list[int]:
        """Token ids of one text that is given in pieces. Strings are ordinary text, integers are
        the control tokens between them. The result equals `encode(whole text, special=True)` if no
        string contains the name of a control token and no two strings follow each other."""
        if self._parts.prepared is not None:
            return self._encode_prepared(segments)
        pieces = [
            self._stripped(segments, i) if isinstance(segment, str) else ""
            for i, segment in enumerate(segments)
        ]
        coded = self._word_by_word(pieces)
        if coded is None:
            coded = self._encoded(segments, pieces)
        ids: list[int] = []
        for segment, piece in zip(segments, coded, strict=True):
            ids += piece if isinstance(segment, str) else [segment]
        return ids

    def _encoded(self, segments: Sequence[str | int], pieces: Sequence[str]) -> list[list[int]]:
        """Token ids of each piece. Which backend encodes it depends on what is before it."""
        backends = self._parts.backends()
        follows_control = [i > 0 and isinstance(segments[i - 1], int) for i in range(len(pieces))]
        after_control = iter(
            library_ids(backends.after_control, list(compress(pieces, follows_control)))
        )
        others = [piece for piece, one in zip(pieces, follows_control, strict=True) if not one]
        rest = iter(
            library_ids(backends.plain, others[:1]) + library_ids(backends.continued, others[1:])
        )
        return [next(after_control if one else rest) for one in follows_control]

    def _encode_prepared(self, segments: Sequence[str | int]) -> list[int]:
        """As `encode_segments`."""
        prepared = self._parts.prepared
        assert prepared is not None
        check_unicode(one for one in segments if isinstance(one, str))
        spaced = prepared.after_control is Prefix.EVERY
        ids: list[int] = []
        for i, segment in enumerate(segments):
            if isinstance(segment, int):
                ids.append(segment)
                continue
            follows_control = i > 0 and isinstance(segments[i - 1], int)
            text = self._stripped(segments, i)
            text = prepared.prepare(text, continued=i > 0 and not (spaced and follows_control))
            ids += prepared.encode([text])[0]
        return ids

    def split_control(self, text: str) -> list[str | int]:
        """Cut a text at the names of control tokens. Returns pieces for `encode_segments`."""
        return self._control.split(text)

    def control_spans(self, text: str) -> list[tuple[int, int]]:
        """(start, end) of each name of a control token in a text, in order."""
        return [(start, end) for start, end, _ in self._control.find(text)]

    def begins_inside_control(self, text: str) -> bool:
        """Whether some text before this one could complete the name of a control token."""
        return self._control.begins_inside(text)

    def ends_inside_control(self, text: str) -> bool:
        """Whether some text after this one could complete the name of a control token."""
        return self._control.ends_inside(text)

    def decode(self, token_ids: Iterable[int]) -> str:
        """The text of tokens. A control token gives its name; bytes that are not UTF-8 give
        U+FFFD."""
        text = b"".join(map(self.token_bytes, token_ids)).decode(errors="replace")
        return text.removeprefix(" ") if self.strips_leading_space else text

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token adds to a text. Raises `InvalidField` outside the vocabulary."""
        found = self._bytes.get(token_id)
        if found is None:
            if not 0 <= token_id < self.vocab_size:
                raise InvalidField("token id", token_id, f"it should be 0 to {self.vocab_size - 1}")
            found = self._bytes[token_id] = self._parts.token_bytes(token_id)
        return found

    def check_size(self, texts: Iterable[str], max_tokens: int) -> None:
        """Raise `ContextLengthExceeded` if the texts need more than `max_tokens` tokens, even if
        every token were as long as the longest one. Nothing is encoded.
        """
        texts = list(texts)
        characters = sum(map(len, texts))
        if characters <= max_tokens:
            return
        if self._parts.prepared is not None:  # it may make a text shorter
            characters = sum(len(self._parts.prepared.prepare(text)) for text in texts)
        fewest = characters // self._longest_token()
        if fewest > max_tokens:
            raise ContextLengthExceeded(fewest, max_tokens, at_least=True)

    def _longest_token(self) -> int:
        """Bytes of the longest token. It has at most so many characters."""
        if self._longest is None:
            self._longest = max(1, *(len(self.token_bytes(i)) for i in range(self.vocab_size)))
        return self._longest

    def _stripped(self, segments: Sequence[str | int], i: int) -> str:
        """A string without the white space that the control tokens beside it remove."""
        text = segments[i]
        assert isinstance(text, str)
        strips = self._parts.strips
        before = strips.get(_control_id(segments, i - 1))
        after = strips.get(_control_id(segments, i + 1))
        text = text.lstrip() if before is not None and before.right else text
        return text.rstrip() if after is not None and after.left else text


def _control_id(segments: Sequence[str | int], i: int) -> int:
    """The control token at an index; -1 if there is none."""
    segment = segments[i] if 0 <= i < len(segments) else -1
    return segment if isinstance(segment, int) else -1
