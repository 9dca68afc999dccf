"""Provide NCCL's options for buffers and communicators: NCCL's own memory, registered buffers, and limits on CTAs."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from bench.core.case import Case
from bench.core.codes import Code
from bench.core.program import Collective, Step
from bench.core.record import Skip
from bench.core.transport import Options
from bench.transports._nccl_library import NcclFailure, NcclLibrary

CONFIG_SINCE = (2, 27)  # the first NCCL with all fields below, and with symmetric windows
_MAGIC, _VERSION, _UNSET = 0xCAFEBEEF, 22_700, -(2**31)  # NCCL_API_MAGIC, NCCL_VERSION(2,27,0), NCCL_CONFIG_UNDEF_INT
_POLICIES = {"default": 0, "efficiency": 1, "zero": 2}  # NCCL_CTA_POLICY_*
_SYMMETRIC = 1  # NCCL_WIN_COLL_SYMMETRIC


class NcclOption(Code):
    """The reasons why nccl_direct cannot run a step with the options of the case."""

    TOO_OLD = "nccl-option-version", "{option} needs NCCL {wanted}; this is {found}"
    GROUPED_IN_PLACE = "nccl-aggregate-in-place", "calls in one group would reduce the same buffer: omit --in-place 1"
    GROUPED_MESSAGES = "nccl-aggregate-messages", "messages are one group already: omit --aggregate"
    SYMMETRIC_MESSAGES = "nccl-symmetric-messages", "symmetric windows are for collectives: use --register buffers"


class CommConfig(ctypes.Structure):
    """`ncclConfig_t` as of NCCL 2.27. Newer versions of NCCL recognise the structure of version 2.27 by its size."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("magic", ctypes.c_uint),
        ("version", ctypes.c_uint),
        ("blocking", ctypes.c_int),
        ("cga_cluster_size", ctypes.c_int),
        ("min_ctas", ctypes.c_int),
        ("max_ctas", ctypes.c_int),
        ("net_name", ctypes.c_char_p),
        ("split_share", ctypes.c_int),
        ("traffic_class", ctypes.c_int),
        ("comm_name", ctypes.c_char_p),
        ("collnet_enable", ctypes.c_int),
        ("cta_policy", ctypes.c_int),
        ("shrink_share", ctypes.c_int),
    )


def config_of(case: Case) -> CommConfig | None:
    """Return the configuration that a case requests for communicators. Return None for NCCL's defaults."""
    if not case.ctas and not case.cta_policy:
        return None
    whole = {name: _UNSET for name, kind in CommConfig._fields_ if kind is ctypes.c_int}
    if case.ctas:
        least, _, most = case.ctas.partition("-")
        whole |= {"min_ctas": int(least), "max_ctas": int(most or least)}
    if case.cta_policy:
        whole["cta_policy"] = _POLICIES[case.cta_policy]
    return CommConfig(size=ctypes.sizeof(CommConfig), magic=_MAGIC, version=_VERSION, **whole)


def refusal(case: Case, step: Step, in_place: bool, version: tuple[int, ...]) -> Skip | None:
    """Return why this NCCL cannot run a step with the options of a case. Return None if NCCL can run the step."""
    asked = {"--ctas": case.ctas, "--cta-policy": case.cta_policy, "--register symmetric": case.register == "symmetric"}
    for option, value in asked.items():
        if value and version < CONFIG_SINCE:
            found, wanted = (".".join(map(str, numbers)) for numbers in (version, CONFIG_SINCE))
            return Skip.of(NcclOption.TOO_OLD, option=option, found=found, wanted=wanted)
    is_collective = isinstance(step, Collective)
    if case.aggregate > 1 and in_place:
        return Skip.of(NcclOption.GROUPED_IN_PLACE)
    if case.aggregate > 1 and not is_collective:
        return Skip.of(NcclOption.GROUPED_MESSAGES)
    return Skip.of(NcclOption.SYMMETRIC_MESSAGES) if case.register == "symmetric" and not is_collective else None


def registered(nccl: NcclLibrary, comm: int, pointer: int, num_bytes: int, how: str) -> Callable[[], None]:
    """Register memory with a communicator. Return a function that ends the registration.

    Raises NcclFailure.

    `how`: `buffers` or `symmetric`. With `buffers`, each rank registers its own memory. With `symmetric`, all ranks of
        the communicator together register memory of equal size.
    """
    handle = ctypes.c_void_p()
    place = ctypes.c_void_p(comm), ctypes.c_void_p(pointer), ctypes.c_size_t(num_bytes), ctypes.byref(handle)
    if how == "symmetric":
        nccl.call("ncclCommWindowRegister", *place, ctypes.c_int(_SYMMETRIC))
        return lambda: nccl.call("ncclCommWindowDeregister", ctypes.c_void_p(comm), handle)
    nccl.call("ncclCommRegister", *place)
    return lambda: nccl.call("ncclCommDeregister", ctypes.c_void_p(comm), handle)


class NcclMemory:
    """Replaces the runtime in `_cuda_memory.DeviceBlock`, and allocates memory with NCCL's own allocator."""

    def __init__(self, runtime: Any, nccl: NcclLibrary) -> None:
        self._runtime, self._nccl = runtime, nccl

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runtime, name)

    def malloc(self, num_bytes: int) -> int:
        """Allocate GPU memory that NCCL can register. Return its address. Raises MemoryError."""
        pointer = ctypes.c_void_p()
        try:
            self._nccl.call("ncclMemAlloc", ctypes.byref(pointer), ctypes.c_size_t(num_bytes))
        except NcclFailure as error:
            raise MemoryError(str(error)) from None
        return int(pointer.value or 0)

    def free(self, pointer: int) -> None:
        """Free memory that `malloc` returned."""
        self._nccl.call("ncclMemFree", ctypes.c_void_p(pointer))


def facts(options: Options) -> dict[str, str]:
    """Return the facts for the header: the requested options."""
    case = options.case
    asked = {"register": case.register, "ctas": case.ctas, "cta_policy": case.cta_policy}
    return {f"nccl_{name}": value for name, value in asked.items() if value}
