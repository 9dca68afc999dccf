"""Measure the peak memory and the GPU energy of a training step on this rank."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from bench.core.traits import traits
from bench.probes import nvml, resident_memory


class StepUsage:
    """Reads the peak of memory since the model's construction began, and the GPU's energy while steps run.

    Only the energy of full steps is counted. NVML reports energy on Volta GPUs and newer GPUs.
    """

    def __init__(self, transport: str, local_rank: int) -> None:
        self._before = resident_memory.begin_peak()
        self._gpu = nvml.own_index(os.environ, local_rank) if traits(transport).on_gpu else None
        self._energy_j, self._num_steps, self._began_j = 0.0, 0, None  # type: float, int, float | None

    def begin(self) -> None:
        """Read the energy counter before full steps."""
        self._began_j = None if self._gpu is None else nvml.energy_j(self._gpu)

    def end(self, num_steps: int) -> None:
        """Add the energy that the GPU used for `num_steps` steps since the call of `begin`."""
        now = None if self._gpu is None or self._began_j is None else nvml.energy_j(self._gpu)
        if now is not None and self._began_j is not None:
            self._energy_j += now - self._began_j
            self._num_steps += num_steps

    def found(self, on_device: Mapping[str, int]) -> dict[str, Any]:
        """Return this rank's peak use of each type of memory, and the energy of a step in joules.

        The peak "host" is the process's peak memory, minus the memory that the process used before the model was built.

        `on_device`: the peaks of device memory, as the trainer measured them.
        """
        peak = resident_memory.peak_bytes()
        peaks = dict(on_device)
        if peak is not None and self._before is not None:
            peaks["host"] = max(0, peak - self._before)
        return {"peaks": peaks, "energy_j": self._energy_j / self._num_steps if self._num_steps else None}


def together(of_ranks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Combine the values of all ranks into the fields of a record.

    If any rank lacks a value, the result omits this value.
    """
    places = [place for place in of_ranks[0]["peaks"] if all(place in own["peaks"] for own in of_ranks)]
    energy = [own["energy_j"] for own in of_ranks]
    return {
        "peak_bytes": {place: [own["peaks"][place] for own in of_ranks] for place in places},
        "energy_j": [] if None in energy else energy,
    }
