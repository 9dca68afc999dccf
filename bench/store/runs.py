"""Read and write results/, which has one folder for each run.

A folder contains the plan of the run. For each job, it contains a results file and a log.

results/<run id>/ has these files:

- plan.json: the plan.
- outcomes.json: how each job ended.
- retests.json: measurements that were repeated after a failed gate, and why.
- search.json: the options and the progress of a search for the best settings.
- links.json: the tests of the links between hosts, before the run and after failed jobs.
- <job>.jsonl: header and records.
- <job>.log: stderr and stdout of the ranks.
- <job>.out: stdout of another tool's job.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

from bench.core.codes import UNCODED
from bench.core.errors import BenchError, RefusedError, UsageError
from bench.core.record import Failure
from bench.core.remarks import CodedRemark, RemarkCode
from bench.store import folder_schema, jsonl, ownership

PLAN_SCHEMA = "bench.plan/1"
LINKS_SCHEMA = "bench.links/1"
SEARCH_SCHEMA = "bench.search/1"
_HEAD_BYTES = 4096  # the type of a line of a results file is in its first _HEAD_BYTES
_OLD_SIZES_THINNED = re.compile(r"sizes thinned from \d+ to \d+")  # a note in plans without remarks


def new_run_id(cluster: str, scenario: str, now: datetime | None = None) -> str:
    """Return a name that sorts by time, such as 20261120-214500-local-main."""
    return f"{(now or datetime.now(UTC)).strftime('%Y%m%d-%H%M%S')}-{cluster}-{scenario}"


def create(results: Path, run_id: str) -> Path:
    """Create a folder for a run. If two runs start in the same second, the second folder's name gets a number.

    Raises the error of `unwritable` if the folder cannot be created or written.
    """
    for attempt in range(1000):
        folder = results / (run_id if attempt == 0 else f"{run_id}-{attempt + 1}")
        try:
            folder.mkdir(parents=True, exist_ok=False)
            folder.chmod(folder.stat().st_mode & ~0o022)  # only this user may add files, whatever the umask is
            probe = folder / ".writable"
            probe.write_bytes(b"x" * 4096)
            probe.unlink()
        except FileExistsError:
            if folder.is_dir():
                continue
            raise UsageError(f"results folder {folder} cannot be created: a file has that name") from None
        except OSError as error:
            raise unwritable(folder, error) from None
        return folder
    raise UsageError(f"no free name for a run in {results}")


def unwritable(folder: Path, error: OSError) -> BenchError:
    """Return the error for a results folder that cannot be written.

    If the path cannot be a folder, the error is a UsageError. If the disk is full, read-only or not accessible, the
    error is a RefusedError, because the request was correct.
    """
    no_folder = isinstance(error, FileExistsError | NotADirectoryError | FileNotFoundError)
    return (UsageError if no_folder else RefusedError)(
        f"results folder {folder} cannot be written ({error.strerror}): free space, change its permissions, or choose "
        "another with --results DIR"
    )


def discard(folder: Path) -> None:
    """Remove a run's folder if it has no rows."""
    if not any(folder.glob("*.jsonl")):
        shutil.rmtree(folder, ignore_errors=True)


def find(results: Path, name: str) -> Path:
    """Return the folder of a run by its path, by its name, or by the word `latest`.

    If there is no such run, raises UsageError with the names of the latest runs.
    """
    as_path = Path(name)
    if as_path.is_dir() and name != "latest":
        return as_path
    runs = in_order(results)
    if name == "latest" and runs:
        return max(runs, key=lambda folder: folder.stat().st_mtime)
    if (results / name).is_dir():
        return results / name
    known = ", ".join(folder.name for folder in runs[-5:]) or "none yet"
    if "/" in name:
        raise UsageError(f"there is no file or folder {name}")
    if name == "latest":
        raise UsageError(f"there is no run in {results} yet: `linkbench run` makes one")
    path = f"there is no file or folder {name}, and " if as_path.suffix else ""
    raise UsageError(f"{path}no run is called {name!r} in {results}; the latest there: {known}")


def in_order(results: Path) -> list[Path]:
    """Return the folders of all runs, sorted by name and therefore by start time."""
    return sorted(folder for folder in results.glob("*") if (folder / "plan.json").exists()) if results.is_dir() else []


def find_own(results: Path, name: str) -> Path:
    """Return the folder of a run that this user wants to continue.

    `latest` is the latest run that this user may continue.

    Raises RefusedError if this user is not allowed to continue the named run (see ownership.py). For `latest`, raises
    RefusedError if there is no run that this user is allowed to continue.
    """
    if name != "latest":
        folder = find(results, name)
        refusal = ownership.distrust(folder)
        if refusal is not None:
            raise RefusedError.coded(refusal)
        return folder
    newest = find(results, name)
    planned = [folder for folder in results.glob("*") if (folder / "plan.json").exists()]
    for folder in sorted(planned, key=lambda folder: folder.stat().st_mtime, reverse=True):
        if ownership.distrust(folder) is None:
            return folder
    refusal = ownership.distrust(newest)
    assert refusal is not None
    raise RefusedError.coded(refusal)


