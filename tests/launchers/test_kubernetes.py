"""Manifests: valid to the letter, and the whole way from `linkbench plan` to a report behind a kubectl that obeys."""

from __future__ import annotations

import copy
import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import pytest
import yaml

from bench.core.errors import UsageError
from bench.core.launcher import LaunchSite
from bench.core.world import World
from bench.launchers import kubernetes

ROOT = Path(__file__).resolve().parent.parent.parent
NCCL = ["-m", "bench.allreduce", "--transport", "nccl"]
MPI = ["-m", "bench.allreduce", "--transport", "mpi"]
OPTIONS = {
    "image": "example/bench:1",
    "namespace": "team",
    "resources": "nvidia.com/gpu=8 vpc.amazonaws.com/efa=4",
    "shm": "16Gi",
    "results": "claim",
    "node-selector": "pool=gpu",
    "service-account": "bench",
}
VERSION = "1.28"
Document = dict[str, Any]

# The fields of an MPIJob, besides its pods: spec of github.com/kubeflow/mpi-operator, v2beta1, as its custom resource
# definition has them (read in November 2026).
REPLICAS = {
    "type": "object",
    "additionalProperties": False,
    "required": ["template"],
    "properties": {
        "replicas": {"type": "integer"},
        "restartPolicy": {"enum": ["Always", "OnFailure", "Never", "ExitCode"]},
        "template": {"type": "object"},
    },
}
MPIJOB = {
    "type": "object",
    "additionalProperties": False,
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "properties": {
        "apiVersion": {"const": "kubeflow.org/v2beta1"},
        "kind": {"const": "MPIJob"},
        "metadata": {
            "type": "object",
            "additionalProperties": False,
            "properties": {"name": {"type": "string", "maxLength": 52}, "namespace": {"type": "string"}},
        },
        "spec": {
            "type": "object",
            "additionalProperties": False,
            "required": ["mpiReplicaSpecs"],
            "properties": {
                "slotsPerWorker": {"type": "integer", "minimum": 1},
                "launcherCreationPolicy": {"enum": ["AtStartup", "WaitForWorkersReady"]},
                "mpiImplementation": {"enum": ["OpenMPI", "Intel", "MPICH"]},
                "runPolicy": {
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {
                        "cleanPodPolicy": {"enum": ["None", "Running", "All"]},
                        "backoffLimit": {"type": "integer"},
                        "activeDeadlineSeconds": {"type": "integer"},
                    },
                },
                "mpiReplicaSpecs": {
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {"Launcher": REPLICAS, "Worker": REPLICAS},
                },
            },
        },
    },
}


def documents(program: list[str], num_nodes: int = 2, **options: str) -> list[Document]:
    """What kubectl would be given."""
    site = LaunchSite(python="python3", options={**OPTIONS, **options})
    text = kubernetes.LAUNCHER.manifest("job", program, World(num_nodes, 8), site, {"NCCL_DEBUG": "WARN"}, 900.0)
    return list(yaml.safe_load_all(text.partition("<<'EOF'\n")[2].partition("\nEOF\n")[0]))


@pytest.fixture
def valid(missing: Callable[[str, str], NoReturn]) -> Callable[[Document], bool]:
    """Does Kubernetes know every field of it?"""
    if importlib.util.find_spec("kubernetes_validate") is None:
        missing("kubernetes-validate", "kubernetes-validate is not installed (make install-dev)")
    import jsonschema
    import kubernetes_validate

    def core(document: Document) -> bool:
        try:
            kubernetes_validate.validate(document, VERSION, strict=True)
        except (kubernetes_validate.ValidationError, KeyError):  # the latter: it is no object at all
            return False
        return True

    def check(document: Document) -> bool:
        if document.get("kind") != "MPIJob":
            return core(document)
        try:
            jsonschema.validate(document, MPIJOB)
        except jsonschema.ValidationError:
            return False
        metadata = {"name": "pods"}
        return all(
            core({"apiVersion": "v1", "kind": "PodTemplate", "metadata": metadata, "template": replicas["template"]})
            for replicas in document["spec"]["mpiReplicaSpecs"].values()
        )

    return check


OVER_GPUS = ["-m", "bench.allreduce", "--transport", "mpi_cuda"]
ALL = [document for program in (NCCL, MPI, OVER_GPUS) for document in documents(program)]
KINDS = [document["kind"] for document in ALL]


@pytest.mark.parametrize("document", ALL, ids=KINDS)
def test_every_manifest_is_valid(valid: Callable[[Document], bool], document: Document) -> None:
    assert valid(document)


