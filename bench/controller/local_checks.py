"""What this machine must be able to do before a job is started from it: the set-up lines, the launcher's options."""

from __future__ import annotations

import re
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence

from bench.config.clusters import Cluster
from bench.controller import hosts
from bench.controller.host_checks import PreflightFinding
from bench.controller.jobs import Job
from bench.core.launcher import Launcher
from bench.core.plugins import nearest

_SETUP_S, _HELP_S = 60.0, 60.0
_SHELL = re.compile(r"^\S*sh: (?:line )?\d+: ")


def look(cluster: Cluster, jobs: Sequence[Job], launchers: Mapping[str, Launcher]) -> list[PreflightFinding]:
    """What is wrong here, of jobs that are started by this machine; what a scheduler starts is not looked at."""
    ours = [launchers[name] for name in dict.fromkeys(job.launcher for job in jobs) if not launchers[name].remote]
    return (
        [finding for found in (_setup(cluster), *(_options(cluster, each) for each in ours)) for finding in found]
        if ours
        else []
    )


def _setup(cluster: Cluster) -> Iterator[PreflightFinding]:
    """The lines as each job's shell runs them, which ends at the first that fails."""
    if not cluster.setup:
        return
    script = "\n".join(["set -e", *cluster.setup, f"echo {hosts.MARK}"])
    answer = hosts.ask_here(["env", *(f"{k}={v}" for k, v in cluster.env.items()), "/bin/sh", "-c", script], _SETUP_S)
    if answer.exit_code is None or hosts.MARK in answer.out:
        return
    said = [line for line in answer.err.splitlines() if line.strip()]
    why = _SHELL.sub("", said[-1]) if said else f"exit code {answer.exit_code}"
    yield PreflightFinding(
        (socket.gethostname(),),
        f"`setup:` of cluster {cluster.name!r} fails on this machine ({why}): mend it; /bin/sh knows `module` only "
        "once its file has been read (`. /etc/profile.d/modules.sh`)",
    )


def _options(cluster: Cluster, launcher: Launcher) -> Iterator[PreflightFinding]:
    """Asked of the launcher itself, whose next release may know more; one that can not be asked is believed."""
    if not cluster.options or not launcher.help:
        return
    words = [cluster.python or sys.executable, *launcher.help]
    known = re.findall(r"(?<![\w-])--?([A-Za-z][\w-]*)", hosts.ask_here(words, _HELP_S).out)
    for name in cluster.options if known else ():
        if name not in known:
            yield PreflightFinding(
                (),
                f"`options:` of cluster {cluster.name!r}: {cluster.launcher} has no option {name!r}"
                f"{nearest(name, sorted({word for word in known if '_' not in word}))}",
            )
