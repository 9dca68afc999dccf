"""Read dumps of torch's flight recorder: the last collectives that one rank called (torch 2.2 to 2.13, NCCL and Gloo).

Dumps have two forms: pickle (`TORCH_NCCL_DEBUG_INFO_TEMP_FILE`, `_dump_nccl_trace`) and JSON (`_dump_nccl_trace_json`,
`_dump_fr_trace_json`). Only the name of the file contains the rank (`nccl_trace_rank_3`).

Loading a pickle can run any code. This reader therefore builds only plain containers, numbers and texts. The reader
rejects a dump that contains the name of a class or function.
"""

from __future__ import annotations

import io
import json
import pickle
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from bench.logs.failure_events import DocumentFormat, Event, EventLine, MessageKind, Role, event_of, numbers

RECORDS = MessageKind("flight-record", Role.STATE, "rank {rank} recorded its operations< of group {group}>")
_RANK = re.compile(r"rank[_.-]?(\d{1,6})", re.IGNORECASE)
_LAST_NUMBER = re.compile(r"(\d{1,6})(?!.*\d)")
_MOST_RECORDS = 2_000  # at most this many records of one group are kept
_MOST_GROUPS = 1_000
_PICKLE = b"\x80"


class _PlainUnpickler(pickle.Unpickler):
    """Builds only dicts, lists, tuples, sets, numbers and texts.

    Classes, functions and persistent objects raise UnpicklingError.
    """

    def find_class(self, module: str, name: str) -> Any:
        """Reject a class or function."""
        raise pickle.UnpicklingError(f"{module}.{name} is not plain data")

    def persistent_load(self, pid: Any) -> Any:
        """Reject a persistent object."""
        raise pickle.UnpicklingError("a persistent object is not plain data")


class FlightRecorder(DocumentFormat):
    """Yields one event for each group.

    The fact `records` contains (sequence number, operation, sizes, dtypes, state).
    """

    def begins(self, head: bytes) -> bool:
        """Check whether the file is a pickle of protocol 2 or later, or a JSON object with the recorder's keys."""
        if head.startswith(_PICKLE):
            return len(head) > 1 and 2 <= head[1] <= 5
        found = (b'"entries"', b'"pg_config"', b'"comm_lib_version"', b'"nccl_version"', b'"pg_status"')
        return head.lstrip()[:1] == b"{" and any(key in head for key in found)

    def read(self, data: bytes, name: str) -> Iterator[Event]:
        """Yield an event for each group of a dump. A damaged dump yields no event.

        A file of another program yields no event either.
        """
        dump = load(data)
        if not isinstance(dump, Mapping) or not ("entries" in dump or "pg_config" in dump):
            return
        rank = rank_of(name)
        entries = dump.get("entries")
        members = members_of(dump.get("pg_config"))
        groups: dict[str, list[Any]] = {group: [] for group in members}
        for entry in entries if isinstance(entries, Sequence) and not isinstance(entries, str) else ():
            record = _record(entry) if isinstance(entry, Mapping) else None
            if record is not None and (record[0] in groups or len(groups) < _MOST_GROUPS):
                groups.setdefault(record[0], []).append(record[1:])
        for group, records in groups.items():
            facts = {"records": records[-_MOST_RECORDS:], "members": members.get(group, ())}
            line = EventLine(1, "", "")
            printed = f"flight recorder, {len(records)} operations"
            yield event_of(RECORDS, line, rank=rank, group=group, facts=facts, printed=printed)


FORMAT = FlightRecorder


def load(data: bytes) -> Any:
    """Return the plain data of a dump, or None if it is damaged."""
    try:
        if data.startswith(_PICKLE):
            return _PlainUnpickler(io.BytesIO(data)).load()
        return json.loads(data)
    except Exception:  # a damaged pickle can raise nearly any exception
        return None


def rank_of(name: str) -> int | None:
    """Return the rank in the file name of a dump."""
    stem = PurePath(name).name
    found = _RANK.search(stem) or _LAST_NUMBER.search(stem)
    return int(found[1]) if found else None


def members_of(groups: Any) -> dict[str, tuple[int, ...]]:
    """Map each group to its ranks, as listed in the dump."""
    found: dict[str, tuple[int, ...]] = {}
    for number, (name, group) in enumerate(groups.items() if isinstance(groups, Mapping) else ()):
        ranks = group.get("ranks") if isinstance(group, Mapping) else None
        if isinstance(ranks, str) and number < _MOST_GROUPS:
            found[str(name)] = numbers(ranks)
        elif isinstance(ranks, Sequence) and number < _MOST_GROUPS:
            found[str(name)] = tuple(rank for rank in ranks if isinstance(rank, int))
    return found


def _record(entry: Mapping[Any, Any]) -> tuple[str, int, str, str, str, str] | None:
    """Return (group, sequence number, operation, sizes, dtypes, state).

    Return None for a point-to-point message and for a damaged entry.
    """
    seq = entry.get("collective_seq_id", entry.get("seq_id"))
    group = entry.get("process_group", entry.get("pg_id", 0))
    if not isinstance(seq, int) or entry.get("is_p2p") is True:
        return None
    name = group[0] if isinstance(group, (list, tuple)) and group else group
    operation = str(entry.get("profiling_name", "?")).partition(":")[2] or str(entry.get("profiling_name", "?"))
    sizes = _sizes(entry.get("input_sizes")), _sizes(entry.get("output_sizes"))
    dtypes = _sizes(entry.get("input_dtypes"))
    state = "completed" if entry.get("time_discovered_completed_ns") else str(entry.get("state", ""))
    return str(name), seq, operation[:80], " -> ".join(sizes) if sizes[0] != sizes[1] else sizes[0], dtypes, state


def _sizes(value: Any) -> str:
    """Format sizes as text, such as `4x1024, 8`."""
    if isinstance(value, (list, tuple)):
        inner = [_sizes(part) for part in value[:16]]
        return ("x" if value and not isinstance(value[0], (list, tuple, str)) else ", ").join(inner)
    return str(value)[:40] if value is not None else ""
