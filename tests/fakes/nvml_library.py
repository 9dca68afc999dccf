"""NVML's shared library in Python, below the real package nvidia-ml-py: it checks that each call is one that exists.

    library = NvmlLibrary([{"nvmlDeviceGetName": b"NVIDIA H200", ...}])
    library.install(monkeypatch)

An answer is what the C function writes: a number, bytes, several numbers, a list for an array, a dict for a structure;
or a function of the further arguments (`lambda link: ...`). `Error(3)` is a return code. What is not there at all is
"Function Not Found".
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import pynvml
import pytest


@dataclass(frozen=True)
class Error:
    """What a C function returns instead of 0."""

    code: int


NOT_SUPPORTED = Error(3)
_POINTER_OUT = type(ctypes.byref(ctypes.c_int()))


class NvmlLibrary:
    """Answers for each GPU by index, and of the system; `asked` counts the calls of each function."""

    def __init__(self, gpus: Sequence[dict[str, Any]], pairs: dict[str, Callable[..., Any]] | None = None) -> None:
        self._gpus, self._pairs = gpus, pairs or {}
        self.asked: Counter[str] = Counter()

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The package now calls this library."""
        monkeypatch.setattr(pynvml, "nvmlLib", self)
        monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})

    def __getattr__(self, name: str) -> Callable[..., int]:
        known = name in self._pairs or any(name in gpu for gpu in self._gpus)
        if name.startswith("_") or not (known or hasattr(type(self), f"_{name}")):
            raise AttributeError(name)

        def call(*arguments: Any) -> int:
            self.asked[name] += 1
            given = [_plain(each) for each in arguments if not isinstance(each, _POINTER_OUT)]
            out = [cast(Any, each)._obj for each in arguments if isinstance(each, _POINTER_OUT)]
            if hasattr(type(self), f"_{name}"):
                return int(getattr(self, f"_{name}")(arguments))
            if name in self._pairs:
                return _answer(self._pairs[name](*given), arguments, out)
            index, *more = given
            told = self._gpus[index].get(name, NOT_SUPPORTED)
            texts = any(isinstance(each, ctypes.Array) for each in arguments)
            return _answer(told(*more) if callable(told) and not texts else told, arguments, out)

        return call

    def _nvmlInitWithFlags(self, arguments: Any) -> int:
        return 0

    def _nvmlShutdown(self, arguments: Any) -> int:
        return 0

    def _nvmlDeviceGetCount_v2(self, arguments: Any) -> int:
        return _answer(len(self._gpus), arguments, [arguments[0]._obj])

    def _nvmlDeviceGetHandleByIndex_v2(self, arguments: Any) -> int:
        arguments[1]._obj.index = arguments[0].value
        return 0

    def _nvmlSystemGetDriverVersion(self, arguments: Any) -> int:
        return _answer(b"580.10.01", arguments, [])

    def _nvmlSystemGetCudaDriverVersion_v2(self, arguments: Any) -> int:
        return _answer(13000, arguments, [arguments[0]._obj])


def _plain(argument: Any) -> Any:
    if hasattr(argument, "index") and not isinstance(argument, (bytes, str, ctypes.Array)):
        return argument.index
    return getattr(argument, "value", argument)


def _answer(told: Any, arguments: Sequence[Any], out: Sequence[Any]) -> int:
    """Write what C would write."""
    if isinstance(told, Error):
        return told.code
    if isinstance(told, bytes):
        next(each for each in arguments if isinstance(each, ctypes.Array)).value = told
    elif isinstance(told, dict) and not isinstance(out[0], ctypes.Array):
        for field, value in told.items():
            setattr(out[0], field, value)
    elif isinstance(told, dict):  # field values: (field, scope) -> an unsigned int
        for each in out[0]:
            value = told.get((each.fieldId, each.scopeId))
            each.nvmlReturn, each.valueType = (0, 1) if value is not None else (3, 0)
            each.value.uiVal = value or 0
    elif isinstance(told, list):  # an array
        out[0][: len(told)] = told
    else:
        for each, value in zip(out, told if isinstance(told, tuple) else (told,), strict=True):
            each.value = value
    return 0


def a_gpu(name: str, bus: str, **answers: Any) -> dict[str, Any]:
    """A GPU of a recent driver, busy, PCIe 5 x16, no NVLinks; by `answers` another. None: the function is missing."""
    told: dict[str, Any] = {
        "nvmlDeviceGetName": name.encode(),
        "nvmlDeviceGetUUID": f"GPU-{bus}".encode(),
        "nvmlDeviceGetMemoryInfo": {"total": 141 << 30, "used": 1 << 30, "free": 140 << 30},
        "nvmlDeviceGetPciInfo_v3": {"busId": bus.encode()},
        "nvmlDeviceGetCurrPcieLinkGeneration": 5,
        "nvmlDeviceGetMaxPcieLinkGeneration": 5,
        "nvmlDeviceGetGpuMaxPcieLinkGeneration": 5,
        "nvmlDeviceGetCurrPcieLinkWidth": 16,
        "nvmlDeviceGetMaxPcieLinkWidth": 16,
        "nvmlDeviceGetMemoryAffinity": lambda size, scope: NOT_SUPPORTED,
        "nvmlDeviceGetClockInfo": lambda kind: {1: 1755, 2: 3201}[kind],
        "nvmlDeviceGetMaxClockInfo": lambda kind: {1: 1980, 2: 3201}[kind],
        "nvmlDeviceGetPowerUsage": 312_500,
        "nvmlDeviceGetEnforcedPowerLimit": 700_000,
        "nvmlDeviceGetTemperature": lambda sensor: 41,
        "nvmlDeviceGetCurrentClocksEventReasons": 0x1,
        "nvmlDeviceGetEccMode": (1, 1),
        "nvmlDeviceGetTotalEccErrors": lambda kind, counter: {(1, 1): 2}[kind, counter],
        "nvmlDeviceGetMigMode": (0, 0),
        "nvmlDeviceGetGpuFabricInfoV": NOT_SUPPORTED,
        "nvmlDeviceGetNvLinkState": lambda link: NOT_SUPPORTED,
        "nvmlDeviceGetNvLinkVersion": lambda link: NOT_SUPPORTED,
        "nvmlDeviceGetNvLinkRemoteDeviceType": lambda link: NOT_SUPPORTED,
        "nvmlDeviceGetNvLinkRemotePciInfo_v2": lambda link: NOT_SUPPORTED,
        "nvmlDeviceGetFieldValues": NOT_SUPPORTED,
        **answers,
    }
    return {question: answer for question, answer in told.items() if answer is not None}


def nvlinks(num: int, *, version: int, megabytes: int, down: Sequence[int] = (), far_end: int = 2) -> dict[str, Any]:
    """Answers of a GPU with this many NVLinks. `far_end`: 2 is a switch."""
    return {
        "nvmlDeviceGetNvLinkState": lambda link: int(link not in down) if link < num else Error(2),
        "nvmlDeviceGetNvLinkVersion": lambda link: version,
        "nvmlDeviceGetNvLinkRemoteDeviceType": lambda link: far_end,
        "nvmlDeviceGetFieldValues": lambda count: {(164, link): megabytes for link in range(num) if link not in down},
    }
