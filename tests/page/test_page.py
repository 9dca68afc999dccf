"""The page of a run, without a browser: it is well-formed, loads nothing, escapes everything and holds its data."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from bench.__main__ import main
from bench.core import plugins
from bench.core.errors import NotInstalledError, UsageError
from bench.core.step_trace import StepPart
from bench.explain.messages import ResultVerdict
from bench.page import embedded, lateness, page, pair_map, pdf, plot, redact, step_bars
from bench.page.content import JobVerdict, PageContent, of_run
from bench.page.messages import PageCode
from bench.results import collect, looks
from bench.results.document import DOCUMENT_SCHEMA, Document, Summary
from bench.results.headline import NamedRun
from tests.figures.test_feed_figure import feeds

REFERENCE = Path(__file__).resolve().parents[2] / "results" / "reference" / "main_2cpu-vm_2026-11-21"
BAD = "<script>alert(1)</script>"
VOID = {"meta", "br", "input"}


class Checked(HTMLParser):
    """Reads a page, checks that elements nest, and keeps what it saw."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.loads: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.append(tag)
        self.ids += [given["id"] or ""] if "id" in given else []
        self.loads += [value or "" for name, value in attrs if name in ("src", "srcset", "action", "data", "style")]
        self.loads += [given["href"] or ""] if not (given.get("href") or "#").startswith("#") else []
        if any(name.startswith("on") for name in given):
            self.loads.append(str(given))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def checked(html: str) -> Checked:
    parser = Checked()
    parser.feed(html)
    parser.close()
    assert parser.open == [] and len(parser.ids) == len(set(parser.ids))
    return parser


@pytest.fixture(scope="module")
def reference() -> str:
    return page.html(of_run(REFERENCE))


def test_a_page_is_well_formed_and_loads_nothing(reference: str) -> None:
    parser = checked(reference)
    assert parser.loads == [] and parser.tags.count("script") == 2
    assert "url(" not in reference and "@import" not in reference
    assert "default-src 'none'" in reference.replace("&#x27;", "'") and len(reference) < 300_000


def test_every_picture_has_a_title_a_description_and_a_table(reference: str) -> None:
    figures = re.findall(r"<figure>.*?</figure>", reference, re.DOTALL)
    assert len(figures) == 4
    for figure in figures:
        assert re.search(r'<svg [^>]*role="img" aria-labelledby="(\S+)-title \1-desc"', figure)
        assert "<title id=" in figure and "<desc id=" in figure and "<table>" in figure