def write_plan(folder: Path, plan: Mapping[str, Any]) -> None:
    """Write the plan (plain data). Raises UsageError if the file cannot be written."""
    _write_whole(folder / "plan.json", json.dumps({"schema": PLAN_SCHEMA, **plan}, indent=1) + "\n")


def read_plan(folder: Path) -> dict[str, Any]:
    """Return the plan of a run. Raises UsageError if the plan is missing, broken or of a newer version."""
    path = folder / "plan.json"
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror}): is {folder} a run?") from None
    plan = folder_schema.parsed(path, content)
    if not isinstance(plan, dict) or plan.get("schema") != PLAN_SCHEMA:
        raise UsageError(f"{path} does not have schema {PLAN_SCHEMA}: use the version that wrote it")
    folder_schema.check(path, content, plan, folder_schema.plan)
    return {key: value for key, value in plan.items() if value is not None}


def write_outcomes(folder: Path, outcomes: Mapping[str, Mapping[str, Any]]) -> None:
    """Store how each job ended. `outcomes`: maps the name of each job to its outcome.

    An outcome has the keys "exit_code", "seconds", "what", "code", "facts", "rank", "host" and "refused". If a job
    ended without an error, "what" is null.
    """
    _write_whole(folder / "outcomes.json", json.dumps(outcomes, indent=1) + "\n")


def failure_of(outcome: Mapping[str, Any]) -> Failure:
    """Return why a job failed, from its outcome. Files of older versions have no code."""
    return Failure(
        outcome["what"],
        outcome.get("rank"),
        outcome.get("host"),
        outcome.get("code") or UNCODED,
        outcome.get("facts") or {},
    )


def remarks_of(plan: Mapping[str, Any]) -> tuple[CodedRemark, ...]:
    """Return the remarks of a stored plan. Plans of older versions have notes instead. One type of note gets a code."""
    if plan.get("remarks") is not None:
        names = [field.name for field in fields(CodedRemark)]  # another version may write more fields
        known = [{name: remark[name] for name in names if name in remark} for remark in plan["remarks"]]
        return tuple(CodedRemark(**remark) for remark in known)
    remarks = []
    for line in plan.get("notes") or ():
        thinned = _OLD_SIZES_THINNED.match(line)
        remarks.append(CodedRemark(RemarkCode.SIZES_THINNED if thinned else UNCODED, {}, line))
    return tuple(remarks)


_UNKNOWN_ENDS = "the outcomes of the jobs are unknown (without this file, jobs count as not ended)"


def read_outcomes(folder: Path) -> dict[str, dict[str, Any]]:
    """Return how each job of a run ended. The result is empty if no job ended or the file is broken."""
    try:
        return outcomes_or_error(folder)
    except UsageError:
        return {}


def outcomes_or_error(folder: Path) -> dict[str, dict[str, Any]]:
    """Return how each job of a run ended. Raises UsageError for a broken file.

    A broken file must not look like a run without failures.
    """
    path = folder / "outcomes.json"
    if not path.exists():
        return {}
    try:
        content = path.read_bytes()
        outcomes: dict[str, dict[str, Any]] = folder_schema.parsed(path, content)
        folder_schema.check(path, content, outcomes, folder_schema.OUTCOMES)
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror}): {_UNKNOWN_ENDS}") from None
    except UsageError as error:
        raise UsageError(f"{error}: {_UNKNOWN_ENDS}") from None
    return outcomes


def write_retests(folder: Path, retests: Sequence[Mapping[str, Any]]) -> None:
    """Write all retests of a run (plain data), oldest first."""
    _write_whole(folder / "retests.json", json.dumps(retests, indent=1) + "\n")


def read_retests(folder: Path) -> list[dict[str, Any]]:
    """Return the retests of a run.

    The result is empty for a run without retests. Raises UsageError for a broken file.
    """
    path = folder / "retests.json"
    if not path.is_file():
        return []
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror})") from None
    retests: list[dict[str, Any]] = folder_schema.parsed(path, content)
    folder_schema.check(path, content, retests, folder_schema.RETESTS)
    return retests


def write_search(folder: Path, search: Mapping[str, Any]) -> None:
    """Write the options and the progress of a search for the best settings (plain data)."""
    _write_whole(folder / "search.json", json.dumps({"schema": SEARCH_SCHEMA, **search}, indent=1) + "\n")


def read_search(folder: Path) -> dict[str, Any] | None:
    """Return the search of a run, or None if the run is not a search. Raises UsageError for a broken file."""
    path = folder / "search.json"
    if not path.is_file():
        return None
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror})") from None
    search: dict[str, Any] = folder_schema.parsed(path, content)
    folder_schema.check(path, content, search, folder_schema.SEARCH)
    return search


def write_links(folder: Path, links: Mapping[str, Any]) -> None:
    """Write the tests of the links between hosts (plain data)."""
    _write_whole(folder / "links.json", json.dumps({"schema": LINKS_SCHEMA, **links}, indent=1) + "\n")


