"""What the hosts of a cluster say before anything is started: all at once are asked for facts, then reach each other.

What only ranks can see they check themselves: rank/preflight.py.
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from bench.config.clusters import Cluster
from bench.controller import connect, host_checks, hosts, local_checks
from bench.controller.host_checks import NamedNic, PreflightFinding, Wanted
from bench.controller.jobs import Job, LocalMachine
from bench.core import hostlist
from bench.core.errors import RefusedError
from bench.core.launcher import Launcher
from bench.core.traits import traits
from bench.probes import host as probe
from bench.probes import ports, versions
from bench.store import runs

_FACTS_S, _ROUND_S, _SLACK_S = 10.0, 8.0, 6.0  # slack: to log in and to start an interpreter
_AT_ONCE = 64  # hosts that try each other's ports together; more of them take turns, the first host always among them
_MOST_TOLD = 3
_HOST = "{host}"
Ask = Callable[[Mapping[str, Sequence[str]], float], Mapping[str, hosts.CommandReply]]


@dataclass(frozen=True, slots=True)
class Survey:
    """What all hosts together said. `facts` has those that answered."""

    wanted: Wanted
    facts: Mapping[str, probe.Facts]
    findings: tuple[PreflightFinding, ...]


def patience(cluster: Cluster) -> list[str]:
    """A line to say before hosts are asked, where there are so many that it may take a while."""
    if len(cluster.hosts) <= hosts.MOST_AT_ONCE:
        return []
    return [f"asking {len(cluster.hosts):,} hosts, {hosts.MOST_AT_ONCE} at a time"]


def wanted(cluster: Cluster, jobs: Sequence[Job], machine: LocalMachine, results: Path) -> Wanted:
    """What jobs need of the hosts that their cluster names; no hosts, nothing to ask."""
    real = [job for job in jobs if not traits(job.case.transport).modelled]
    meets = any(job.world.num_nodes > 1 and traits(job.case.transport).rendezvous for job in real)
    return Wanted(
        hosts=tuple(cluster.hosts[: max((job.world.num_nodes for job in real), default=0)]),
        ranks_per_node=max((job.world.ranks_per_node for job in real), default=1),
        num_ranks=max((job.world.num_ranks for job in real), default=1),
        transports=frozenset(job.case.transport for job in real),
        port=cluster.port if meets else None,
        mpirun=(cluster.mpirun or machine.mpirun) if any(job.launcher == "mpirun" for job in real) else None,
        results=str(results.resolve()),
        source=versions.source(),
        env=cluster.env,
        devices=_devices(real),
    )


def _devices(jobs: Sequence[Job]) -> tuple[NamedNic, ...]:
    """The network devices that jobs name, in `nics:` or in the variable that their transport reads."""
    found: dict[NamedNic, None] = {}
    for job in jobs:
        its = traits(job.case.transport)
        for nic in job.case.nics:
            found[NamedNic("`nics:`", nic.partition(":")[0], adapter=not its.only_interfaces)] = None
        if not its.nic_list:
            continue
        variable = its.nic_variables[0]
        words = job.env.get(variable, "")
        exact = its.nic_list == "names" or words.startswith("=")
        for name in filter(None, words.removeprefix("=").split(",")) if not words.startswith("^") else ():
            found[NamedNic(f"{variable} in `env:`", name, begins=not exact)] = None
    return tuple(found)


def of_hosts(wanted: Wanted, cluster: Cluster, python: str, package_root: Path, ask: Ask | None = None) -> Survey:
    """Ask every host, all at once. `python`, `package_root`: the interpreter and the suite's folder on each of them."""
    asked = ask or partial(hosts.ask, cluster.agent)
    words = partial(_words, cluster, python, package_root)
    with _mark_in(Path(wanted.results)) as nonce:
        question = probe.HostQuestion(wanted.hosts, wanted.mpirun, None, wanted.results, nonce, _FACTS_S, wanted.node)
        first = replace(question, port=wanted.port)
        questions = {host: asdict(question if number else first) for number, host in enumerate(wanted.hosts)}
        answers = asked({host: words(q) for host, q in questions.items()}, _FACTS_S + _SLACK_S)
    facts: dict[str, probe.Facts] = {}
    silent: dict[str, list[str]] = {}
    for host, answer in answers.items():
        told = _told(answer)
        if told is not None and told.facts is not None:
            facts[host] = told.facts
        else:
            why = _why_silent(host, answer, cluster.agent, python, package_root)
            silent.setdefault(_without(host, why), []).append(host)
    findings = [PreflightFinding(tuple(named), _of_each(named, why)) for why, named in silent.items()]
    findings += host_checks.judge(facts, wanted)
    findings += _connections(facts, wanted, words, asked)
    return Survey(wanted, facts, tuple(findings))


