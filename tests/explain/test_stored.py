"""Runs that were imported before: a header from a damaged file is refused with the job and what it lacks."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bench.core.errors import UsageError
from bench.core.record import Header
from bench.explain import stored

IMPORTED = {"tool": "nccl_tests", "source": "a.log", "line": 3, "status": "ok"}


@pytest.mark.parametrize("missing", IMPORTED)
def test_a_header_without_its_origin_is_refused(a_header: Callable[..., Header], missing: str) -> None:
    header = a_header(imported={name: value for name, value in IMPORTED.items() if name != missing})
    with pytest.raises(UsageError, match=f"job a is damaged: imported.{missing} is missing"):
        stored.imported([("a", header, ())])


def test_what_a_header_may_lack_is_unknown(a_header: Callable[..., Header]) -> None:
    ((run, _),) = stored.imported([("a", a_header(imported=IMPORTED), ())])
    assert (run.tool, run.tool_version, run.failure, run.remarks, run.line) == ("nccl_tests", None, None, (), 3)
