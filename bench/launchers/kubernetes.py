"""Kubernetes: a manifest per job, applied by the user's kubectl. In its pods torchrun or mpirun starts the ranks.

Gloo and NCCL need no operator: an Indexed Job (batch/v1; Kubernetes 1.28 or later) runs one torchrun per pod, and they
meet at the first pod, whose name comes from a headless Service. MPI uses an MPIJob (kubeflow.org/v2beta1) of the MPI
Operator, whose launcher runs mpirun. Samples come back in the output of the first rank, or on a volume claim.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

import yaml

from bench.core.errors import UsageError
from bench.core.launcher import Launcher, LaunchSite
from bench.core.plugins import nearest
from bench.core.traits import traits
from bench.core.world import RankInfo, World
from bench.launchers._variables import long_options

_OPTIONS = ("image", "namespace", "resources", "shm", "results", "node-selector", "service-account", "mpi")
_MPIS = {"openmpi": "OpenMPI", "mpich": "MPICH", "intel": "Intel"}
_MOST_NAME = 52  # a pod's name adds its index and must be a DNS label
_RESULTS = "/results"
_PODS = "{.items[*].status.phase} {.items[*].status.containerStatuses[*].state.waiting.reason}"
_CONSENT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


class Kubernetes(Launcher):
    """Pods, one per node."""

    program = "kubectl"
    precedence = 90
    remote = True
    by_hand = True
    python = "python3"

    def place(self, env: Mapping[str, str]) -> RankInfo | None:
        """None: torchrun or mpirun starts the ranks in a pod and sets its own variables."""
        return None

    def command(self, program: list[str], world: World, site: LaunchSite, env: Mapping[str, str]) -> list[str]:
        """The command in the pods: mpirun in the MPIJob's launcher for MPI, else a torchrun in each.

        kubelet replaces $(JOB_COMPLETION_INDEX) by the pod's index.
        """
        if _needs_mpi(program):
            variables = [f"{name}={value}" for name, value in env.items()]
            return ["mpirun", "--bind-to", "none", "-n", str(world.num_ranks), "env", *variables, site.python, *program]
        options = {"nproc-per-node": str(world.ranks_per_node)}
        if world.num_nodes == 1:
            options = {"standalone": "", **options}
        else:
            options |= {
                "nnodes": str(world.num_nodes),
                "node-rank": "$(JOB_COMPLETION_INDEX)",
                "master-addr": "$(BENCH_MASTER)",
                "master-port": str(site.rendezvous_port),
            }
        return [site.python, "-m", "torch.distributed.run", *long_options(options), *program]

    def manifest(
        self, job: str, program: list[str], world: World, site: LaunchSite, env: Mapping[str, str], deadline_s: float
    ) -> str:
        """Apply the manifest, wait for its end, keep its output and samples, and delete it, also on Ctrl-C.

        It prints the state of the pods when it changes. The last line fails if this job or an earlier one failed.

        Raises UsageError if an option is missing, unknown or wrong.
        """
        options = _checked(site.options)
        records = f"{_RESULTS}/{job}.jsonl" if "results" in options else "/dev/stdout"
        command = self.command([*program, "--records", records], world, site, env)
        name, deadline, mpi = resource_name(job), round(deadline_s), _needs_mpi(program)
        documents = (
            [mpi_job(name, command, world, options, deadline)]
            if mpi
            else [service(name, options), indexed_job(name, command, world, options, env, deadline)]
        )
        what, first = f"job/{name}", f"-l job-name={name},batch.kubernetes.io/job-completion-index=0"
        pods = f"job-name={name}"
        if mpi:
            what, first = f"mpijob/{name}", f"job/{name}-launcher"
            pods = f"training.kubeflow.org/job-name={name}"
        kubectl = shlex.join(["kubectl", *(["-n", options["namespace"]] if "namespace" in options else [])])
        end = f"{kubectl} get {what} -o jsonpath='{{.status.conditions[*].type}}'"
        log, rows = f'"$RESULTS/{job}.log"', f'"$RESULTS/{job}.jsonl"'
        kept = f"""grep '^{{"type":' {log} > {rows} || rm {rows}"""
        delete = f"{kubectl} delete --ignore-not-found {what}{'' if mpi else f' service/{name}'}"
        state = f"{kubectl} get pods -l {pods} -o jsonpath='{_PODS}'"
        return "\n".join(
            [
                'mkdir -p "${RESULTS:=results/$(date -u +%Y%m%d-%H%M%S)-kubernetes}"',
                f"trap {shlex.quote(f'{delete}; exit 130')} INT",
                f"trap {shlex.quote(f'{delete}; exit 143')} TERM",
                "ended= shown=",
                f"if {kubectl} apply -f - <<'EOF'",
                yaml.safe_dump_all(documents, sort_keys=False, width=1000).rstrip(),
                "EOF",
                "then",
                f"  while ended=$({end}) && ! echo \"$ended\" | grep -qwE 'Complete|Succeeded|Failed'; do",
                f"    state=$({state})",
                f'    [ "$state" = "$shown" ] || echo "{job}: ${{state:-no pods yet}}" >&2',
                "    shown=$state",
                "    sleep 2",
                "  done",
                f"  {kubectl} logs --tail=-1 {first} > {log}",
                f"  # its samples: {job}.jsonl on the claim {options['results']}"
                if "results" in options
                else f"  {kept}",
                "  echo \"$ended\" | grep -qwE 'Complete|Succeeded' ||",
                f'    {{ FAILED=4; echo "FAILED: {job}, see "{log} >&2; }}',
                "else",
                f'  FAILED=4; echo "FAILED: {job}, kubectl rejected its manifest" >&2',
                "fi",
                delete,
                "trap - INT TERM",
                '(exit "${FAILED:-0}")  # of all jobs so far',
            ]
        )


def service(name: str, options: Mapping[str, str]) -> dict[str, Any]:
    """The Service that names each pod of the Job, ready or not."""
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {"job-name": name}}
    return {"apiVersion": "v1", "kind": "Service", "metadata": _metadata(name, options), "spec": spec}


def indexed_job(
    name: str, command: list[str], world: World, options: Mapping[str, str], env: Mapping[str, str], deadline: int
) -> dict[str, Any]:
    """A pod per node. The first failed pod ends the Job."""
    variables = {"BENCH_MASTER": f"{name}-0.{name}", **env}
    container = _container(command, options, variables)
    spec = {
        "completionMode": "Indexed",
        "completions": world.num_nodes,
        "parallelism": world.num_nodes,
        "backoffLimit": 0,
        "activeDeadlineSeconds": deadline,
        "template": {"spec": {"subdomain": name, "restartPolicy": "Never", **_pod(container, options)}},
    }
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": _metadata(name, options), "spec": spec}


def mpi_job(name: str, command: list[str], world: World, options: Mapping[str, str], deadline: int) -> dict[str, Any]:
    """A worker per node, with sshd from the image, and a launcher without GPUs."""
    launcher = {"name": "bench", "image": options["image"], "command": command, "env": _env(_CONSENT)}
    spec = {
        "slotsPerWorker": world.ranks_per_node,
        "launcherCreationPolicy": "WaitForWorkersReady",
        "runPolicy": {"cleanPodPolicy": "Running", "backoffLimit": 0, "activeDeadlineSeconds": deadline},
        "mpiImplementation": _MPIS[options.get("mpi", "openmpi")],
        "mpiReplicaSpecs": {
            "Launcher": {
                "replicas": 1,
                "restartPolicy": "Never",
                "template": {"spec": {"containers": [launcher]}},
            },
            "Worker": {
                "replicas": world.num_nodes,
                "restartPolicy": "Never",
                "template": {"spec": _pod(_container([], options, {}), options)},
            },
        },
    }
    return {"apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob", "metadata": _metadata(name, options), "spec": spec}


def resource_name(job: str) -> str:
    """A job's name as a DNS label: allreduce-nccl-2x8-groups_of_2 -> allreduce-nccl-2x8-groups-of-2."""
    return re.sub(r"[^a-z0-9]+", "-", f"bench-{job}".lower())[:_MOST_NAME].strip("-")


