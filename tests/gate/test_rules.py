"""Reading a rules file: every key, and every mistake with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.config.scenario import load_scenario
from bench.config.yaml_file import find
from bench.core.case import FACTOR
from bench.core.errors import UsageError
from bench.gate.publication_rules import PublicationRule
from bench.gate.rules import Demand
from bench.gate.rules_file import load_rules

ROOT = Path(__file__).resolve().parent.parent.parent
SHIPPED = sorted((ROOT / "rules").glob("acceptance*.yaml"))

WHOLE = """
description: every key
expect:
  cluster: p5
  instance: p5.48xlarge
  gpu: H100
  transport: nccl
  network: efa
  nodes: 64
  ranks: 512
  hosts: n[001-064]
  max_age: 2d
baseline: some-run
diagnose: true
allow: [contradicts]
rules:
  - name: all of it
    patterns: [allreduce, alltoall]
    transports: [nccl, mpi]
    network: ib
    sizes: [8, 1M:1G, 2K:8K:2]
    mode: pipelined
    dtype: bfloat16
    op: sum
    topology: [world, node]
    direction: two-way
    group: node*
    nodes: 2
    ranks: [8, 16]
    samples: 50
    imported: false
    allow: not-converged
    busbw: at least 80% of bound
    algbw: at most 400 Gbit/s
    time: not slower than baseline
    p99: at most 1.5ms
    max: at most 200% of reference
    min: at least 1us
    weakest: at least 90% of median
  - pattern: pingpong
    time: not slower than baseline by 2.5%
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "rules.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_every_key_is_read(tmp_path: Path) -> None:
    rules = load_rules(written(tmp_path, WHOLE))
    whole, second = rules.rules
    assert rules.expect.hosts[0] == "n001" and len(rules.expect.hosts) == 64 and rules.expect.max_age_s == 172800
    assert (rules.baseline, rules.diagnose, rules.expect.nodes, rules.text) == ("some-run", True, 64, WHOLE)
    assert (whole.sizes, whole.spans) == ((8, 2048, 4096, 8192), ((1 << 20, 1 << 30),))
    assert (whole.patterns, whole.transports, whole.ranks) == (("allreduce", "alltoall"), ("nccl", "mpi"), (8, 16))
    assert whole.allow == {"contradicts", "not-converged"} and second.allow == {"contradicts"}
    assert whole.limits == (
        Demand("busbw", "least", 0.8, "bound", "at least 80% of bound"),
        Demand("algbw", "most", 50e9, "", "at most 400 Gbit/s"),
        Demand("time", "not-slower", 0.05, "baseline", "not slower than baseline"),
        Demand("p99", "most", 1.5e-3, "", "at most 1.5ms"),
        Demand("max", "most", 2.0, "reference", "at most 200% of reference"),
        Demand("min", "least", 1e-6, "", "at least 1us"),
        Demand("weakest", "least", 0.9, "median", "at least 90% of median"),
    )
    assert (second.name, second.limits[0].value) == ("pingpong", 0.025)


@pytest.mark.parametrize(
    ("typed", "bytes_per_s"),
    [
        ("400 GB/s", 400e9),
        ("400 Gb/s", 50e9),
        ("400 Gbit/s", 50e9),
        ("400 Gbps", 50e9),
        ("400GB/s", 400e9),
    ],
)
def test_bits_are_bits_and_bytes_are_bytes(typed: str, bytes_per_s: float, tmp_path: Path) -> None:
    [rule] = load_rules(written(tmp_path, f"rules: [{{pattern: allreduce, busbw: at least {typed}}}]")).rules
    assert rule.limits[0].value == bytes_per_s


RULE = "rules:\n  - pattern: allreduce\n    busbw: at least 1 GB/s\n"


