"""Fuzz a reader by coverage: `python -m tests.fuzz.atheris_readers READER [libFuzzer options]`.

READER is results (also those of feeds and training steps), plan (the JSON files of a run's folder), yaml, logs or
recordings (traces, plans of replays, messages of failed jobs, descriptions of machines).

It needs atheris (`pip install atheris`), which is no dependency of the suite. The tests in this folder draw the same
mutations with hypothesis. The bytes are a file, or the seed of mutations of a good one. Give a folder to keep the
corpus, and `-max_total_time=300` to end after five minutes.
"""

from __future__ import annotations

import contextlib
import random
import sys
import tempfile
from collections.abc import Callable
from datetime import date
from pathlib import Path

import atheris  # type: ignore[import-untyped,import-not-found,unused-ignore]

with atheris.instrument_imports(include=["bench"]):
    from bench.config.clusters import load_clusters
    from bench.config.scenario import load_scenario
    from bench.core.errors import UsageError
    from bench.gate.rules_file import load_rules
    from bench.logs import imports
    from bench.logs.readers import _lines
    from bench.predict.price_file import load_prices
    from bench.predict.workload_file import load_workload
    from bench.results import collect
    from bench.results.run_report import RunReport
    from bench.results.table import as_json
    from tests.fuzz import folders, mutations, recordings
    from tests.logs import synthetic_nccl, synthetic_osu

_ROOT = Path(__file__).parents[2]
_FOLDER = Path(tempfile.mkdtemp())
_BASES = mutations.base_lines()


def results(found: atheris.FuzzedDataProvider) -> None:
    """Read a results file and render its document."""
    path = _FOLDER / "bad.jsonl"
    if found.ConsumeBool():
        name = found.PickValueInList(sorted(_BASES))
        lines = mutations.damaged(_BASES[name], found.ConsumeInt(4), list(_BASES.values()))
        path.write_bytes(b"\n".join(lines) + b"\n")
    else:
        path.write_bytes(_rest(found))
    as_json(RunReport(collect.document(path)).data())


def plan(found: atheris.FuzzedDataProvider) -> None:
    """Read the JSON files of a run's folder, one of them damaged."""
    folders.write(_FOLDER)
    name = found.PickValueInList(list(folders.NAMES))
    content = folders.damaged(name, found.ConsumeInt(4)) if found.ConsumeBool() else _rest(found)
    (_FOLDER / name).write_bytes(content)
    folders.read(_FOLDER)


def yaml(found: atheris.FuzzedDataProvider) -> None:
    """Read a YAML file as each kind of file that a user writes."""
    good = sorted([_ROOT / "bench.yaml", *(_ROOT / "scenarios").glob("*.yaml"), *(_ROOT / "rules").glob("*.yaml")])
    path = _FOLDER / "bad.yaml"
    if found.ConsumeBool():
        lines = found.PickValueInList(good).read_bytes().splitlines()
        path.write_bytes(b"\n".join(_edited(lines, found)))
    else:
        path.write_bytes(_rest(found))
    readers: tuple[Callable[[], object], ...] = (
        lambda: load_clusters(path),
        lambda: load_scenario(str(path), _FOLDER),
        lambda: load_rules(path),
        lambda: load_workload(str(path), _FOLDER),
        lambda: load_prices(path, ("p5", "g6e"), date(2026, 1, 1)),
    )
    for reader in readers:
        with contextlib.suppress(UsageError):
            reader()


def logs(found: atheris.FuzzedDataProvider) -> None:
    """Read a file as another tool's log. The reader accepts any content."""
    texts = [text for text, _ in (synthetic_nccl.LOGS | synthetic_osu.LOGS).values()]
    path = _FOLDER / "bad.log"
    if found.ConsumeBool():
        path.write_bytes(b"\n".join(_edited(found.PickValueInList(texts).encode().splitlines(), found)))
    else:
        path.write_bytes(_rest(found))
    imports.read(imports.Source(str(path), path), imports.readers(), _lines.results)


def recordings_of_others(found: atheris.FuzzedDataProvider) -> None:
    """Run the command that reads a recording."""
    name = found.PickValueInList(sorted(recordings.good()))
    content = recordings.good()[name][1]
    if found.ConsumeBool():
        content = recordings.damaged(content, random.Random(found.ConsumeInt(4)))
    else:
        content = b"\n".join(_edited(content.split(b"\n"), found))
    wrong = recordings.problem(name, content, _FOLDER)
    assert wrong is None, wrong


def _edited(lines: list[bytes], found: atheris.FuzzedDataProvider) -> list[bytes]:
    """The lines after a few cuts and insertions."""
    for _ in range(found.ConsumeIntInRange(1, 4)):
        index = found.ConsumeIntInRange(0, max(0, len(lines) - 1))
        old = lines[index] if lines else b""
        place = found.ConsumeIntInRange(0, len(old))
        new = old[:place] + found.ConsumeBytes(8) + old[place + found.ConsumeIntInRange(0, 3) :]
        lines[index : index + found.ConsumeIntInRange(0, 2)] = [new]
    return lines


def _rest(found: atheris.FuzzedDataProvider) -> bytes:
    content: bytes = found.ConsumeBytes(found.remaining_bytes())
    return content


def main() -> None:
    """Fuzz the reader that the first argument names. Anything but UsageError is a defect."""
    targets = {"results": results, "plan": plan, "yaml": yaml, "logs": logs, "recordings": recordings_of_others}
    name = sys.argv.pop(1) if len(sys.argv) > 1 else ""
    if name not in targets:
        sys.exit(f"name a reader: {', '.join(targets)}")

    def read(data: bytes) -> None:
        with contextlib.suppress(UsageError):
            targets[name](atheris.FuzzedDataProvider(data))

    atheris.Setup(sys.argv, read)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
