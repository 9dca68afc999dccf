"""The price of a framework is a row's time through it / the time of the same row without it."""

from __future__ import annotations

from bench.core.record import Flag, Header, Record
from bench.results import framework, launches
from bench.results.document import Summary
from bench.results.messages import NoteCode
from bench.results.summary import summarise
from tests.gate.gate_runs import header, times


def rows(transport: str, launch: int, second: float, *, in_place: bool, size: int = 1024) -> tuple[str, Header, Record]:
    """One row of one launch."""
    job = f"allreduce-{transport}-1x2-{launch}-{size}-{in_place}"
    words = ("allreduce", "--transport", transport, "--sizes", str(size))
    case = (*words, "--in-place", "1") if in_place and transport != "nccl" else words
    its = header(job, case, transport=transport, num_nodes=1, clock="device", launch=launch)
    record = Record(
        "pipelined",
        (size,),
        size,
        2,
        1,
        bus_factor=1.0,
        in_place=in_place,
        verified=True,
        num_wrong=0,
        stop_reason="ci",
        samples=times(second),
    )
    return job, its, record


def test_rows_of_a_run_tell_the_price_with_its_interval() -> None:
    made = [
        *(rows("nccl", launch, second, in_place=True) for launch, second in enumerate((30e-6, 31e-6, 29e-6), 1)),
        *(
            rows("nccl_direct", launch, second, in_place=False)
            for launch, second in enumerate((10e-6, 10e-6, 10e-6), 1)
        ),
        rows("nccl_direct", 1, 5e-6, in_place=True),  # the other column is not compared if there is one out of place
        rows("nccl", 1, 200e-6, in_place=True, size=1 << 20),
        rows("nccl_direct", 1, 100e-6, in_place=True, size=1 << 20),  # only in place
        rows("mpi", 1, 1e-6, in_place=False),
    ]
    headers = {job: its for job, its, _ in made}
    summaries = [row for job, its, record in made if isinstance(row := summarise(job, its, record), Summary)]
    (note,) = framework.prices(launches.cells(headers, summaries))
    assert note.code == NoteCode.FRAMEWORK and (note.facts["transport"], note.facts["bare"]) == ("nccl", "nccl_direct")
    small, large = note.facts["rows"]
    assert (small["payload_bytes"], large["payload_bytes"]) == (1024, 1 << 20)
    assert (
        abs(small["ratio"] - 3) < 0.1 and small["ratio_low"] < 3 < small["ratio_high"] and small["over"] == "launches"
    )
    assert abs(small["more_s"] - 20e-6) < 1e-6 and abs(large["ratio"] - 2) < 0.1
    assert Flag.INVALID not in summaries[0].flags


def test_without_a_pair_there_is_no_price() -> None:
    job, its, record = rows("nccl", 1, 1e-5, in_place=True)
    row = summarise(job, its, record)
    assert isinstance(row, Summary) and framework.prices(launches.cells({job: its}, [row])) == []
