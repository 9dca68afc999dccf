"""Find reasons why a curve does not show the rate of the links: sizes that are too small, and slow small messages."""

from __future__ import annotations

from bench.explain.evidence import RunEvidence
from bench.explain.reason import Found, reason
from bench.explain.reasons._commands import TOPOLOGY, nccl_test


@reason(
    RunEvidence,
    "sizes-too-small",
    what="the sizes are too small to show the links",
    evidence="bandwidth still rises by {gain:.0%} from {previous_bytes:bytes} to {largest_bytes:bytes}, the largest "
    "size",
    step="measure larger sizes, until three in a row agree",
    host_memory=True,
    always=True,
)
def sizes_too_small(evidence: RunEvidence) -> Found | None:
    """Detect that the curve still rises at the largest size."""
    if not evidence.rising:
        return None
    sizes = sorted(evidence.rate_by_size)
    facts = {"gain": evidence.last_gain or 0.0, "previous_bytes": sizes[-2], "largest_bytes": sizes[-1]}
    command = nccl_test(evidence, "64M")
    if evidence.transport is not None:
        command = f"python -m bench.{evidence.run.pattern} --sizes 64M:4G:4"
    elif evidence.by_message_passing:
        command = ""
    return Found(0.8, facts, command)


@reason(
    RunEvidence,
    "slow-start",
    what="each operation starts late",
    evidence="{time_s:time} for messages up to 1 KiB, while other runs needed {least_s:time} to {most_s:time}",
    step="check whether CPUs are shared, throttled or far from the GPUs, and whether NCCL_DEBUG prints between calls",
)
def slow_start(evidence: RunEvidence) -> Found | None:
    """Detect small messages that take far longer than on other machines."""
    times = [time for reference in evidence.references for time in reference.small_s.values()]
    if evidence.small_message_s is None or not times or evidence.small_message_s < 3 * max(times):
        return None
    facts = {"time_s": evidence.small_message_s, "least_s": min(times), "most_s": max(times)}
    return Found(0.4, facts, TOPOLOGY)
