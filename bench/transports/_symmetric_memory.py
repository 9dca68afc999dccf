"""Run allreduce by torch's kernels over symmetric memory (`torch.distributed._symmetric_memory`), without NCCL.

All ranks allocate buffers of equal size, and each GPU maps the buffers of its peers. The kernels of different GPUs
synchronise through signals in this memory, so a call needs no NCCL kernel. The rules below are those of torch 2.13
(torch/csrc/distributed/c10d/symm_mem/CUDASymmetricMemoryOps.cu):

    one-shot            each GPU reads the data of all peers and adds them; out of place
    two-shot            each GPU adds one part of the data and writes it to all peers; in place
    multimem            as two-shot, and the NVSwitch adds and distributes (multicast); in place
    multimem-one-shot   each GPU reads sums from the NVSwitch; out of place

This module has not run on a GPU.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import combinations
from typing import Any

from bench.core.channel import Channel
from bench.core.codes import Code
from bench.core.program import Collective, Step
from bench.core.record import Skip
from bench.core.transport import Reduction, chain
from bench.core.world import RankInfo

_OPERATIONS = {
    "one-shot": "one_shot_all_reduce_out",
    "two-shot": "two_shot_all_reduce_",
    "multimem": "multimem_all_reduce_",
    "multimem-one-shot": "multimem_one_shot_all_reduce_out",
}
_DTYPES = ("float32", "bfloat16")
_LEAST_ALIGNMENT_BYTES = 4


class SymmetricRefusal(Code):
    """The reasons why torch's symmetric memory cannot run a step."""

    NOT_IN_TORCH = "symmetric-not-in-torch", "torch {version} has no symmetric memory ({missing})"
    SEVERAL_NODES = "symmetric-several-nodes", "symmetric memory joins the GPUs of one node: use one node"
    NO_PEER_ACCESS = "symmetric-no-peer-access", "GPU {one} cannot access the memory of GPU {other}"
    NO_MULTICAST = "symmetric-no-multicast", "this GPU has no multicast (NVSwitch of H100 and later): use two-shot"
    ALLREDUCE_ONLY = "symmetric-allreduce-only", "--symmetric is for sums by allreduce, not for {what}"
    NO_DTYPE = "symmetric-no-dtype", "symmetric memory adds {dtypes:list}, not {dtype}"
    ODD_SIZE = "symmetric-odd-size", "symmetric memory adds multiples of {least} bytes, not {size}"
    OUT_OF_PLACE = "symmetric-out-of-place", "{how} is out of place: omit --in-place, or use two-shot"


