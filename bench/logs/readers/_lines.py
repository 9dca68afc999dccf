"""Split the text of a log into lines, without prefixes and marks of launchers, terminals and editors.

A line may have several prefixes. This module removes the tags of mpirun, the labels of srun, pdsh and compose, and the
brackets of ray. The module also removes pod names, timestamps, quote marks and indentation. Colours, CR, NUL and a byte
order mark are also removed. Each prefix ends in a character that cannot begin a row of numbers, such as a colon or a
bracket. The first number of a row is therefore never mistaken for a label.

Lines are yielded one at a time. Memory is limited to one chunk and one line. A line with more than `LONGEST` characters
is cut, unless it is a JSON document.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterable, Iterator

from bench.logs.foreign import Line

FENCE = "```"  # surrounds code in Markdown; the log ends at the closing fence
LONGEST = 1 << 20  # characters; no row, banner or message is longer
LONGEST_DOCUMENT = 1 << 28  # one line of JSON

# The name of a host in brackets before a line. A model's name, such as `[llama3]`, may begin the lines of all ranks.
HOST_NAME = (
    r"(?:[A-Za-z][\w.]{0,30}-){0,3}(?:node|host|nid|worker|master|server|compute|dgx|hgx|pod|gpu-|ip-\d|cn-?\d|vm-?\d)"
    r"[\w.-]{0,100}[\]:]"
)

_TIME = r"\d{2}:\d{2}:\d{2}(?:[.,]\d{1,9})?"
_PREFIX = re.compile(
    r"(?:"
    r"\[(?:[\w.@:-]{1,255}|rank),\s?(?:\d+|n)\]\s?(?:(?:<|&lt;)std\w+(?:>|&gt;))?:?"  # mpirun: [1,0]<stdout>:
    r"|\[\d{1,6}\]<std(?:out|err)>:"  # horovodrun
    r"|\[(?:\d{1,7}|pod/[^\]\s]{1,400})\](?=\s|$)"  # hydra -prepend-rank, kubectl logs --prefix
    r"|\([^()]{0,200}\b(?:pid|rank)=\d+[^()]{0,200}\)"  # ray and similar programs
    r"|\d{1,7}:(?=\s|$)"  # srun --label
    r"|\[?\d{4}-\d{2}-\d{2}[T ]"
    + _TIME
    + r"(?:Z|\s?[+-]\d{2}:?\d{2})?\]?(?:\s(?:stdout|stderr)\s[FP](?=\s|$))?(?=\s|$)"
    r"|\[?" + _TIME + r"\]?(?=\s)"
    r"|(?:>|&gt;|\|)(?=\s|$)"  # quoted in Markdown, or marked by a pipe sign
    r"|\[(?:TRACE|DEBUG|INFO|NOTICE|WARN(?:ING)?|ERROR)\](?=\s)"  # the level of a logger
    r")\s*"
)
_NAME_PREFIX = re.compile(
    r"(?:"
    r"[A-Z][a-z]{2}\s{1,2}\d{1,2}\s" + _TIME + r"\s[\w.-]{1,255}\s[\w./-]{1,255}(?:\[\d+\])?:"  # lines of the journal
    r"|[A-Za-z][\w.-]{0,255}+(?::|\s{1,40}\|)(?=\s+"  # labels of pdsh and compose, before the output of a tool
    r"(?:\#|\.{3}|\d+\s+\d+\s+[a-z]|[\d.]+\s+[\d.]+\s+[\d.]+\s|[\w.-]+:\d+:\d+\s\[|[\w.-]+: Test [A-Z]+ failure))"
    r"|(?:TRACE|DEBUG|INFO|NOTICE|WARN(?:ING)?|ERROR)\s{1,40}(?:[\w./-]{1,120}\s{1,40}){0,2}\|(?=\s|$)"
    r"|(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\s\d{2}-\d{2}\s" + _TIME + r"\s\[[\w./-]{1,120}:\d{1,6}\](?=\s|$)"  # vLLM
    r"|pod/[\w.-]{1,255}\s[\w.-]{1,255}(?=\s|$)"
    r"|std(?:out|err):(?=\s|$)"  # lines of a worker, as accelerate's tests and others print them
    r"|(?:[A-Za-z][\w./-]{0,120}\s{1,40}){1,4}+(?:[|:-]\s{1,40})?"  # the text of a logger, a pod and its container
    r"(?=\#\s{1,40}(?:nThread|Rank|size|Out of|Avg|Using|Collective|nccl-tests|OSU)\b"
    r"|\d{1,19}\s+\d{1,19}\s+[a-z]\w{2,12}\s+(?:[a-z]{3,10}\s+)?-?\d)"
    r")\s*"
)
_RANK_LABEL = re.compile(r"\[\d{1,7}\](?=\s)")  # hydra -prepend-rank
_DOCKER = '{"log":"'  # the form in which docker and kubelet store a line
_COLOUR = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[()][A-Z0-9]|[@-Z\\-_])")
# The most common prefix of lines. Removing it from many lines at once is far cheaper than line by line.
_TAG = r"\[[A-Za-z0-9_.@:-]{1,255},\s?[0-9]+\]<std(?:out|err)>:"
_TAGS = re.compile(rf"\n{_TAG}")
TAG = re.compile(_TAG)  # printed by mpirun before a line
# Most lines of a large log are messages of NCCL. Only NCCL's version is a result.
_INFO = "NCCL INFO "
_MESSAGES = re.compile(
    rf"\n(?:{_TAG}|[0-9]{{1,7}}: )?[A-Za-z][A-Za-z0-9_.-]{{0,255}}:[0-9]+:[0-9]+ \[[0-9]+\] {_INFO}"
    r"(?!.* version )[^\n\r<\x1b]*(?=\n)"
)
_LEFT_OUT = "\0"  # marks a removed line at the end of the line before it; the text contains no other NUL
_TAG_INSIDE = re.compile(r"(?=\[[\w.@:-]{1,255},\s?\d+\]\s?<std(?:out|err|diag)>:)")
_BYTE_ORDER = "\ufeff\ufffd"  # the byte order mark of UTF-8, and the decoded byte order mark of UTF-16
_MOST_PREFIXES = 8


def lines(
    chunks: Iterable[bytes | str], look: Callable[[str], object] | None = None, *, messages: bool = True
) -> Iterator[Line]:
    """Yield the cleaned and stripped lines of a text that comes in chunks of any size.

    Each line has the same number as in the file.

    A CR inside a line, or a tag of mpirun inside a line, splits the line into parts. All parts have the same line
    number. Bytes are decoded as UTF-8, and invalid bytes are replaced. NULs are removed, so that ASCII text in UTF-16
    is also readable. No text causes an exception.

    `look`: a function that gets each piece of the text before the lines of the piece are yielded.
    `messages`: whether to yield the log messages of NCCL. If `messages` is False, most of NCCL's messages are left out.
    """
    number = 1
    for text, num_ended in _physical(_texts(chunks, look, messages)):
        if number == 1:
            text = text.lstrip(_BYTE_ORDER)
        if "\r" in text:
            pieces = [clean(piece) for piece in text.rstrip("\r").split("\r")]
        elif text[:1].isalpha() and "\x1b" not in text and _is_message(text):
            pieces = [text.rstrip()]
        else:
            pieces = [clean(text)]
        for cleaned in pieces:
            if "<std" in cleaned and cleaned[0] != "{":
                for part in _TAG_INSIDE.split(cleaned):
                    yield Line(number, clean(part))
            else:
                yield Line(number, cleaned)
        number += num_ended


def results(chunks: Iterable[bytes | str], look: Callable[[str], object] | None = None) -> Iterator[Line]:
    """Yield the lines of `lines` without NCCL's messages, which the readers of results do not need."""
    return lines(chunks, look, messages=False)


