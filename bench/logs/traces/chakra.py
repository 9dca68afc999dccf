"""Read Chakra execution traces, JSON or protobuf (`.et`): the nodes that a rank executed, and their dependencies.

A file has one of three forms. The first form is JSON from torch's ExecutionTraceObserver (`nodes`). The second form is
JSON from Chakra's tools (`workload_graph`). The third form is protobuf from Chakra's tools. A file of the first form
has times only if Chakra's tools linked the file to a profiler trace. Most files state no start times, and many state no
durations. Without start times, only the groups, bytes and order of the collectives are known.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.core import spans
from bench.core.codes import Coded
from bench.core.step_trace import RankTrace, TracedCollective
from bench.logs.archives import ArchiveError
from bench.logs.trace_messages import TraceCode
from bench.logs.traces import _host_ranges, _names, _open, _protobuf
from bench.logs.traces._host_ranges import HostRange
from bench.logs.traces._json_stream import DamagedError, JsonStream

_OF_TORCH = re.compile(rb'^\s*\{\s*"schema"\s*:\s*"\d+\.\d+')
_OF_TOOLS = re.compile(rb'^\s*\{[^{\[]*"workload_graph"\s*:\s*\[')
_RANK_IN_NAME = re.compile(r"[._-](\d{1,6})\.(et|json)\b")
_COMMS = "record_param_comms"
_INIT = "## process_group:init ##"
# Types of nodes.
_COMPUTE, _SEND, _RECV, _COLLECTIVE = 4, 5, 6, 7
# The enumeration CollectiveCommType.
_COMM_TYPES = {
    0: "allreduce",
    1: "reduce",
    2: "allgather",
    3: "gather",
    4: "scatter",
    5: "broadcast",
    6: "alltoall",
    7: "reduce_scatter",
    8: "reduce_scatter",
    9: "barrier",
}
_ROOTED = frozenset({"broadcast", "reduce", "gather", "scatter"})  # these nodes state the root in the field of the rank
_LEAST_POINTER_DIGITS = 7  # a longer number is an address in the memory of the rank
_MOST_LEVELS = 6
_TENSOR_FIELDS = 6  # tensor, storage, offset, elements, bytes of an element, device


@dataclass(slots=True)
class _Node:
    """One node. Times are in microseconds, or None if unknown.

    `op`: the operation of a collective or message.
    `is_host`: whether the node ran on the host. A node that did not run on the host is a kernel.
    """

    number: int
    name: str
    is_host: bool
    op: str | None = None
    start: float | None = None
    duration: float | None = None
    group: str = ""
    seq: int | None = None
    rank: int | None = None
    size: int | None = None
    num_bytes: int | None = None
    lane: str = ""


@dataclass(slots=True)
class _Group:
    """A process group as described in the file."""

    name: str
    members: tuple[int, ...] | None
    size: int | None


class Chakra:
    """Reads a Chakra execution trace."""

    name = "chakra"

    def recognises(self, path: Path, head: bytes) -> bool:
        """Check the first bytes of the unpacked file. For a protobuf file, check its name."""
        if _OF_TORCH.match(head) or _OF_TOOLS.match(head):
            return True
        return ".et" in path.suffixes and not head.lstrip().startswith((b"{", b"["))

    def read(self, path: Path) -> Iterator[RankTrace]:
        """Yield the only rank of the file. Raises OSError, or NoTraceError if the file has no node."""
        head = _open.head(path)
        reading = _Reading(str(path))
        try:
            if _OF_TORCH.match(head):
                stream = JsonStream(_open.pieces(path), "nodes")
                reading.add_torch_nodes(stream.members())
            elif _OF_TOOLS.match(head):
                stream = JsonStream(_open.pieces(path), "workload_graph")
                reading.add_tool_nodes(stream.members())
                reading.world_size = _positive(stream.others.get("ngpus"))
            else:
                reading.add_messages(_protobuf.messages(_open.pieces(path)))
        except DamagedError as damage:
            reading.cut(is_cut=damage.is_cut)
        except ArchiveError as damage:
            reading.cut(is_cut=damage.is_cut)
        yield reading.trace()


READER = Chakra()


class _Reading:
    """The nodes of one file."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._nodes: list[_Node] = []
        self._groups: dict[str, _Group] = {}
        self._num = 0
        self._remarks: list[Coded] = []
        self._rank_in_name: int | None = _names.rank_in_name(source)
        self._states_blocks = False  # whether the bytes of an allgather are those that one rank sends
        self._parents: dict[int, int] = {}
        self.world_size: int | None = None

    def cut(self, *, is_cut: bool) -> None:
        """Add a remark that the file ends early or is damaged."""
        self._remark(TraceCode.CUT if is_cut else TraceCode.DAMAGED, num=self._num)

    def add_torch_nodes(self, members: Iterable[Any]) -> None:
        """Add the nodes of torch's observer."""
        for member in members:
            self._num += 1
            if isinstance(member, dict) and isinstance(member.get("id"), int):
                self._add_torch_node(member, str(member.get("name", "")))

    def add_tool_nodes(self, members: Iterable[Any]) -> None:
        """Add the nodes of the JSON of Chakra's tools."""
        self._rank_in_name = self._of_name()
        for member in members:
            self._num += 1
            if not isinstance(member, dict) or not isinstance(member.get("Id"), int):
                continue
            named = str(member.get("Name", ""))
            node = _Node(
                number=member["Id"],
                name=named,
                is_host=member.get("is_cpu_op") is True,
                op=_op(_positive(member.get("NodeType")), _positive(member.get("comm_type"), least=0), named),
                start=_number(member.get("start_time")),
                duration=_number(member.get("runtime")),
                num_bytes=_positive(member.get("comm_size", member.get("tensor_size"))),
            )
            self._nodes.append(node)

    def add_messages(self, messages: Iterable[bytes]) -> None:
        """Add the nodes of a protobuf file, whose first message describes the file."""
        self._rank_in_name, self._states_blocks = self._of_name(), True
        for place, message in enumerate(messages):
            fields = _protobuf.fields(message)
            self._num += 1
            if place == 0:
                continue
            attributes = dict(_attribute(each) for each in fields.get(10, []) if isinstance(each, bytes))
            named, kind = _text(_first(fields, 2)), _first(fields, 3)
            group = attributes.get("pg_name", attributes.get("comm_group"))
            node = _Node(
                number=_positive(_first(fields, 1), least=0) or 0,
                name=named,
                is_host=attributes.get("is_cpu_op") == 1,
                op=_op(kind, attributes.get("comm_type"), named),
                start=_number(_first(fields, 6)) or None,
                duration=_number(_first(fields, 7)),
                group="" if group is None else str(group),
                num_bytes=_positive(attributes.get("comm_size")),
                lane=str(attributes.get("stream", "")),
            )
            self._nodes.append(node)

    def trace(self) -> RankTrace:
        """Return the trace. Raises NoTraceError if no node was read."""
        if not self._nodes:
            code = TraceCode.NO_COLLECTIVES if self._num else TraceCode.NO_EVENTS
            raise _open.NoTraceError(self._remarks[0] if self._remarks else Coded.of(code, source=self._source))
        self._nodes.sort(key=lambda node: node.number)
        starts = [node.start for node in self._nodes if node.start is not None]
        zero = min(starts, default=0.0)
        # Only device libraries have a call of this name.
        on_device = any(not node.is_host or node.name == _COMMS for node in self._nodes)
        work = [node for node in self._nodes if node.op is None and not (node.is_host and on_device) and node.duration]
        collectives = self._collectives(zero)
        compute = sorted((node.start, node.start + (node.duration or 0.0)) for node in work if node.start is not None)
        host = self._host_ranges()
        main = _host_ranges.main_thread(host)
        steps = [one for one in host if _host_ranges.is_step(one.name)]
        if not any(node.duration for node in self._nodes):
            self._remark(TraceCode.NO_TIMES)
        elif not starts:
            self._remark(TraceCode.NO_STARTS)
        if not collectives:
            self._remark(TraceCode.NO_COLLECTIVES)
        largest = max((group.size for group in self._groups.values() if group.size), default=None)
        phases = _host_ranges.phases(host, main)
        facts: dict[str, object] = {}
        if not starts and any(node.duration for node in work):
            facts["compute_s"] = sum(node.duration or 0.0 for node in work) * 1e-6
        return RankTrace(
            source=self._source,
            on_device=on_device,
            compute=(spans.of(compute) - zero) * 1e-6 if compute else spans.NONE,
            compute_launch_s=np.full(len(compute), np.nan),
            collectives=collectives,
            phases={phase: (union - zero) * 1e-6 for phase, union in phases.items()},
            steps=tuple(((one.start - zero) * 1e-6, (one.end - zero) * 1e-6) for one in steps),
            step_names=tuple(one.name for one in steps),
            rank=self._rank(),
            world_size=self.world_size or largest,
            num_events=self._num,
            facts=facts,
            remarks=tuple(self._remarks),
        )

    def _add_torch_node(self, member: Mapping[str, Any], name: str) -> None:
        arguments = _values(member.get("inputs"))
        if name == _INIT:
            self._add_groups(arguments)
            return
        category = str(member.get("cat", ""))
        duration = _number(member.get("inclusive_dur", member.get("exclusive_dur")))
        node = _Node(
            number=member["id"],
            name=name,
            is_host="kernel" not in category and "gpu" not in category,
            start=_number(member.get("ts")) if duration is not None else None,
            duration=duration,
            lane=str(member.get("stream", "")),
        )
        parent = member.get("ctrl_deps", member.get("parent"))
        if isinstance(parent, int):
            self._parents[node.number] = parent
        if name == _COMMS:
            _add_comms(node, arguments)
        elif name.startswith("c10d::"):
            node.op = _known(name)
        elif not node.is_host and _names.COLLECTIVE_KERNEL.search(name):
            node.op, node.group = _names.op(name), str(member.get("pg_name") or "")
        if node.op is not None and node.op != "barrier":
            sizes = [_tensor_bytes(value) for value in (*arguments, *_values(member.get("outputs")))]
            node.num_bytes = max(sizes, default=0) or None
        if node.op is not None or node.duration is not None:
            self._nodes.append(node)

    def _remark(self, code: TraceCode, **facts: Any) -> None:
        self._remarks.append(Coded.of(code, source=self._source, **facts))

    def _of_name(self) -> int | None:
        found = _RANK_IN_NAME.search(Path(self._source).name)
        return int(found[1]) if found else self._rank_in_name

    def _rank(self) -> int | None:
        """Return the number of this rank within the group of all ranks.

        If the nodes do not state exactly one rank, return the rank in the file's name.
        """
        largest = max((group.size or 0 for group in self._groups.values()), default=0)
        ranks = set()
        for node in self._nodes:
            group = self._groups.get(node.group)
            if node.rank is not None and (group is None or group.size == largest):
                ranks.add(node.rank)
        return ranks.pop() if len(ranks) == 1 else self._rank_in_name

    def _add_groups(self, arguments: Sequence[Any]) -> None:
        """Add the groups of a JSON list.

        `_groups` stores each group under its name. Old versions refer to a group by a number, so the group is also
        stored under this number.
        """
        try:
            listed = json.loads(arguments[0])
        except (IndexError, TypeError, ValueError, RecursionError):
            return
        for one in listed if isinstance(listed, list) else ():
            if isinstance(one, dict) and "pg_name" in one:
                group = _Group(str(one["pg_name"]), _names.numbers(one.get("ranks")), _positive(one.get("group_size")))
                self._groups[group.name] = group
                if "backend_id" in one:
                    self._groups[str(one["backend_id"])] = group

    def _collectives(self, zero: float) -> tuple[TracedCollective, ...]:
        """Return the collectives from the kernels. If there are no kernels, return the collectives from the calls."""
        nodes = [node for node in self._nodes if node.op is not None]
        kernels = [node for node in nodes if not node.is_host]
        described = {node.number: node for node in nodes if node.name == _COMMS}
        if kernels:
            nodes = [self._described(node, described) for node in kernels]
        elif described:
            nodes = [*described.values()]
        names = self._group_names(nodes)
        places: dict[str, int] = defaultdict(int)
        found = []
        for node in sorted(nodes, key=lambda node: (node.start or 0.0, node.number)):
            group = self._groups.get(node.group) or _Group(names[node.group], None, None)
            size = group.size or node.size
            num_bytes = node.num_bytes
            if self._states_blocks and node.op == "allgather":
                num_bytes = num_bytes * size if num_bytes and size else None
            start = 0.0 if node.start is None else (node.start - zero) * 1e-6
            seconds = None if node.duration is None else node.duration * 1e-6
            timed = node.start is not None and seconds is not None
            found.append(
                TracedCollective(
                    op=node.op or node.name,
                    place=places[group.name],
                    start_s=start,
                    end_s=start + seconds if timed and seconds is not None else start,
                    group=group.name,
                    members=group.members,
                    group_size=size,
                    seq=node.seq,
                    num_bytes=num_bytes,
                    lane=node.lane,
                    timed=timed,
                    duration_s=None if timed else seconds,
                )
            )
            places[group.name] += 1
        return tuple(found)

    def _described(self, kernel: _Node, calls: Mapping[int, _Node]) -> _Node:
        """Add the data of the launching call to a kernel, and return the kernel.

        The call is an ancestor of the kernel in the tree of nodes.
        """
        above = kernel.number
        for _ in range(_MOST_LEVELS):
            above = self._parents.get(above, -1)
            if (call := calls.get(above)) is not None:
                kernel.op, kernel.seq, kernel.rank, kernel.size = call.op, call.seq, call.rank, call.size
                kernel.group = kernel.group or call.group
                kernel.num_bytes = kernel.num_bytes or call.num_bytes
                break
        return kernel

    def _group_names(self, nodes: Sequence[_Node]) -> dict[str, str]:
        """Return a name for each group that the file does not describe.

        If the file has only one group, the group's name is ''. Old versions identify a group only by an address. The
        address of a group differs between ranks. Groups that have only an address are numbered in the order in which
        they first appear.
        """
        used = list(dict.fromkeys(node.group for node in nodes if node.group not in self._groups))
        if not all(group.isdigit() and len(group) >= _LEAST_POINTER_DIGITS for group in used):
            return {group: group for group in used}
        if len(used) <= 1:
            return dict.fromkeys(used, "")
        self._remark(TraceCode.NO_GROUP_NAMES, num=len(used))
        return {group: f"#{place}" for place, group in enumerate(used)}

    def _host_ranges(self) -> list[HostRange]:
        """Return the host operators whose times are known."""
        found = []
        for node in self._nodes:
            if node.is_host and node.start is not None and node.duration is not None:
                found.append(HostRange(node.start, node.start + node.duration, 0, node.name, {}))
        found.sort(key=lambda one: (one.start, -one.end))
        return found


