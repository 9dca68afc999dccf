"""The layout of results/: one folder a run, in it the plan and one results file and one log per job.

results/<run id>/plan.json      what was to be done, as planned
results/<run id>/outcomes.json  how each job ended
results/<run id>/retests.json   what was measured again of a run that failed its gate, and why
results/<run id>/<job>.jsonl    header and records
results/<run id>/<job>.log      what the ranks wrote to stderr and stdout
results/<run id>/<job>.out      what another tool's job wrote to stdout
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.core.errors import BenchError, RefusedError, UsageError
from bench.store import jsonl, older

PLAN_SCHEMA = "bench.plan/1"


def new_run_id(cluster: str, scenario: str, now: datetime | None = None) -> str:
    """A name that sorts by time: 20261120-214500-local-main."""
    return f"{(now or datetime.now(UTC)).strftime('%Y%m%d-%H%M%S')}-{cluster}-{scenario}"


def create(results: Path, run_id: str) -> Path:
    """A new folder for a run; a number is added when two start in the same second.

    Raises what `unwritable` says when it can not be made or written: nothing is measured that could not be kept.
    """
    for attempt in range(1000):
        folder = results / (run_id if attempt == 0 else f"{run_id}-{attempt + 1}")
        try:
            folder.mkdir(parents=True, exist_ok=False)
            probe = folder / ".writable"
            probe.write_bytes(b"x" * 4096)
            probe.unlink()
        except FileExistsError:
            if folder.is_dir():
                continue
            raise UsageError(f"results folder {folder} can not be made: there is a file of that name") from None
        except OSError as error:
            raise unwritable(folder, error) from None
        return folder
    raise UsageError(f"no free name for a run was found in {results}")


def unwritable(folder: Path, error: OSError) -> BenchError:
    """Why no results can be kept there: UsageError of a path that can be no folder, else RefusedError.

    A disk that is full, read-only or somebody else's is this machine not being what was asked for.
    """
    no_folder = isinstance(error, FileExistsError | NotADirectoryError | FileNotFoundError)
    return (UsageError if no_folder else RefusedError)(
        f"results folder {folder} can not be written ({error.strerror}): make room or give it the right to, or choose "
        "another by --results DIR"
    )


def discard(folder: Path) -> None:
    """Remove the folder of a run in which nothing was measured; one that holds rows stays."""
    if not any(folder.glob("*.jsonl")):
        shutil.rmtree(folder, ignore_errors=True)


def find(results: Path, name: str) -> Path:
    """The folder of a run by path, name, or `latest`. Raises UsageError naming what there is."""
    as_path = Path(name)
    if as_path.is_dir() and name != "latest":
        return as_path
    runs = sorted(folder for folder in results.glob("*") if (folder / "plan.json").exists()) if results.is_dir() else []
    if name == "latest" and runs:
        return max(runs, key=lambda folder: folder.stat().st_mtime)
    if (results / name).is_dir():
        return results / name
    known = ", ".join(folder.name for folder in runs[-5:]) or "none yet"
    path = f"there is no file or folder {name}, and " if "/" in name or as_path.suffix else ""
    raise UsageError(f"{path}no run is called {name!r} in {results}; the latest there: {known}")


def write_plan(folder: Path, plan: Mapping[str, Any]) -> None:
    """Keep the plan (plain data). Raises UsageError when it can not be written."""
    _write_whole(folder / "plan.json", json.dumps({"schema": PLAN_SCHEMA, **plan}, indent=1) + "\n")


def read_plan(folder: Path) -> dict[str, Any]:
    """The plan of a run. Raises UsageError when it is missing, broken or from a newer program."""
    path = folder / "plan.json"
    try:
        plan = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path} can not be read ({error.strerror}): is {folder} a run?") from None
    except ValueError as error:
        raise UsageError(f"{path} is not whole ({error})") from None
    if not isinstance(plan, dict) or plan.get("schema") != PLAN_SCHEMA:
        raise UsageError(f"{path} is of another schema than {PLAN_SCHEMA}: use the program that wrote it")
    plan.setdefault("remarks", older.remarks(plan.get("notes") or ()))
    return plan


def write_outcomes(folder: Path, outcomes: Mapping[str, Mapping[str, Any]]) -> None:
    """Keep how each job ended: {job: {"exit_code", "seconds", "what"}}; `what` is null for a job that ended well."""
    _write_whole(folder / "outcomes.json", json.dumps(outcomes, indent=1) + "\n")


_UNKNOWN_ENDS = "how the jobs ended is not known (without the file they count as not ended)"


def read_outcomes(folder: Path) -> dict[str, dict[str, Any]]:
    """How each job of a run ended; empty for a run that never got so far, or whose file is broken."""
    try:
        return outcomes_or_error(folder)
    except UsageError:
        return {}


def outcomes_or_error(folder: Path) -> dict[str, dict[str, Any]]:
    """The same for who must not take a broken file for a run without failures. Raises UsageError."""
    path = folder / "outcomes.json"
    if not path.exists():
        return {}
    try:
        outcomes = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} is not whole ({error}): {_UNKNOWN_ENDS}") from None
    if not isinstance(outcomes, dict) or not all(isinstance(end, dict) for end in outcomes.values()):
        raise UsageError(f"{path} is no list of jobs: {_UNKNOWN_ENDS}")
    return outcomes


def write_retests(folder: Path, retests: Sequence[Mapping[str, Any]]) -> None:
    """Keep every retest of a run (plain data), the first one first."""
    _write_whole(folder / "retests.json", json.dumps(retests, indent=1) + "\n")


def read_retests(folder: Path) -> list[dict[str, Any]]:
    """The retests of a run; none of one that was never measured again. Raises UsageError for a broken file."""
    path = folder / "retests.json"
    if not path.is_file():
        return []
    try:
        retests = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} is not whole ({error})") from None
    if not isinstance(retests, list):
        raise UsageError(f"{path} is not a list of retests")
    return retests


def hashes(path: Path) -> dict[str, str]:
    """SHA-256 of every file that a run's figures and its verdict rest on, by name; of one results file, its own."""
    files = [path] if path.is_file() else sorted([*path.glob("*.jsonl"), *path.glob("*.json")])
    found = {}
    for file in files:
        try:
            with file.open("rb") as content:
                found[file.name] = hashlib.file_digest(content, "sha256").hexdigest()
        except OSError as error:
            raise UsageError(f"{file} can not be read ({error.strerror})") from None
    return found


