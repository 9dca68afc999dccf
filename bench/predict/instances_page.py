"""The words for instance types: one row each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench.core.units import format_rate
from bench.results.grid import NOTHING, Column, render

SCHEMA = "bench.instances/1"


def _peers(row: Mapping[str, Any]) -> str:
    rate = row["nvlink_bytes_per_s"]
    return f"{row['peers']} {format_rate(rate)}" if rate else str(row["peers"])


def _pcie(row: Mapping[str, Any]) -> str:
    if row["pcie"] is None:
        return NOTHING if row["pcie_bytes_per_s"] is None else format_rate(row["pcie_bytes_per_s"])
    return f"{row['pcie'][0]} x{row['pcie'][1]}"


def _network(row: Mapping[str, Any]) -> str:
    if row["nic_bytes_per_s"] is None or row["nics"] is None:
        return NOTHING
    return f"{row['nics']} x {format_rate(row['nic_bytes_per_s'])} {row['nic_kind']}"


def _doubt(row: Mapping[str, Any]) -> str:
    return "" if all(row["verified"].values()) else " ?"


COLUMNS = (
    Column("instance", lambda row: row["name"] + _doubt(row), right=False),
    Column("provider", lambda row: row["provider"] + (" *" if row["own"] else ""), right=False),
    Column("GPUs", lambda row: f"{row['gpus']} x {row['gpu']}", right=False),
    Column("peers", _peers, right=False),
    Column("PCIe", _pcie),
    Column("network", _network, right=False),
    Column("$/h", lambda row: NOTHING if row["usd_per_hour"] is None else f"{row['usd_per_hour']:.2f}"),
    Column("price of", lambda row: row["price_date"] or ("undated" if row["usd_per_hour"] else NOTHING), right=False),
    Column("region", lambda row: row["price_region"] or NOTHING, right=False),
)


def rendered(form: str, rows: Sequence[Mapping[str, Any]], remarks: Sequence[str]) -> str:
    """Rows of `bench instances` in one of the four formats."""
    own = ["* changed or added by bench.yaml"] if any(row["own"] for row in rows) else []
    return render(form, SCHEMA, rows, COLUMNS, [*own, *remarks])
