"""Measure the peak memory and the GPU energy of a training step on this rank."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from bench.core.traits import traits
from bench.probes import nvml, resident_memory


class StepUsage:
    """Reads the peak of memory since the model's construction began, and the GPU's energy while steps run.

    Only full steps count for the energy. NVML counts energy on GPUs since Volta.
    """

    def __init__(self, transport: str, local_rank: int) -> None:
        self._before = resident_memory.begin_peak()
        self._gpu = nvml.own_index(os.environ, local_rank) if traits(transport).on_gpu else None
        self._energy_j, self._num_steps, self._began_j = 0.0, 0, None  # type: float, int, float | None

    def begin(self) -> None:
        """Read the energy counter before full steps."""
        self._began_j = None if self._gpu is None else nvml.energy_j(self._gpu)

    def end(self, num_steps: int) -> None:
        """Add the energy of these steps, measured since `begin`."""
        now = None if self._gpu is None or self._began_j is None else nvml.energy_j(self._gpu)
        if now is not None and self._began_j is not None:
            self._energy_j += now - self._began_j
            self._num_steps += num_steps

    def found(self, on_device: Mapping[str, int]) -> dict[str, Any]:
        """Return this rank's peak use of each memory, and the joules of a step.

        The peak "host" is the process's peak memory minus its memory before the model was built.

        `on_device`: the peaks of device memory, which the trainer knows.
        """
        peak = resident_memory.peak_bytes()
        peaks = dict(on_device)
        if peak is not None and self._before is not None:
            peaks["host"] = max(0, peak - self._before)
        return {"peaks": peaks, "energy_j": self._energy_j / self._num_steps if self._num_steps else None}


def together(of_ranks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the fields of a record from the values of all ranks. A value is left out if some rank lacks it."""
    places = [place for place in of_ranks[0]["peaks"] if all(place in own["peaks"] for own in of_ranks)]
    energy = [own["energy_j"] for own in of_ranks]
    return {
        "peak_bytes": {place: [own["peaks"][place] for own in of_ranks] for place in places},
        "energy_j": [] if None in energy else energy,
    }
