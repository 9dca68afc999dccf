"""Report instance types: one row for each type with its links and prices, and notes on doubtful figures."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bench.core.codes import Coded
from bench.core.units import format_rate
from bench.hardware.catalogue import Instance
from bench.predict.cost import OLD_AFTER_DAYS
from bench.predict.messages import PageNote
from bench.results.table import NOTHING, Block, Column, Lines, Report, Table

SCHEMA = "bench.instances/1"


def instance_row(found: Instance, own: bool) -> dict[str, Any]:
    """Return the figures of one instance type. `own`: whether bench.yaml added or changed the type."""
    links, price = found.links, found.price()
    row = {
        "name": found.name,
        "provider": found.provider,
        "own": own,
        "gpu": found.gpu,
        "gpus": found.gpus,
        "vcpus": found.vcpus,
        "memory_bytes": found.memory_bytes,
        "peers": links.peer,
        "nvlink_bytes_per_s": links.nvlink_bytes_per_s,
        "pair_bytes_per_s": links.pair_bytes_per_s,
        "pcie": list(found.pcie) if found.pcie else None,
        "pcie_bytes_per_s": links.pcie_bytes_per_s,
        "nics": links.num_nics,
        "nic_kind": found.nic_kind,
        "nic_bytes_per_s": links.nic_bytes_per_s,
    }
    price_keys = ("usd_per_hour", "price_date", "price_region", "price_source", "price_verified", "price_old")
    values: tuple[Any, ...] = (None,) * len(price_keys)
    if price is not None:
        old = is_old(price.date)
        values = (price.usd_per_hour, price.date, price.region, price.source, price.verified, old)
    row |= dict(zip(price_keys, values, strict=True))
    row["prices"] = [asdict(each) for each in found.prices]
    row["sources"] = dict(links.sources)
    row["verified"] = dict(links.verified)
    row["notes"] = dict(found.notes)
    return row


def is_old(date: str | None) -> bool | None:
    """Check whether a price is more than a year old today. Return None for a price without a date."""
    if date is None:
        return None
    return (datetime.date.today() - datetime.date.fromisoformat(date)).days > OLD_AFTER_DAYS


@dataclass(frozen=True)
class InstancesReport(Report):
    """A report made of rows of `instance_row`."""

    rows: Sequence[Mapping[str, Any]]

    def blocks(self) -> Iterable[Block]:
        """Yield a table of the instance types, and then the notes."""
        yield Table(_COLUMNS, self.rows)
        yield Lines([note.text for note in self.notes()])

    def data(self) -> Mapping[str, Any]:
        """Return the rows and the notes."""
        notes = self.notes()
        return {
            "schema": SCHEMA,
            "rows": list(self.rows),
            "notes": [note.text for note in notes],
            "note_codes": [{"code": note.code, "facts": note.facts} for note in notes],
        }

    def records(self) -> Iterable[Mapping[str, Any]]:
        """Yield the rows."""
        return self.rows

    def notes(self) -> list[Coded]:
        """Return the notes below the table.

        The notes explain marks and prices. For each kind of doubt, a note names the instance types with doubtful
        figures.
        """
        rows = self.rows
        notes = [Coded.of(PageNote.OWN)] if any(row["own"] for row in rows) else []
        notes.append(Coded.of(PageNote.PRICES))
        doubtful = {
            PageNote.PRICES_UNVERIFIED: [row["name"] for row in rows if row["price_verified"] is False],
            PageNote.PRICES_OLD: [row["name"] for row in rows if row["price_old"]],
            PageNote.PRICES_UNDATED: [row["name"] for row in rows if row["usd_per_hour"] and not row["price_date"]],
            PageNote.PRICES_MISSING: [row["name"] for row in rows if row["usd_per_hour"] is None],
        }
        notes += [Coded.of(code, instances=names) for code, names in doubtful.items() if names]
        unverified = sum(not all(row["verified"].values()) for row in rows)
        if unverified:
            notes.append(Coded.of(PageNote.LINKS_UNVERIFIED, num=unverified, num_all=len(rows)))
        return notes


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


def _mark(row: Mapping[str, Any]) -> str:
    return "" if all(row["verified"].values()) else " ?"


_COLUMNS = (
    Column("instance", lambda row: row["name"] + _mark(row), right=False),
    Column("provider", lambda row: row["provider"] + (" *" if row["own"] else ""), right=False, leave_out=3),
    Column("GPUs", lambda row: f"{row['gpus']} x {row['gpu']}", right=False),
    Column("peers", _peers, right=False, leave_out=1),
    Column("PCIe", _pcie, leave_out=2),
    Column("network", _network, right=False, leave_out=1),
    Column("$/h", lambda row: NOTHING if row["usd_per_hour"] is None else f"{row['usd_per_hour']:.2f}"),
    Column(
        "price of",
        lambda row: row["price_date"] or ("undated" if row["usd_per_hour"] else NOTHING),
        right=False,
        leave_out=4,
    ),
    Column("region", lambda row: row["price_region"] or NOTHING, right=False, leave_out=5),
)
