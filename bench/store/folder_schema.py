"""Check the JSON files of a run's folder: plan.json, outcomes.json, search.json and retests.json.

A shape is a function that checks a value (see line_schema.py). If a file does not have its shape, the check raises
UsageError with the path, the line and the key. A damaged file therefore cannot crash a command, and cannot be mistaken
for a run without failures. Files of other versions may have keys for which no shape is defined. The value of such a key
is accepted if it is not nested too deeply.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.core.errors import UsageError
from bench.core.remarks import CodedRemark
from bench.store.line_schema import (
    SHOWN,
    Misfit,
    Shape,
    anything,
    each,
    flag,
    keys,
    number,
    of,
    positive,
    signed,
    text,
    values,
    whole,
    words,
)

_LEAST_EXIT_CODE = -(1 << 31)  # exit codes of signals are negative


def job_name(value: Any) -> Misfit | None:
    """Check the name of a job, which is also the name of its files. The name must not lead out of the run's folder."""
    misfit = text(value)
    if misfit is None and (not value or "/" in value or "\0" in value or value in (".", "..")):
        return "", "the name of a file", value
    return misfit


def world(value: Any) -> Misfit | None:
    """Check that the value is a mapping with exactly two keys: `num_nodes` and `ranks_per_node`."""
    misfit = keys(("num_nodes", "ranks_per_node"), num_nodes=whole(1), ranks_per_node=whole(1))(value)
    if misfit is None and set(value) != {"num_nodes", "ranks_per_node"}:
        return "", "num_nodes and ranks_per_node", value
    return misfit


_FACTS: dict[str, Shape] = {"code": text, "facts": values(anything)}
_CLUSTER = keys(
    **dict.fromkeys(("name", "instance", "launcher", "python", "mpirun", "site_instance", "differs"), text),
    **dict.fromkeys(("nodes", "ranks_per_node", "port"), whole(1)),
    **dict.fromkeys(("setup", "hosts", "agent", "nics"), each(text)),
    **dict.fromkeys(("env", "options"), values(text)),
    links=values(signed),
    racks=values(each(text)),
)
_JOB: dict[str, Shape] = {
    "name": job_name,
    "case": each(text),
    "world": world,
    "launcher": text,
    "command": each(text),
    "script": text,
    "factors": values(text),
    "launch": whole(1),
    "tool": text,
    "num_rounds": whole(0),
    "num_rows": whole(0),
    "estimate_s": number,
}
_KEYS: dict[str, Shape] = {
    "scenario": text,
    "scenario_text": text,
    "cluster": _CLUSTER,
    "modelled": flag,
    "budget_s": number,
    "estimate_s": number,
    "notes": each(text),
    "remarks": each(of(CodedRemark)),
    "skipped": each(keys(("what",), what=text, reason=text, patterns=each(text), **_FACTS)),
}
_MEASURED = keys(
    ("scenario", "cluster", "jobs"),
    jobs=each(keys(("name", "case", "world", "factors"), **_JOB)),
    **_KEYS,
)


def _lost_log(value: Any) -> Misfit | None:
    """Check the entry of a log that could not be read. In files of older versions, the entry is a sentence."""
    return None if isinstance(value, str) else keys(source=text, what=text, **_FACTS)(value)


_IMPORTED = keys(
    ("scenario", "cluster", "jobs"),
    jobs=each(keys(("name",), **_JOB)),
    imported=each(text),
    troubles=each(_lost_log),
    **_KEYS,
)
OUTCOMES = values(
    keys(
        job=text,
        exit_code=whole(_LEAST_EXIT_CODE),
        seconds=number,
        what=text,
        rank=whole(0),
        host=text,
        refused=flag,
        **_FACTS,
    )
)

SEARCH = keys(
    ("what", "argv", "budget_s", "delta", "together", "allowed"),
    what=text,
    argv=each(text),
    budget_s=positive,
    delta=positive,
    together=flag,
    allowed=each(whole(0)),
)

RETESTS = each(
    keys(
        started=text,
        jobs=values(each(text)),
        reasons=each(text),
        failures=values(whole(0)),
        outcomes_before=OUTCOMES,
    )
)


def plan(value: Any) -> Misfit | None:
    """Check the plan of a run that was measured here or imported from logs."""
    misfit = (_IMPORTED if isinstance(value, Mapping) and value.get("imported") else _MEASURED)(value)
    if misfit is not None:
        return misfit
    seen = set()
    for index, job in enumerate(value["jobs"]):
        if job["name"] in seen:
            return f".jobs[{index}].name", "a name of its own", job["name"]
        seen.add(job["name"])
    return None


def parsed(path: Path, content: bytes) -> Any:
    """Return the JSON value of a file. Raises UsageError with the line of invalid JSON or of too deep nesting."""
    try:
        return json.loads(content)
    except json.JSONDecodeError as error:
        raise UsageError(f"{path}:{error.lineno}: invalid JSON ({error.msg}, column {error.colno})") from None
    except ValueError as error:
        raise UsageError(f"{path} is not valid JSON ({error})") from None
    except RecursionError:
        raise UsageError(f"{path}: lists or mappings are nested too deeply") from None


def check(path: Path, content: bytes, value: Any, shape: Shape) -> None:
    """Check that a value, parsed from `content`, has the given shape.

    Raises UsageError with the file, the line and the key.
    """
    misfit = shape(value)
    if misfit is not None:
        place = f"{path}:{_line(content, misfit[0])}"
        raise UsageError(f"{place}: {words(misfit) if misfit[0] else f'must be a {misfit[1]}'}")


def _line(content: bytes, where: str) -> int:
    """Return the line of a key, such as `.jobs[3].name`. For a missing key, return the line where its mapping begins.

    The JSON parser gives no line numbers. The YAML parser is used to find the line, because every JSON text is also
    YAML. If the text is not valid YAML, return 1.
    """
    import yaml  # only needed for an error

    try:
        node = yaml.compose(content.decode(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, ValueError, RecursionError):
        return 1
    while where:
        if isinstance(node, yaml.SequenceNode):
            parts = [(f"[{index}]", value) for index, value in enumerate(node.value)]
        else:
            parts = [(f".{key.value[:SHOWN]}", value) for key, value in getattr(node, "value", ())]
        begun = [(name, value) for name, value in parts if where.startswith(name)]
        if not begun:
            break
        # a key may begin as another one does, and of two equal keys the last counts
        name, node = max(reversed(begun), key=lambda part: len(part[0]))
        where = where[len(name) :]
    return node.start_mark.line + 1 if node is not None else 1
