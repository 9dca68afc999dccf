"""Compute the time that a long run loses to failures, checkpoints and restarts.

A run writes a checkpoint of C seconds after every T seconds of work. On average, a failure loses half of this period,
(T + C) / 2. The restart costs a further R seconds. Failures of nodes are independent, so a job on n nodes fails every M
= (node's mean time between failures) / n seconds. To first order (Young, CACM 17(9), 1974; Daly, FGCS 22(3), 2006) the
run takes

work x (T + C) / T / (1 - ((T + C) / 2 + R) / M)

The best T is near sqrt(2 C M).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from bench.core.errors import UsageError
from bench.predict.messages import Refusal

# The Llama 3 Herd of Models (arXiv 2407.21783, section 3.3.4 and table 5): 419 unexpected interruptions in 54 days on
# 16,384 H100 GPUs, which are 2,048 nodes of 8.
PUBLISHED_NODE_MTBF_S = 54 * 86400 * 2048 / 419
PUBLISHED_MTBF_SOURCE = "Llama 3, arXiv 2407.21783: 419 interruptions in 54 days on 2,048 nodes of 8 H100"


@dataclass(frozen=True, slots=True)
class Goodput:
    """How often nodes fail, and how many seconds a failure and a checkpoint cost.

    `node_mtbf_s`: mean time between failures of one node.
    `every_s`: the seconds of work between two checkpoints. None means Young's interval for the number of nodes.
    """

    node_mtbf_s: float
    checkpoint_s: float
    restart_s: float
    every_s: float | None = None

    def interval_s(self, num_nodes: int) -> float:
        """Return the work between two checkpoints, in seconds."""
        if self.every_s is not None:
            return self.every_s
        return math.sqrt(2 * self.checkpoint_s * self.node_mtbf_s / num_nodes)

    def stretch(self, num_nodes: int) -> float:
        """Return the total time of the run divided by the time without failures and checkpoints.

        Raises UsageError if nodes fail so often that the run does not advance.
        """
        every_s = self.interval_s(num_nodes)
        segment_s = every_s + self.checkpoint_s
        lost = (segment_s / 2 + self.restart_s) * num_nodes / self.node_mtbf_s
        if lost >= 1:
            raise UsageError.of(
                Refusal.NO_PROGRESS, num_nodes=num_nodes, mtbf_s=self.node_mtbf_s / num_nodes, every_s=every_s
            )
        return segment_s / every_s / (1 - lost)
