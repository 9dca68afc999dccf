"""A second run on hosts where a run measures is refused; with --share-hosts its rows say so."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from bench.core.errors import EXIT_DONE, EXIT_REFUSED
from bench.core.record import Flag
from bench.rank.messages import RankRefusal
from tests.testbed import site
from tests.testbed.hosts import Testbed
from tests.testbed.test_killed_controller import Run

pytestmark = [pytest.mark.netns, pytest.mark.slow]


def test_a_second_run_on_the_same_hosts_is_refused_unless_it_may_share_them(testbed: Callable[..., Testbed]) -> None:
    run = Run(testbed(2), "mpi")
    first = run.beats("*.json")[0].parent.parent.name
    words = [*site.BENCH, "run", "short", "--cluster", "bed", "--no-plots", "--format", "json", "--results", "second"]
    env = {"PYTHONPATH": str(site.ROOT)}
    refused = run.bed.on("h0", words, env=env, cwd=run.folder, timeout_s=100)
    assert refused.code == EXIT_REFUSED, refused.err
    [outcomes] = run.folder.glob("second/*/outcomes.json")
    [outcome] = json.loads(outcomes.read_text()).values()
    assert outcome["code"] == RankRefusal.HOST_IN_USE
    assert first in outcome["facts"]["job"] and outcome["facts"]["host"] in run.bed.hosts
    shared = run.bed.on("h0", [*words, "--share-hosts"], env=env, cwd=run.folder, timeout_s=100)
    assert shared.code == EXIT_DONE, shared.err
    assert all(Flag.SHARED_HOST in row["flags"] for row in json.loads(shared.out)["summaries"])
