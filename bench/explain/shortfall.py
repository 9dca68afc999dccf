"""Compute how far a run is below normal, and where its curve falls. Several reasons use these figures."""

from __future__ import annotations

from dataclasses import dataclass

from bench.explain.assessment import assess, tightest
from bench.explain.evidence import RunEvidence, busbw
from bench.explain.messages import ResultVerdict
from bench.explain.size_matches import size_matches

_LOW = (ResultVerdict.LOW, ResultVerdict.FAR_TOO_LOW)
_USUAL_OF_BOUND = 0.8  # the share of a port that rings of GPUs reach, used if no result is known
_FALLEN = 0.6  # a curve collapses if it falls below this share of its highest rate; a smaller fall is noise
_MOST_GPUS = 16  # the most GPUs that a node on the market has
_FEWEST_FALLEN = 2  # at least this many figures at sizes above the best size must be low


@dataclass(frozen=True, slots=True)
class Shortfall:
    """The best rate and the normal rate, both in bytes per second of bus bandwidth."""

    rate: float
    normal: float

    @property
    def share(self) -> float:
        """The best rate divided by the normal rate."""
        return self.rate / self.normal


@dataclass(frozen=True, slots=True)
class Fall:
    """The peak and the last point of a curve whose rate collapses at large sizes.

    At each size, the higher one of the in-place rate and the out-of-place rate is used.
    """

    peak_bytes: int
    peak_rate: float
    last_bytes: int
    last_rate: float


def shortfall(evidence: RunEvidence) -> Shortfall | None:
    """Return how far the run is below normal. Return None unless the verdict is LOW or FAR_TOO_LOW."""
    if evidence.best is None:
        return None
    assessment = assess(evidence)
    if assessment.verdict not in _LOW:
        return None
    matches, bound = size_matches(evidence), tightest(evidence)
    if matches:
        return Shortfall(matches[0].ours, matches[0].theirs)
    if bound is None:
        rate = busbw(evidence.best)
        return Shortfall(rate, rate / assessment.ratio) if assessment.ratio else None
    return Shortfall(busbw(evidence.best), _USUAL_OF_BOUND * bound.bytes_per_s)


def between_nodes(evidence: RunEvidence) -> bool:
    """Check whether data cross NICs.

    If the number of nodes and the machine are unknown, check whether there are more ranks than any node has GPUs.
    """
    if evidence.num_nodes is None and evidence.machine.links is None:
        return (evidence.num_ranks or 0) > _MOST_GPUS
    return evidence.crosses_nics


def fall(evidence: RunEvidence) -> Fall | None:
    """Return where the rate collapses at large sizes; None if the rate does not collapse.

    The rate collapses if the last two figures are below 60 % of the peak, and the peak is not a single outlier. The
    last two figures are at larger sizes than the peak. If only one measured size is larger than the peak's size, the
    two figures are the in-place and the out-of-place figure at this size.
    """
    rates = {size: rate for size, rate in evidence.rate_by_size.items() if rate}
    if evidence.num_wrong or len(rates) < 3:
        return None
    peak = max(rates, key=rates.__getitem__)
    beyond = sorted(size for size in rates if size > peak)
    if not beyond:
        return None
    figures = [busbw(row) for row in evidence.rows if (row.payload_bytes or 0) in beyond[-2:] and busbw(row)]
    near_peak = [size for size, rate in rates.items() if size != peak and rate >= _FALLEN * rates[peak]]
    if len(figures) < _FEWEST_FALLEN or max(figures) >= _FALLEN * rates[peak] or not near_peak:
        return None
    return Fall(peak, rates[peak], beyond[-1], rates[beyond[-1]])
