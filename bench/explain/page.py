"""The words of `bench explain`: a page as text or as Markdown, in the order in which an answer is read."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from bench.explain.explain import LIKE, NORMAL, Page, Reason

_WIDTH = 110
_MOST_WHOLE = 3  # of more pages each is cut to a few lines
_SECTIONS = ("What you got", "What is possible", "What others got", "Where you stand")


def table(pages: Sequence[Page]) -> str:
    """All pages as text, an empty line and a rule between them."""
    if len(pages) > _MOST_WHOLE:
        return "\n\n".join("\n".join(_short(page)) for page in pages)
    return f"\n\n{'=' * _WIDTH}\n\n".join("\n".join(_text(page, len(pages) > 1)) for page in pages)


def markdown(pages: Sequence[Page]) -> str:
    """The same, with headings, lists and commands in code."""
    return "\n\n".join("\n".join(_marked(page, len(pages) > 1)) for page in pages)


def _short(page: Page) -> Iterator[str]:
    """Of many pages: what, where it stands, and the likeliest reason."""
    yield f"# {_title(page, True)}"
    yield from _wrapped(f"  {page.standing.word.upper()}: {page.standing.sentence}", "  ")
    for reason in page.reasons[:1]:
        yield from _wrapped(f"  {reason.what}: {reason.evidence}", "  ")


def _title(page: Page, several: bool) -> str:
    words = [page.source] * bool(page.source) + [f"line {page.line}"] * bool(page.line)
    return page.title + (f" ({', '.join(words)})" if several else "")


def _text(page: Page, several: bool) -> Iterator[str]:
    yield f"# {_title(page, several)}"
    for title, lines in zip(_SECTIONS[:3], (page.got, page.possible, page.others), strict=True):
        yield from ("", title)
        for line in lines:
            yield from _wrapped(f"  - {line}", "    ")
    yield from ("", f"{_SECTIONS[3]}: {page.standing.word.upper()}")
    yield from _wrapped(f"  {page.standing.sentence}", "  ")
    for line in page.remarks:
        yield from _wrapped(f"  note: {line}", "    ")
    if page.reasons:
        yield from ("", _reasons_title(page))
        for number, reason in enumerate(page.reasons, start=1):
            yield from _wrapped(f"  {number}. {reason.what}: {reason.evidence}", "     ")
    steps = _steps(page.reasons)
    if steps:
        yield from ("", _steps_title(page))
        for number, reason in steps:
            yield from _wrapped(f"  {number}. {reason.step}", "     ")
            if reason.command:
                yield f"       {reason.command}"


def _marked(page: Page, several: bool) -> Iterator[str]:
    yield f"# {_title(page, several)}"
    for title, lines in zip(_SECTIONS[:3], (page.got, page.possible, page.others), strict=True):
        yield from ("", f"## {title}", "")
        yield from (f"- {line}" for line in lines)
    yield from ("", f"## {_SECTIONS[3]}: {page.standing.word}", "", page.standing.sentence)
    if page.remarks:
        yield ""
        yield from (f"- {line}" for line in page.remarks)
    if page.reasons:
        yield from ("", f"## {_reasons_title(page)}", "")
        yield from (f"{number}. **{each.what}**: {each.evidence}" for number, each in enumerate(page.reasons, start=1))
    steps = _steps(page.reasons)
    if steps:
        yield from ("", f"## {_steps_title(page)}", "")
        for number, reason in steps:
            yield f"{number}. {reason.step}" + (f": `{reason.command}`" if reason.command else "")


def _reasons_title(page: Page) -> str:
    return "Why it is not more" if page.standing.word in (NORMAL, LIKE) else "The likeliest reasons, in order"


def _steps_title(page: Page) -> str:
    return "To see it for yourself" if page.standing.word in (NORMAL, LIKE) else "What to do next"


def _steps(reasons: Sequence[Reason]) -> list[tuple[int, Reason]]:
    """The reasons that say what to do, by their number."""
    return [(number, reason) for number, reason in enumerate(reasons, start=1) if reason.step]


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