def test_a_page_read_back_gives_the_same_json(
    reference: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "run.html"
    assert main(["report", str(REFERENCE), "--html", str(file)]) == 0
    assert capsys.readouterr().out == f"{file}\n" and file.read_text(encoding="utf-8") == reference
    texts = []
    for named in (REFERENCE, file):
        assert main(["report", str(named), "--format", "json"]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]
    assert main(["report", str(file), "--html", str(tmp_path / "again.html")]) == 0
    assert (tmp_path / "again.html").read_text(encoding="utf-8") == reference


def spoilt(document: Document) -> Document:
    """Return the document with markup in every name that a machine or another tool chooses."""
    headers = {
        f"{BAD}{job}": replace(header, job=f"{BAD}{job}", nodes={BAD: {"cpu_model": BAD, "num_cpus": 2}}, instance=BAD)
        for job, header in document.headers.items()
    }
    rows = tuple(
        replace(row, job=f"{BAD}{row.job}", group=BAD, bound_name=BAD, floor_name=BAD, algorithm=BAD)
        for row in document.summaries
    )
    return replace(document, headers=headers, summaries=rows, failures=({"job": BAD, "what": BAD},))


def test_names_with_markup_are_shown_and_never_run(tmp_path: Path) -> None:
    document = spoilt(collect.document(REFERENCE))
    html = page.html(PageContent(document, NamedRun(BAD, BAD, BAD)))
    assert "<script>alert" not in html and html.count("&lt;script&gt;alert(1)") > 20
    assert checked(html).tags.count("script") == 2
    (tmp_path / "p.html").write_text(html, encoding="utf-8")
    content = embedded.read(tmp_path / "p.html")
    read, run = content.document, content.run
    assert run.name == BAD and set(read.headers) == set(document.headers)
    assert [row.group for row in read.summaries] == [BAD] * len(document.summaries)


@pytest.mark.parametrize("damage", ["", "<html>", '<script type="application/json" id="data">{}</script>'])
def test_a_file_without_data_is_refused_by_name(damage: str, tmp_path: Path) -> None:
    (tmp_path / "p.html").write_text(damage, encoding="utf-8")
    with pytest.raises(UsageError, match=re.escape(str(tmp_path / "p.html"))):
        embedded.read(tmp_path / "p.html")
    assert main(["report", str(tmp_path / "p.html")]) == 2


def test_a_truncated_page_is_refused(reference: str, tmp_path: Path) -> None:
    begin = reference.index('id="data"')
    for length in (20, 200, 20_000):
        (tmp_path / "p.html").write_text(reference[: begin + length], encoding="utf-8")
        with pytest.raises(UsageError):
            embedded.read(tmp_path / "p.html")


def many_pairs(side: int) -> Document:
    """Return the pairs of `side` ranks, each a little different."""
    header = collect.document(REFERENCE).headers["pingpong-mpi-1x2"]
    header = replace(header, job="pairs", pattern="pairs", num_ranks=side, ranks_per_node=side, ranks=())
    template = collect.document(REFERENCE).summaries[0]
    rows = []
    for src in range(side):
        for dst in range(side):
            if src != dst:
                median = 1e-4 * (1 + ((src * 7919 + dst * 104729) % 997) / 5000)
                rows.append(_pair(template, src, dst, median))
    return Document(DOCUMENT_SCHEMA, {"pairs": header}, tuple(rows))


def _pair(row: Summary, src: int, dst: int, median: float) -> Summary:
    place = replace(row, job="pairs", pattern="pairs", mode="pipelined", group=f"{src}-{dst}", src=src, dst=dst)
    rate = (1 << 20) / median
    return replace(place, payload_bytes=1 << 20, median_s=median, algbw_bytes_per_s=rate, busbw_bytes_per_s=rate)


@pytest.mark.parametrize("side", [8, pytest.param(80, marks=pytest.mark.slow)])
def test_rows_of_many_pairs_come_back_within_a_step(side: int, tmp_path: Path) -> None:
    document = many_pairs(side)
    (tmp_path / "p.html").write_text(page.html(PageContent(document, NamedRun("pairs"))), encoding="utf-8")
    read = embedded.read(tmp_path / "p.html").document
    exact = len(document.summaries) <= embedded.MOST_EXACT
    assert len(read.summaries) == len(document.summaries) and bool(read.notes) is not exact
    for theirs, ours in zip(read.summaries, document.summaries, strict=True):
        assert (theirs.src, theirs.dst, theirs.group, theirs.flags) == (ours.src, ours.dst, ours.group, ours.flags)
        assert theirs.busbw_bytes_per_s == pytest.approx(ours.busbw_bytes_per_s, rel=1e-12 if exact else 5.1e-4)


def test_older_pages_have_the_kind_of_a_floor_in_its_name() -> None:
    """Their rows have no `floor_kind`."""
    found = collect.document(REFERENCE)
    rows = [row for row in found.summaries if row.floor_s is not None][:2]
    names = {"ping-pong x 4 steps": "reference", "NVLink latency x 3 steps": "links"}
    rows = [replace(row, floor_name=name, floor_kind=None) for row, name in zip(rows, names, strict=True)]
    stored = embedded._columns(rows)
    del stored["same"]["floor_kind"]
    assert {row.floor_name: row.floor_kind for row in embedded._rows(stored)} == names


def test_the_data_of_a_page_are_json_for_everybody(reference: str) -> None:
    [data] = re.findall(r'<script type="application/json" id="data">(.*?)</script>', reference, re.DOTALL)
    assert json.loads(data)["schema"] == "bench.page/1"


def test_a_page_says_what_it_cannot_write(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(REFERENCE), "--html", str(tmp_path / "no" / "p.html")]) == 2
    assert str(tmp_path / "no") in capsys.readouterr().err