class SymmetricMemory:
    """Runs one of torch's allreduce algorithms over symmetric memory on this rank's GPU."""

    def __init__(self, torch: Any, device: Any, how: str) -> None:
        """`how`: the algorithm, which is a value of SYMMETRIC in `core/case.py` other than "none"."""
        self._torch, self._device, self._how = torch, device, how
        self.in_place = how in ("two-shot", "multimem")
        self._library: Any = None
        self._refusal: Skip | None = None

    def open(self, place: RankInfo) -> Skip | None:
        """Load torch's module. Return why this rank cannot use the module.

        Return None if the rank can use the module.
        """
        try:
            self._library = importlib.import_module("torch.distributed._symmetric_memory")
        except ImportError as error:
            return self._not_in_torch(str(error))
        for owner, name in ((self._library, "empty"), (self._library, "rendezvous"), (self._ops, self._operation)):
            if not hasattr(owner, name):
                return self._not_in_torch(name)
        if place.local_size != place.num_ranks:
            return Skip.of(SymmetricRefusal.SEVERAL_NODES)
        for one, other in combinations(range(place.local_size), 2):
            if not self._torch.cuda.can_device_access_peer(one, other):
                return Skip.of(SymmetricRefusal.NO_PEER_ACCESS, one=one, other=other)
        return (
            Skip.of(SymmetricRefusal.NO_MULTICAST) if self._how.startswith("multimem") and not self._casts() else None
        )

    def agree(self, refusals: list[Skip | None]) -> None:
        """Decide for all ranks whether symmetric memory is used. If any rank refuses, no rank uses symmetric memory.

        `refusals`: for every rank, the result of `open`.
        """
        self._refusal = next((skip for skip in refusals if skip is not None), None)

    @property
    def is_usable(self) -> bool:
        """Whether all ranks can use symmetric memory."""
        return self._refusal is None

    def _not_in_torch(self, missing: str) -> Skip:
        return Skip.of(SymmetricRefusal.NOT_IN_TORCH, version=str(self._torch.__version__), missing=missing)

    def _casts(self) -> bool:
        inner = self._library._SymmetricMemory
        kind = importlib.import_module("torch._C._autograd").DeviceType.CUDA
        return bool(inner.has_multicast_support(kind, self._device.index))

    @property
    def _ops(self) -> Any:
        return self._torch.ops.symm_mem

    @property
    def _operation(self) -> str:
        return _OPERATIONS[self._how]

    def unsupported_reason(self, step: Step, reduction: Reduction, in_place: bool) -> Skip | None:
        """Return why the kernels cannot run a step. Return None if the kernels can run the step."""
        if self._refusal is not None:
            return self._refusal
        if not isinstance(step, Collective) or step.op != "allreduce" or reduction.reduce_op != "sum":
            is_allreduce = isinstance(step, Collective) and step.op == "allreduce"
            what = reduction.reduce_op if is_allreduce else getattr(step, "op", "messages")
            return Skip.of(SymmetricRefusal.ALLREDUCE_ONLY, what=what)
        if reduction.dtype not in _DTYPES:
            return Skip.of(SymmetricRefusal.NO_DTYPE, dtypes=list(_DTYPES), dtype=reduction.dtype)
        if step.send_bytes % _LEAST_ALIGNMENT_BYTES:
            return Skip.of(SymmetricRefusal.ODD_SIZE, least=_LEAST_ALIGNMENT_BYTES, size=step.send_bytes)
        return Skip.of(SymmetricRefusal.OUT_OF_PLACE, how=self._how) if in_place and not self.in_place else None

    def takes(self, steps: Sequence[Step], reduction: Reduction, in_place: bool) -> bool:
        """Check whether the kernels run these steps. The result is false for steps that only prepare a measurement."""
        return bool(steps) and all(self.unsupported_reason(step, reduction, in_place) is None for step in steps)

    def not_out_of_place(self, steps: Iterable[Step]) -> list[Step]:
        """Return the steps that these kernels cannot run out of place."""
        return [step for step in steps if self.in_place or getattr(step, "op", "") != "allreduce"]

    def empty(self, num_bytes: int) -> Any:
        """Allocate bytes that peers can map. All ranks of a group must allocate equal sizes. Raises MemoryError."""
        try:
            return self._library.empty(num_bytes, dtype=self._torch.uint8, device=self._device)
        except self._torch.cuda.OutOfMemoryError as error:
            raise MemoryError(str(error)) from None

    def calls(
        self, num_steps: int, group: Any, memory: Sequence[tuple[Any, Any]], dtype: str
    ) -> list[Callable[[], Any]]:
        """Let the ranks of a process group map each other's buffers. Return one call for each buffer set.

        `num_steps`: how many allreduces one call makes.
        `memory`: the send tensor and the receive tensor (uint8) of each set. Both tensors are views of memory that
            `empty` returned.
        """
        operation, name = getattr(self._ops, self._operation), group.group_name
        kind = getattr(self._torch, dtype)
        calls = []
        for send, recv in memory:
            own = recv if self.in_place else send
            self._library.rendezvous(own, group)
            out = () if self.in_place else (recv.view(kind),)
            calls.append(chain([partial(operation, own.view(kind), "sum", name, *out)] * num_steps))
        return calls


def opened(torch: Any, device: Any, how: str, place: RankInfo, channel: Channel) -> SymmetricMemory | None:
    """Return symmetric memory if `--symmetric` asks for it. All ranks must call this function together."""
    if how == "none":
        return None
    symmetric = SymmetricMemory(torch, device, how)
    symmetric.agree(channel.share(symmetric.open(place)))
    return symmetric
