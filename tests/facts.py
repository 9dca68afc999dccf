"""Facts of a text for people: asserts name its values and options, not its sentences."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_GAP = 80  # characters between two facts of one statement


def holds(text: str, *facts: str) -> bool:
    """Return whether a text holds these facts in this order, each at most a line after the previous one."""
    pattern = rf".{{0,{_GAP}}}?".join(map(_whole, facts))
    return re.search(pattern, " ".join(text.split())) is not None


def _whole(fact: str) -> str:
    """A pattern of a fact that is no part of a longer word or number."""
    begin = r"(?<![\w.])" if re.match(r"\w", fact) else ""
    end = r"(?!\w|\.\d)" if re.search(r"\w\Z", fact) else ""
    return begin + re.escape(fact) + end


def whole_plan(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Return a plan with the keys that every plan of a measured run has; `plan` may leave them out."""
    world = {"num_nodes": 1, "ranks_per_node": 2}
    jobs = [{"case": ["allreduce"], "world": world, "factors": {}, **job} for job in plan["jobs"]]
    return {"scenario": "latency", "cluster": {"name": "lab"}, **plan, "jobs": jobs}