def read_links(folder: Path) -> dict[str, Any]:
    """Return the tests of the links between hosts.

    The result is empty if there are no tests, if the file is broken, or if it is from another version. An empty result
    does no harm, because no measured figure depends on these tests.
    """
    try:
        found = json.loads((folder / "links.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) and found.get("schema") == LINKS_SCHEMA else {}


def has_results(path: Path) -> bool:
    """Check whether `path` is a results file or a folder with a results file.

    Other tools also write `.jsonl` files, but their lines have no key `type`.
    """
    if path.is_dir():
        return any(map(has_results, path.glob("*.jsonl")))
    if path.suffix != ".jsonl":
        return False
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES).lstrip()
    except OSError:
        return True
    return not head.startswith(b"{") or b'"type"' in head


def hashes(path: Path) -> dict[str, str]:
    """Return the SHA-256 of each file on which a run's figures and verdict depend, by file name.

    If `path` is a single results file, the result contains only this file.
    """
    files = [path] if path.is_file() else sorted([*path.glob("*.jsonl"), *path.glob("*.json")])
    found = {}
    for file in files:
        try:
            with file.open("rb") as content:
                found[file.name] = hashlib.file_digest(content, "sha256").hexdigest()
        except OSError as error:
            raise UsageError(f"{file} cannot be read ({error.strerror})") from None
    return found


def write_error(folder: Path) -> str | None:
    """Return a message that says why a run's folder cannot be written, or None if it can be written."""
    probe = folder / ".writable"
    try:
        probe.write_bytes(b"x" * 4096)
    except OSError as error:
        return f"{folder} cannot be written ({error.strerror}): free space, then continue with --resume"
    finally:
        with contextlib.suppress(OSError):
            probe.unlink()
    return None


def results_file(folder: Path, job: str) -> Path:
    """Return the file of a job's header and records."""
    return folder / f"{job}.jsonl"


def log_file(folder: Path, job: str) -> Path:
    """Return the file for the output of a job's ranks and launcher."""
    return folder / f"{job}.log"


def open_log(folder: Path, job: str) -> BinaryIO:
    """Return a job's log, open to append.

    Only the file's owner and group can read the log, because programs may print their settings.
    """
    return _opened_for_group(log_file(folder, job), os.O_APPEND)


def open_output(folder: Path, job: str) -> BinaryIO:
    """Return the empty file for the output of another tool's job.

    Only the file's owner and group can read the output.
    """
    return _opened_for_group(output_file(folder, job), os.O_TRUNC)


def _opened_for_group(path: Path, how: int) -> BinaryIO:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | how, 0o640)
    return os.fdopen(descriptor, "wb", buffering=0)


def output_file(folder: Path, job: str) -> Path:
    """Return the file with the unchanged output of another tool's job."""
    return folder / f"{job}.out"


def document_file(folder: Path, job: str) -> Path:
    """Return the file to which another tool's job writes its results. linkbench reads the results from this file."""
    return folder / f"{job}.tool.json"


def heartbeat_folder(folder: Path, job: str) -> Path:
    """Return the folder of a job's heartbeat files."""
    return folder / f".{job}.heartbeats"


def jobs_in(folder: Path) -> tuple[str, ...]:
    """Return the jobs of a run that have a results file.

    Planned jobs come first, in the order of the plan. Other jobs follow, sorted by name.
    """
    present = {path.stem for path in folder.glob("*.jsonl")}
    planned = [job["name"] for job in read_plan(folder)["jobs"]] if (folder / "plan.json").exists() else []
    return tuple([job for job in planned if job in present] + sorted(present - set(planned)))


def attempts(path: Path) -> tuple[tuple[tuple[str, jsonl.Attempt], ...], tuple[str, ...]]:
    """Return the results in a run's folder or a results file, and warnings.

    Each result is a pair (job, attempt). The second attempt of a job is called job#2, and so on.
    """
    warnings: list[str] = []
    return tuple(attempts_in_turn(path, warnings)), tuple(warnings)


def attempts_in_turn(path: Path, warnings: list[str]) -> Iterator[tuple[str, jsonl.Attempt]]:
    """Yield the results that `attempts` returns, but one by one.

    A caller can then process more results than fit into memory at once. Warnings are added to `warnings`.
    """
    files = [results_file(path, job) for job in jobs_in(path)] if path.is_dir() else [path]
    if not files:
        raise UsageError(f"{path} contains no results file")
    for file in files:
        results = jsonl.read(file)
        warnings += results.warnings
        for number, attempt in enumerate(results.attempts, start=1):
            yield file.stem if number == 1 else f"{file.stem}#{number}", attempt


def _write_whole(path: Path, text: str) -> None:
    """Write a file atomically, so that a reader never sees a part of the file.

    Other users may read the file if the umask allows. Without the fsync, a power failure could leave an empty file
    under the final name.
    """
    partial = path.with_suffix(path.suffix + ".part")
    try:
        with partial.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.chmod(partial.stat().st_mode & ~0o022)
        partial.replace(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be written ({error.strerror})") from None