@pytest.mark.thin(4)
@pytest.mark.parametrize("document", ALL, ids=KINDS)
def test_a_misspelt_field_is_caught_wherever_it_is(valid: Callable[[Document], bool], document: Document) -> None:
    paths = list(fields(document))
    assert len(paths) > 8
    for path in paths:
        spoilt = copy.deepcopy(document)
        inside: Any = spoilt
        for key in path[:-1]:
            inside = inside[key]
        inside[f"{path[-1]}x"] = inside.pop(path[-1])
        assert not valid(spoilt), path


def fields(value: object, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every key that Kubernetes names: those of free maps are the user's."""
    if path and path[-1] in ("limits", "nodeSelector", "selector"):
        return
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        if isinstance(value, dict):
            yield (*path, key)
        yield from fields(inner, (*path, key))


def test_torchruns_meet_at_the_first_pod() -> None:
    service, job = documents(NCCL)
    assert [service["kind"], job["kind"]] == ["Service", "Job"]
    assert service["spec"]["clusterIP"] == "None" and service["spec"]["selector"] == {"job-name": "bench-job"}
    pod = job["spec"]["template"]["spec"]
    assert pod["subdomain"] == service["metadata"]["name"] == job["metadata"]["name"] == "bench-job"
    [container] = pod["containers"]
    assert {"name": "BENCH_MASTER", "value": "bench-job-0.bench-job"} in container["env"]
    assert container["command"] == [
        "python3",
        "-m",
        "torch.distributed.run",
        "--nproc-per-node=8",
        "--nnodes=2",
        "--node-rank=$(JOB_COMPLETION_INDEX)",
        "--master-addr=$(BENCH_MASTER)",
        "--master-port=29500",
        *NCCL,
        "--records",
        "/results/job.jsonl",
    ]
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == 2
    assert job["spec"]["backoffLimit"] == 0 and job["spec"]["activeDeadlineSeconds"] == 900


def test_every_pod_with_ranks_has_shared_memory_devices_and_may_pin_memory() -> None:
    for pod in (
        documents(NCCL)[1]["spec"]["template"],
        documents(MPI)[0]["spec"]["mpiReplicaSpecs"]["Worker"]["template"],
    ):
        [container] = pod["spec"]["containers"]
        assert {"name": "shm", "mountPath": "/dev/shm"} in container["volumeMounts"]
        assert {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"}} in pod["spec"]["volumes"]
        assert "IPC_LOCK" in container["securityContext"]["capabilities"]["add"]
        assert container["resources"] == {"limits": {"nvidia.com/gpu": "8", "vpc.amazonaws.com/efa": "4"}}
        assert {"name": "results", "persistentVolumeClaim": {"claimName": "claim"}} in pod["spec"]["volumes"]


@pytest.mark.parametrize("program", [MPI, OVER_GPUS])
def test_mpi_is_an_mpijob_whose_launcher_holds_no_gpu(program: list[str]) -> None:
    [job] = documents(program, mpi="mpich")
    replicas = job["spec"]["mpiReplicaSpecs"]
    assert (job["spec"]["slotsPerWorker"], replicas["Worker"]["replicas"]) == (8, 2)
    assert job["spec"]["mpiImplementation"] == "MPICH"
    [launcher] = replicas["Launcher"]["template"]["spec"]["containers"]
    assert launcher["command"][:5] == ["mpirun", "--bind-to", "none", "-n", "16"]
    assert {"name": "NCCL_DEBUG", "value": "WARN"} in launcher["env"] and "resources" not in launcher


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"image": ""}, "`image`"),
        ({"imgae": "x"}, "no option 'imgae'; did you mean 'image'"),
        ({"resources": "nvidia.com/gpu"}, "option resources: 'nvidia.com/gpu'"),
        ({"mpi": "lam"}, "option mpi: 'lam' .* openmpi, mpich, intel"),
    ],
)
def test_a_wrong_option_is_refused(options: Mapping[str, str], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        documents(NCCL, 2, **options)


def test_names_are_dns_labels() -> None:
    assert kubernetes.resource_name("allreduce-nccl-2x8-groups_of_2.x") == "bench-allreduce-nccl-2x8-groups-of-2-x"
    long = kubernetes.resource_name("a" * 45 + "-" * 20 + "b")
    assert len(long) <= 52 and long[-1].isalnum()


# A cluster of one pod on this machine: what the manifest asks for runs when its log is asked for.
KUBECTL = """\
import os, subprocess, sys
import yaml
words, store = sys.argv[1:], os.environ["STORE"]
if words[0] == "apply":
    open(store, "w").write(sys.stdin.read())
    sys.exit(int(os.environ.get("REFUSE", 0)))
elif words[:2] == ["get", "pods"]:
    print("Pending ImagePullBackOff")
elif words[0] == "get":
    with open(store + ".asked", "a") as asked:
        asked.write("x")
    print(os.environ.get("ENDED", "Running Complete") if os.path.getsize(store + ".asked") > 1 else "Created")
elif words[0] == "logs":
    job = list(yaml.safe_load_all(open(store)))[-1]
    template = job["spec"].get("template") or job["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]
    [container] = template["spec"]["containers"]
    env = os.environ | {item["name"]: item["value"] for item in container["env"]} | {"JOB_COMPLETION_INDEX": "0"}
    sys.exit(subprocess.run(container["command"], env=env).returncode)
else:
    open(store + ".deleted", "a").write(" ".join(words) + "\\n")
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    """A folder with such a kubectl and a cluster that uses it."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "kubectl.py").write_text(KUBECTL, encoding="utf-8")
    for name, line in (
        ("kubectl", f'{sys.executable} {tmp_path / "kubectl.py"} "$@"'),
        ("python3", f'{sys.executable} "$@"'),
    ):
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\nexec {line}\n", encoding="utf-8")
        (tmp_path / "bin" / name).chmod(0o755)
    pod = "{nodes: 1, ranks_per_node: 2, launcher: kubernetes, options: {image: 'example/bench:1'}}"
    (tmp_path / "bench.yaml").write_text(f"clusters: {{pods: {pod}}}\n", encoding="utf-8")
    entry = "{patterns: [allreduce, pingpong], transport: mpi, sizes: [64, 4K], mode: isolated}"
    (tmp_path / "one.yaml").write_text(f"max_seconds: 0.05\nmeasure: [{entry}]\n", encoding="utf-8")
    return tmp_path


def shell(cluster: Path, line: str, **more: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(cluster / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]])
    env = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT), "STORE": str(cluster / "store"), "RESULTS": "r"} | more
    return subprocess.run(["sh", "-c", line], cwd=cluster, env=env, capture_output=True, text=True, check=False)


