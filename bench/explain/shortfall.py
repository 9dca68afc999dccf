"""How far a run is below normal, and where its curve falls: figures that several reasons rest on."""

from __future__ import annotations

from dataclasses import dataclass

from bench.explain.assessment import assess, tightest
from bench.explain.evidence import RunEvidence, busbw
from bench.explain.messages import ResultVerdict
from bench.explain.size_matches import size_matches

_LOW = (ResultVerdict.LOW, ResultVerdict.FAR_TOO_LOW)
_USUAL_OF_BOUND = 0.8  # the share of a port that rings of GPUs reach, used if no result is known
_FALLEN = 0.6  # of the peak; less is a collapse, not noise
_MOST_GPUS = 16  # of one node on the market
_FEWEST_FALLEN = 2  # figures at sizes beyond the peak that are all below it


@dataclass(frozen=True, slots=True)
class Shortfall:
    """The best rate and the normal one, in bytes per second of bus bandwidth."""

    rate: float
    normal: float

    @property
    def share(self) -> float:
        """Rate / normal rate."""
        return self.rate / self.normal


@dataclass(frozen=True, slots=True)
class Fall:
    """A curve that collapses: its peak and its last size.

    At each size the better of in place and out of place counts.
    """

    peak_bytes: int
    peak_rate: float
    last_bytes: int
    last_rate: float


def shortfall(evidence: RunEvidence) -> Shortfall | None:
    """How far the run is below normal; None if its verdict is neither low nor far too low."""
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
    """Do data cross NICs? With an unknown number of nodes: are there more ranks than any node has GPUs?"""
    if evidence.num_nodes is None and evidence.machine.links is None:
        return (evidence.num_ranks or 0) > _MOST_GPUS
    return evidence.crosses_nics


def fall(evidence: RunEvidence) -> Fall | None:
    """Where the curve collapses with size; None if it does not collapse, or by no more than noise.

    A curve collapses if its last two figures are below 60 % of the peak, and the peak is no single outlier. These two
    figures are at two sizes above the peak's; if there is only one such size, they are its in-place and out-of-place
    figures.
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
