"""bench.yaml and scenarios: every key, every mistake with its place, and the files that ship."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.config.clusters import Cluster, cluster, load_clusters
from bench.config.scenario import Measurement, Scenario, load_scenario
from bench.core.case import Case
from bench.core.errors import UsageError

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


def told(act: Callable[..., object], *args: Any) -> str:
    with pytest.raises(UsageError) as caught:
        act(*args)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_a_scenario_leaves_out_is_what_a_command_line_leaves_out(write: Write) -> None:
    found = measurement(write, "seed: 1")
    case = Case("allreduce")
    assert found == Measurement(("allreduce",))
    assert found.sizes == case.sizes
    assert (found.dtypes, found.modes, found.caches, found.window) == (
        (case.dtype,),
        case.mode,
        (case.cache,),
        case.window,
    )
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
            sizes=(8, 16, 32, 64, 1 << 20),
            dtypes=("float32", "bfloat16"),
            reduce_ops=("sum", "max"),
            modes="isolated",
            topologies=("world", "groups of 2"),
            orders=("linear", "0,2,1,3"),
            directions=("one-way", "two-way"),
            in_place=(True, False),
            caches=("hot", "cold"),
            roots=(0, 3),
            thread_levels=("single", "multiple"),
            syncs=("none",),
            loops=("python", "compiled"),
            alignments=(64, 2 << 20),
            binds=("none",),
            like="nccl-tests",
            window=16,
            matrix=((0, 1), (2, 0)),
            nodes=(1, 2),
            ranks_per_node=(4,),
            iterations=10,
            warmup=0,
            seed=7,
            env={"NCCL_ALGO": ("Ring", "Tree"), "OMP_NUM_THREADS": ("012",)},
        ),
    )


@pytest.mark.parametrize(
    ("lines", "field", "value"),
    [
        ("sizes: 8", "sizes", (8,)),
        ("size: 1K", "sizes", (1024,)),
        ("transport: mpi", "transports", ("mpi",)),
        ("transports: auto", "transports", None),
        ("dtype: half", "dtypes", ("float16",)),
        ("op: min", "reduce_ops", ("min",)),
        ("topologies: rail", "topologies", ("rail",)),
        ("order: [0, 2, 1, 3]", "orders", ("0,2,1,3",)),
        ("orders: [linear, reverse]", "orders", ("linear", "reverse")),
        ("in_place: true", "in_place", (True,)),
        ("matrix: [[0, 1], [2, 0]]", "matrix", ((0, 1), (2, 0))),
        ("root: 2", "roots", (2,)),
        ("nodes: 4", "nodes", (4,)),
        ("ranks_per_node: auto", "ranks_per_node", (None,)),
        ("env: {A: 1.10}", "env", {"A": ("1.10",)}),
        ("env: {A: NO}", "env", {"A": ("NO",)}),
    ],
)
def test_one_value_stands_for_a_list_of_it(write: Write, lines: str, field: str, value: object) -> None:
    assert getattr(measurement(write, lines), field) == value


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ("transports: [mpi, auto]", "3:17: measure.0.transports: auto chooses the transports"),
        ("transport: mpu", "3:16: measure.0.transport: no transport is called 'mpu'; did you mean 'mpi'?"),
        ("patern: x", "3:5: measure.0.patern: no key is called 'patern'; did you mean 'patterns'?"),
        ("patterns: barrier", "3:5: measure.0.patterns: this key is also there as 'pattern': keep one of them"),
        ("sizes: [8, 1Q]", "3:16: measure.0.sizes.1: size '1Q' is not a number of bytes"),
        ("sizes: 64:8", "3:12: measure.0.sizes: sizes end (8) before they begin (64)"),
        ("sizes: []", "3:12: measure.0.sizes: the list is empty"),
        ("sizes: {a: 1}", "3:12: measure.0.sizes: must be one value, not a mapping"),
        ("sizes:", "3:11: measure.0.sizes: size '' is not a number"),
        ("size: 0", "3:11: measure.0.size: size '0' is zero"),
        ("dtypes: [[float32]]", "3:14: measure.0.dtypes.0: must be one value, not a list"),
        ("op: summ", "3:9: measure.0.op: no reduce operation is called 'summ'; did you mean 'sum'?"),
        ("mode: [isolated]", "3:11: measure.0.mode: must be one value, not a list"),
        ("topology: groups of 0", "3:15: measure.0.topology: no topology is called 'groups of 0'"),
        ("in_place: maybe", "3:15: measure.0.in_place: 'maybe' must be true or false"),
        ("roots: [0, -1]", "3:16: measure.0.roots.1: root '-1' must be a whole number of 0 or more"),
        ("window: 0", "3:13: measure.0.window: window '0' must be"),
        ("matrix: [[0, 1], [2]]", "3:14: measure.0.matrix.0: traffic matrix"),
        ("nodes: [1, 0]", "3:16: measure.0.nodes.1: nodes '0' must be a whole number of 1 or more"),
        ("ranks_per_node: 0", "3:21: measure.0.ranks_per_node: ranks per node '0' must be"),
        ("iterations: 1e3", "3:17: measure.0.iterations: iterations '1e3' must be"),
        ("seed: true", "3:11: measure.0.seed: seed 'true' must be"),
        ("env: 5", "3:10: measure.0.env: lines of `key: value` must stand here"),
        ("env: {1A: x}", "3:11: measure.0.env.1A: '1A' is not the name of an environment variable"),
        ("env: {1: x}", "3:11: measure.0.env.1: '1' is not the name"),
        ('env: {A: "\\0"}', "3:14: measure.0.env.A: a variable can not hold a zero byte"),
    ],
)
def test_a_mistake_in_a_measurement_is_told_with_its_place(write: Write, lines: str, sentence: str) -> None:
    assert told(measurement, write, lines).startswith(f"x.yaml:{sentence}")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("description: x", "x.yaml:1:1: the key 'measure' is missing"),
        ("measure: []", "x.yaml:1:10: measure: a list of at least one entry"),
        ("measure: {pattern: barrier}", "x.yaml:1:10: measure: a list of at least one entry"),
        ("measure: [barrier]", "x.yaml:1:11: measure.0: lines of `key: value` must stand here"),
        ("measure: [{sizes: 8}]", "x.yaml:1:11: measure.0: the key 'patterns' is missing"),
        ("measure: [{pattern: alreduce}]", "x.yaml:1:21: measure.0.pattern: no pattern is called 'alreduce'; did you"),
        ("bugdet: 1m\nmeasure: [{pattern: barrier}]", "x.yaml:1:1: bugdet: no key is called 'bugdet'; did you mean"),
        ("budget: 0s\nmeasure: [{pattern: barrier}]", "x.yaml:1:9: budget: duration '0s' must be above zero"),
        ("budget: [1m]\nmeasure: [{pattern: barrier}]", "x.yaml:1:9: budget: must be one value"),
        ("launches: 0\nmeasure: [{pattern: barrier}]", "x.yaml:1:11: launches: '0' must be a whole number of 1"),
        ("measure: [{pattern: barrier, least_ranks: 0}]", "x.yaml:1:43: measure.0.least_ranks: '0' must be a whole"),
        ("- a", "x.yaml:1:1: lines of `key: value` must stand here"),
        ("just words", "x.yaml:1:1: lines of `key: value` must stand here"),
        ("1: 2\nmeasure: [{pattern: barrier}]", "x.yaml:1:1: 1: no key is called '1'"),
    ],
)
def test_a_mistake_in_a_scenario_is_told_with_its_place(write: Write, text: str, sentence: str) -> None:
    assert told(scenario, write, text).startswith(sentence)


def test_a_misspelt_key_is_told_before_the_key_that_it_leaves_missing(write: Write) -> None:
    assert "did you mean 'patterns'" in told(scenario, write, "measure: [{paterns: barrier}]")


def test_a_scenario_is_found_by_name_and_an_unknown_name_lists_the_known(tmp_path: Path) -> None:
    (tmp_path / "smoke.yaml").write_text("measure: [{pattern: barrier}]\n", encoding="utf-8")
    assert load_scenario("smoke", tmp_path).name == "smoke"
    assert "no scenario 'smok'; did you mean 'smoke'?" in told(load_scenario, "smok", tmp_path)
    assert "can not be read" in told(load_scenario, "elsewhere/x.yaml", tmp_path)


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
    ("lines", "sentence"),
    [
        ("lancher: slurm", "4:5: clusters.mine.lancher: no key is called 'lancher'; did you mean 'launcher'?"),
        ("launcher: slrum", "4:15: clusters.mine.launcher: no launcher is called 'slrum'; did you mean 'slurm'?"),
        ("instance: p4d.24xl", "4:15: clusters.mine.instance: no instance type is called 'p4d.24xl'; did you mean"),
        ("ranks_per_node: none", "4:21: clusters.mine.ranks_per_node: ranks per node 'none' must be"),
        ("python: ''", "4:13: clusters.mine.python: some text must stand here"),
        ("links: {nci: 1 GB/s}", "4:13: clusters.mine.links.nci: no link is called 'nci'; did you mean 'nic'?"),
        ("links: {nic: 1 GB}", "4:18: clusters.mine.links.nic: rate '1 GB' is not one such as"),
        (
            "hosts: [h0, h1]\nlauncher: slurm",
            "4:5: clusters.mine.hosts: slurm chooses the hosts by itself: leave `hosts:` out, or say "
            "`options: {nodelist: ...}`",
        ),
        ("hosts: [h0, h1, h0]", "4:5: clusters.mine.hosts: h0 is named twice"),
        ("launcher: direct", "4:15: clusters.mine.launcher: direct starts one process here, not 2 nodes"),
        ("agent: ssh 'a", '4:12: clusters.mine.agent: "ssh \'a" has a quotation that does not end'),
        ("hosts: [h0, h1]\nracks: {r1: [h0], r2: [h9]}", "5:27: clusters.mine.racks.r2: h9 is none of `hosts:`"),
        (
            "hosts: [h0, h1]\nracks: {r1: [h0], r2: [h1, h0]}",
            "5:27: clusters.mine.racks.r2: h0 is in r1 as well: a host stands in one rack",
        ),
        ("racks: {r1: [h0, h0]}", "4:17: clusters.mine.racks.r1: h0 is named twice"),
        ("hosts: [h0]", "4:5: clusters.mine.hosts: 1 of the 2 nodes have a name here"),
        ("hosts: [h0, '-x']", "4:17: clusters.mine.hosts.1: '-x' is not a host's name"),
        ("hosts: ['h[0-7]', 'h[9-8]']", "4:23: clusters.mine.hosts.1: 'h[9-8]': '9-8' is not a range of numbers"),
        ("nics: [eth0, 'a,b']", "4:18: clusters.mine.nics.1: 'a,b' is not a network interface's name"),
        ("racks: {'r=1': h0}", "4:13: clusters.mine.racks.r=1: 'r=1' is not a rack's name"),
        ("options: {time: 5}", "4:5: clusters.mine.options: options belong to one launcher"),
        ("options: {--time: 5}", "4:15: clusters.mine.options.--time: '--time' is not an option's name"),
        ("env: [A=1]", "4:10: clusters.mine.env: lines of `key: value` must stand here"),
    ],
)
def test_a_mistake_in_a_cluster_is_told_with_its_place(write: Write, lines: str, sentence: str) -> None:
    assert told(entry, write, lines).startswith(f"x.yaml:{sentence}")


def test_a_cluster_without_nodes_is_refused(write: Write) -> None:
    path = write("clusters: {a: {nodes: 0}}")
    assert told(load_clusters, path).startswith("x.yaml:1:23: clusters.a.nodes: nodes '0' must be")


def test_nodes_are_as_many_as_hosts_unless_said(write: Write) -> None:
    clusters = load_clusters(write("clusters: {a: {hosts: 'h[0-3]'}, b: {hosts: 'h[0-3]', nodes: 2}, c: {}}"))
    assert [clusters[name].nodes for name in "abc"] == [4, 2, 1]


@pytest.mark.parametrize("typed", ["ssh -p 22 {host}", "[ssh, -p, 22, '{host}']"])
def test_an_agent_is_words_or_a_text_of_them(write: Write, typed: str) -> None:
    assert entry(write, f"agent: {typed}").agent == ("ssh", "-p", "22", "{host}")


def test_an_unknown_cluster_lists_the_known(write: Write) -> None:
    path = write("clusters: {alpha: {}, beta: {}}")
    assert told(cluster, path, "alfa").endswith("no cluster 'alfa'; did you mean 'alpha'?")
    assert told(cluster, path, "zzz").endswith("there are: local, alpha, beta")


def test_local_is_there_without_being_written_down(write: Write) -> None:
    assert cluster(write("clusters: {alpha: {}}"), "local") == Cluster("local")
    assert cluster(write("clusters: {local: {nodes: 1, launcher: mpirun}}"), "local").launcher == "mpirun"


def test_a_cluster_goes_through_plain_data_and_back(write: Write) -> None:
    found = entry(write, "hosts: [a, b]\nlauncher: mpirun\nenv: {A: 1}")
    stored: dict[str, Any] = dataclasses.asdict(found)
    assert Cluster(**stored) == found


@pytest.mark.parametrize("path", sorted((ROOT / "scenarios").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_scenario_that_ships_is_valid_and_says_what_it_is_for(path: Path) -> None:
    found = load_scenario(str(path), ROOT)
    assert found.description
    assert found.budget_s is not None


def test_the_clusters_that_ship_are_valid_and_local_needs_no_setting() -> None:
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
