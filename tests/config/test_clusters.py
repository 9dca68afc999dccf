"""bench.yaml and scenarios: every key, every mistake with its place, and the files that ship."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.config.clusters import Cluster, cluster, load_clusters
from bench.config.scenario import Measurement, Scenario, load_scenario
from bench.core.case import FACTORS, Case
from bench.core.errors import UsageError
from tests.facts import holds

ROOT = Path(__file__).parents[2]
Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Write a text to x.yaml in the working directory."""
    monkeypatch.chdir(tmp_path)

    def file(text: str) -> Path:
        path = Path("x.yaml")
        path.write_text(text, encoding="utf-8")
        return path

    return file


def scenario(write: Write, text: str) -> Scenario:
    return load_scenario(str(write(text)), Path())


def measurement(write: Write, lines: str) -> Measurement:
    body = "\n".join(f"    {line}" for line in lines.splitlines())
    return scenario(write, f"measure:\n  - pattern: allreduce\n{body}\n").measurements[0]


def entry(write: Write, lines: str) -> Cluster:
    body = "\n".join(f"    {line}" for line in lines.splitlines())
    return cluster(write(f"clusters:\n  mine:\n    nodes: 2\n{body}\n"), "mine")


def error_of(act: Callable[..., object], *args: Any) -> str:
    with pytest.raises(UsageError) as caught:
        act(*args)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def assert_reported(message: str, place: str, facts: tuple[str, ...]) -> None:
    """The message begins with the place, file:line:column and key, and names the facts."""
    assert message.startswith(f"{place}: ")
    assert all(fact in message.removeprefix(place) for fact in facts), message


def test_a_scenario_and_a_command_line_have_the_same_defaults(write: Write) -> None:
    found = measurement(write, "seed: 1")
    assert found == Measurement(("allreduce",), values={"seed": (1,)})
    case = Case("allreduce")
    assert {factor.name: found.values_of(factor) for factor in FACTORS} == {
        factor.name: (getattr(case, factor.name),) for factor in FACTORS
    }
    assert scenario(write, "measure: [{pattern: barrier}]").max_s == case.max_s


def test_every_key_of_a_measurement_is_read(write: Write) -> None:
    text = """\
description: all of it
budget: 2m
max_seconds: 0.5
launches: 3
measure:
  - patterns: [allreduce, broadcast]
    transports: [mpi, gloo]
    sizes: [8:64:2, 1M, 16]
    dtypes: [float, bfloat16]
    ops: [sum, max]
    mode: isolated
    topology: [world, groups of 2]
    order: [linear, '0,2,1,3']
    direction: [one-way, two-way]
    in_place: [true, false]
    cache: [hot, cold]
    roots: [0, 3]
    thread_level: [single, multiple]
    sync: none
    loop: [python, compiled]
    alignment: [64, 2M]
    bind: none
    like: nccl-tests
    window: 16
    matrix: 0,1;2,0
    nodes: [1, 2]
    ranks_per_node: 4
    iterations: 10
    warmup: 0
    seed: 7
    env: {NCCL_ALGO: [Ring, Tree], OMP_NUM_THREADS: 012}
"""
    found = scenario(write, text)
    assert (found.name, found.description, found.text) == ("x", "all of it", text)
    assert (found.budget_s, found.max_s, found.launches) == (120.0, 0.5, 3)
    assert found.measurements == (
        Measurement(
            patterns=("allreduce", "broadcast"),
            transports=("mpi", "gloo"),
            values={
                "sizes": ((8, 16, 32, 64, 1 << 20),),
                "dtype": ("float32", "bfloat16"),
                "reduce_op": ("sum", "max"),
                "mode": ("isolated",),
                "topology": ("world", "groups of 2"),
                "order": ("linear", "0,2,1,3"),
                "direction": ("one-way", "two-way"),
                "in_place": (True, False),
                "cache": ("hot", "cold"),
                "root": (0, 3),
                "thread_level": ("single", "multiple"),
                "sync": ("none",),
                "loop": ("python", "compiled"),
                "alignment": (64, 2 << 20),
                "bind": ("none",),
                "like": ("nccl-tests",),
                "window": (16,),
                "matrix": (((0, 1), (2, 0)),),
                "iterations": (10,),
                "warmup": (0,),
                "seed": (7,),
            },
            nodes=(1, 2),
            ranks_per_node=(4,),
            env={"NCCL_ALGO": ("Ring", "Tree"), "OMP_NUM_THREADS": ("012",)},
        ),
    )