PLAN = f"{sys.executable} -m bench plan one.yaml --cluster pods | sh"


@pytest.mark.slow
@pytest.mark.mpi
def test_the_plan_is_a_shell_script_that_brings_the_samples_home(cluster: Path) -> None:
    done = shell(cluster, PLAN)
    assert done.returncode == 0, done.stderr
    assert "allreduce-mpi-1x2: Pending ImagePullBackOff" in done.stderr, "what it waits for"
    report = shell(cluster, f"{sys.executable} -m bench report r --format csv")
    assert report.returncode == 0, report.stderr
    assert len(report.stdout.splitlines()) == 1 + 4
    assert (cluster / "store.deleted").read_text().count("mpijob/") == 2, "nothing stays on the cluster"


@pytest.mark.slow
@pytest.mark.mpi
def test_a_failed_job_is_reported_and_fails_the_script(cluster: Path) -> None:
    done = shell(cluster, PLAN, ENDED="Running FailureTarget Failed")
    assert done.returncode == 4
    told = [line for line in done.stderr.splitlines() if line.startswith("FAILED: ")]
    assert told == [f"FAILED: {job}, see r/{job}.log" for job in ("allreduce-mpi-1x2", "pingpong-mpi-1x2")]
    assert (cluster / "r" / "allreduce-mpi-1x2.log").stat().st_size > 0, "what it printed is kept"


def test_a_rejected_manifest_fails_at_once(cluster: Path) -> None:
    done = shell(cluster, PLAN, REFUSE="1")
    assert done.returncode == 4
    assert done.stderr.count(" rejected ") == 2
    assert not (cluster / "store.asked").exists() and not list((cluster / "r").iterdir())


def test_ctrl_c_leaves_nothing_on_the_cluster(cluster: Path) -> None:
    path = os.pathsep.join([str(cluster / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]])
    env = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT), "STORE": str(cluster / "store"), "RESULTS": "r"}
    plan = shell(cluster, PLAN.removesuffix(" | sh")).stdout
    with subprocess.Popen(
        ["sh", "-c", plan],
        cwd=cluster,
        env=env | {"ENDED": "Running"},
        start_new_session=True,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stderr is not None
        assert "Pending" in running.stderr.readline()
        os.killpg(running.pid, signal.SIGINT)
        assert running.wait(60) == 130
    assert (cluster / "store.deleted").read_text().count("delete") == 1, "and the next job was not begun"


def test_run_refers_to_the_plan(cluster: Path) -> None:
    done = shell(cluster, f"{sys.executable} -m bench run one.yaml --cluster pods")
    assert done.returncode == 3
    assert all(fact in done.stderr for fact in ("kubernetes", "'pods'", "`plan`", "make plan"))
