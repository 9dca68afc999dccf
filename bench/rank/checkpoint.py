"""Measure checkpoints. Blocks of steps with a checkpoint alternate with blocks without a checkpoint.

Every shard is read back.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from statistics import median
from typing import Any

from bench.core.case import Case
from bench.core.checkpoint import BurstPlan, BurstTimes, Checkpointer, ReadBack, TimedStep
from bench.core.errors import UsageError, kernel_reason
from bench.core.pattern import Pattern, Shape
from bench.core.program import Group
from bench.core.record import (
    CheckpointSamples,
    Failure,
    Flag,
    Record,
    Samples,
    Skip,
    StopReason,
    WrongCode,
    WrongData,
)
from bench.core.transport import Checkpointing, Transport
from bench.datasets import page_cache
from bench.datasets.messages import DatasetError, DatasetFailure, DatasetNote, DatasetSkip
from bench.datasets.work_folder import WorkFolder
from bench.rank.messages import RankSkip
from bench.rank.rows import PlannedRow, traffic

_COLD_AT_LEAST = 0.99  # bytes from the device per byte of the shard
_LEAST_STEPS, _LEAST_BLOCK_S = 5, 0.2  # for a block
_LEAST, _MOST, _MAX_S = 5, 30, 10.0  # bursts of a row, and the time limit after the least number


class BurstMeasurer:
    """Measures checkpoints of one size on this rank. Rank 0 returns the record, and other ranks return None."""

    def __init__(
        self,
        case: Case,
        pattern: Pattern,
        transport: Transport,
        payload: int,
        requested: tuple[int, ...],
        hosts: tuple[str, ...],
        beat: Callable[[str], None],
        working: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        self._case, self._transport, self._hosts = case, transport, hosts
        self._beat, self._working, self._channel = beat, working, transport.channel
        num_ranks = transport.place.num_ranks
        self._group = Group("world", tuple(range(num_ranks)))
        self._payload, shape = payload, Shape(num_ranks, payload)
        self._row = PlannedRow("isolated", shape, requested, (self._group,), max(case.max_s, _MAX_S))
        self._counted = traffic(pattern, shape, self._group, hosts)
        self._folder: WorkFolder | None = None  # set on rank 0, and on ranks that do not see rank 0's folder
        self._checkpointer: Checkpointer | None = None

    def prepare(self) -> tuple[Record, ...] | None:
        """Make and check the folder, and prepare the checkpointer. Return None if the row can be measured.

        If the row is skipped, return the record of the skipped row on rank 0.
        """
        self._beat("checkpoint: making the folder")
        if not isinstance(self._transport, Checkpointing):
            return self._ended(skipped=Skip.of(RankSkip.NO_TRAINING, transport=self._case.transport))
        folder = self._visible(self._shared_folder())
        has_own = self._folder is not None and self._transport.place.rank != 0
        num_ranks = len(self._group.ranks) - sum(self._channel.share(has_own))
        if has_own:
            num_ranks = self._transport.place.local_size
        skip: Skip | None = None
        why = ""
        try:
            skip = self._lacking(folder, self._payload * num_ranks)
        except OSError as error:
            why = kernel_reason(error)
        found = self._channel.share((skip, why))
        skip, why = next(filter(any, found), (None, ""))
        if skip is not None or why:
            self.close()
        if why:
            raise UsageError.of(DatasetError.FOLDER, folder=self._case.folder or ".", why=why)
        if skip is not None:
            return self._ended(skipped=skip)
        case = self._case
        plan = BurstPlan(str(folder), case.method, self._payload, case.step_s, case.exchange, case.seed)
        self._checkpointer = self._transport.checkpointer(plan)
        return None

    def take(self) -> tuple[tuple[Group, Record], ...]:
        """Run blocks of steps. Every second block of steps has a checkpoint."""
        assert self._checkpointer is not None
        try:
            return self._blocks(self._checkpointer)
        finally:
            self.close()

    def close(self) -> None:
        """Remove the folder."""
        if self._folder is not None:
            self._folder.close()
            self._folder = None

    def _blocks(self, writer: Checkpointer) -> tuple[tuple[Group, Record], ...]:
        self._beat("checkpoint: warm-up")
        step_s = max(self._channel.share(median(one.step_s for one in writer.steps(_LEAST_STEPS))))
        writer.burst(1)
        writer.read_back()
        num_steps = max(_LEAST_STEPS, min(200, int(_LEAST_BLOCK_S / max(step_s, 1e-6))))
        alone: list[list[list[TimedStep]]] = []
        bursts: list[list[BurstTimes]] = []
        backs: list[list[ReadBack]] = []
        began, reason = time.monotonic(), None
        while reason is None:
            self._beat(f"checkpoint: {len(bursts)} bursts")
            for found, gathered in (
                (alone, self._channel.gather(tuple(writer.steps(num_steps)))),
                (bursts, self._channel.gather(writer.burst(num_steps))),
                (backs, self._channel.gather(writer.read_back())),
            ):
                if gathered is not None:
                    found.append(gathered)
            reason = self._channel.broadcast(self._stop(len(bursts), time.monotonic() - began))
        if self._transport.place.rank != 0:
            return ()
        return ((self._group, self._record(alone, bursts, backs, reason)),)

    def _stop(self, num: int, elapsed_s: float) -> str | None:
        if self._case.iterations is not None:
            return StopReason.FIXED if num >= self._case.iterations else None
        over = num >= _LEAST and elapsed_s > self._row.max_s
        return StopReason.MAX_TIME if over or num >= _MOST else None

    def _shared_folder(self) -> str:
        """Return the folder that rank 0 makes. Raises UsageError on every rank if rank 0 cannot make the folder."""
        path, why = "", ""
        if self._transport.place.rank == 0:
            try:
                parent = Path(self._case.folder or ".")
                self._folder = WorkFolder(parent)
                path = str(self._folder.path.resolve())
                if removed := self._folder.removed:
                    facts = {"num": len(removed), "num_bytes": self._folder.removed_bytes, "parent": str(parent)}
                    # The notes of the header are already printed.
                    sys.stderr.write(f"# {DatasetNote.REMOVED.words(facts)}\n")
            except OSError as error:
                why = kernel_reason(error)
        path, why = self._channel.broadcast((path, why))
        if why:
            raise UsageError.of(DatasetError.FOLDER, folder=self._case.folder or ".", why=why)
        return str(path)

    def _visible(self, path: str) -> Path:
        """Return the folder in which this rank writes its shard.

        If the method is `file` and this host has no shared folder, return a new folder for this rank.
        """
        folder = Path(path)
        if folder.is_dir() or self._case.method != "file":
            return folder
        parent = Path(self._case.folder or ".")
        with suppress(OSError):  # the row is skipped then
            parent.mkdir(parents=True, exist_ok=True)
            self._folder = WorkFolder(parent)
            return self._folder.path.resolve()
        return folder

    def _lacking(self, folder: Path, needed: int) -> Skip | None:
        """Return why this rank cannot use the folder, or None if this rank can use the folder.

        Raises OSError if the folder is not writable.

        `needed`: the total bytes that all ranks write to the disk of this folder.
        """
        if not folder.is_dir():
            host = self._hosts[self._transport.place.rank]
            return Skip.of(DatasetSkip.NOT_SHARED, folder=str(folder), host=host)
        kind = page_cache.file_system(folder)
        if kind in page_cache.IN_MEMORY:
            return Skip.of(DatasetSkip.IN_MEMORY, folder=str(folder), file_system=kind)
        if page_cache.is_remote(kind) and page_cache.counter_of(folder) is not page_cache.device_bytes:
            return Skip.of(DatasetSkip.NOT_COUNTED, folder=str(folder), file_system=kind)
        if self._folder is not None and (lacking := self._folder.lacks_bytes(needed)):
            return Skip.of(DatasetSkip.NO_SPACE, folder=str(folder), lacking=lacking, num_bytes=needed)
        return None

    def _record(
        self,
        alone: Sequence[Sequence[Sequence[TimedStep]]],
        bursts: Sequence[Sequence[BurstTimes]],
        backs: Sequence[Sequence[ReadBack]],
        reason: str,
    ) -> Record:
        ranks = range(len(self._group.ranks))
        wrong = next((rank for of_ranks in backs for rank in ranks if not of_ranks[rank].is_right), None)
        pages = max(back.pages for of_ranks in backs for back in of_ranks)
        share = min(back.received_bytes for of_ranks in backs for back in of_ranks) / self._payload
        if pages or share < _COLD_AT_LEAST:
            failure = Failure.of(DatasetFailure.NOT_COLD, pages=pages, share=share)
            return Record("isolated", self._row.requested, **self._counted, failed=failure)
        by_rank = tuple([of_ranks[rank].write_s for of_ranks in bursts] for rank in ranks)
        of_bursts = CheckpointSamples(
            step_alone_s=[_slowest([[step.step_s for step in own] for own in block]) for block in alone],
            exchange_alone_s=[_slowest([[step.exchange_s for step in own] for own in block]) for block in alone],
            exchange_during_s=[
                _slowest([[step.exchange_s for step in own.steps[: own.during]] for own in block]) for block in bursts
            ],
            total_s=[max(own.blocked_s + sum(step.step_s for step in own.steps) for own in block) for block in bursts],
            num_steps=[len(block[0].steps) for block in bursts],
            blocked_s=[max(own.blocked_s for own in block) for block in bursts],
            read_s=[max(back.read_s for back in of_ranks) for of_ranks in backs],
            device_share=share,
        )
        first = None if wrong is None else WrongData.of(WrongCode.CHECKSUM, rank=wrong)
        return Record(
            "isolated",
            self._row.requested,
            **self._counted,
            verified=first is None,
            num_wrong=sum(not back.is_right for of_ranks in backs for back in of_ranks),
            first_wrong=first,
            compared="full",
            stop_reason=reason,
            flags=(Flag.WRONG_DATA,) if first else (),
            samples=Samples([max(block) for block in zip(*by_rank, strict=True)], by_rank),
            checkpoint=of_bursts,
        )

    def _ended(self, **why: Any) -> tuple[Record, ...]:
        if self._transport.place.rank != 0:
            return ()
        return (Record("isolated", self._row.requested, **self._counted, **why),)


def _slowest(by_rank: Sequence[Sequence[float]]) -> list[float]:
    """For each step that all ranks have run, return the slowest rank's seconds."""
    return [max(step) for step in zip(*by_rank, strict=False)]