@pytest.mark.parametrize(
    ("lines", "field", "value"),
    [
        ("sizes: 8", "sizes", ((8,),)),
        ("size: 1K", "sizes", ((1024,),)),
        ("transport: mpi", "transports", ("mpi",)),
        ("transports: auto", "transports", None),
        ("dtype: half", "dtype", ("float16",)),
        ("op: min", "reduce_op", ("min",)),
        ("topologies: rail", "topology", ("rail",)),
        ("order: [0, 2, 1, 3]", "order", ("0,2,1,3",)),
        ("orders: [linear, reverse]", "order", ("linear", "reverse")),
        ("in_place: true", "in_place", (True,)),
        ("matrix: [[0, 1], [2, 0]]", "matrix", (((0, 1), (2, 0)),)),
        ("require: {network: efa}", "require", ((("network", "efa"),),)),
        ("root: 2", "root", (2,)),
        ("nodes: 4", "nodes", (4,)),
        ("ranks_per_node: auto", "ranks_per_node", (None,)),
        ("env: {A: 1.10}", "env", {"A": ("1.10",)}),
        ("env: {A: NO}", "env", {"A": ("NO",)}),
    ],
)
def test_one_value_means_a_list_of_one(write: Write, lines: str, field: str, value: object) -> None:
    found = measurement(write, lines)
    assert (found.values[field] if field in found.values else getattr(found, field)) == value


@pytest.mark.parametrize(
    ("lines", "place", "facts"),
    [
        ("transports: [mpi, auto]", "3:17: measure.0.transports", ("auto",)),
        ("transport: mpu", "3:16: measure.0.transport", ("mpu", "mpi")),
        ("patern: x", "3:5: measure.0.patern", ("patern", "patterns")),
        ("patterns: barrier", "3:5: measure.0.patterns", ("pattern",)),
        ("sizes: [8, 1Q]", "3:16: measure.0.sizes.1", ("1Q",)),
        ("sizes: 64:8", "3:12: measure.0.sizes", ("(8)", "(64)")),
        ("sizes: []", "3:12: measure.0.sizes", ("empty",)),
        ("sizes: {a: 1}", "3:12: measure.0.sizes", ("one value", "mapping")),
        ("sizes:", "3:11: measure.0.sizes", ("",)),
        ("size: 0", "3:11: measure.0.size", ("0",)),
        ("dtypes: [[float32]]", "3:14: measure.0.dtypes.0", ("one value", "list")),
        ("op: summ", "3:9: measure.0.op", ("summ", "sum")),
        ("mode: [isolated]", "3:11: measure.0.mode", ("one value", "list")),
        ("topology: groups of 0", "3:15: measure.0.topology", ("groups of 0",)),
        ("in_place: maybe", "3:15: measure.0.in_place", ("maybe",)),
        ("roots: [0, -1]", "3:16: measure.0.roots.1", ("-1", "0 or more")),
        ("window: 0", "3:13: measure.0.window", ("0",)),
        ("matrix: [[0, 1], [2]]", "3:14: measure.0.matrix.0", ("0,1;2",)),
        ("nodes: [1, 0]", "3:16: measure.0.nodes.1", ("0", "1 or more")),
        ("ranks_per_node: 0", "3:21: measure.0.ranks_per_node", ("0",)),
        ("iterations: 1e3", "3:17: measure.0.iterations", ("1e3",)),
        ("seed: true", "3:11: measure.0.seed", ("true",)),
        ("env: 5", "3:10: measure.0.env", ("key: value",)),
        ("env: {1A: x}", "3:11: measure.0.env.1A", ("1A",)),
        ("env: {1: x}", "3:11: measure.0.env.1", ("1",)),
        ('env: {A: "\\0"}', "3:14: measure.0.env.A", ("zero byte",)),
    ],
)
def test_a_mistake_in_a_measurement_is_reported_at_its_place(
    write: Write, lines: str, place: str, facts: tuple[str, ...]
) -> None:
    assert_reported(error_of(measurement, write, lines), f"x.yaml:{place}", facts)


