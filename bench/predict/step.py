"""Compute the time of one training step: compute, exposed communication, pipeline bubble and host-to-device feed.

Every quantity is an array of draws in seconds (predict/draws.py). If all draws are equal, a single number may replace
the array.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from bench.predict.layout import Communication, ParallelLayout
from bench.predict.operations import forward_share, repeated_passes

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Seconds = Callable[[Communication], Floats]  # the seconds of one call


@dataclass(frozen=True, slots=True)
class StepTime:
    """The durations of the parts of one step in seconds, one value for each draw.

    `total_s` is the sum of compute, bubble, exposed and feed.

    `compute_s`: forward pass, backward pass and the optimizer's update.
    `bubble_s`: the wait of a pipeline stage while other stages compute and communicate.
    `exposed_s`: the GPU's own communication that computation does not hide, plus the time that computation loses
        while it hides communication. If `lost_share` is at most 1, `exposed_s` is at most `exchange_s`.
    `feed_s`: the wait for input.
    `exchange_s`: all of the GPU's own communication, hidden or not.
    """

    compute_s: Any
    bubble_s: Any
    exposed_s: Any
    feed_s: Any
    exchange_s: Any

    @property
    def total_s(self) -> Any:
        """The whole step."""
        return self.compute_s + self.bubble_s + self.exposed_s + self.feed_s


def step(
    found: ParallelLayout,
    passes_s: Floats,
    update_s: Floats,
    seconds: Seconds,
    exchanged: Sequence[Communication],
    lost_share: Floats,
    copied_s: Floats,
    shares_link: bool,
) -> StepTime:
    """Return the times of a layout's step.

    `passes_s`: forward and backward passes of all micro-batches on one GPU, without communication.
    `update_s`: the optimizer's update.
    `seconds`: the time of one call.
    `lost_share`: the time that computation loses while it hides communication, divided by the time of this
        communication.
    `copied_s`: the copy of the input from the host.
    `shares_link`: whether the copy of the input and the communication use the same link.
    """
    workload = found.workload
    micro, mesh = workload.accumulation, workload.mesh
    # Recomputation adds to the backward pass.
    forward = passes_s / micro * forward_share(workload) / repeated_passes(workload)
    backward = passes_s / micro - forward
    of_kind = {
        when: [each for each in exchanged if each.when == when]
        for when in ("pass", "unit", "ends", "hop", "bucket", "after")
    }
    blocked_forward, blocked_backward = _blocking(of_kind["pass"], seconds, micro)
    # The exposed communication of both passes of one micro-batch.
    waits = blocked_forward + blocked_backward
    once = mesh.pipeline > 1  # a stage gathers its weights once per step
    units = _units(found, forward + blocked_forward, backward + blocked_backward, of_kind["unit"], seconds)
    units = units + sum((each.calls / (1 if once else micro) * seconds(each) for each in of_kind["ends"]), 0.0)
    waits = waits + (0.0 if once else units)
    if workload.strategy == "zero2":
        waits = waits + exposed_buckets(
            backward + blocked_backward, of_kind["bucket"], seconds, workload.overlap, micro
        )
    for hop in of_kind["hop"]:
        waits = waits + 2 * mesh.interleave * seconds(hop)
    # While the pipeline fills and drains, a stage waits for stages - 1 micro-batches of other stages, and for their
    # communication. Interleaved parts shorten this time per micro-batch (Narayanan et al. 2021, section 2.2).
    bubble = (mesh.pipeline - 1) / mesh.interleave * (forward + backward + waits)
    exposed = micro * waits + (units if once else 0.0)
    if workload.strategy != "zero2":
        exposed = exposed + exposed_buckets(backward, of_kind["bucket"], seconds, workload.overlap)
    for last in of_kind["after"]:
        exposed = exposed + last.calls * seconds(last)
    exchange = sum((each.calls * seconds(each) for each in exchanged), 0.0 * passes_s)
    return _with_losses(passes_s + update_s, bubble, exposed, exchange, lost_share, copied_s, shares_link)


def _with_losses(
    compute: Floats,
    bubble: Floats,
    exposed: Floats,
    exchange: Floats,
    lost_share: Floats,
    copied: Floats,
    shares_link: bool,
) -> StepTime:
    import numpy as np

    # The exposed time of communication is never longer than the communication itself. The remaining communication
    # overlapped with computation.
    hidden = np.clip(exchange - exposed, 0, compute)
    exposed = exposed + lost_share * hidden
    busy = copied + (exchange if shares_link else 0.0)
    feed = np.where(copied > 0, np.maximum(busy - (compute + bubble + exposed), 0), 0)
    return StepTime(compute, bubble, exposed, feed, exchange)


def _blocking(passes: Sequence[Communication], seconds: Seconds, micro: int) -> tuple[Any, Any]:
    """Return how long the forward and the backward pass of a micro-batch wait for blocking calls, in seconds."""
    forward = sum((each.forward * seconds(each) for each in passes), 0.0)
    backward = sum(((each.calls - each.forward) * seconds(each) for each in passes), 0.0)
    return forward / micro, backward / micro


def _units(
    found: ParallelLayout, forward: Floats, backward: Floats, units: Sequence[Communication], seconds: Seconds
) -> Floats:
    """Return the time of FSDP's communication that a micro-batch does not hide, in seconds.

    The weights of each layer are gathered while the previous layer is computed.
    """
    import numpy as np

    layers, again = found.stage_layers, 0.0 if found.workload.mesh.pipeline > 1 else 1.0
    gather = sum((seconds(each) for each in units if each.collective == "allgather"), 0.0)
    scatter = sum((seconds(each) for each in units if each.collective != "allgather"), 0.0)
    if not units:
        return 0.0 * forward
    if not found.workload.overlap:
        return layers * ((1 + again) * gather + scatter) + 0.0 * forward
    # Computation hides neither the first allgather nor the last reducescatter. Between them, the slower of
    # communication and computation determines the time.
    there: Floats = gather + (layers - 1) * np.maximum(gather - forward / layers, 0)
    gather = again * gather
    back: Floats = gather + (layers - 1) * np.maximum(gather + scatter - backward / layers, 0) + scatter
    return there + back


def exposed_buckets(
    backward: Floats, buckets: Sequence[Communication], seconds: Seconds, overlap: bool, micro: int = 1
) -> Floats:
    """Return the seconds that the exchange of gradients continues after the end of the backward pass.

    Gradients are assumed to appear evenly during the backward pass. The exchange of a bucket starts when the bucket is
    full and the exchange of the previous bucket has ended. `micro`: the number of backward passes among which the calls
    of a step are divided.
    """
    import numpy as np

    if not overlap:
        return sum((each.calls / micro * seconds(each) for each in buckets), 0.0 * backward)
    finish = 0.0 * backward
    if np.size(backward) == 1:  # one draw: numbers are faster than arrays
        end, alone = float(np.ravel(finish)[0]), float(np.ravel(backward)[0])
        for full_at, of_bucket in _in_order(buckets, micro):
            end = max(end, full_at * alone) + float(np.ravel(seconds(of_bucket))[0])
        return np.maximum(finish + end - backward, 0.0) if buckets else finish
    full = np.empty_like(finish)
    for full_at, of_bucket in _in_order(buckets, micro):
        np.multiply(full_at, backward, out=full)
        np.maximum(finish, full, out=full)
        finish = np.add(full, seconds(of_bucket), out=finish)
    return np.maximum(finish - backward, 0.0) if buckets else finish


def _in_order(buckets: Sequence[Communication], micro: int) -> list[tuple[float, Communication]]:
    """Return (part, bucket) for each bucket, sorted by the part.

    `part`: the fraction of the backward pass after which the bucket is full.

    Each type of exchange fills its own buckets.
    """
    order: list[tuple[float, Communication]] = []
    kinds: dict[tuple[str, str], list[Communication]] = {}
    for each in buckets:
        kinds.setdefault((each.group.name, each.name.partition(",")[0]), []).append(each)
    for of_kind in kinds.values():
        whole = sum(each.calls / micro * each.payload_bytes for each in of_kind)
        filled = 0.0
        for each in of_kind:
            for _ in range(each.calls // micro):
                filled += each.payload_bytes
                order.append((filled / whole, each))
    return sorted(order, key=itemgetter(0))