@pytest.mark.parametrize(
    ("text", "place", "fact"),
    [
        ("", "rules.yaml", "is empty"),
        ("rules: []\n", "rules.yaml:1:8: rules", "list"),
        ("rules:\n", "rules.yaml:1:7: rules", "list"),
        ("description: none\n", "rules.yaml:1:1", "'rules'"),
        (RULE + "  - 5\n", "rules.yaml:4:5: rules.1", "key: value"),
        (RULE + "rule: []\n", "rules.yaml:4:1: rule", "'rule'; did you mean 'rules'"),
        (RULE + "    buswb: at least 1 GB/s\n", "rules.yaml:4:5: rules.0.buswb", "'busbw'"),
        (RULE + "    pattern: alltoall\n", "rules.yaml:4:5", "line 2"),
        (RULE + "    patterns: alltoall\n", "rules.yaml:4:5: rules.0.patterns", "'pattern'"),
        (RULE.replace("allreduce", "allreduec"), "rules.yaml:2:14: rules.0.pattern", "'allreduce'"),
        (RULE.replace("1 GB/s", "400"), "rules.yaml:3:12: rules.0.busbw", "unit"),
        (RULE.replace("1 GB/s", "80%"), "rules.yaml:3:12: rules.0.busbw", "unit"),
        (RULE.replace("1 GB/s", "1 GiB/s"), "rules.yaml:3:12: rules.0.busbw", "1 GiB/s"),
        (RULE.replace("1 GB/s", "0 GB/s"), "rules.yaml:3:12: rules.0.busbw", "0 GB/s"),
        (RULE.replace("1 GB/s", "0% of bound"), "rules.yaml:3:12: rules.0.busbw", "0%"),
        (RULE.replace("1 GB/s", "80% of median"), "rules.yaml:3:12: rules.0.busbw", "'median'"),
        (RULE.replace("at least 1 GB/s", "'>= 1 GB/s'"), "rules.yaml:3:12: rules.0.busbw", "`at least 400 GB/s`"),
        (
            RULE.replace("at least 1 GB/s", "__import__('os').getpid()"),
            "rules.yaml:3:12: rules.0.busbw",
            "`at least 400 GB/s`",
        ),
        (
            RULE.replace("at least 1 GB/s", "not slower than baseline"),
            "rules.yaml:3:12",
            "`time: not slower than baseline`",
        ),
        (RULE.replace("    busbw: at least 1 GB/s\n", ""), "rules.yaml:2:5: rules.0", "busbw, algbw"),
        (RULE.replace("pattern: allreduce", "sizes: 1M"), "rules.yaml:2:5: rules.0", "'pattern'"),
        (RULE + "    sizes: 1G:1M\n", "rules.yaml:4:12: rules.0.sizes", "1G:1M"),
        (RULE + "    sizes: []\n", "rules.yaml:4:12: rules.0.sizes", "empty"),
        (RULE + "    samples: 0\n", "rules.yaml:4:14: rules.0.samples", "1 or more"),
        (RULE + "    allow: wrong-data\n", "rules.yaml:4:12: rules.0.allow", "wrong-data"),
        (RULE + "    allow: anything\n", "rules.yaml:4:12: rules.0.allow", "anything"),
        (RULE + "    transport: infiniband\n", "rules.yaml:4:16: rules.0.transport", "infiniband"),
        (RULE + "    network: socket\n", "rules.yaml:4:14: rules.0.network", "socket"),
        (RULE + "    imported: perhaps\n", "rules.yaml:4:15: rules.0.imported", "true"),
        (RULE + "expect: {nods: 2}\n", "rules.yaml:4:10: expect.nods", "'nodes'"),
        (RULE + "expect: 5\n", "rules.yaml:4:9: expect", "key: value"),
        (RULE + "publish: [bound]\n", "rules.yaml:4:11: publish", "'bounds'"),
        (RULE + "diagnose: maybe\n", "rules.yaml:4:11: diagnose", "true"),
        (RULE + RULE.removeprefix("rules:\n"), "rules.yaml:4:5: rules.1", "'allreduce'"),
        (RULE + "    name: *x\n", "rules.yaml:4:11", "aliases"),
    ],
)
def test_a_mistake_is_reported_at_its_place(text: str, place: str, fact: str, tmp_path: Path) -> None:
    path = written(tmp_path, text)
    with pytest.raises(UsageError) as raised:
        load_rules(path)
    message = str(raised.value)
    assert message.startswith(f"{path.parent}/{place}") and fact in message, message


@pytest.mark.parametrize(
    ("selectors", "name", "factors"),
    [
        (
            "pattern: host_device, memory: pinned, topology: single ranks",
            "host_device single ranks pinned",
            {"memory": ("pinned",)},
        ),
        ("pattern: peer_copy, engines: [ce, sm], nodes: 2", "peer_copy ce, sm 2 nodes", {"engine": ("ce", "sm")}),
        ("pattern: allreduce, dtype: bfloat16, sizes: [1M, 8:64]", "allreduce 1M, 8:64", {}),
    ],
)
def test_a_rule_without_a_name_is_named_after_what_it_selects(
    selectors: str, name: str, factors: dict[str, tuple[str, ...]], tmp_path: Path
) -> None:
    [rule] = load_rules(written(tmp_path, f"rules: [{{{selectors}, busbw: at least 1 GB/s}}]")).rules
    assert (rule.name, rule.factors) == (name, factors)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_rules_select_only_what_their_scenario_measures(path: Path) -> None:
    rules = load_rules(path)
    scenario = load_scenario("acceptance", ROOT / "scenarios")
    patterns = {pattern for entry in scenario.measurements for pattern in entry.patterns}
    sizes = {size for entry in scenario.measurements for size in entry.values_of(FACTOR["sizes"])[0]}
    assert rules.description and rules.rules
    for rule in rules.rules:
        assert set(rule.patterns) <= patterns and set(rule.sizes) <= sizes


def test_the_publication_rules_are_all_twelve(tmp_path: Path) -> None:
    rules = load_rules(ROOT / "rules" / "publication.yaml")
    assert rules.description and rules.publish == tuple(PublicationRule) and not rules.rules
    both = load_rules(written(tmp_path, RULE + "publish: [bounds, timing]\n"))
    assert both.publish == (PublicationRule.BOUNDS, PublicationRule.TIMING) and len(both.rules) == 1


def test_rules_are_found_by_name_and_by_path(tmp_path: Path) -> None:
    assert find("rules", "acceptance", ROOT / "rules") == ROOT / "rules" / "acceptance.yaml"
    assert find("rules", "some/where.yaml", ROOT / "rules") == Path("some/where.yaml")
    with pytest.raises(UsageError, match="'acceptance'"):
        find("rules", "acceptence", ROOT / "rules")


@pytest.mark.parametrize(
    "demand",
    [
        "time: at most 1e999s",
        "busbw: at most 1e999 GB/s",
        f"busbw: at most {'9' * 400}% of bound",
    ],
)
def test_no_demand_is_infinite(demand: str, tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(f"rules:\n  - pattern: allreduce\n    {demand}\n", encoding="utf-8")
    with pytest.raises(UsageError, match="finite"):
        load_rules(path)