def _add_comms(node: _Node, arguments: Sequence[Any]) -> None:
    """Add the arguments of `record_param_comms` to a node.

    The arguments have this order: tensors, sequence number, group, rank, operation, splits, ..., group size. In later
    versions, the sequence number and the group are lists. In later versions, calls without tensors have no argument for
    tensors.
    """
    place = next((at for at, value in enumerate(arguments) if isinstance(value, str) and _known(value)), None)
    if place is None or place < 3:
        return
    seq, group, rank = (arguments[place - 3], arguments[place - 2], arguments[place - 1])
    node.op = _known(arguments[place])
    node.seq = _positive(seq[0] if isinstance(seq, list) and seq else seq, least=0)
    node.group = str(group[0] if isinstance(group, list) and group else group)
    node.rank = None if node.op in _ROOTED else _positive(rank, least=0)
    node.size = _positive(arguments[-1]) if place < len(arguments) - 3 else None


def _values(inputs: Any) -> list[Any]:
    """Return the input values or the output values of a node.

    Schema 1.0.1 stores a list, and later schemas store a mapping that contains a list.
    """
    values = inputs.get("values") if isinstance(inputs, dict) else inputs
    return values if isinstance(values, list) else []


def _known(word: str) -> str | None:
    op = _names.op(word)
    return op if op in _names.KNOWN_OPS else None


