"""Random clusters by the traffic model: no healthy one is accused, and faults are named."""

from __future__ import annotations

from benchmarks.explain_clusters import trials


def test_healthy_clusters_are_not_accused_and_faults_are_named() -> None:
    wrong = [(trial.fault, trial.name, trial.page.assessment.why.text) for trial in trials(7, 60) if not trial.right]
    assert not wrong
