"""Define a training step to measure: its layers, delays that are added on purpose, and the times that ranks record.

Timed layers sleep instead of computing, so their time is exact on any machine. The gradients of timed layers are real
tensors of the given size, which the ranks exchange.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from statistics import median
from typing import Any

from bench.core.errors import UsageError
from bench.core.plugins import nearest
from bench.core.record import Samples, StepSamples, WrongData
from bench.core.step_trace import StepPart
from bench.core.units import format_duration, format_size, parse_duration, parse_size

INJECTABLE = ("data", "host", "h2d", "forward", "backward", "optimizer")
# The segments of a rank's step, in order. "backward" ends when the last gradient is ready. "wait" ends when the last
# exchange is complete.
SEGMENTS = ("data", "host", "h2d", "forward", "backward", "wait", "optimizer")
_PART_OF = {
    "data": StepPart.DATA_WAIT,
    "host": StepPart.HOST_BOUND,
    "h2d": StepPart.EXPOSED_COPY,
    "forward": StepPart.COMPUTE,
    "backward": StepPart.COMPUTE,
    "optimizer": StepPart.COMPUTE,
}
_MOST_LAYERS = 10_000
HOP = -1  # in the waits of a step: a wait for one message of one rank, not for a group


class StepVariant(StrEnum):
    """A variant of the step.

    If two variants differ in one part of the step, the difference between their times is the cost of that part.
    """

    FULL = "full"
    BARE = "bare"  # the full step without hook and stamps, so that only whole steps are timed
    LOCAL = "local"  # no exchange: every bucket is done at once
    HOST_RESIDENT = "host_resident"  # no loader: one batch in host memory, which is still copied
    DEVICE_RESIDENT = "device_resident"  # neither loader nor copies


@dataclass(frozen=True, slots=True)
class TimedLayers:
    """Layers that sleep.

    `num_bytes`: the size of the gradients of a layer.
    `data_s`: the time that the loader needs for a batch of `input_bytes`.
    `activation_bytes`: the size of the data that one layer passes to the next layer. Some strategies exchange these
        data.
    `prefetch`: the number of batches that the loader prepares before they are needed.
    """

    layers: int
    forward_s: float
    backward_s: float
    num_bytes: int
    data_s: float = 0.0
    input_bytes: int = 1 << 16
    activation_bytes: int = 1 << 16
    prefetch: int = 0

    def __str__(self) -> str:
        """Return the text that `timed_layers` reads."""
        words = [f"layers={self.layers}", f"forward={self.forward_s!r}s", f"backward={self.backward_s!r}s"]
        words += [f"bytes={self.num_bytes}", f"data={self.data_s!r}s", f"input={self.input_bytes}"]
        words += [f"activations={self.activation_bytes}"]
        words += [f"prefetch={self.prefetch}"] if self.prefetch else []
        return ",".join(words)


@dataclass(frozen=True, slots=True)
class Injected:
    """A delay of `delay_s` seconds, which is added to one segment of every step on one rank."""

    rank: int
    segment: str
    delay_s: float

    def __str__(self) -> str:
        """Return the text that `injected` reads."""
        return f"rank={self.rank},segment={self.segment},delay={self.delay_s!r}s"


@dataclass(frozen=True, slots=True)
class StepStamps:
    """One step of one rank.

    `step_s`: the seconds of the whole step.
    `segments_s`: the time of each segment in SEGMENTS, in seconds.
    `buckets`: one entry for each bucket, in the order of exchange. An entry has the bucket's bytes and two times in
        seconds. The first time is from the beginning of the step until the bucket was ready. The second time is from
        the beginning of the step until the bucket's exchange was complete.
    `waits`: the waits within the segment "wait", in order. An entry has the number of the group that the rank waited
        for (or HOP), and the seconds.

    For a step of the variant StepVariant.BARE, only `step_s` is set.
    """

    step_s: float
    segments_s: tuple[float, ...] = ()
    buckets: tuple[tuple[int, float, float], ...] = ()
    waits: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class GradientCheck:
    """The result of comparing the gradients of one rank with their expected values after an exchange.

    `digests`: for each part of the gradients on this rank, the part's name and a digest. If all bits of a part are
        equal on two ranks, the two digests are equal.
    """

    num_wrong: int
    first: WrongData | None
    digests: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class StepTimes:
    """The parts of one sample. `parts_s[part][r]` has the seconds of rank r.

    The parts of a rank add up to the time of its step.
    """

    step_s: tuple[float, ...]
    parts_s: Mapping[str, tuple[float, ...]]


def means(stamps: Sequence[StepStamps], num: int) -> list[StepStamps]:
    """Return the mean step of every `num` successive steps.

    `step_s` and `segments_s` are means over the `num` steps. The mean step has the buckets and the waits of all `num`
    steps, in order. Each wait is divided by `num`.
    """
    if num == 1:
        return list(stamps)
    return [_mean(stamps[first : first + num]) for first in range(0, len(stamps), num)]


def _mean(stamps: Sequence[StepStamps]) -> StepStamps:
    num = len(stamps)
    return StepStamps(
        sum(one.step_s for one in stamps) / num,
        tuple(sum(seconds) / num for seconds in zip(*(one.segments_s for one in stamps), strict=True)),
        tuple(bucket for one in stamps for bucket in one.buckets),
        tuple((group, seconds / num) for one in stamps for group, seconds in one.waits),
    )


def parts_of(
    step_s: Sequence[float], segments_s: Sequence[Mapping[str, float]], exposed_s: Sequence[float] = ()
) -> StepTimes:
    """Divide a step into parts. Each argument has one entry per rank.

    An exchange ends on all ranks at the same time. A rank that is ready d seconds before the last rank therefore waits
    d seconds longer. The shortest wait of any rank is therefore the time that the exchange takes once all ranks are
    ready. The rest of a rank's wait is imbalance. The function never compares the clocks of two ranks.

    `exposed_s`: the time of the exposed exchange (`exposed_of`), if ranks wait several times in a step. The list is
        empty if the ranks wait for each other only once in a step.
    """
    shortest = min(own["wait"] for own in segments_s)
    found: dict[str, list[float]] = {part: [] for part in StepPart}
    for rank, (whole, own) in enumerate(zip(step_s, segments_s, strict=True)):
        exposed = exposed_s[rank] if exposed_s else shortest
        parts: dict[StepPart, float] = dict.fromkeys(StepPart, 0.0)
        for segment, part in _PART_OF.items():
            parts[part] += own[segment]
        parts[StepPart.EXPOSED_EXCHANGE], parts[StepPart.IMBALANCE] = exposed, own["wait"] - exposed
        parts[StepPart.OTHER] = whole - sum(parts.values())
        for part, seconds in parts.items():
            found[part].append(seconds)
    return StepTimes(tuple(step_s), {part: tuple(seconds) for part, seconds in found.items()})


def exposed_of(waits: Sequence[Sequence[tuple[int, float]]]) -> tuple[float, ...]:
    """Return the exposed exchange time of each rank in one step.

    The exposed exchange time is the time for which a rank waited although all ranks of the exchange had arrived.

    `waits`: the field `waits` of StepStamps, for each rank.

    On all members of a group, the k-th wait in this group is a wait for the same exchange. The member with the shortest
    wait came last, so its wait is the time of the exchange itself. An entry with the group HOP is a wait for a single
    message. The sender of a single message does not wait. The receiver's whole wait therefore counts, even if the
    sender was late.
    """
    shortest: dict[tuple[int, int], float] = {}
    numbered: list[list[tuple[tuple[int, int] | None, float]]] = []
    for own in waits:
        count: dict[int, int] = {}
        numbered.append([])
        for group, seconds in own:
            key = None if group == HOP else (group, count.get(group, 0))
            count[group] = count.get(group, 0) + 1
            numbered[-1].append((key, seconds))
            if key is not None:
                shortest[key] = min(seconds, shortest.get(key, seconds))
    return tuple(sum(seconds if key is None else shortest[key] for key, seconds in own) for own in numbered)


def late_segment(rank: int, seconds_of: Mapping[str, Sequence[float]]) -> str:
    """Return the segment in which a rank lost the most time, compared with the median of the other ranks.

    `seconds_of[segment][r]` has the seconds of rank r. The segment "wait" is ignored, because a rank waits when another
    rank is late.
    """

    def excess(segment: str) -> float:
        by_rank = seconds_of[segment]
        others = [own for other, own in enumerate(by_rank) if other != rank]
        return by_rank[rank] - (median(others) if others else 0.0)

    return max((segment for segment in SEGMENTS if segment != "wait"), key=excess)


def check_samples(step: StepSamples, samples: Samples) -> None:
    """Check that the times of a step are complete for every variant, segment, rank and sample.

    Raises ValueError if a time is missing.
    """
    elsewhere = {StepVariant.FULL, StepVariant.BARE} if step.full_s else {StepVariant.FULL}
    if (
        any(not step.twins_s.get(variant) for variant in StepVariant if variant not in elsewhere)
        or step.samples_per_block < 1
    ):
        raise ValueError("a training step needs samples of every variant, in blocks")
    if not all(0 < second < inf for seconds in (*step.twins_s.values(), *step.full_s) for second in seconds):
        raise ValueError("the variants of a training step need finite times above zero")
    if not samples.by_rank or any(name not in step.segments_s for name in SEGMENTS):
        raise ValueError("a training step needs the times of every segment by rank")
    full = step.full_s or samples.by_rank
    shape = (len(samples.by_rank), {len(full[0])})
    if any((len(by_rank), set(map(len, by_rank))) != shape for by_rank in (full, *step.segments_s.values())):
        raise ValueError("each segment of a training step needs one time per rank and sample")
    if len({len(step.bucket_bytes), len(step.bucket_ready_s), len(step.bucket_done_s)}) != 1:
        raise ValueError("a training step's buckets have different numbers of times")


def timed_layers(text: str) -> TimedLayers | None:
    """Parse a description of timed layers, or return None if the text is empty. Raises UsageError.

    The text has the form `layers=8,forward=5ms,backward=10ms,bytes=1M`. Options may follow: `,data=2ms`, `,input=64K`,
    `,activations=64K` and `,prefetch=2`.
    """
    if not text:
        return None
    kinds: dict[str, Callable[[str], Any]] = {
        "layers": _count,
        "forward": _duration,
        "backward": _duration,
        "bytes": parse_size,
        "data": _duration,
        "input": parse_size,
        "activations": parse_size,
        "prefetch": _count,
    }
    given = _pairs(text, kinds, ("layers", "forward", "backward", "bytes"))
    if not 1 <= given["layers"] <= _MOST_LAYERS:
        raise UsageError(f"layers={given['layers']}: a step needs 1 to {_MOST_LAYERS} layers")
    for name in ("bytes", "input", "activations"):
        if name in given and (given[name] < 4 or given[name] % 4):
            raise UsageError(f"{name}={given[name]}: give a multiple of 4 bytes, the size of a float32")
    more = {
        "data_s": given.get("data"),
        "input_bytes": given.get("input"),
        "activation_bytes": given.get("activations"),
        "prefetch": given.get("prefetch"),
    }
    known = {name: value for name, value in more.items() if value is not None}
    return TimedLayers(given["layers"], given["forward"], given["backward"], given["bytes"], **known)


def injected(text: str) -> tuple[Injected, ...]:
    """Return the delays that a text describes, such as `rank=1,segment=backward,delay=60ms`.

    A `;` separates two delays.
    """
    return tuple(_injected(part) for part in text.split(";") if part)


def show_injected(delays: Sequence[Injected]) -> str:
    """Return the text that `injected` reads."""
    return ";".join(map(str, delays))


def layers_word(layers: TimedLayers | None) -> str:
    """Return a text such as `8x15ms-1M`, which represents the layers in a job's name."""
    if layers is None:
        return ""
    each = format_duration(layers.forward_s + layers.backward_s).replace(" ", "")
    data = f"-data{format_duration(layers.data_s)}".replace(" ", "") if layers.data_s else ""
    ahead = f"-prefetch{layers.prefetch}" if layers.prefetch else ""
    return f"{layers.layers}x{each}-{format_size(layers.num_bytes)}{data}{ahead}"


