"""Read a large JSON document piece by piece, and yield the members of one long array as they arrive."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

_SPACE = re.compile(r"[\s,]*")
_MOST_SPACE = 64  # characters between two members
_LONGEST_WORD = 12  # characters: `-Infinity`, or an escaped character in a text
_LONGEST_VALUE = 1 << 26  # characters; a longer value is not an event, and the document counts as damaged


@dataclass
class DamagedError(Exception):
    """The error for an incomplete or invalid document. is_cut: whether only the end of the document is missing."""

    is_cut: bool


class JsonStream:
    """The members of the array under the key `key` of a document.

    If the document itself is an array, the stream yields the members of the document. `others` contains the values of
    the other keys of the document. `num_members` counts the members that were read.
    """

    def __init__(self, pieces: Iterable[bytes], key: str) -> None:
        self._pieces = iter(pieces)
        self._decode: Callable[..., str] = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._scan = json.JSONDecoder().raw_decode
        self._key = key
        self._text, self._place, self._ended = "", 0, False
        self._try_many = False  # once for each piece
        self.others: dict[str, Any] = {}
        self.num_members = 0

    def members(self) -> Iterator[Any]:
        """Yield each member of the array. Raises DamagedError at the position where the document ends or is invalid."""
        return chain.from_iterable(self.batches())

    def batches(self) -> Iterator[list[Any]]:
        """Yield the members of the array in lists, one list for each piece of the file. Raises DamagedError."""
        begin = self._next_character()
        if begin == "[":
            self._place += 1
            yield from self._array()
            return
        if begin != "{":
            raise DamagedError(is_cut=not begin)
        self._place += 1
        while (character := self._next_character()) != "}":
            if not character:
                raise DamagedError(is_cut=True)
            name = self._value()
            if not isinstance(name, str) or self._next_character() != ":":
                raise DamagedError(is_cut=self._is_at_end())
            self._place += 1
            if name == self._key and self._next_character() == "[":
                self._place += 1
                yield from self._array()
            else:
                self.others[name] = self._value()

    def _array(self) -> Iterator[list[Any]]:
        while (character := self._next_character()) != "]":
            if not character:
                raise DamagedError(is_cut=True)
            members = self._many() or [self._value()]
            self.num_members += len(members)
            yield members
        self._place += 1

    def _many(self) -> list[Any]:
        """Decode all members that are completely in memory, with a single call of the JSON decoder.

        A single call is several times faster than one call for each member. The method guesses where the last complete
        member ends. If the guess is wrong, the result is empty.
        """
        end = self._last_end() if self._try_many else self._place
        self._try_many = False
        if end <= self._place:
            return []
        try:
            members: list[Any] = json.loads(f"[{self._text[self._place : end]}]")
        except (ValueError, RecursionError):
            return []
        self._place = end
        return members

    def _last_end(self) -> int:
        """Guess where the last complete member in memory ends.

        The function takes the last `}` that is followed by `,` and `{`.
        """
        begin = len(self._text)
        while (begin := self._text.rfind("{", self._place, begin)) > self._place:
            before = self._text[max(begin - _MOST_SPACE, self._place) : begin].rstrip()
            if before.endswith(",") and before[:-1].rstrip().endswith("}"):
                return self._text.rindex("}", self._place, begin) + 1
        return self._place

    def _value(self) -> Any:
        """Return the value that begins at the current position."""
        self._next_character()
        while True:
            try:
                value, end = self._scan(self._text, self._place)
            except (ValueError, RecursionError) as error:
                too_long = len(self._text) - self._place > _LONGEST_VALUE
                if too_long or not self._may_go_on(error):
                    raise DamagedError(is_cut=False) from None
                if not self._more():
                    raise DamagedError(is_cut=True) from None
                continue
            if end == len(self._text) and self._more():
                continue  # a number may continue in the next piece
            self._place = end
            return value

    def _may_go_on(self, error: Exception) -> bool:
        """Check whether the next piece of the file may complete a value that could not be decoded."""
        if not isinstance(error, json.JSONDecodeError):
            return False
        return error.pos >= len(self._text) - _LONGEST_WORD or error.msg.startswith("Unterminated string")

    def _next_character(self) -> str:
        """Return the next character that is not a space or a comma. At the end of the document, return ''."""
        while True:
            found = _SPACE.match(self._text, self._place)
            self._place = found.end() if found else self._place
            if self._place < len(self._text):
                return self._text[self._place]
            if not self._more():
                return ""

    def _is_at_end(self) -> bool:
        return not self._next_character()

    def _more(self) -> bool:
        """Read the next piece. Return False if the document has no further piece."""
        piece = next(self._pieces, None)
        if piece is None:
            self._ended = True
            return False
        self._text = self._text[self._place :] + self._decode(piece)
        self._place = 0
        self._try_many = True
        return True
