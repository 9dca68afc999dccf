"""Find out which process printed a line of a log, from the label before the line."""

from __future__ import annotations

import re

from bench.logs.readers import _lines

LONGEST_LINE = 400  # characters that are searched
_LONGEST_LABEL = 200  # characters
_TORCH_LABEL = re.compile(r"\[(?:default|rank)(\d{1,6})\]:")  # printed by torch and torchrun --tee
_MPIRUN_LABEL = re.compile(r"^\s*\[(?:1,)?(\d{1,6})\]\s?<std")  # printed by Open MPI --tag-output, and by horovodrun
_STREAM = re.compile(
    r"\s*(?:\((?P<a>[^()]{0,100}\b(?:pid|rank)=\d{1,10})[^()]{0,60}\)?"  # Ray, vLLM
    r"|\[rank: (?P<b>\d{1,6})\]"  # Lightning
    r"|\[(?P<d>(?=[A-Za-z][\w.-]{0,90}\d[\w-]{0,60}:\d|(?:gpu|rank)-?\d|" + _lines.HOST_NAME + r")"
    r"(?!step|epoch|iter|batch|stage)[A-Za-z][\w.-]{0,60}\d[\w-]{0,60}(?:\.(?!py:)[\w-]{1,60}){0,4}"
    r"(?::\d{1,4})?)\]:?\s"  # scripts that start a process on each host
    r"|(?!step|epoch|iter|batch)(?P<c>[A-Za-z][\w.-]{0,60}\d[\w.-]{0,60}): )",  # pdsh, pods
    re.IGNORECASE,
)


def rank_label(raw: str) -> int | None:
    """Return the rank that torch, torchrun or mpirun printed before a line; None for a line without a rank."""
    found = _TORCH_LABEL.search(raw[:_LONGEST_LABEL]) or _MPIRUN_LABEL.match(raw)
    return int(found[1]) if found else None


def stream_of(raw: str, label: int | None) -> str | None:
    """Return the name of the process that printed a line: its rank, or the text before its lines. None if unknown."""
    if label is not None:
        return str(label)
    found = _STREAM.match(raw[:LONGEST_LINE])
    return next(filter(None, found.groups()), None) if found is not None else None


def without_label(text: str) -> str:
    """Return the beginning of a line without the labels of its process."""
    without = _TORCH_LABEL.sub("", text)
    label = _STREAM.match(without)
    return without[label.end() :] if label is not None else without
