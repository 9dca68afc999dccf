"""Read how far NCCL's initialisation got, and which process each rank has.

The sources are the list of ranks that nccl-tests prints, and `NCCL INFO` lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from bench.logs.failure_events import Event, EventFormat, EventLine, MessageKind, Role, event_of

RANK = MessageKind("rank-place", Role.PLACE, "rank {rank} is process {pid} on {host}")
STAGE = MessageKind("nccl-stage", Role.STATE, "process {pid} on {host} reached: {stage}")
# The stages of NCCL's initialisation in order, each with the text that NCCL prints when it reaches the stage.
STAGES = ("bootstrap", "network", "init-start", "topology", "channels", "init-complete")
_STAGE_WORDS = (
    ("init-complete", "Init COMPLETE"),
    ("channels", "Connected all"),
    ("topology", "Setting affinity"),
    ("topology", "Trees "),
    ("init-start", "Init START"),
    ("network", "Using network"),
    ("network", "NET/IB : "),
    ("network", "NET/Socket : "),
    ("network", "NET/OFI "),
    ("bootstrap", "Bootstrap : "),
    ("bootstrap", "cudaDriverVersion"),
)
_LISTED = re.compile(
    r"#\s+Rank\s+(?P<rank>\d{1,7})\s(?:.*\b)?Pid\s+(?P<pid>\d{1,10}) on\s+(?P<host>[\w.-]+) device\s+(?P<device>\d+)"
)
_INFO = re.compile(r"(?P<host>[\w.-]+):(?P<pid>\d{1,10}):\d{1,10} \[(?P<device>\d{1,4})\] NCCL INFO (?P<message>.*)")
_RANK = re.compile(r"\brank (?P<rank>\d{1,7}) nranks (?P<num_ranks>\d{1,7})\b")
_MOST_PROCESSES = 100_000


class NcclStart(EventFormat):
    """Yields an event for each line that states the host or process of a rank.

    At the end of the file, yields for each process an event with the last stage of the initialisation.
    """

    hints = ("Rank ", " nranks ", *(words for _, words in _STAGE_WORDS))

    def __init__(self) -> None:
        """Start with no process."""
        self._stages: dict[tuple[str, str], tuple[int, EventLine]] = {}

    def read(self, line: EventLine) -> Iterator[Event]:
        """Yield an event if the line states the host or process of a rank."""
        info = _INFO.search(line.text)
        if info is None:
            listed = _LISTED.search(line.text)
            if listed is not None:
                yield event_of(RANK, line, listed)
            return
        message = info["message"]
        stated = _RANK.search(message)
        host, pid = info["host"], info["pid"]
        if stated is not None:
            facts = {"num_ranks": int(stated["num_ranks"])}
            yield event_of(RANK, line, host=host, pid=int(pid), rank=int(stated["rank"]), facts=facts)
        stage = next((STAGES.index(name) for name, words in _STAGE_WORDS if words in message), None)
        known = self._stages.get((host, pid))
        if stage is not None and (known is None or known[0] < stage) and len(self._stages) < _MOST_PROCESSES:
            self._stages[host, pid] = stage, line

    def finish(self) -> Iterator[Event]:
        """Yield the last stage that each process reached."""
        for (host, pid), (stage, line) in self._stages.items():
            yield event_of(STAGE, line, host=host, pid=int(pid), facts={"stage": STAGES[stage]})


FORMAT = NcclStart
