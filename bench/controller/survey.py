"""Ask the hosts of a cluster for facts before anything starts, then test the links between the hosts.

rank/preflight.py checks what only ranks can see.
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from bench.config import paths
from bench.config.clusters import Cluster
from bench.controller import host_checks, hosts, link_checks, links, preflight
from bench.controller.host_checks import NamedNic, PreflightFinding, Wanted
from bench.controller.jobs import Job, LocalMachine, Site
from bench.controller.links import HostNetwork, LinkTest
from bench.controller.messages import FindingCode
from bench.core import hostlist
from bench.core.errors import RefusedError
from bench.core.seal import SECRET_VARIABLE
from bench.probes import host as probe
from bench.probes import links as link_probe
from bench.probes import versions
from bench.store import runs

_FACTS_S, _ROUND_S = 10.0, 8.0
_SLACK_S, _ROUND_SLACK_S = 6.0, 10.0  # additional time to log in and to start an interpreter
_MOST_SHOWN = 3
_HOST = "{host}"
Ask = Callable[[Mapping[str, hosts.HostCommand], float], Mapping[str, hosts.CommandReply]]


@dataclass(frozen=True, slots=True)
class Survey:
    """Replies of all hosts, and the findings.

    `facts`: the facts of each host that answered.
    `links`: the test of the links between these hosts.
    """

    wanted: Wanted
    facts: Mapping[str, probe.Facts]
    findings: tuple[PreflightFinding, ...]
    links: LinkTest = field(default_factory=LinkTest)


def waiting_note(cluster: Cluster) -> str | None:
    """Return a message that explains the wait while many hosts are asked. For few hosts, return None."""
    if len(cluster.hosts) <= hosts.MOST_AT_ONCE:
        return None
    return f"asking {len(cluster.hosts):,} hosts, {hosts.MOST_AT_ONCE} at a time"


def wanted(cluster: Cluster, jobs: Sequence[Job], machine: LocalMachine, results: Path) -> Wanted:
    """Return what jobs require of the hosts in their cluster's `hosts:`.

    If the cluster names no hosts, the result names none either.
    """
    real = [job for job in jobs if not job.case.traits.modelled]
    meets = any(job.world.num_nodes > 1 and job.case.traits.rendezvous for job in real)
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
    """Return the network devices that jobs name.

    A job names devices either in `nics:` or in the environment variable that its transport reads.
    """
    found: dict[NamedNic, None] = {}
    for job in jobs:
        its = job.case.traits
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


def of_hosts(
    wanted: Wanted,
    cluster: Cluster,
    python: str,
    agent_ask: Ask | None = None,
    more_s: float = 0.0,
) -> Survey:
    """Ask all hosts in parallel. `python`: the interpreter on each host.

    `more_s`: the time in seconds for further tests of links after the first pass (controller/links.py).
    """
    asked = agent_ask or partial(hosts.ask, cluster.agent)
    words = partial(_words, cluster, python)
    with _mark_in(Path(wanted.results)) as nonce:
        question = probe.HostQuestion(wanted.hosts, wanted.mpirun, None, wanted.results, nonce, _FACTS_S, wanted.node)
        question = replace(question, among=links.port_range(wanted.env))
        first = replace(question, port=wanted.port)
        questions = {host: asdict(question if number else first) for number, host in enumerate(wanted.hosts)}
        answers = asked({host: words(q) for host, q in questions.items()}, _FACTS_S + _SLACK_S)
    facts: dict[str, probe.Facts] = {}
    silent: dict[tuple[FindingCode, str], list[str]] = {}
    reasons: dict[tuple[FindingCode, str], dict[str, Any]] = {}
    for host, answer in answers.items():
        report = probe.last_report(answer.out)
        if report is not None:
            facts[host] = report.facts
            continue
        code, own = _silence(host, answer, cluster.agent, python)
        key = code, repr(own)  # one finding for all hosts with the same reason
        reasons[key] = own
        silent.setdefault(key, []).append(host)
    findings = []
    for key, named in silent.items():
        findings.append(PreflightFinding.of(key[0], named, **_for_hosts(named, reasons[key])))
    findings += host_checks.findings(facts, wanted)

    def ask(questions: Mapping[str, Any], secret: str, timeout_s: float) -> Mapping[str, hosts.CommandReply]:
        return asked({host: words(q, link_probe.__name__, secret) for host, q in questions.items()}, timeout_s)

    tested = _links(facts, wanted, ask, more_s)
    findings += link_checks.findings(tested.links, tested.reports, tested.silent)
    return Survey(wanted, facts, tuple(findings), tested)


def of_this_machine(wanted: Wanted, cluster: Cluster, python: str) -> Survey:
    """Ask only this machine. If the cluster names no hosts, its ranks start on this machine."""
    me = socket.gethostname()
    with _mark_in(Path(wanted.results)) as nonce:
        question = probe.HostQuestion((), wanted.mpirun, None, wanted.results, nonce, _FACTS_S, wanted.node)
        answer = hosts.run_locally(_words(cluster, python, asdict(question)), _FACTS_S + _SLACK_S)
    this, report = replace(wanted, hosts=(me,)), probe.last_report(answer.out)
    if report is None:
        code, own = _silence(me, answer, cluster.agent, python)
        return Survey(this, {}, (PreflightFinding.of(code, (me,), **_for_hosts((me,), own)),))
    return Survey(this, {me: report.facts}, tuple(host_checks.findings({me: report.facts}, this)))


def ask(site: Site, jobs: Sequence[Job], results: Path, *, node: bool = False, more_s: float = 0.0) -> Survey:
    """Check this machine, then the hosts, for everything that jobs need.

    `node`: whether the hosts also report facts about their hardware.
    `more_s`: the time in seconds for further tests of links after the first pass (controller/links.py).
    """
    cluster, machine = site.cluster, site.machine
    needs = replace(wanted(cluster, jobs, machine, results), node=node)
    real = [job for job in jobs if not job.case.traits.modelled]
    found = preflight.local_findings(cluster, real, site)
    python = cluster.python or machine.python
    if needs.hosts:
        survey = of_hosts(needs, cluster, python, more_s=more_s)
    elif found or any(site.launchers[job.launcher].remote for job in jobs):
        survey = Survey(needs, {}, ())
    else:
        survey = of_this_machine(needs, cluster, python)
    return replace(survey, findings=(*found, *survey.findings))


def refuse(found: Survey, cluster: str) -> list[PreflightFinding]:
    """Raise RefusedError (exit code 3) if a finding prevents the run.

    If no finding prevents the run, return all findings, which the caller prints.
    """
    wrong = [finding for finding in found.findings if finding.refuses]
    if not wrong:
        return list(found.findings)
    more = len(wrong) - _MOST_SHOWN
    rest = f"; and {more} more: linkbench doctor --cluster {cluster}" if more > 0 else ""
    error = RefusedError("; ".join(finding.what for finding in wrong[:_MOST_SHOWN]) + rest)
    error.code = wrong[0].code
    error.facts = {"findings": [{"code": each.code, "hosts": each.hosts, "facts": each.facts} for each in wrong]}
    raise error


def _networks(facts: Mapping[str, probe.Facts], wanted: Wanted) -> dict[str, HostNetwork]:
    """Return the networks of the hosts that answered."""
    found = {}
    for host, own in facts.items():
        resolved = [other.addresses.get(host, ()) for other in facts.values()]
        addresses = dict.fromkeys(address for each in resolved if not isinstance(each, str) for address in each)
        nics = tuple(d.name for d in own.devices if any(nic.matches(d.name) for nic in wanted.devices))
        found[host] = HostNetwork(tuple(own.devices), tuple(addresses), nics)
    return found


def _links(facts: Mapping[str, probe.Facts], wanted: Wanted, ask: links.Ask, more_s: float) -> links.LinkTest:
    """Test the links between the hosts that answered.

    The first host listens on the rendezvous port if this port is free. Every other host listens on any free port.
    """
    port_of = {host: own.free_port for host, own in facts.items()}
    first = wanted.hosts[0]
    if wanted.port is not None and first in facts and facts[first].port_taken is None:
        port_of[first] = wanted.port

    def knows(a: str, b: str) -> bool:
        return not isinstance(facts[a].addresses.get(b), str)

    ports = {host: (port,) for host, port in port_of.items()}
    return links.test(_networks(facts, wanted), ports, knows, ask, _ROUND_S, _ROUND_SLACK_S, more_s)


@contextlib.contextmanager
def _mark_in(results: Path) -> Iterator[str]:
    """Yield the name of a temporary file in the results folder.

    A host that sees this file shares the results folder with this machine.
    """
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


def _words(
    cluster: Cluster,
    python: str,
    question: object,
    module: str = probe.__name__,
    secret: str = "",
) -> hosts.HostCommand:
    words = [python, "-m", module, json.dumps(question)]
    env = {**cluster.env, SECRET_VARIABLE: secret} if secret else cluster.env
    return hosts.in_rank_environment(words, cluster.setup, env)


def _silence(
    host: str, answer: hosts.CommandReply, agent: Sequence[str], python: str
) -> tuple[FindingCode, dict[str, str]]:
    """Return why a host did not answer, as a code and its facts.

    The step at which the host's shell stopped shows the reason. The facts have the placeholder `_HOST` in place of the
    host's name.
    """
    why = _without(host, answer.last_line)
    if hosts.MARK not in answer.out:
        words = _without(host, " ".join(hosts.agent_words(agent, host)))
        if answer.exit_code == 0:
            return FindingCode.NO_REPLY, {"agent": words}
        return FindingCode.NOT_REACHED, {"agent": words, "why": why}
    if answer.exit_code is None:
        return FindingCode.NO_REPLY_IN_TIME, {}
    if answer.exit_code == hosts.NO_INPUT:
        return FindingCode.NO_INPUT, {"agent": _without(host, " ".join(hosts.agent_words(agent, host)))}
    if answer.exit_code in (126, 127):
        return FindingCode.NO_INTERPRETER, {"python": python}
    if "No module named" in why:  # Python's own message
        return FindingCode.NO_SUITE, {"why": why.rpartition(": ")[2], "folder": str(paths.PACKAGE_ROOT)}
    if any('"schema"' in line for line in answer.out.splitlines()):
        return FindingCode.OTHER_SUITE, {}
    return FindingCode.PROBE_FAILED, {"why": why, "command": f"{python} -m {probe.__name__}"}


def _without(host: str, text: str) -> str:
    """Replace the host's name in the text with _HOST.

    After the replacement, hosts with the same problem have the same text.
    """
    return re.sub(rf"(?<![\w.-]){re.escape(host)}(?![\w-])", _HOST, text)


def _for_hosts(named: Sequence[str], facts: Mapping[str, str]) -> dict[str, Any]:
    """Return the facts for a finding about these hosts.

    The fact `named` has the name of a single host, or the number and the names of several hosts.
    """
    if len(named) == 1:
        return {**{name: text.replace(_HOST, named[0]) for name, text in facts.items()}, "named": f"host {named[0]}"}
    return {**facts, "named": f"each of {len(named)} hosts ({hostlist.compress(named)})"}
