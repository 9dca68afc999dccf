"""Start ranks on Kubernetes. The user's kubectl applies a manifest for each job. torchrun or mpirun starts the ranks.

Gloo and NCCL need no operator. An Indexed Job (batch/v1; Kubernetes 1.28 or later) runs one torchrun in each pod. The
first pod hosts the rendezvous of all torchruns. A headless Service gives this pod its name. MPI needs an MPIJob
(kubeflow.org/v2beta1) of the MPI Operator, whose launcher pod runs mpirun. The first rank writes the samples to its
output or to a volume claim.

Pods of Gloo and NCCL satisfy the Pod Security Standard `restricted`, and pods of MPI satisfy `baseline`. Pods with RDMA
satisfy neither standard, because RDMA needs IPC_LOCK. The job's script reads the secret values of `env:` from its shell
variables and stores these values in a Secret.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

from bench.core.errors import UsageError
from bench.core.launcher import Launcher, LaunchSite
from bench.core.plugins import nearest
from bench.core.secret_values import FROM_ENVIRONMENT, masked
from bench.core.traits import traits
from bench.core.world import RankInfo, World
from bench.launchers._variables import check_one_line, long_options

_OPTIONS = (
    "image",
    "namespace",
    "resources",
    "shm",
    "results",
    "node-selector",
    "service-account",
    "mpi",
    "user",
    "rdma",
)
_MPIS = {"openmpi": "OpenMPI", "mpich": "MPICH", "intel": "Intel"}
_MOST_NAME = 52  # a pod's name adds an index to this name, and must be a DNS label
_RESULTS = "/results"
# recognises the resource name of an RDMA device
_RDMA_DEVICE = re.compile(r"rdma|efa|hca|infiniband|roce|mlnx", re.IGNORECASE)
# Capabilities that sshd needs to run as root. The Pod Security Standard `baseline` allows all of them.
_RIGHTS_OF_SSHD: tuple[str, ...] = (
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "KILL",
    "NET_BIND_SERVICE",
    "SETGID",
    "SETUID",
    "SYS_CHROOT",
)
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
        """Return None, because torchrun or mpirun sets the rank of each process in a pod."""
        return None

    def command(self, program: list[str], world: World, site: LaunchSite, env: Mapping[str, str]) -> list[str]:
        """Return the command that runs in the pods. With MPI, the launcher pod runs mpirun.

        Otherwise, each pod runs torchrun. In the command, kubelet replaces $(JOB_COMPLETION_INDEX) with the index of
        the pod.
        """
        if _needs_mpi(program):
            # The launcher's pod has the variables. Hydra passes all of them to the ranks. Open MPI passes only those
            # that the command names.
            openmpi = site.options.get("mpi", "openmpi") == "openmpi"
            names = [word for name in env for word in ("-x", name)] if openmpi else []
            return ["mpirun", "--bind-to", "none", *names, "-n", str(world.num_ranks), site.python, *program]
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
        """Return shell lines that run the job.

        The lines apply the manifest, wait until the job ends, store its output and samples, and delete it. Ctrl-C also
        deletes the job. The lines print the state of the pods when the state changes. The last line has a nonzero exit
        code if this job or an earlier job failed.

        Raises UsageError if an option is missing, unknown or wrong.
        """
        import yaml  # every rank loads all launchers

        options = _checked(site.options)
        records = f"{_RESULTS}/{job}.jsonl" if "results" in options else "/dev/stdout"
        command = self.command([*program, "--records", records], world, site, env)
        name, deadline, mpi = resource_name(job), round(deadline_s), _needs_mpi(program)
        documents = (
            [mpi_job(name, command, world, options, env, deadline)]
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
        log, rows = (f'"$RESULTS"/{shlex.quote(f"{job}.{kind}")}' for kind in ("log", "jsonl"))
        kept = f"""grep '^{{"type":' {log} > {rows} || rm {rows}"""
        secrets = [variable for variable, value in env.items() if _is_secret(variable, value)]
        others = [*([] if mpi else [f"service/{name}"]), *([f"secret/{name}"] if secrets else [])]
        delete = " ".join([kubectl, "delete", "--ignore-not-found", what, *others])
        state = f"{kubectl} get pods -l {pods} -o jsonpath='{_PODS}'"
        return "\n".join(
            [
                'mkdir -p "${RESULTS:=results/$(date -u +%Y%m%d-%H%M%S)-kubernetes}"',
                f"trap {shlex.quote(f'{delete}; exit 130')} INT",
                f"trap {shlex.quote(f'{delete}; exit 143')} TERM",
                "ended= shown=",
                *_secret(kubectl, name, secrets),
                f"if {kubectl} apply -f - <<'EOF'",
                yaml.safe_dump_all(documents, sort_keys=False, width=1000).rstrip(),
                "EOF",
                "then",
                f"  while ended=$({end}) && ! echo \"$ended\" | grep -qwE 'Complete|Succeeded|Failed'; do",
                f"    state=$({state})",
                f'    [ "$state" = "$shown" ] || echo {shlex.quote(job)}": ${{state:-no pods yet}}" >&2',
                "    shown=$state",
                "    sleep 2",
                "  done",
                f"  {kubectl} logs --tail=-1 {first} > {log}",
                f"  # its samples: {job}.jsonl on the claim {options['results']}"
                if "results" in options
                else f"  {kept}",
                "  echo \"$ended\" | grep -qwE 'Complete|Succeeded' ||",
                f"    {{ FAILED=4; echo {shlex.quote(f'FAILED: {job}, see ')}{log} >&2; }}",
                "else",
                f"  FAILED=4; echo {shlex.quote(f'FAILED: {job}, kubectl rejected its manifest')} >&2",
                "fi",
                delete,
                "trap - INT TERM",
                '(exit "${FAILED:-0}")  # of all jobs so far',
            ]
        )


def service(name: str, options: Mapping[str, str]) -> dict[str, Any]:
    """Return the Service that gives a DNS name to each pod of the Job, even before the pod is ready."""
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {"job-name": name}}
    return {"apiVersion": "v1", "kind": "Service", "metadata": _metadata(name, options), "spec": spec}


def indexed_job(
    name: str, command: list[str], world: World, options: Mapping[str, str], env: Mapping[str, str], deadline: int
) -> dict[str, Any]:
    """Return a Job with one pod for each node. The first pod that fails ends the Job."""
    variables = {"BENCH_MASTER": f"{name}-0.{name}", **env}
    container = _container(name, command, options, variables)
    spec = {
        "completionMode": "Indexed",
        "completions": world.num_nodes,
        "parallelism": world.num_nodes,
        "backoffLimit": 0,
        "activeDeadlineSeconds": deadline,
        "template": {"spec": {"subdomain": name, "restartPolicy": "Never", **_pod(container, options)}},
    }
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": _metadata(name, options), "spec": spec}


def mpi_job(
    name: str, command: list[str], world: World, options: Mapping[str, str], env: Mapping[str, str], deadline: int
) -> dict[str, Any]:
    """Return an MPIJob with a launcher without GPUs, and one worker for each node. Workers run the image's sshd."""
    launcher = {
        "name": "bench",
        "image": options["image"],
        "command": command,
        "env": _env(name, {**_CONSENT, **env}),
        "securityContext": _container_rights(),
    }
    of_pod = _pod_rights(options, needs_root="user" not in options)
    of_sshd = _RIGHTS_OF_SSHD if of_pod.get("runAsUser", 0) == 0 else ("NET_BIND_SERVICE",)
    worker = _container(name, [], options, {})
    worker["securityContext"] = _container_rights(*of_sshd, *_locking(options))
    spec = {
        "slotsPerWorker": world.ranks_per_node,
        "launcherCreationPolicy": "WaitForWorkersReady",
        "runPolicy": {"cleanPodPolicy": "Running", "backoffLimit": 0, "activeDeadlineSeconds": deadline},
        "mpiImplementation": _MPIS[options.get("mpi", "openmpi")],
        "mpiReplicaSpecs": {
            "Launcher": {
                "replicas": 1,
                "restartPolicy": "Never",
                "template": {
                    "spec": {
                        "containers": [launcher],
                        "automountServiceAccountToken": False,
                        "securityContext": of_pod,
                    }
                },
            },
            "Worker": {
                "replicas": world.num_nodes,
                "restartPolicy": "Never",
                "template": {"spec": {**_pod(worker, options), "securityContext": of_pod}},
            },
        },
    }
    return {"apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob", "metadata": _metadata(name, options), "spec": spec}


