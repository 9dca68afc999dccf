"""Manifests satisfy the Pod Security Standards, hold no secret, and no option becomes a line of the script."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.core.errors import UsageError
from bench.core.launcher import LaunchSite
from bench.core.world import World
from bench.launchers import kubernetes, slurm

GLOO, NCCL, MPI = (["-m", "bench.allreduce", "--transport", name] for name in ("gloo", "nccl", "mpi"))
# https://kubernetes.io/docs/concepts/security/pod-security-standards (read in November 2026)
BASELINE_CAPABILITIES = """
AUDIT_WRITE CHOWN DAC_OVERRIDE FOWNER FSETID KILL MKNOD NET_BIND_SERVICE SETFCAP SETGID SETPCAP SETUID SYS_CHROOT
"""
RESTRICTED_VOLUMES = set(
    ["configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"]
)


def made(program: list[str], options: Mapping[str, str]) -> str:
    """The shell lines of a job with these options."""
    return script(program, {}, options)


def script(program: list[str], env: Mapping[str, str], options: Mapping[str, str] | None = None) -> str:
    site = LaunchSite(python="python3", options={"image": "example/bench:1", **(options or {})})
    return kubernetes.LAUNCHER.manifest("job", program, World(2, 2), site, env, 900)


def documents(text: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(text.partition("<<'EOF'\n")[2].partition("\nEOF\n")[0]))


def pods(text: str) -> Iterator[dict[str, Any]]:
    for document in documents(text):
        for holder in (document["spec"], *document["spec"].get("mpiReplicaSpecs", {}).values()):
            if "template" in holder:
                yield holder["template"]["spec"]


def breaches_of_baseline(pod: dict[str, Any]) -> Iterator[str]:
    for field in ("hostNetwork", "hostPID", "hostIPC"):
        if pod.get(field):
            yield field
    if any("hostPath" in volume for volume in pod.get("volumes", ())):
        yield "hostPath"
    for holder in (pod, *pod["containers"]):
        rights = holder.get("securityContext", {})
        if rights.get("privileged"):
            yield "privileged"
        if not set(rights.get("capabilities", {}).get("add", ())) <= set(BASELINE_CAPABILITIES.split()):
            yield "capabilities.add"
        if rights.get("seccompProfile", {}).get("type") == "Unconfined":
            yield "seccompProfile"
        if rights.get("procMount", "Default") != "Default" or rights.get("sysctls") or rights.get("seLinuxOptions"):
            yield "procMount, sysctls or seLinuxOptions"
        if any("hostPort" in port for port in holder.get("ports", ())):
            yield "hostPort"


def breaches_of_restricted(pod: dict[str, Any]) -> Iterator[str]:
    yield from breaches_of_baseline(pod)
    for volume in pod.get("volumes", ()):
        if not volume.keys() - {"name"} <= RESTRICTED_VOLUMES:
            yield "volumes"
    of_pod = pod.get("securityContext", {})
    for container in pod["containers"]:
        rights = {**of_pod, **container.get("securityContext", {})}
        if rights.get("allowPrivilegeEscalation") is not False:
            yield "allowPrivilegeEscalation"
        if rights.get("runAsNonRoot") is not True or rights.get("runAsUser") == 0:
            yield "runAsNonRoot"
        if rights.get("seccompProfile", {}).get("type") not in ("RuntimeDefault", "Localhost"):
            yield "seccompProfile"
        capabilities = rights.get("capabilities", {})
        if "ALL" not in capabilities.get("drop", ()) or not set(capabilities.get("add", ())) <= {"NET_BIND_SERVICE"}:
            yield "capabilities"


@pytest.mark.parametrize(
    ("program", "options"),
    [
        (GLOO, {}),
        (GLOO, {"user": "1000", "results": "claim", "shm": "1Gi", "service-account": "bench"}),
        (NCCL, {"resources": "nvidia.com/gpu=8"}),
        (NCCL, {"resources": "nvidia.com/gpu=8 rdma/hca=1", "rdma": "no"}),
        (MPI, {"user": "1000"}),
    ],
)
def test_pods_without_rdma_satisfy_restricted(program: list[str], options: dict[str, str]) -> None:
    for pod in pods(made(program, options)):
        assert list(breaches_of_restricted(pod)) == []
        assert pod["automountServiceAccountToken"] is False


@pytest.mark.parametrize("options", [{}, {"user": "0"}, {"mpi": "mpich"}])
def test_pods_of_mpi_satisfy_baseline(options: dict[str, str]) -> None:
    launcher_and_worker = list(pods(made(MPI, options)))
    assert len(launcher_and_worker) == 2
    for pod in launcher_and_worker:
        assert list(breaches_of_baseline(pod)) == [] and pod["automountServiceAccountToken"] is False


def test_memory_is_pinned_for_rdma_only() -> None:
    asked = ({"resources": "vpc.amazonaws.com/efa=4"}, {"resources": "rdma/hca_shared=1"}, {"rdma": "yes"})
    for options in asked:
        [pod] = pods(made(NCCL, options))
        assert list(breaches_of_restricted(pod)) == ["capabilities.add", "capabilities"]
        assert pod["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}
    for wrong in ({"rdma": "maybe"}, {"user": "me"}):
        with pytest.raises(UsageError, match=next(iter(wrong))):
            made(NCCL, wrong)


@pytest.mark.parametrize("program", [GLOO, MPI])
def test_secrets_come_from_the_shell_and_are_no_words_of_a_command(program: list[str]) -> None:
    env = {"HF_TOKEN": "hunter2", "OWN": "from-environment", "NCCL_ALGO": "Ring"}
    text = script(program, env)
    assert "hunter2" not in text
    container = next(pods(text))["containers"][0]
    for name in ("HF_TOKEN", "OWN"):
        assert {"name": name, "valueFrom": {"secretKeyRef": {"name": "bench-job", "key": name}}} in container["env"]
    assert {"name": "NCCL_ALGO", "value": "Ring"} in container["env"]
    [line] = [line for line in text.splitlines() if "create secret" in line]
    commands = 'kubectl() { echo "$@"; cat; }\n' + line
    done = subprocess.run(
        ["sh", "-c", commands],
        env={"PATH": "/bin:/usr/bin", "HF_TOKEN": "a b$c", "OWN": "x"},
        capture_output=True,
        text=True,
        check=True,
    )
    command, *values = done.stdout.splitlines()
    assert command == "create secret generic bench-job --from-env-file=/dev/stdin"
    assert values == ["HF_TOKEN=a b$c", "OWN=x"]
    assert "secret/bench-job" in text.splitlines()[1], "Ctrl-C deletes it, too"


BROKEN = st.tuples(st.text(max_size=8), st.sampled_from("\n\r\x0b\x0c\x1b\x85\u2028"), st.text(max_size=8)).map("".join)


@settings(max_examples=40, deadline=None)
@given(BROKEN, st.sampled_from(("image", "namespace", "results", "shm", "node-selector", "service-account")))
def test_no_option_becomes_a_line_of_a_script(value: str, option: str) -> None:
    with pytest.raises(UsageError):
        made(GLOO, {option: value})
    with pytest.raises(UsageError):
        slurm.batch("job", World(2, 2), 60, {"comment": value}, ["true"])


@settings(max_examples=40, deadline=None)
@given(st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=20))
def test_no_variable_becomes_a_line_of_a_script(value: str) -> None:
    plain = script(GLOO, {"NCCL_X": "1"})
    text = script(GLOO, {"NCCL_X": f"{value}\nEOF\ntouch planted"})
    assert "touch planted" not in text.splitlines()
    before, _, after = text.partition("<<'EOF'\n")
    assert before == plain.partition("<<'EOF'\n")[0]
    assert after.partition("\nEOF\n")[2] == plain.partition("<<'EOF'\n")[2].partition("\nEOF\n")[2]
