"""The page in a real Chromium: no error, no request, no violation of axe's rules, keys, dark and print."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.commands import _job_explain
from bench.core.step_trace import StepSegment
from bench.page import job, page
from bench.page.content import PageContent, of_run
from bench.results.headline import NamedRun
from benchmarks.page_of_many_pairs import document
from tests.figures.test_feed_figure import feeds
from tests.job import synthetic
from tests.job.synthetic import Late, Recording, Schedule

pytestmark = pytest.mark.slow
REFERENCE = Path(__file__).resolve().parents[2] / "results" / "reference" / "main_2cpu-vm_2026-11-21"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed")
    with api.sync_playwright() as play:
        started = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    made = {
        "run": page.html(of_run(REFERENCE)),
        "feed": page.html(PageContent(feeds(), NamedRun("feeds"))),
        "pairs": page.html(PageContent(document(80), NamedRun("<script>alert(1)</script>"))),
    }
    for name, late in (("job", ()), ("late", (Late(5, StepSegment.BACKWARD, 4000),))):
        (folder / name).mkdir()
        synthetic.write(folder / name, Schedule(num_ranks=12, num_steps=6, late=late), Recording())
        made[name] = job.html(_job_explain.report_of([folder / name], None, None), name)
    for name, html in made.items():
        (folder / f"{name}.html").write_text(html, encoding="utf-8")
    return {name: folder / f"{name}.html" for name in made}


def opened(browser: Any, file: Path, **options: Any) -> tuple[Any, list[str]]:
    """Return the page that a browser shows, and what went wrong or left it."""
    view = browser.new_page(**options)
    troubles: list[str] = []
    view.on("console", lambda message: troubles.append(message.text))
    view.on("pageerror", lambda error: troubles.append(str(error)))
    view.on("dialog", lambda dialog: troubles.append(dialog.message))
    view.on("request", lambda request: troubles.append(request.url) if request.url != file.as_uri() else None)
    view.goto(file.as_uri())
    if view.query_selector("canvas"):
        view.wait_for_selector("canvas[data-drawn]")
    return view, troubles


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["run", "feed", "pairs", "job", "late"])
def test_no_error_no_request_and_no_violation(browser: Any, files: dict[str, Path], name: str, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    view, troubles = opened(browser, files[name], color_scheme=scheme, bypass_csp=True)  # axe is a script of its own
    assert troubles == []
    violations = axe.Axe().run(view).response["violations"]
    assert [(each["id"], each["nodes"][0]["html"][:200]) for each in violations] == []
    view.close()


@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_itself_never_scrolls_sideways(browser: Any, files: dict[str, Path], width: int) -> None:
    for file in files.values():
        view, troubles = opened(browser, file, viewport={"width": width, "height": 800})
        assert view.evaluate("document.documentElement.scrollWidth") <= width and troubles == []
        view.close()


@pytest.mark.parametrize(("name", "section"), [("run", "ladder"), ("feed", "feed")])
def test_text_of_rows_of_rates_stays_readable_on_a_narrow_screen(
    browser: Any, files: dict[str, Path], name: str, section: str
) -> None:
    view, _ = opened(browser, files[name], viewport={"width": 390, "height": 800})
    texts = f"[...document.querySelectorAll('#{section} .sideways text')]"
    assert view.evaluate(f"Math.min(...{texts}.map(each => each.getBoundingClientRect().height))") > 9
    view.close()


def test_keys_move_over_the_map_and_the_pointer_reads_it(browser: Any, files: dict[str, Path]) -> None:
    view, troubles = opened(browser, files["pairs"])
    canvas, says = view.locator("canvas"), view.locator(".says")
    canvas.focus()
    assert "rank 0 (node000) to rank 1 (node000)" in says.inner_text()
    view.keyboard.press("ArrowDown")
    view.keyboard.press("ArrowRight")
    assert "rank 1 (node000) to rank 2 (node000)" in says.inner_text()
    box = canvas.bounding_box()
    cell = box["width"] / 80
    view.mouse.move(box["x"] + 10.5 * cell, box["y"] + 41.5 * cell)
    row = next(row for row in document(80).summaries if (row.src, row.dst) == (41, 10))
    shown = says.inner_text()
    assert "rank 41 (node005) to rank 10 (node001)" in shown
    value = float(shown.split(": ")[1].split(" GB/s")[0])
    assert value == pytest.approx((row.busbw_bytes_per_s or 0) / 1e9, rel=1.5e-3) and troubles == []
    view.close()


def test_the_button_saves_the_data(browser: Any, files: dict[str, Path]) -> None:
    view, troubles = opened(browser, files["run"])
    with view.expect_download() as saved:
        view.get_by_role("button", name="Save the data as JSON").press("Enter")
    assert saved.value.suggested_filename == "run.json" and troubles == []
    view.close()


def test_a_printed_page_opens_its_tables_and_dark_pages_are_dark(browser: Any, files: dict[str, Path]) -> None:
    view, _ = opened(browser, files["run"], color_scheme="dark")
    assert view.evaluate("getComputedStyle(document.documentElement).backgroundColor") == "rgb(22, 24, 27)"
    view.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert view.evaluate("document.querySelectorAll('details:not([open])').length") == 0
    assert len(view.pdf(format="A4")) > 20_000
    view.close()
