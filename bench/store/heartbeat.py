"""Read and write heartbeat files, which report each rank's activity, and lines that report how a rank ended.

Each rank has a small file, which it replaces between batches. The file contains the rank's number, host, process id and
activity, and the time in seconds since the epoch. When the rank ends, the file also says how it ended. If a rank is
gone, but its file does not say how it ended, something outside the rank ended it. If the controller requests the stacks
of a rank, the rank writes the stacks to a second file.

Some hosts share no file system with the controller. A rank that ends therefore also prints a line on stderr, its last
words. The line has four parts: `bench: error: `, the text, MARK, and the content as JSON. A single write prints the
line, so the lines of other ranks cannot split it.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bench.core.codes import UNCODED, Coded
from bench.core.ends import EndCode


@dataclass(frozen=True, slots=True)
class End(Coded):
    """How a rank ended. The code is an EndCode, or the code of the error that ended the rank."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A rank's last heartbeat.

    `doing`: text such as "allreduce 1M isolated: warm-up".
    `ended`: how the rank ended, or None while the rank runs.
    `age_s`: the age of the reported activity, in seconds, when the file was written. `time_s` is the writing time minus
        this age.
    """

    rank: int
    host: str
    process: int
    doing: str
    time_s: float
    ended: End | None = None
    age_s: float = 0.0

    @property
    def ended_well(self) -> bool:
        """Whether the rank ended after it had done all of its work."""
        return self.ended is not None and self.ended.code == EndCode.DONE


@dataclass(frozen=True, slots=True)
class LastWords:
    """How a rank ended, according to the last line that the rank printed.

    `rank`, `host`: None if the line has no JSON part.
    """

    end: End
    rank: int | None = None
    host: str | None = None


# The values of `doing` while a rank loads its libraries, which takes long if many ranks use one disk.
STARTING, OPENING = "starting", "opening the transport"
ERROR_LINE = "bench: error: "
MARK = "  #end "
_MOST_LETTERS = 1500  # characters of the text, at most; a pipe accepts 4096 bytes at once
_START_S = 60.0
_NETWORK, _RECENT_S = ".network", 10.0
_CRASH = "Fatal Python error"  # written by faulthandler


def allowance_s(doing: str, deadline_s: float) -> float:
    """Return how many seconds a rank may go without a heartbeat during an activity.

    `doing`: the activity. Ranks that load their libraries get at least _START_S.
    """
    return max(deadline_s, _START_S) if doing in (STARTING, OPENING) else deadline_s


def write(folder: Path, beat: Heartbeat) -> None:
    """Replace this rank's file. Errors are ignored, because the results file also reports a full disk."""
    path = folder / f"{beat.rank}.json"
    partial = folder / f".{beat.rank}.part"
    try:
        partial.write_text(json.dumps(asdict(beat)), encoding="utf-8")
        partial.replace(path)
    except OSError:
        return


def stack_file(folder: Path, rank: int) -> Path:
    """Return the file for a rank's stacks."""
    return folder / f"{rank}.stack"


def write_network(
    folder: Path,
    rank: int,
    moved: Sequence[tuple[str, Sequence[str], float]],
    carriers: Iterable[Mapping[str, Any]] = (),
) -> None:
    """Store what changed in the network of this rank's host.

    `moved`: for each IP address whose MAC address changed, the IP address, the MAC addresses in order, and the time of
        the last change.
    `carriers`: the fields of each probes.netlink.CarrierLoss.
    """
    with contextlib.suppress(OSError):
        told = {"moved": moved, "carriers": list(carriers)}
        (folder / f"{rank}{_NETWORK}").write_text(json.dumps(told), encoding="utf-8")


def read_moved(folder: Path, beats: Sequence[Heartbeat]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return each IP address that got another MAC address at about the time of a rank's last heartbeat, or later.

    "At about the time" means at most _RECENT_S before the heartbeat. Earlier changes are left out, because the job
    survived them. For each IP address, the MAC addresses are in the order in which the rank's host saw them.
    """
    found = []
    for beat in beats:
        with contextlib.suppress(ValueError, TypeError, KeyError):
            for address, macs, time_s in _read_network(folder, beat)["moved"]:
                if float(time_s) > beat.time_s - _RECENT_S:
                    found.append((str(address), tuple(map(str, macs))))
    return tuple(found)


def read_carriers(folder: Path, beats: Sequence[Heartbeat]) -> dict[str, list[dict[str, Any]]]:
    """Map each host to its devices that lost their carrier at about the time of a rank's last heartbeat, or later.

    A device is described by the fields "device", "num" and "addresses" of probes.netlink.CarrierLoss.
    """
    found: dict[str, list[dict[str, Any]]] = {}
    for beat in beats:
        with contextlib.suppress(ValueError, TypeError, KeyError):
            for lost in _read_network(folder, beat)["carriers"]:
                if float(lost["time_s"]) > beat.time_s - _RECENT_S:
                    told = {"device": str(lost["device"]), "num": int(lost["num"])}
                    found.setdefault(beat.host, []).append(told | {"addresses": tuple(map(str, lost["addresses"]))})
    return found


def _read_network(folder: Path, beat: Heartbeat) -> dict[str, Any]:
    try:
        found = json.loads((folder / f"{beat.rank}{_NETWORK}").read_text(encoding="utf-8"))
    except (OSError, RecursionError):
        raise ValueError("nothing is stored") from None
    if not isinstance(found, dict):
        raise ValueError("not a mapping")
    return found


def crashed(folder: Path, rank: int) -> bool:
    """Check whether a signal such as SIGSEGV ended this rank.

    The stack file of such a rank contains the report of faulthandler.
    """
    try:
        return _CRASH in stack_file(folder, rank).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False


def read_all(folder: Path) -> tuple[Heartbeat, ...]:
    """Return the last heartbeat of every rank that wrote one, in the order of ranks."""
    beats = []
    for path in folder.glob("*.json"):
        try:
            told = json.loads(path.read_text(encoding="utf-8"))
            ended = told.pop("ended", None)
            beats.append(Heartbeat(**told, ended=End(**ended) if ended else None))
        except (OSError, ValueError, TypeError, AttributeError, RecursionError):
            continue
    return tuple(sorted(beats, key=lambda beat: beat.rank))


def error_line(words: LastWords) -> str:
    """Return the line that a rank prints on stderr when it ends. People and the controller read the line."""
    text = words.end.text[:_MOST_LETTERS]
    facts = words.end.facts if len(json.dumps(words.end.facts, default=str)) <= _MOST_LETTERS else {}
    told = {"rank": words.rank, "host": words.host, "code": words.end.code, "facts": facts}
    return f"{ERROR_LINE}{text}{MARK}{json.dumps(told, default=str)}"


def last_words(log: str) -> Iterator[LastWords]:
    """Yield the last words of all ranks, in the order of the job's log.

    If a line has no JSON, its error code, rank and host are unknown.
    """
    for line in log.splitlines():
        _, found, rest = line.partition(ERROR_LINE)
        if not found:
            continue
        text, _, told = rest.partition(MARK)
        words = LastWords(End.uncoded(text.strip()))
        try:
            parsed: Mapping[str, Any] = json.loads(told)
            end = End(parsed.get("code", UNCODED), parsed.get("facts", {}), words.end.text)
            words = replace(words, end=end, rank=parsed["rank"], host=parsed["host"])
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            pass  # another program printed this line, or a rank that did not yet know its number
        yield words