def why_not_kept(folder: Path) -> str | None:
    """Why nothing more can be written in a run's folder, in words; None when it can."""
    probe = folder / ".writable"
    try:
        probe.write_bytes(b"x" * 4096)
    except OSError as error:
        return f"{folder} can not be written ({error.strerror}): make room, then go on with --resume"
    finally:
        with contextlib.suppress(OSError):
            probe.unlink()
    return None


def results_file(folder: Path, job: str) -> Path:
    """Where a job's header and records are."""
    return folder / f"{job}.jsonl"


def log_file(folder: Path, job: str) -> Path:
    """Where what a job's ranks printed is."""
    return folder / f"{job}.log"


def output_file(folder: Path, job: str) -> Path:
    """Where what another tool's job printed as its result is, word for word."""
    return folder / f"{job}.out"


def document_file(folder: Path, job: str) -> Path:
    """Where another tool's job is told to write its results, until they are read."""
    return folder / f"{job}.tool.json"


def heartbeat_folder(folder: Path, job: str) -> Path:
    """Where a job's ranks say that they live."""
    return folder / f".{job}.heartbeats"


def jobs_in(folder: Path) -> tuple[str, ...]:
    """The jobs of a run that have a results file: in planned order, then any others by name."""
    present = {path.stem for path in folder.glob("*.jsonl")}
    planned = [job["name"] for job in read_plan(folder)["jobs"]] if (folder / "plan.json").exists() else []
    return tuple([job for job in planned if job in present] + sorted(present - set(planned)))


def attempts(path: Path) -> tuple[tuple[tuple[str, jsonl.Attempt], ...], tuple[str, ...]]:
    """((job or job#2, attempt), ...) and warnings, of a run's folder or of one results file."""
    files = [results_file(path, job) for job in jobs_in(path)] if path.is_dir() else [path]
    if not files:
        raise UsageError(f"{path} holds no results file")
    found: list[tuple[str, jsonl.Attempt]] = []
    warnings: list[str] = []
    for file in files:
        results = jsonl.read(file)
        warnings += results.warnings
        for number, attempt in enumerate(results.attempts, start=1):
            found.append((file.stem if number == 1 else f"{file.stem}#{number}", attempt))
    return tuple(found), tuple(warnings)


def _write_whole(path: Path, text: str) -> None:
    """All of a file or nothing: a reader never sees half of it."""
    partial = path.with_suffix(path.suffix + ".part")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        raise UsageError(f"{path} can not be written ({error.strerror})") from None