@pytest.mark.parametrize(
    ("text", "place", "facts"),
    [
        ("description: x", "x.yaml:1:1", ("measure",)),
        ("measure: []", "x.yaml:1:10: measure", ("list", "'- '")),
        ("measure: {pattern: barrier}", "x.yaml:1:10: measure", ("list", "'- '")),
        ("measure: [barrier]", "x.yaml:1:11: measure.0", ("key: value",)),
        ("measure: [{sizes: 8}]", "x.yaml:1:11: measure.0", ("patterns",)),
        ("measure: [{pattern: alreduce}]", "x.yaml:1:21: measure.0.pattern", ("alreduce",)),
        ("bugdet: 1m\nmeasure: [{pattern: barrier}]", "x.yaml:1:1: bugdet", ("bugdet",)),
        ("budget: 0s\nmeasure: [{pattern: barrier}]", "x.yaml:1:9: budget", ("0s",)),
        ("budget: [1m]\nmeasure: [{pattern: barrier}]", "x.yaml:1:9: budget", ("one value", "list")),
        ("launches: 0\nmeasure: [{pattern: barrier}]", "x.yaml:1:11: launches", ("0",)),
        ("measure: [{pattern: barrier, least_ranks: 0}]", "x.yaml:1:43: measure.0.least_ranks", ("0",)),
        ("- a", "x.yaml:1:1", ("key: value",)),
        ("just words", "x.yaml:1:1", ("key: value",)),
        ("1: 2\nmeasure: [{pattern: barrier}]", "x.yaml:1:1: 1", ("1",)),
    ],
)
def test_a_mistake_in_a_scenario_is_reported_at_its_place(
    write: Write, text: str, place: str, facts: tuple[str, ...]
) -> None:
    assert_reported(error_of(scenario, write, text), place, facts)


def test_a_misspelt_key_is_reported_before_the_key_that_it_leaves_missing(write: Write) -> None:
    assert holds(error_of(scenario, write, "measure: [{paterns: barrier}]"), "'paterns'", "'patterns'")


def test_a_scenario_is_found_by_name_and_an_unknown_name_lists_the_known(tmp_path: Path) -> None:
    (tmp_path / "smoke.yaml").write_text("measure: [{pattern: barrier}]\n", encoding="utf-8")
    assert load_scenario("smoke", tmp_path).name == "smoke"
    assert holds(error_of(load_scenario, "smok", tmp_path), "'smok'", "'smoke'")
    assert "elsewhere/x.yaml" in error_of(load_scenario, "elsewhere/x.yaml", tmp_path)


def test_every_key_of_a_cluster_is_read(write: Write) -> None:
    text = """\
instance: p4d.24xlarge
ranks_per_node: 8
launcher: mpirun
python: /opt/py
mpirun: /opt/mpirun
setup: [module load x, 'source y']
env: {A: 012, B: '', C: off}
options: {bind-to: core, time: 10:30, exclusive: ''}
hosts: [h0, h1]
links: {nic: 100 Gbit/s, nvlink: 150 GB/s}
nics: [eth0, eth1]
racks: {r1: [h0], r2: "h[1-1]"}"""
    assert entry(write, text) == Cluster(
        name="mine",
        instance="p4d.24xlarge",
        nodes=2,
        ranks_per_node=8,
        launcher="mpirun",
        python="/opt/py",
        mpirun="/opt/mpirun",
        setup=("module load x", "source y"),
        env={"A": "012", "B": "", "C": "off"},
        options={"bind-to": "core", "time": "10:30", "exclusive": ""},
        hosts=("h0", "h1"),
        links={"nic": 12.5e9, "nvlink": 150e9},
        nics=("eth0", "eth1"),
        racks={"r1": ("h0",), "r2": ("h1",)},
    )


