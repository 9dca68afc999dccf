"""Define the contents of a page: a run's document, its names, and the verdicts of `explain` about its jobs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench.explain.messages import ResultVerdict
from bench.predict import expected
from bench.results import collect
from bench.results.document import Document
from bench.results.headline import NamedRun
from bench.store import runs

if TYPE_CHECKING:
    from bench.explain.explain import Page

_ORDER = [
    ResultVerdict.ABOVE,
    ResultVerdict.FAILED,
    ResultVerdict.FAR_TOO_LOW,
    ResultVerdict.LOW,
    ResultVerdict.NORMAL_IF,
    ResultVerdict.ONLY_RESULT,
    ResultVerdict.NORMAL,
    ResultVerdict.CANNOT_BE_JUDGED,
]  # the verdicts that a reader should see first come first


@dataclass(frozen=True, slots=True)
class JobVerdict:
    """The verdict of `explain` about one job.

    `verdict`: the code of a ResultVerdict.
    `words`, `why`, `reasons`, `steps`: texts from the page of `explain`.
    `decides`: the option that lets `explain` decide an open verdict, as text, or "" if no option is needed.
    """

    job: str
    verdict: str
    words: str
    why: str
    reasons: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()
    decides: str = ""


@dataclass(frozen=True, slots=True)
class PageContent:
    """The contents of a page."""

    document: Document
    run: NamedRun
    verdicts: tuple[JobVerdict, ...] = ()


def of_run(path: Path, document: Document | None = None) -> PageContent:
    """Return the contents of the page about a run's folder or results file.

    `document`: the run, if it is already loaded.
    """
    return PageContent(document or expected.added(collect.document(path)), collect.named(path), _verdicts(path))


def _verdicts(path: Path) -> tuple[JobVerdict, ...]:
    """Return the verdicts about the jobs that the suite measured. Modelled and imported jobs have no verdicts."""
    from bench.explain import stored  # `explain` takes as long to load as a report of a few rows
    from bench.explain.explain import run_page

    attempts, _ = runs.attempts(path)
    jobs = [(job, attempt.header, attempt.records) for job, attempt in attempts if not attempt.header.modelled]
    pages = [(job, run_page(evidence)) for job, evidence in stored.measured(jobs)]
    pages.sort(key=lambda pair: _ORDER.index(pair[1].assessment.verdict))
    return tuple(_verdict(job, page) for job, page in pages)


def _verdict(job: str, page: Page) -> JobVerdict:
    verdict, why = page.assessment.verdict, page.assessment.why
    # For a job without bandwidths, such as a training step, no option helps, and `decides` only repeats `why`.
    decides = page.decides if page.decides and page.decides.code != why.code else None
    return JobVerdict(
        job=job,
        verdict=verdict,
        words=verdict.template,
        why=why.text,
        reasons=tuple(f"{reason.what}: {reason.evidence}" for reason in page.reasons),
        steps=tuple(step for reason in page.reasons if (step := reason.command or reason.step)),
        decides=decides.text if decides else "",
    )