def of_this_machine(wanted: Wanted, cluster: Cluster, python: str, package_root: Path) -> Survey:
    """The same for a cluster without named hosts whose ranks start on this machine."""
    me = socket.gethostname()
    with _mark_in(Path(wanted.results)) as nonce:
        question = probe.HostQuestion((), wanted.mpirun, None, wanted.results, nonce, _FACTS_S, wanted.node)
        answer = hosts.ask_here(_words(cluster, python, package_root, asdict(question)), _FACTS_S + _SLACK_S)
    this, told = replace(wanted, hosts=(me,)), _told(answer)
    if told is None or told.facts is None:
        why = f"host {me} {_why_silent(me, answer, cluster.agent, python, package_root)}"
        return Survey(this, {}, (PreflightFinding((me,), why),))
    return Survey(this, {me: told.facts}, tuple(host_checks.judge({me: told.facts}, this)))


def look(
    cluster: Cluster,
    jobs: Sequence[Job],
    machine: LocalMachine,
    launchers: Mapping[str, Launcher],
    results: Path,
    package_root: Path,
    *,
    node: bool = False,
) -> Survey:
    """All that can be known of the place of these jobs before they start: this machine, then the hosts.

    `node`: what hosts are made of is asked, too.
    """
    needs = replace(wanted(cluster, jobs, machine, results), node=node)
    found = local_checks.look(cluster, [job for job in jobs if not traits(job.case.transport).modelled], launchers)
    python = cluster.python or machine.python
    if needs.hosts:
        asked = of_hosts(needs, cluster, python, package_root)
    elif found or any(launchers[job.launcher].remote for job in jobs):
        asked = Survey(needs, {}, ())
    else:
        asked = of_this_machine(needs, cluster, python, package_root)
    return replace(asked, findings=(*found, *asked.findings))


def refuse(found: Survey, cluster: str) -> list[str]:
    """Raise RefusedError (exit 3) for what is wrong; returns the sentences of what may matter."""
    wrong = [finding.what for finding in found.findings if finding.refuses]
    if not wrong:
        return [finding.what for finding in found.findings]
    more = len(wrong) - _MOST_TOLD
    shown = f"; and {more} more: python -m bench doctor --cluster {cluster}" if more > 0 else ""
    raise RefusedError("; ".join(wrong[:_MOST_TOLD]) + shown)