def _needs_mpi(words: list[str]) -> bool:
    return "--transport" in words and traits(words[words.index("--transport") + 1]).over_mpi


def _checked(options: Mapping[str, str]) -> Mapping[str, str]:
    for name in options:
        if name not in _OPTIONS:
            raise UsageError(f"kubernetes has no option {name!r}{nearest(name, _OPTIONS)}")
    if not options.get("image"):
        raise UsageError("kubernetes needs a container image: set `image` under `options:` in bench.yaml")
    if options.get("mpi", "openmpi") not in _MPIS:
        raise UsageError(f"option mpi: {options['mpi']!r} is not one of {', '.join(_MPIS)}")
    return options


def _metadata(name: str, options: Mapping[str, str]) -> dict[str, Any]:
    return {"name": name, **({"namespace": options["namespace"]} if "namespace" in options else {})}


def _container(command: list[str], options: Mapping[str, str], env: Mapping[str, str]) -> dict[str, Any]:
    mounts = [{"name": "shm", "mountPath": "/dev/shm"}]
    mounts += [{"name": "results", "mountPath": _RESULTS}] if "results" in options else []
    resources = _pairs("resources", options)
    return {
        "name": "bench",
        "image": options["image"],
        **({"command": command} if command else {}),
        **({"env": _env(env)} if env else {}),
        # For extended resources, requests follow from limits.
        **({"resources": {"limits": resources}} if resources else {}),
        "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}},  # RDMA pins memory
        "volumeMounts": mounts,
    }


def _pod(container: Mapping[str, Any], options: Mapping[str, str]) -> dict[str, Any]:
    """One container with unlimited shared memory: a container's default of 64 MiB is too small for NCCL."""
    memory = {"medium": "Memory", **({"sizeLimit": options["shm"]} if "shm" in options else {})}
    volumes: list[dict[str, Any]] = [{"name": "shm", "emptyDir": memory}]
    if "results" in options:
        volumes.append({"name": "results", "persistentVolumeClaim": {"claimName": options["results"]}})
    return {
        "containers": [container],
        "volumes": volumes,
        **({"nodeSelector": _pairs("node-selector", options)} if "node-selector" in options else {}),
        **({"serviceAccountName": options["service-account"]} if "service-account" in options else {}),
    }


def _env(variables: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in variables.items()]


def _pairs(option: str, options: Mapping[str, str]) -> dict[str, str]:
    """An option such as `nvidia.com/gpu=8 vpc.amazonaws.com/efa=4`."""
    pairs = [word.partition("=") for word in options.get(option, "").split()]
    if not all(name and value for name, _, value in pairs):
        raise UsageError(f"option {option}: {options[option]!r} is not a list such as 'nvidia.com/gpu=8 other/thing=1'")
    return {name: value for name, _, value in pairs}


LAUNCHER = Kubernetes()