def test_redaction_replaces_names_everywhere_and_the_same_name_alike(tmp_path: Path) -> None:
    document = collect.document(REFERENCE)
    job, header = next(iter(document.headers.items()))
    nodes = {"gpu-17.example.org": {"ip": "10.1.2.3", "mount": "/home/alice/data"}}
    header = replace(header, nodes=nodes, notes=("gpu-17.example.org 10.1.2.3 /home/alice/data",))
    headers = {**document.headers, job: header}
    html = page.html(redact.redacted(PageContent(replace(document, headers=headers), NamedRun("/home/alice/data"))))
    for name in ("gpu-17", "example.org", "alice", "10.1.2.3"):
        assert name not in html
    (tmp_path / "p.html").write_text(html, encoding="utf-8")
    content = embedded.read(tmp_path / "p.html")
    read, run = content.document, content.run
    [(host, node)] = read.headers[job].nodes.items()
    assert read.headers[job].notes == (f"{host} {node['ip']} {node['mount']}",) and run.name == node["mount"]
    medians = [row.median_s for row in read.summaries]
    assert medians == [row.median_s for row in document.summaries]


def test_a_pdf_without_chromium_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotInstalledError):
        pdf.write("<html>", tmp_path / "p.pdf")
    assert main(["report", str(REFERENCE), "--pdf", str(tmp_path / "p.pdf")]) == 3


def test_the_cluster_of_a_user_is_redacted_and_an_instance_type_is_not() -> None:
    content = of_run(REFERENCE)
    for cluster, shown in (("acme-prod", False), ("p4d.24xlarge", True)):
        run = NamedRun(f"results/20260102-030405-{cluster}-main", "main", cluster)
        html = page.html(redact.redacted(replace(content, run=run)))
        assert (cluster in html) is shown
        assert ("20260102-030405-cluster1-main" in html) is not shown


def test_unjudged_jobs_say_what_they_need_and_verdicts_come_back_from_a_page(tmp_path: Path) -> None:
    content = of_run(REFERENCE)
    assert {one.verdict for one in content.verdicts} == {ResultVerdict.CANNOT_BE_JUDGED}
    needs = {one.decides for one in content.verdicts}
    html = page.html(content)
    assert all(need in html for need in needs) and "is it normal?" not in html
    low = JobVerdict("job-x", ResultVerdict.LOW, "low", "why-x", ("reason-x", "reason-y"), ("step-x",))
    html = page.html(replace(content, verdicts=(low, *content.verdicts)))
    row = re.search(r"<tr><th[^>]*>job-x</th>.*?</tr>", html)
    assert row and all(word in row[0] for word in ("low", "why-x", "reason-x", "step-x"))
    (tmp_path / "p.html").write_text(html, encoding="utf-8")
    assert embedded.read(tmp_path / "p.html").verdicts[0] == low


def test_late_ranks_are_listed_from_the_one_that_was_slowest_most_often() -> None:
    document = collect.document(REFERENCE)
    job = document.summaries[0].job
    header = replace(document.headers[job], num_ranks=3, ranks=tuple({"host": f"host-{name}"} for name in "abc"))
    row = replace(document.summaries[0], mode="isolated", group="world", slowest_counts=(1, 2, 7))
    found = lateness.draw(
        replace(document, headers={job: header}, summaries=(row, replace(row, starved=({"rank": 0},))))
    )
    ranks = re.findall(r"<th scope=\"row\">(\d)</th><td[^>]*>(.*?)</td><td>(.*?)</td>", found)
    assert ranks == [("2", "host-c", "7 of 10"), ("1", "host-b", "2 of 10"), ("0", "host-a", "1 of 10")]


def test_a_page_of_training_steps_has_a_bar_for_each_rank_and_no_curve() -> None:
    html = page.html(of_run(REFERENCE.parent / "step_2cpu-vm_2026-11-27"))
    checked(html)
    assert len(re.findall(r'<span class="strong">rank 1, late</span>', html)) == 1
    assert html.count('viewBox="0 0 1000 20"') == 8
    assert 'id="steps"' in html and 'id="latency"' not in html


def test_a_page_of_feeds_has_a_dot_for_each_way_of_reading_and_its_table(tmp_path: Path) -> None:
    document = feeds()
    html = page.html(PageContent(document, NamedRun("feeds")))
    section = html[html.index('<section id="feed"') :].partition("</section>")[0]
    checked(html)
    assert section.count("<circle") == len(document.feeds) == 4 and section.count('class="hollow"') == 1
    rows = re.findall(r'x="722" y="[\d.]+">(.*?)</text>', section)
    assert rows == ["0.5, limited by the disk", "0.4", "0.3", "2.9, limited by the CPU"]
    assert section.count("<tbody>") == 2 and 'tabindex="0"' in section
    assert 'id="feed"' not in page.html(of_run(REFERENCE))


