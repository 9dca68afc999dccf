"""Write the page of a run: one file with the verdict, the pictures, a table for each picture, and the data.

The page needs no other file. The page makes no network requests, and its security policy forbids all requests.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import bench
from bench.page import blocks, embedded, feed, lateness, pair_map, pictures, rungs, step_bars, verdict
from bench.page.content import PageContent
from bench.page.markup import Markup, element, joined
from bench.results.document import Document
from bench.results.headline import NamedRun
from bench.results.run_report import RunReport

_FOLDER = Path(__file__).parent
_MOST_LINES = 400  # rows of the table; the data in the page have all rows


@dataclass(frozen=True, slots=True)
class PageSection:
    """A section of the page. `name`: the id of the section, which is the target of links."""

    name: str
    title: str
    content: Markup


def html(content: PageContent) -> str:
    """Return the page of a run."""
    name = Path(content.run.name).name
    return whole(name, _kind(content.document), _sections(content), Markup(embedded.script(content)))


def whole(name: str, kind: str, sections: Iterable[PageSection], data: Markup) -> str:
    """Return a page. `kind`: the line below the title. `data`: an element from which programs can read the figures."""
    script = (_FOLDER / "page.js").read_text(encoding="utf-8")
    style = (_FOLDER / "page.css").read_text(encoding="utf-8")
    shown = [section for section in sections if section.content]
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; base-uri 'none'; form-action 'none'"
    )
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", name="generator", content=f"linkbench {bench.__version__}"),
        element("title", f"{name} - linkbench"),
        element("style", Markup(style)),
    )
    links = [element("li", element("a", section.title, href=f"#{section.name}")) for section in shown]
    body = element(
        "body",
        element("a", "Skip to the verdict", href="#verdict", class_="skip"),
        element("header", element("h1", name), element("p", kind, class_="kind")),
        element("nav", element("ul", *links), aria_label="Sections"),
        element("main", *map(_section, shown)),
        data,
        element("script", Markup(script)),
    )
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


def _sections(content: PageContent) -> Iterable[PageSection]:
    document, run = content.document, content.run
    report = RunReport(document, show=("wide",), all_notes=True, most_lines=_MOST_LINES, run=run)
    yield PageSection("verdict", "Verdict", verdict.draw(report.summary(), content.verdicts))
    yield PageSection("ladder", "Ladder: copy, kernel, peer, collective, step", rungs.draw(document))
    yield PageSection("steps", "Where a training step goes", step_bars.of_document(document))
    yield PageSection("feed", "Reading training data", feed.draw(document))
    yield PageSection("bandwidth", "Bandwidth", pictures.bandwidths(document))
    yield PageSection("latency", "Latency", pictures.latencies(document))
    yield PageSection("pairs", "Pairs of ranks", pair_map.draw(document))
    yield PageSection("lateness", "Slowest ranks", lateness.draw(document))
    yield PageSection("rows", "Tables", blocks.render(report.tables()))
    yield PageSection("notes", "Derived tables and notes", blocks.render(report.after()))
    yield PageSection("conditions", "Conditions", blocks.render(report.head()))
    yield PageSection("again", "Data and how to measure again", _data(run))


def _section(section: PageSection) -> Markup:
    heading = element("h2", section.title, id=f"{section.name}-title")
    return element("section", heading, section.content, id=section.name, aria_labelledby=f"{section.name}-title")


def _kind(document: Document) -> str:
    """Return a text that says when the figures were obtained, and whether they were measured, modelled or imported."""
    headers = list(document.headers.values())
    kinds = {
        "modelled, not measured": any(header.modelled for header in headers),
        "imported from another tool's log": any(header.imported for header in headers),
        "measured": any(not header.modelled and not header.imported for header in headers),
    }
    started = min((header.started for header in headers if header.started), default="")
    return ", ".join(
        [" and ".join(kind for kind, holds in kinds.items() if holds) or "no rows", *filter(None, [started])]
    )


def _data(run: NamedRun) -> Markup:
    """Return the commands that read the data in the page, and the command that repeats the measurement."""
    commands = ["linkbench report PAGE.html", "linkbench report PAGE.html --format json"]
    if run.scenario:
        cluster = f" --cluster {run.cluster}" if run.cluster not in ("", "local") else ""
        commands.append(f"linkbench run {run.scenario}{cluster}")
    words = ["Show the tables of this page:", "All figures as JSON:", "Measure the same again:"]
    pairs = zip(words, commands, strict=False)
    items = [joined(element("dt", word), element("dd", element("code", command))) for word, command in pairs]
    button = element("button", "Save the data as JSON", type="button", id="save", hidden=True)
    return joined(element("dl", *items), element("p", button))


def _hash(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
