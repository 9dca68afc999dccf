"""`job record` notes the CPUs of the ranks on its host, and exports what nsys recorded, with payloads."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from bench.core.step_trace import RankTrace
from bench.job import record
from bench.job.explain import explain
from bench.job.messages import CauseCode
from bench.logs import step_traces
from bench.logs.trace_messages import TraceCode
from tests.job import synthetic
from tests.job.synthetic import Recording, Schedule, Style

BURN = "import time, os; end = time.monotonic() + 1.6\nwhile time.monotonic() < end: pass"
NSYS = """\
#!/bin/sh
what=$1
for word; do case $word in --output=*) file=${word#--output=} ;; esac; done
case $what in
profile) while case $1 in --*|profile) true ;; *) false ;; esac; do shift; done; "$@"; : > "$file.nsys-rep" ;;
export) case " $* " in *" --include-blobs=true "*) exit %d ;; esac; echo plain > "$file" ;;
esac
"""


def test_the_cpus_of_each_rank_are_noted(tmp_path: Path) -> None:
    ranks = " & ".join(f"RANK={rank} {sys.executable} -c '{BURN}'" for rank in (0, 1))
    command = ("taskset", "-c", str(min(os.sched_getaffinity(0))), "sh", "-c", f"{ranks}; wait")
    recording = record.prepare(tmp_path / "out", command, os.environ)
    assert record.run(recording, os.environ).traces == ()
    traces, remarks = step_traces.read([tmp_path / "out"])
    assert not remarks and [trace.rank for trace in traces] == [0, 1]
    for trace in traces:
        assert trace.cpus is not None and trace.cpus.cpus == {min(os.sched_getaffinity(0))}
        used_s, waited_s = trace.cpus.used_s[-1], trace.cpus.waited_s[-1]
        assert used_s > 0 and waited_s > 0  # two ranks on one CPU
        assert used_s + waited_s < 1.05 * (trace.cpus.times_s[-1] - trace.cpus.times_s[0]) + 0.1


@pytest.mark.parametrize("knows_payloads", [True, False])
def test_a_report_of_nsys_is_exported_with_payloads_where_it_can(tmp_path: Path, knows_payloads: bool) -> None:
    program = tmp_path / "bin" / "nsys"
    program.parent.mkdir()
    text = NSYS % (0 if knows_payloads else 1)
    program.write_text(text.replace("exit 0", 'echo blobs > "$file"; exit 0'), encoding="utf-8")
    program.chmod(0o755)
    env = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"}
    recording = record.prepare(tmp_path / "out", ("true",), env, under_nsys=True)
    [export] = record.run(recording, env).exports
    assert export.read_text() == ("blobs\n" if knows_payloads else "plain\n")


def write_cpus(folder: Path, traces: list[RankTrace], waited: float) -> Path:
    """Write what `job record` would: each rank used half a CPU of one, and waited for a share of the time."""
    times = [round((traces[0].epoch_s or 0.0) - 5 + 0.5 * number, 4) for number in range(40)]
    used, waits = ([round(0.5 * share * number, 4) for number in range(40)] for share in (0.5, waited))
    ranks = {str(trace.rank): {"cpus": [3], "used_s": used, "waited_s": waits} for trace in traces}
    document = {"schema": "bench.cpus/1", "host": "node0", "quota_cpus": None, "times": times, "ranks": ranks}
    path = folder / "cpus-node0-17.json"
    path.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize(("gap_us", "waited", "named"), [(2000, 0.2, True), (2000, 0.0, False), (0, 0.4, False)])
def test_too_few_cpus(tmp_path: Path, gap_us: int, waited: float, named: bool) -> None:
    schedule = Schedule(num_ranks=2, num_steps=8, num_layers=8, forward_us=900, backward_us=1800, gap_us=gap_us)
    synthetic.write(tmp_path, schedule, Recording(style=Style.V2023))
    write_cpus(tmp_path, step_traces.read([tmp_path])[0], waited)
    found = explain(step_traces.read([tmp_path])[0])
    causes = {cause.code: cause for cause in found.causes}
    assert (CauseCode.FEW_CPUS in causes) == named  # a device that has enough to do hides what its host waits
    if named:
        cause = causes[CauseCode.FEW_CPUS]
        assert cause.ranks == (0, 1) and cause.words.facts["num_cpus"] == 1
        assert cause.words.facts["waited"] == pytest.approx(waited, rel=0.01) and not cause.words.facts["others"]
        assert cause.gain_s == pytest.approx(waited * (found.step_s or 0.0), rel=0.02)


@pytest.mark.parametrize("change", [{"times": [1, 2]}, {"ranks": {"0": 3}}, {"ranks": []}, {"quota_cpus": "x"}])
def test_a_damaged_record_is_one_remark(tmp_path: Path, change: dict[str, object]) -> None:
    synthetic.write(tmp_path, Schedule(num_ranks=1), Recording())
    traces = step_traces.read([tmp_path])[0]
    path = write_cpus(tmp_path, traces, 0.4)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    traces, remarks = step_traces.read([tmp_path])
    assert len(traces) == 1 and [remark.code for remark in remarks] == [TraceCode.DAMAGED]
    assert np.isfinite(traces[0].compute).all()