def test_optional_parts_of_templates_are_filled_in() -> None:
    for code in PageCode:
        assert "<" not in code.words(
            {
                "num": 2,
                "of": 3,
                "needs": ["x"],
                "any": True,
                "jobs": [],
                "share": 1,
                "bound": 0,
                "below": "x",
                "ratio": 1.0,
            }
        )


@pytest.mark.parametrize("transport", plugins.names("transport"))
def test_every_transport_has_a_marker_and_its_floor_its_colour(transport: str) -> None:
    colour, marker = looks.of_transport(transport)
    curve = plot.PlotCurve(transport, colour, marker, [plot.PlotPoint(8, 1e-6), plot.PlotPoint(64, 2e-6)])
    floor = plot.PlotLine("floor", [(8, 1e-7), (64, 1e-7)], hard=False, colour=colour)
    picture = plot.Picture("title", "description", "x", "y", [curve], str, str, [floor])
    drawn = plot.draw(picture, "name") + plot.legend([curve], [floor])
    checked(drawn)
    ink = "currentColor" if colour == "#000000" else colour
    assert f'class="floor" stroke="{ink}"' in drawn and 'class="bound"' not in drawn


def test_what_a_real_machine_is_expected_to_reach_is_a_band_inside_the_axes() -> None:
    def svg(expected: tuple[float, float] | None) -> str:
        points = [plot.PlotPoint(size, rate, expected=expected) for size, rate in ((8.0, 1.0), (64.0, 2.0))]
        curve = plot.PlotCurve("model", "#000000", "o", points)
        return str(plot.draw(plot.Picture("title", "", "x", "y", [curve], str, str), "a"))

    [band] = re.findall(r'<path d="M([^"]*)z"[^>]* opacity=', svg((0.01, 0.1)))
    corners = [tuple(map(float, corner.split(","))) for corner in band.split("L")]
    assert len(corners) == 4 and all(0 < x < 560 and 0 < y < 340 for x, y in corners)
    assert "opacity=" not in svg(None)


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("sizes", [(64.0,), (8.0, 64.0)])
def test_a_level_bound_reaches_no_farther_than_its_sizes_unless_it_holds_everywhere(
    sizes: tuple[float, ...], whole: bool
) -> None:
    curve = plot.PlotCurve("a", "#123456", "o", [plot.PlotPoint(8, 1.0), plot.PlotPoint(1 << 20, 2.0)])
    line = plot.PlotLine("bound", [(size, 3.0) for size in sizes], whole=whole)
    drawn = str(plot.draw(plot.Picture("title", "", "x", "y", [curve], str, str, [line]), "name"))
    [(begin, end)] = re.findall(r'<path d="M([\d.]+),[\d.]+H([\d.]+)" class="bound"', drawn)
    width = float(end) - float(begin)
    assert width > 400 if whole else 5 < width < 150


def test_the_legend_of_steps_names_only_parts_that_can_be_seen() -> None:
    parts = dict.fromkeys(StepPart, 0.0) | {StepPart.COMPUTE: 0.9, StepPart.IMBALANCE: 0.1, StepPart.EXPOSED_COPY: 1e-5}
    drawn = step_bars.draw([step_bars.StepBar(rank, sum(parts.values()), parts, False) for rank in range(2)])
    legend = drawn[drawn.index('class="legend"') :]
    assert legend.count("<li>") == 2 and "compute" in legend and "waits" in legend


def test_copies_between_a_gpu_and_the_host_have_no_map_of_pairs() -> None:
    document = many_pairs(4)
    assert pair_map.draw(document).count("<canvas") == 1
    of_host = tuple(replace(row, src=None) for row in document.summaries)
    assert pair_map.draw(replace(document, summaries=of_host)) == ""


def test_every_marker_of_a_curve_can_be_drawn() -> None:
    for marker in (*looks.MARKERS, *looks.MORE_MARKERS):
        assert plot.legend([plot.PlotCurve("a", "#123456", marker, [plot.PlotPoint(1.0, 1.0)])])