@pytest.mark.parametrize(
    ("lines", "place", "facts"),
    [
        ("lancher: slurm", "4:5: clusters.mine.lancher", ("lancher", "launcher")),
        ("launcher: slrum", "4:15: clusters.mine.launcher", ("slrum", "slurm")),
        ("instance: p4d.24xl", "4:15: clusters.mine.instance", ("p4d.24xl",)),
        ("ranks_per_node: none", "4:21: clusters.mine.ranks_per_node", ("none",)),
        ("python: ''", "4:13: clusters.mine.python", ()),
        ("links: {nci: 1 GB/s}", "4:13: clusters.mine.links.nci", ("nci", "nic")),
        ("links: {nic: 1 GB}", "4:18: clusters.mine.links.nic", ("1 GB",)),
        (
            "hosts: [h0, h1]\nlauncher: slurm",
            "4:5: clusters.mine.hosts",
            ("hosts:", "options: {nodelist: ...}"),
        ),
        ("hosts: [h0, h1, h0]", "4:5: clusters.mine.hosts", ("h0",)),
        ("launcher: direct", "4:15: clusters.mine.launcher", ("direct", "2 nodes", "mpirun")),
        ("agent: ssh 'a", "4:12: clusters.mine.agent", ("ssh 'a",)),
        ("hosts: [h0, h1]\nracks: {r1: [h0], r2: [h9]}", "5:27: clusters.mine.racks.r2", ("h9", "hosts:")),
        (
            "hosts: [h0, h1]\nracks: {r1: [h0], r2: [h1, h0]}",
            "5:27: clusters.mine.racks.r2",
            ("h0", "r1"),
        ),
        ("racks: {r1: [h0, h0]}", "4:17: clusters.mine.racks.r1", ("h0",)),
        ("hosts: [h0]", "4:5: clusters.mine.hosts", ("1 hosts", "2 nodes")),
        ("hosts: [h0, '-x']", "4:17: clusters.mine.hosts.1", ("-x",)),
        ("hosts: ['h[0-7]', 'h[9-8]']", "4:23: clusters.mine.hosts.1", ("h[9-8]", "9-8")),
        ("nics: [eth0, 'a,b']", "4:18: clusters.mine.nics.1", ("a,b",)),
        ("racks: {'r=1': h0}", "4:13: clusters.mine.racks.r=1", ("r=1",)),
        ("options: {time: 5}", "4:5: clusters.mine.options", ("launcher:",)),
        ("options: {--time: 5}", "4:15: clusters.mine.options.--time", ("--time",)),
        ("env: [A=1]", "4:10: clusters.mine.env", ("key: value",)),
    ],
)
def test_a_mistake_in_a_cluster_is_reported_at_its_place(
    write: Write, lines: str, place: str, facts: tuple[str, ...]
) -> None:
    assert_reported(error_of(entry, write, lines), f"x.yaml:{place}", facts)


def test_a_cluster_without_nodes_is_refused(write: Write) -> None:
    path = write("clusters: {a: {nodes: 0}}")
    assert_reported(error_of(load_clusters, path), "x.yaml:1:23: clusters.a.nodes", ("'0'", "1 or more"))


def test_the_default_number_of_nodes_is_that_of_the_hosts(write: Write) -> None:
    clusters = load_clusters(write("clusters: {a: {hosts: 'h[0-3]'}, b: {hosts: 'h[0-3]', nodes: 2}, c: {}}"))
    assert [clusters[name].nodes for name in "abc"] == [4, 2, 1]


@pytest.mark.parametrize("typed", ["ssh -p 22 {host}", "[ssh, -p, 22, '{host}']"])
def test_an_agent_is_a_list_of_words_or_one_text(write: Write, typed: str) -> None:
    assert entry(write, f"agent: {typed}").agent == ("ssh", "-p", "22", "{host}")


def test_an_unknown_cluster_lists_the_known(write: Write) -> None:
    path = write("clusters: {alpha: {}, beta: {}}")
    assert holds(error_of(cluster, path, "alfa"), "'alfa'", "'alpha'")
    assert holds(error_of(cluster, path, "zzz"), "local,", "alpha,", "beta")


def test_local_exists_without_an_entry(write: Write) -> None:
    assert cluster(write("clusters: {alpha: {}}"), "local") == Cluster("local")
    assert cluster(write("clusters: {local: {nodes: 1, launcher: mpirun}}"), "local").launcher == "mpirun"


def test_a_cluster_goes_through_plain_data_and_back(write: Write) -> None:
    found = entry(write, "hosts: [a, b]\nlauncher: mpirun\nenv: {A: 1}")
    stored: dict[str, Any] = dataclasses.asdict(found)
    assert Cluster(**stored) == found


@pytest.mark.parametrize("path", sorted((ROOT / "scenarios").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_scenario_is_valid_and_described(path: Path) -> None:
    found = load_scenario(str(path), ROOT)
    assert found.description
    assert found.budget_s is not None


def test_the_shipped_clusters_are_valid_and_local_needs_no_setting() -> None:
    clusters = load_clusters(ROOT / "bench.yaml")
    assert clusters["local"] == Cluster("local")
    assert all(found.instance for name, found in clusters.items() if name != "local")
    assert clusters["p4d"].env["FI_PROVIDER"] == "efa"


def test_the_comments_of_bench_yaml_explain_every_key_of_a_cluster() -> None:
    comments = [
        line for line in (ROOT / "bench.yaml").read_text(encoding="utf-8").splitlines() if line.startswith("#   ")
    ]
    explained = {line.split()[1] for line in comments}
    assert {field.name for field in dataclasses.fields(Cluster)} - {"name", "site_instance", "differs"} <= explained
