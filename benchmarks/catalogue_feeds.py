"""Compare the catalogue of instance types with public tables on your disk, and propose changes as a diff with sources.

    python benchmarks/catalogue_feeds.py --karpenter-aws DOCS/reference/instance-types.md --date 2026-08-21
    python benchmarks/catalogue_feeds.py --skypilot catalogs/v8/lambda/vms.csv --date 2026-11-01

The tables are those of aws/karpenter-provider-aws and skypilot-org/skypilot-catalog. The script prints lines `-` (the
catalogue) and `+` (the table) and changes no file: a person reads the table, decides, and enters the figure with its
source, date and confidence. Exit code 1 if anything differs. It is not run in CI.
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from bench.hardware import catalogue

_ROW = re.compile(r"^\s*\|\s*([^|]+?)\s*\|\s*([^|]*?)\s*\|")
_KARPENTER = {
    "karpenter.k8s.aws/instance-cpu": ("vcpus", 1.0),
    "karpenter.k8s.aws/instance-memory": ("memory_gib", 1024.0),
    "karpenter.k8s.aws/instance-network-bandwidth": ("gbit_per_s", 1000.0),
    "karpenter.k8s.aws/instance-gpu-count": ("gpus", 1.0),
}
_NEAR = 0.005  # figures that differ by less are the same, rounded differently

Facts = Mapping[str, float | str]


def karpenter_aws(path: Path) -> Iterator[tuple[str, Facts]]:
    """Yield each instance type of karpenter's reference page with its figures; `nic_kind` is efa if it has EFA."""
    for part in path.read_text(encoding="utf-8").split("\n### `")[1:]:
        facts: dict[str, float | str] = {}
        for line in part.splitlines():
            match = _ROW.match(line)
            if match and match[1] in _KARPENTER:
                field, scale = _KARPENTER[match[1]]
                facts[field] = float(match[2]) / scale
            elif match and match[1] == "vpc.amazonaws.com/efa":
                facts["nic_kind"] = "efa"
        yield part.partition("`")[0], facts


def skypilot(path: Path) -> Iterator[tuple[str, Facts]]:
    """Yield each instance type of a SkyPilot catalogue with the lowest price of its regions."""
    found: dict[str, dict[str, float | str]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            facts = found.setdefault(row["InstanceType"], {})
            for column, field in (("vCPUs", "vcpus"), ("MemoryGiB", "memory_gib"), ("AcceleratorCount", "gpus")):
                if row.get(column):
                    facts[field] = float(row[column])
            if row.get("Price"):
                facts["usd_per_hour"] = min(float(row["Price"]), float(facts.get("usd_per_hour", "inf")))
    yield from found.items()


def known(name: str) -> Facts:
    """Return the catalogue's figures of one instance type; a figure that it does not know is absent."""
    found = catalogue.instance(name)
    network, price = found.links.num_nics, found.price()
    rate = found.links.nic_bytes_per_s
    facts = {
        "vcpus": found.vcpus,
        "memory_gib": None if found.memory_bytes is None else found.memory_bytes / 2**30,
        "gpus": found.gpus,
        "gbit_per_s": None if rate is None or network is None else rate * network * 8 / 1e9,
        "nic_kind": found.nic_kind,
        "usd_per_hour": None if price is None else price.usd_per_hour,
    }
    return {field: value for field, value in facts.items() if value is not None}


def differs(ours: float | str | None, theirs: float | str) -> bool:
    """Whether a figure of the table is news: unknown here, or another one. `efa-v2` is a kind of `efa`."""
    if isinstance(theirs, str):
        return not str(ours).startswith(theirs)
    return not isinstance(ours, (int, float)) or abs(ours - theirs) > _NEAR * theirs


def proposals(table: Iterator[tuple[str, Facts]], source: str) -> Iterator[str]:
    """Yield the lines of the diff for the instance types that the catalogue lists."""
    listed = catalogue.instances()
    for name, facts in table:
        if name not in listed:
            continue
        ours = known(name)
        changed = [field for field, value in facts.items() if differs(ours.get(field), value)]
        if changed:
            yield f"@@ {name} @@ {source}"
        for field in changed:
            yield f"-{field}: {ours.get(field, '?')}"
            yield f"+{field}: {facts[field]}"


def main() -> int:
    """Print the proposals. Returns 1 if there are any, 2 if a table cannot be read."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--karpenter-aws", type=Path, action="append", default=[], metavar="MD")
    parser.add_argument("--skypilot", type=Path, action="append", default=[], metavar="CSV")
    parser.add_argument("--date", default="undated", help="the date of the tables, for the diff")
    args = parser.parse_args()
    lines = []
    try:
        for path in args.karpenter_aws:
            lines += proposals(karpenter_aws(path), f"{path.name}, {args.date}")
        for path in args.skypilot:
            lines += proposals(skypilot(path), f"{path.parent.name}/{path.name}, {args.date}")
    except (OSError, KeyError, ValueError) as error:
        print(f"{path} is not such a table: {error}", file=sys.stderr)
        return 2
    print("\n".join(lines) or "no differences")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