def _op(kind: Any, comm_type: Any, name: str) -> str | None:
    """Return the operation of a node from Chakra's tools."""
    if kind == _COLLECTIVE:
        return _COMM_TYPES.get(comm_type) or _known(name) or name
    return {_SEND: "send", _RECV: "recv"}.get(kind)


def _attribute(message: bytes) -> tuple[str, Any]:
    """Return the name and the value of an attribute: a number or a text."""
    fields = _protobuf.fields(message)
    value: Any = None
    for number, values in fields.items():
        if number == 29:
            value = _text(values[-1])
        elif number in (7, 9, 11, 13, 27) and isinstance(values[-1], int):
            value = _protobuf.signed(values[-1])
    return _text(_first(fields, 1)), value


def _first(fields: Mapping[int, Sequence[Any]], number: int) -> Any:
    return next(iter(fields.get(number, ())), None)


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""


def _number(value: Any) -> float | None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e18
    return float(value) if is_number else None


def _positive(value: Any, least: int = 1) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and least <= value < 1 << 62 else None


def _tensor_bytes(value: Any) -> int:
    """Return the bytes of a tensor, or of all tensors in nested lists."""
    if not isinstance(value, list):
        return 0
    is_tensor = len(value) >= _TENSOR_FIELDS and isinstance(value[5], str)
    if is_tensor and isinstance(value[3], int) and isinstance(value[4], int):
        return max(value[3] * value[4], 0)
    return sum(_tensor_bytes(each) for each in value)
