"""Replace the confidential names in a document: hosts, users, paths and addresses.

The same name always becomes the same replacement, so a reader still sees which figures belong together.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bench.hardware.catalogue import instances
from bench.page.content import PageContent
from bench.page.embedded import typed
from bench.results.document import Document
from bench.results.table import plain

_PATTERNS = {
    "address": re.compile(
        r"\b(?:\d{1,3}\.){3}\d{1,3}\b|\b(?:[0-9a-f]{2}:){5}[0-9a-f]{2}\b|(?<![\w:])(?:[0-9a-f]{1,4}:){3,7}:?[0-9a-f]{1,4}\b",
        re.IGNORECASE,
    ),
    "path": re.compile(r"(?<![\w./])~?(?:/[\w.@+~-]+){2,}/?"),
    "user": re.compile(r"(?<![\w.-])[\w.-]+(?=@)"),
}
_SERIAL = frozenset(("uuid", "serial"))
_OF_USER = frozenset(("USER", "LOGNAME", "SLURM_JOB_USER"))


def redacted(content: PageContent) -> PageContent:
    """Return the contents with replaced names."""
    names = _Names(_hosts(content.document), _own_cluster(content.run.cluster))
    found: PageContent = typed(PageContent, names.value(plain(content)))
    return found


def _own_cluster(name: str) -> str:
    """Return the name that a user chose for a cluster. Return "" for a general name, such as an instance type."""
    return "" if name in ("", "local", *instances()) else name


def _hosts(document: Document) -> list[str]:
    """Return the names of all hosts, the longest first. `node12` is therefore replaced before `node1`."""
    found = {host for header in document.headers.values() for host in header.nodes}
    found |= {str(rank["host"]) for header in document.headers.values() for rank in header.ranks if rank.get("host")}
    return sorted(found, key=lambda host: (-len(host), host))


@dataclass
class _Names:
    """Which names were replaced, and by what."""

    hosts: list[str]
    cluster: str = ""
    known: dict[tuple[str, str], str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for host in sorted(self.hosts):
            self._number("host", host)
        if self.cluster:
            self._number("cluster", self.cluster)
        words = "|".join(map(re.escape, filter(None, [*self.hosts, self.cluster])))
        self._name = re.compile(rf"(?<![A-Za-z0-9])(?:{words})(?![A-Za-z0-9])") if words else None

    def value(self, value: Any, key: str = "") -> Any:
        """Replace names in a plain value and in its keys."""
        if isinstance(value, str):
            if value and key in _SERIAL:
                return self._number("serial", value)
            return self._number("user", value) if value and key in _OF_USER else self.text(value)
        if isinstance(value, Mapping):
            return {self.text(name): self.value(each, name) for name, each in value.items()}
        return [self.value(each, key) for each in value] if isinstance(value, list) else value

    def text(self, text: str) -> str:
        """Replace names in a text."""
        if self._name:
            text = self._name.sub(lambda match: self._replacement(match[0]), text)
        for kind, pattern in _PATTERNS.items():
            text = pattern.sub(lambda match, kind=kind: self._number(kind, match[0]), text)  # type: ignore[misc]
        return text

    def _replacement(self, name: str) -> str:
        return self.known.get(("host", name)) or self.known["cluster", name]

    def _number(self, kind: str, name: str) -> str:
        of_kind = sum(other == kind for other, _ in self.known)
        return self.known.setdefault((kind, name), f"{kind}{of_kind + 1}")