def resource_name(job: str) -> str:
    """Return a job's name as a DNS label.

    For example, allreduce-nccl-2x8-groups_of_2 becomes allreduce-nccl-2x8-groups-of-2.
    """
    return re.sub(r"[^a-z0-9]+", "-", f"bench-{job}".lower())[:_MOST_NAME].strip("-")


def _is_secret(variable: str, value: str) -> bool:
    return value == FROM_ENVIRONMENT or masked(variable, value) != value


def _secret(kubectl: str, name: str, variables: list[str]) -> list[str]:
    """Return shell lines that make a Secret from these shell variables.

    No value appears on a command line, because printf is a shell builtin and kubectl reads the values from standard
    input.
    """
    if not variables:
        return []
    values = " ".join(f'"{variable}=${{{variable}:?}}"' for variable in variables)
    return [
        f"{kubectl} delete --ignore-not-found secret/{name}",
        f"printf '%s\\n' {values} | {kubectl} create secret generic {name} --from-env-file=/dev/stdin",
    ]


def _container_rights(*capabilities: str) -> dict[str, Any]:
    added = {"add": list(capabilities)} if capabilities else {}
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"], **added}}


def _pod_rights(options: Mapping[str, str], needs_root: bool = False) -> dict[str, Any]:
    """Return the user and rights of a pod.

    The user is root only if `user: 0` is set, or if the image's sshd needs root.
    """
    user = int(options["user"]) if "user" in options else None
    rights: dict[str, Any] = {"seccompProfile": {"type": "RuntimeDefault"}}
    if user != 0 and not needs_root:
        rights["runAsNonRoot"] = True
    if user is not None:
        rights["runAsUser"] = user
        rights["fsGroup"] = user  # this user can write to the volume claim of `results`
    return rights