def injected_word(delays: Sequence[Injected]) -> str:
    """Return the delays as part of a job's name."""
    return "-".join(f"rank{one.rank}{one.segment}{format_duration(one.delay_s)}".replace(" ", "") for one in delays)


def _injected(text: str) -> Injected:
    given = _pairs(text, {"rank": _count, "segment": str, "delay": _duration}, ("rank", "segment", "delay"))
    if given["segment"] not in INJECTABLE:
        raise UsageError(f"no segment is called {given['segment']!r}{nearest(given['segment'], INJECTABLE)}")
    return Injected(given["rank"], given["segment"], given["delay"])


def _pairs(text: str, kinds: Mapping[str, Callable[[str], Any]], needed: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for part in text.split(","):
        name, equals, value = part.strip().partition("=")
        if name not in kinds or not equals:
            raise UsageError(f"{part.strip()!r} is not NAME=VALUE with one of the names {', '.join(kinds)}")
        if name in found:
            raise UsageError(f"{name} is given twice")
        found[name] = kinds[name](value)
    missing = [name for name in needed if name not in found]
    if missing:
        raise UsageError(f"{' and '.join(missing)} missing: give {', '.join(f'{name}=' for name in needed)}")
    return found


def _count(text: str) -> int:
    if not text.isdecimal():
        raise UsageError(f"{text!r} is not a whole number")
    return int(text)


def _duration(text: str) -> float:
    return 0.0 if text in ("0", "0s", "0.0s", "0ms") else parse_duration(text)
