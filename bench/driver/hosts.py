"""How another host is reached: by the site's own words (`agent:` in bench.yaml), ssh unless it says otherwise.

The words get one more: the command as one string for the far side's shell, as ssh takes it. Whatever understands that
serves: ssh with options, `kubectl exec POD -- sh -c`, `docker exec NAME sh -c`.
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5", "{host}")
_MOST_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class Answer:
    """What a host said. `exit_code` None: it did not end in time, or its agent could not be started."""

    exit_code: int | None
    out: str
    err: str


def agent_words(agent: Sequence[str], host: str) -> list[str]:
    """The agent's words for one host; it is added at the end where no word holds `{host}`."""
    words = [word.replace("{host}", host) for word in agent or SSH]
    return words if words != list(agent or SSH) else [*words, host]


def command(agent: Sequence[str], host: str, words: Sequence[str]) -> list[str]:
    """The command line that runs `words` on `host`."""
    return [*agent_words(agent, host), shlex.join(words)]


def ask(agent: Sequence[str], words_of: Mapping[str, Sequence[str]], timeout_s: float) -> dict[str, Answer]:
    """Run each host's words there, all hosts at once, each for `timeout_s` seconds at most."""
    if not words_of:
        return {}
    with ThreadPoolExecutor(min(len(words_of), _MOST_AT_ONCE)) as pool:
        answers = pool.map(lambda item: _one(command(agent, *item), timeout_s), words_of.items())
        return dict(zip(words_of, answers, strict=True))


def _one(words: Sequence[str], timeout_s: float) -> Answer:
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=timeout_s,
            check=False, start_new_session=True,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Answer(None, "", f"no answer within {timeout_s:.0f} s")
    except OSError as error:
        return Answer(None, "", f"{words[0]}: {error.strerror}")
    return Answer(done.returncode, done.stdout, done.stderr)
