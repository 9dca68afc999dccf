"""Damage what other programs recorded, and check how the command that reads it ends.

Traces of jobs, plans of replays, messages of failed jobs and descriptions of machines. The files that they are damaged
from are as the tests of each reader make them.
"""

from __future__ import annotations

import json
import pickle
import random
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from bench.core import replay_plan
from bench.core.errors import UsageError
from tests.fuzz import mutations
from tests.job import synthetic, test_replay
from tests.logs import synthetic_nsys, test_chakra, test_records_of_collectives
from tests.probes import synthetic_machines

# By kind: the words before the file, and how the command may end besides 0, 1 and 2 (3: no trace in the file).
COMMANDS: Mapping[str, tuple[tuple[str, ...], tuple[int, ...]]] = {
    "trace": (("job", "explain"), (3,)),
    "failure": (("explain",), (3,)),
    "machine": (("doctor", "--facts"), (3, 4)),
}
_CRASHES = Path(__file__).parents[1] / "explain" / "crashes"
_MOST_BYTES = 40_000  # of a file, so that many can be read in a minute; a database is kept whole


@cache
def good() -> Mapping[str, tuple[str, bytes]]:
    """Files by a name that begins with their kind: the name that the file needs, and its contents."""
    found: dict[str, tuple[str, bytes]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for style in synthetic.Style:
            synthetic.write(
                folder,
                synthetic.Schedule(num_ranks=2, num_steps=2, num_layers=2),
                synthetic.Recording(style, ranks=(0,)),
            )
            (path,) = [path for path in folder.iterdir() if path.is_file()]
            found[f"trace-{style.value}"] = (path.name, path.read_bytes())
            path.unlink()
        database = folder / "x.sqlite"
        synthetic_nsys.training(database).close()
        found["trace-nsys"] = (database.name, database.read_bytes())
        nodes = [test_chakra._comms(12, "allreduce", 8, 7, 5, 100, 100, 8), test_chakra._node(30, "aten::mm")]
        found["trace-chakra"] = ("et.json", test_chakra._torch(folder / "et.json", nodes).read_bytes())
        kernels = test_chakra._kernels(1000)
        found["trace-protobuf"] = ("rank0.et", test_chakra._protobuf(folder / "rank0.et", *kernels).read_bytes())
        dump = test_records_of_collectives._dump(*map(test_records_of_collectives._entry, (1, 2)))
        found["trace-recorder"] = ("flight_recorder_0.json", json.dumps(dump, sort_keys=True).encode())
        found["trace-pickle"] = ("flight_recorder_0", pickle.dumps(dump, 2))
        records = [test_records_of_collectives._record(seq, verbose=True) for seq in (1, 2)]
        found["trace-inspector"] = ("i.log", "\n".join(map(json.dumps, records)).encode())
        replay_plan.write(test_replay.layout(), folder / "plan.json")
        found["plan-layout"] = ("plan.json", (folder / "plan.json").read_bytes())
    for path in sorted(_CRASHES.iterdir()):
        found[f"failure-{path.name}"] = (path.name, path.read_bytes())
    for name, text in synthetic_machines.TEXTS.items():
        found[f"machine-{name}"] = (Path(name).name + ".txt", text.encode())
    return {
        name: (file, content if name == "trace-nsys" else content[:_MOST_BYTES])
        for name, (file, content) in found.items()
    }


def damaged(content: bytes, draw: random.Random) -> bytes:
    """The contents after mutations of a JSON document, of a few lines or of a few bytes."""
    if draw.random() < 0.6:
        lines = content.splitlines() or [b""]
        if len(content) < _MOST_BYTES and content.lstrip()[:1] in (b"{", b"["):
            lines = [content] if draw.random() < 0.8 else lines
        return b"\n".join(mutations.damaged(lines, draw.randrange(1 << 32)))
    out = bytearray(content)
    for _ in range(draw.randint(1, 8)):
        if not out:
            break
        place = draw.randrange(len(out))
        kind = draw.randrange(3)
        if kind == 0:
            out[place] = draw.randrange(256)
        elif kind == 1:
            del out[place : place + draw.choice((1, 4, 60))]
        else:
            out[place:place] = draw.choice((b"-1", b"9" * 40, b"nan", b"\xff\xfe", b"\n", b"[" * 50, b"(", b"1e999"))
    return bytes(out[: draw.choice((len(out), len(out), draw.randint(0, len(out))))])


def problem(name: str, content: bytes, folder: Path) -> str | None:
    """What is wrong with how the command ends that reads these contents; None if all is well."""
    kind = name.partition("-")[0]
    path = folder / good()[name][0]
    path.write_bytes(content)
    if kind == "plan":
        return _problem_of_plan(path)
    words, allowed = COMMANDS[kind]
    argv = [*words, str(path), "--format", "json"]
    end = mutations.ended(argv)
    path.unlink()
    found = mutations.problem(end, path, refused=False, allowed=allowed)
    return None if found is None else f"{' '.join(argv)}: {found}"


def _problem_of_plan(path: Path) -> str | None:
    """The reader of plans returns a plan or a UsageError that names the file. Other errors are defects."""
    try:
        replay_plan.read(path)
    except UsageError as error:
        return None if str(path) in str(error) else f"no path: {error}"
    return None