def _locking(options: Mapping[str, str]) -> tuple[str, ...]:
    """Return the capability to lock memory if the pods use RDMA, and otherwise an empty tuple.

    The option `rdma` says whether the pods use RDMA. Without this option, the pods use RDMA if `resources` names an
    RDMA device.
    """
    named = any(_RDMA_DEVICE.search(device) for device in _pairs("resources", options))
    return ("IPC_LOCK",) if options.get("rdma", "yes" if named else "no") == "yes" else ()


def _needs_mpi(words: list[str]) -> bool:
    return "--transport" in words and traits(words[words.index("--transport") + 1]).over_mpi


def _checked(options: Mapping[str, str]) -> Mapping[str, str]:
    for name in options:
        if name not in _OPTIONS:
            raise UsageError(f"kubernetes has no option {name!r}{nearest(name, _OPTIONS)}")
    if not options.get("image"):
        raise UsageError("kubernetes needs a container image: set `image` under `options:` in bench.yaml")
    check_one_line(options)
    if options.get("rdma", "no") not in ("yes", "no"):
        raise UsageError(f"option rdma: {options['rdma']!r} is not yes or no")
    if not re.fullmatch(r"[0-9]{1,9}", options.get("user", "0")):
        raise UsageError(f"option user: {options['user']!r} is not the number of a user, such as 1000")
    if options.get("mpi", "openmpi") not in _MPIS:
        raise UsageError(f"option mpi: {options['mpi']!r} is not one of {', '.join(_MPIS)}")
    return options


def _metadata(name: str, options: Mapping[str, str]) -> dict[str, Any]:
    return {"name": name, **({"namespace": options["namespace"]} if "namespace" in options else {})}


def _container(name: str, command: list[str], options: Mapping[str, str], env: Mapping[str, str]) -> dict[str, Any]:
    mounts = [{"name": "shm", "mountPath": "/dev/shm"}]
    mounts += [{"name": "results", "mountPath": _RESULTS}] if "results" in options else []
    resources = _pairs("resources", options)
    return {
        "name": "bench",
        "image": options["image"],
        **({"command": command} if command else {}),
        **({"env": _env(name, env)} if env else {}),
        # Kubernetes sets the requests of extended resources to their limits.
        **({"resources": {"limits": resources}} if resources else {}),
        "securityContext": _container_rights(*_locking(options)),
        "volumeMounts": mounts,
    }


def _pod(container: Mapping[str, Any], options: Mapping[str, str]) -> dict[str, Any]:
    """Return a pod with one container.

    The option `shm` limits the shared memory. Without this option, the shared memory has no limit, because a
    container's default of 64 MiB is too small for NCCL.
    """
    memory = {"medium": "Memory", **({"sizeLimit": options["shm"]} if "shm" in options else {})}
    volumes: list[dict[str, Any]] = [{"name": "shm", "emptyDir": memory}]
    if "results" in options:
        volumes.append({"name": "results", "persistentVolumeClaim": {"claimName": options["results"]}})
    return {
        "containers": [container],
        "volumes": volumes,
        "securityContext": _pod_rights(options),
        "automountServiceAccountToken": False,  # no token, because ranks never call the cluster's API
        **({"nodeSelector": _pairs("node-selector", options)} if "node-selector" in options else {}),
        **({"serviceAccountName": options["service-account"]} if "service-account" in options else {}),
    }


def _env(job: str, variables: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return a container's environment variables.

    A variable with a secret value refers to the job's Secret and does not contain the value.
    """
    listed: list[dict[str, Any]] = []
    for name, value in variables.items():
        if _is_secret(name, value):
            listed.append({"name": name, "valueFrom": {"secretKeyRef": {"name": job, "key": name}}})
        else:
            listed.append({"name": name, "value": value})
    return listed


def _pairs(option: str, options: Mapping[str, str]) -> dict[str, str]:
    """Return the names and values of an option such as `nvidia.com/gpu=8 vpc.amazonaws.com/efa=4`."""
    pairs = [word.partition("=") for word in options.get(option, "").split()]
    if not all(name and value for name, _, value in pairs):
        raise UsageError(f"option {option}: {options[option]!r} is not a list such as 'nvidia.com/gpu=8 other/thing=1'")
    return {name: value for name, _, value in pairs}


LAUNCHER = Kubernetes()