def without_colours(text: str) -> str:
    """Remove the codes that set the colours of a terminal."""
    return _COLOUR.sub("", text) if "\x1b" in text else text


def clean(text: str) -> str:
    """Return one line without colours and prefixes, and without white space at both ends."""
    text = without_colours(text).strip()
    if text.startswith(_DOCKER):
        text = _inside(text).strip()
    if text[:1] == "#":
        return text
    if text[:1] == "[" and (label := _RANK_LABEL.match(text)) and label[0] in text[label.end() :]:
        # remove the label before each later part of the line, too
        text = re.sub(rf"(?<=[\w.]){re.escape(label[0])}(?=\s)", " ", text)
    for _ in range(_MOST_PREFIXES):
        named = text[:1].isalpha()
        if named and _is_message(text):
            break
        found = (_NAME_PREFIX if named else _PREFIX).match(text)
        if found is None:
            break
        text = text[found.end() :]
    return text


def _is_message(text: str) -> bool:
    """Check whether a line begins like a message of NCCL: `host:pid:thread [device]`."""
    end = text.find(" [")
    return end > 0 and text[end - 1].isdigit() and " " not in text[:end]


def _inside(text: str) -> str:
    """Return the log line inside a JSON document of docker. Return any other text unchanged."""
    try:
        held = json.loads(text)["log"]
    except (ValueError, RecursionError):
        return text
    return held if isinstance(held, str) else text


def _texts(chunks: Iterable[bytes | str], look: Callable[[str], object] | None, messages: bool) -> Iterator[str]:
    for text in _decoded(chunks):
        kept = text if messages or _INFO not in text else _MESSAGES.sub(_LEFT_OUT, text)
        if look is not None:
            look(kept)
        yield kept


def _decoded(chunks: Iterable[bytes | str]) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for chunk in chunks:
        text = chunk if isinstance(chunk, str) else decoder.decode(chunk)
        yield text.replace("\0", "") if "\0" in text else text
    yield decoder.decode(b"", final=True)


def _physical(texts: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Yield each line of a text, and the number of lines in the file that it comes from.

    The number is 0 if the yielded text is only the part of a line before a CR. The number is above 1 if the next lines
    of the file were left out.
    """
    held: list[str] = []
    size = 0
    for text in texts:
        first, *others = (_TAGS.sub("\n", text) if "]<std" in text else text).split("\n")
        if others:
            yield _counted("".join(held) + first if held else first)
            for whole in others[:-1]:
                yield _counted(whole)
            held, size, first = [], 0, others[-1]
        most = LONGEST_DOCUMENT if (held[0] if held else first).lstrip()[:1] == "{" else LONGEST
        if first and size < most:
            held.append(first[: most - size])
            size += len(held[-1])
        if size >= LONGEST and "\r" in first:
            whole, _, rest = "".join(held).rpartition("\r")
            yield whole, 0
            held, size = [rest], len(rest)
    if size:
        yield "".join(held), 1


def _counted(whole: str) -> tuple[str, int]:
    """Return a line, and the number of lines in the file that it comes from.

    The number includes the lines that were left out after this line.
    """
    text = whole.rstrip(_LEFT_OUT)
    return text, 1 + len(whole) - len(text)