def _connections(
    facts: Mapping[str, probe.Facts], wanted: Wanted, words: Callable[[object], list[str]], asked: Ask
) -> list[PreflightFinding]:
    """Every host listens and connects to the others of its turn whose names it knows.

    A turn is the first host, where ranks meet, and _AT_ONCE - 1 others: of more hosts not every pair is tried.
    """
    names = list(facts)
    if len(names) < 2:
        return []
    reached: dict[str, Mapping[str, ports.PeerReply]] = {host: {} for host in names}
    silent: dict[str, str] = {}
    meeting = wanted.hosts[0]
    port_of = {host: told.free_port for host, told in facts.items()}
    if wanted.port is not None and meeting in facts and facts[meeting].port_taken is None:
        port_of[meeting] = wanted.port
    others = names[1:]
    for begin in range(0, len(others), _AT_ONCE - 1):
        turn = [names[0], *others[begin : begin + _AT_ONCE - 1]]
        nonce = secrets.token_hex(8)
        peers = {a: {b: port_of[b] for b in turn if a != b and _knows(facts[a], b)} for a in turn}
        questions = {
            a: probe.Round(a, port_of[a], peers[a], tuple(b for b in turn if a in peers[b]), nonce, _ROUND_S)
            for a in turn
        }
        answers = asked({a: words(asdict(question)) for a, question in questions.items()}, _ROUND_S + _SLACK_S)
        for host, answer in answers.items():
            told = _told(answer)
            if told is None or told.problem is not None:
                silent[host] = told.problem or "" if told else _last_line(answer)
            else:
                reached[host] = {**reached[host], **told.reached}
    return connect.judge(reached, silent)


def _knows(told: probe.Facts, host: str) -> bool:
    return not isinstance(told.addresses.get(host), str)


@contextlib.contextmanager
def _mark_in(results: Path) -> Iterator[str]:
    """A file in the results folder by which a host tells that it sees the same folder; gone afterwards."""
    made = not results.exists()
    nonce = f".bench-{secrets.token_hex(8)}"
    try:
        results.mkdir(parents=True, exist_ok=True)
        (results / nonce).touch()
    except OSError as error:
        raise runs.unwritable(results, error) from None
    try:
        yield nonce
    finally:
        (results / nonce).unlink(missing_ok=True)
        if made:
            results.rmdir()


def _words(cluster: Cluster, python: str, package_root: Path, question: object) -> list[str]:
    words = [python, "-m", probe.__name__, json.dumps(question)]
    return hosts.in_place(words, cluster.setup, cluster.env, str(package_root))


def _told(answer: hosts.CommandReply) -> probe.HostReport | None:
    """The last line that is an answer: a login may print what it likes before."""
    found = (probe.parse(line) for line in reversed(answer.out.splitlines()))
    return next((told for told in found if told is not None), None)


def _why_silent(host: str, answer: hosts.CommandReply, agent: Sequence[str], python: str, package_root: Path) -> str:
    """What is missing on a host that did not answer, as far as its shell came; a clause that follows its name."""
    last = _last_line(answer)
    if hosts.MARK not in answer.out:
        words = " ".join(hosts.agent_words(agent, host))
        if answer.exit_code == 0:
            return f"answered nothing to `{words}`: the words of `agent:` must run the command that follows them there"
        return f"can not be reached by `{words}` ({last}): correct its name in `hosts:`, or `agent:`, of the cluster"
    if answer.exit_code is None:
        return "was reached but did not answer in time: see whether it, or its name server, hangs"
    if answer.exit_code in (126, 127):
        return f"has no interpreter {python}: install it there, or name the right one by `python:`"
    if "No module named" in last:
        return (
            f"can not import the suite ({last.rpartition(': ')[2]}): "
            f"{package_root} and what the interpreter needs must be there, too"
        )
    if any('"schema"' in line for line in answer.out.splitlines()):
        return "has another version of the suite than this machine: copy this checkout to it"
    return f"could not answer ({last}): run `{python} -m {probe.__name__}` there to see why"


def _without(host: str, why: str) -> str:
    """The same words for every host that they are true of."""
    return re.sub(rf"(?<![\w.-]){re.escape(host)}(?![\w-])", _HOST, why)


def _of_each(named: Sequence[str], why: str) -> str:
    if len(named) == 1:
        return f"host {named[0]} {why.replace(_HOST, named[0])}"
    return f"each of {len(named)} hosts ({hostlist.compress(named)}) {why}"


def _last_line(answer: hosts.CommandReply) -> str:
    lines = [line.strip() for line in answer.err.splitlines() if line.strip()]
    return lines[-1] if lines else f"exit code {answer.exit_code}"
