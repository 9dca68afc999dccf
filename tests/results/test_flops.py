"""Operations per second, the data sheet's rate beside them, and who is slower than its peers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from bench.core.record import Header, Record, Samples
from bench.results import flops, gpus, model, notes, summary
from bench.results.document import Document
from bench.results.messages import NoteCode
from tests.facts import holds

Make = Callable[..., Any]
PAYLOAD = 8192 * 8192 * 2
OPERATIONS = 2 * 8192**3


@pytest.fixture
def a_run(a_header: Make, a_record: Make) -> Callable[..., Document]:
    """`a_run([700e12, ...], gpu=..., **header)`: a row for each rank, all samples near so many FLOP/s."""

    def make(rates: list[float], gpu: str | None = "NVIDIA H200", **header: Any) -> Document:
        num = len(rates)
        given: dict[str, Any] = {
            "pattern": "gpu_baseline",
            "case": ("gpu_baseline", "--transport", "nccl"),
            "transport": "nccl",
            "dtype": "bfloat16",
            "reduce_op": "",
            "topology": "groups of 1",
            "num_ranks": num,
            "num_nodes": 1,
            "ranks_per_node": num,
            "clock": "device",
            "facts": {} if gpu is None else {"gpu": gpu},
            "ranks": tuple({"host": "h1", "local_rank": k} for k in range(num)),
        }
        head: Header = a_header(**(given | header))
        records: list[Record] = []
        for k, rate in enumerate(rates):
            seconds = [OPERATIONS / rate * (1 + 1e-4 * (n * 7 % 30)) for n in range(41)]
            samples = Samples(seconds, by_rank=(seconds,))
            records.append(
                a_record(
                    mode="pipelined",
                    payload_bytes=PAYLOAD,
                    num_ranks=1,
                    num_nodes=1,
                    bus_factor=None,
                    rank_bytes=None,
                    node_bytes=None,
                    group=f"group{k}",
                    samples=samples,
                )
            )
        return summary.document([("gpu_baseline-nccl", head, records)])

    return make


def test_a_rate_is_two_orders_cubed_by_the_median_and_stands_beside_the_dense_peak(a_run: Make) -> None:
    (row,) = a_run([700e12]).summaries
    assert row.median_s is not None
    assert row.flops_per_s == pytest.approx(OPERATIONS / row.median_s, rel=1e-12)
    assert (row.peak_flops_per_s, row.peak_name) == (989e12, "bf16 of H200-SXM-141GB")
    assert (row.algbw_bytes_per_s, row.busbw_bytes_per_s, row.bound_fraction) == (None, None, None)


def test_float32_has_the_peak_of_how_it_is_multiplied(a_run: Make) -> None:
    strict = a_run([50e12], dtype="float32").summaries[0]
    by_cores = a_run([50e12], dtype="float32", case=("gpu_baseline", "--transport", "nccl", "--tf32", "1"))
    assert strict.peak_name == "fp32 of H200-SXM-141GB" and strict.peak_flops_per_s == 67e12
    assert by_cores.summaries[0].peak_name == "tf32 of H200-SXM-141GB"
    assert by_cores.summaries[0].flops_per_s == pytest.approx(strict.flops_per_s)


@pytest.mark.parametrize(("gpu", "more"), [(None, {}), ("NVIDIA Unheard-Of", {}), ("NVIDIA H200", {"clock": "host"})])
def test_a_peak_that_nobody_knows_is_none(a_run: Make, gpu: str | None, more: dict[str, Any]) -> None:
    (row,) = a_run([1e11], gpu, **more).summaries
    assert row.flops_per_s is not None and row.peak_flops_per_s is None and row.peak_name is None


def test_other_patterns_have_no_such_rate(a_header: Make, a_record: Make) -> None:
    row = summary.summarise("job", a_header(), a_record())
    assert (row.flops_per_s, row.peak_flops_per_s) == (None, None) and row.algbw_bytes_per_s is not None


EIGHT = [705e12, 700e12, 702e12, 698e12, 703e12, 644e12, 701e12, 699e12]


def test_one_slow_gpu_of_eight_is_named(a_run: Make) -> None:
    document = a_run(EIGHT)
    (slow,) = [one for one in document.standings if one.slow]
    assert (slow.rank, slow.host, slow.gpu, slow.num, slow.unit) == (5, "h1", 5, 8, "FLOP/s")
    assert slow.behind == pytest.approx(0.08, abs=0.002) and slow.z < -10
    found = {note.code: note.facts for note in notes.notes(document)}
    assert found[NoteCode.SLOW_RANK]["rank"] == 5 and holds(found[NoteCode.SLOW_RANK]["place"], "GPU 5", "host h1")
    assert found[NoteCode.PRODUCT]["order"] == 8192 and found[NoteCode.PRODUCT]["rate"].startswith("643")


@pytest.mark.parametrize(
    "rates",
    [
        [705e12, 700e12, 702e12, 698e12, 703e12, 690e12, 701e12, 699e12],  # 1.5 %: beyond chance, does not matter
        [705e12, 640e12, 760e12, 610e12, 803e12, 650e12, 701e12, 720e12],  # a wide spread: none is apart from it
        [700e12] * 8,
    ],
)
def test_gpus_that_differ_as_gpus_do_are_not_accused(a_run: Make, rates: list[float]) -> None:
    document = a_run(rates)
    assert len(document.standings) == 8 and not any(one.slow for one in document.standings)
    codes = {note.code for note in notes.notes(document)}
    assert NoteCode.NO_SLOW_RANK in codes and NoteCode.SLOW_RANK not in codes


def test_two_gpus_accuse_nobody(a_run: Make) -> None:
    assert a_run([700e12, 300e12]).standings == ()


def test_half_of_the_gpus_slow_alike_do_not_make_the_others_fast(a_run: Make) -> None:
    assert not any(one.slow for one in a_run([700e12] * 4 + [600e12] * 4).standings)
    assert [one.rank for one in a_run([700e12] * 6 + [600e12] * 2).standings if one.slow] == [6, 7]


def test_the_limit_is_further_out_where_more_are_looked_at_or_fewer_tell_the_spread() -> None:
    assert gpus.threshold(1000) > gpus.threshold(100) > 3.5
    assert gpus.threshold(3) > gpus.threshold(8)


def test_a_run_gives_each_model_and_type_the_rate_of_its_slowest_gpu(a_run: Make) -> None:
    document = a_run(EIGHT)
    assert flops.measured(document.headers, document.summaries) == {
        ("H200-SXM-141GB", "bf16"): pytest.approx(644e12, rel=2e-3)
    }
    assert flops.measured({}, ()) == {}


def test_ranks_that_share_a_gpu_have_no_peak_and_accuse_nobody(a_run: Make) -> None:
    document = a_run(EIGHT, case=("gpu_baseline", "--transport", "nccl", "--share-gpu", "1"))
    assert {row.peak_flops_per_s for row in document.summaries} == {None}
    assert flops.measured(document.headers, document.summaries) == {}
    flagged = [replace(row, flags=("shared_gpu",)) for row in document.summaries]
    assert gpus.standings(document.headers, flagged) == ()
    assert len(gpus.standings(document.headers, document.summaries)) == 8


def test_products_have_no_line_of_latency_and_bandwidth(a_run: Make) -> None:
    (header,), (row,) = a_run([700e12]).headers.values(), a_run([700e12]).summaries
    sizes = [replace(row, payload_bytes=row.payload_bytes * factor) for factor in (1, 2, 4, 8, 16)]
    assert model.fits({row.job: header}, sizes) == ()
    assert len(model.fits({row.job: header}, [replace(one, pattern="local_copy") for one in sizes])) == 1
