"""Run the rounds of a ladder.

Between two rounds, rank 0 chooses the next round from the results so far. Meanwhile, the other ranks wait for the next
round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from bench.core.case import Case
from bench.core.program import Group, Round
from bench.core.record import Record
from bench.diagnose import pair_evidence
from bench.diagnose.ladder import LadderRound, next_rounds
from bench.diagnose.localise import PairSamples, Places
from bench.rank import placement
from bench.results import stats


def places(case: Case, hosts: Sequence[str], ranks_per_host: int, clock: str) -> Places:
    """Return the hosts, NICs and racks of the ranks. If the case names no NICs, each GPU of a host counts as a NIC."""
    local = [rank % ranks_per_host for rank in range(len(hosts))]
    of_gpus = clock == "device" or case.traits.on_gpu
    found = [placement.nic_of(case, k) if case.nics or not of_gpus else f"gpu{k}" for k in local]
    return Places(tuple(hosts), tuple(found), {host: rack for rack, names in case.racks for host in names})


def measure_rounds(
    case: Case,
    where: Places,
    broadcast: Callable[[Any], Any],
    first: bool,
    measure: Callable[[Round], tuple[Record, ...]],
) -> Iterator[tuple[Record, ...]]:
    """Measure rounds of pairs, and yield each round's records.

    End when the verdict is clear, or when the time budget is used up. After the end of the time budget, `measure`
    returns records of skipped rows. The rounds that were already chosen are still processed, so the results list these
    rounds as skipped.

    `first`: whether this rank is the rank that chooses the rounds for all ranks.
    """
    taken: list[pair_evidence.Row] = []
    num_asked = 0
    while True:
        asked: tuple[Round, ...] = ()
        if first:
            new = next_rounds(PairSamples.of(taken), where, case.seed)
            asked = tuple(_round(each, number) for number, each in enumerate(new, start=num_asked))
            num_asked += len(new)
        asked = broadcast(asked)
        if not asked:
            return
        known = len(taken)
        for round_ in asked:
            records = measure(round_)
            for record in records:
                if record.samples is not None and record.verified is not False:
                    symmetric = record.mode == "isolated" or case.direction == "two-way"
                    around = stats.interval(record.samples.seconds)
                    least_s = around[0] if around else min(record.samples.seconds)
                    rate = record.payload_bytes / max(least_s, 1e-12)
                    taken += pair_evidence.rows_of(record.group, rate, symmetric)
            yield records
        if len(taken) == known:  # no pair could be measured; the records state the reason
            first = False


def _round(asked: LadderRound, number: int) -> Round:
    name = pair_evidence.group_name
    return tuple(Group(name(asked.stage, number, a, b), (a, b), a, b) for a, b in asked.pairs)
