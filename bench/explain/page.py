"""Show the pages of `linkbench explain` as text, Markdown or JSON. Each page begins with its verdict."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from bench.core import printable
from bench.core.codes import Coded
from bench.core.wrapping import PIPED_WIDTH, wrapped
from bench.explain import crash_page
from bench.explain.crash import Crash
from bench.explain.explain import Page
from bench.explain.messages import ResultCode, ResultVerdict
from bench.explain.reason import Reason
from bench.logs.foreign import FAILED
from bench.results.table import as_json as json_document

SCHEMA = "bench.explain/1"
_MOST_WHOLE = 3  # with more pages than this, each is cut to a few lines
_MOST_OTHERS = 3  # a page without a verdict shows at most this many results of others
_SECTIONS = ("What you got", "What is possible", "What others got")
_GENERAL_FAILURES = ("tool-failed", "ends-without-message", "rank-lost")  # shown only if no other reason is known
_GOOD = (ResultVerdict.NORMAL, ResultVerdict.ONLY_RESULT)
_STANDING = {ResultVerdict.CANNOT_BE_JUDGED: "can not be judged"}  # the spelling that bench.explain/1 has always used


def table(pages: Sequence[Page], crashes: Sequence[Crash] = (), width: int = PIPED_WIDTH) -> str:
    """Return all pages as text, with a rule between pages.

    If there are more than three pages, each page shows only its verdict and its likeliest reason.

    `width`: the number of characters in a line.
    `crashes`: the failures of jobs whose files contain no run. The pages about these jobs come last.
    """
    several = len(pages) + len(crashes) > 1
    if len(pages) > _MOST_WHOLE:
        blocks = [printable.joined(_short(page, width)) for page in pages]
    else:
        blocks = [printable.joined(_text(page, several, width)) for page in pages]
    blocks += [printable.joined(_crash_lines(crash_page.text(crash), width)) for crash in crashes]
    rule = "" if len(pages) > _MOST_WHOLE else f"{'=' * width}\n\n"
    return f"\n\n{rule}".join(blocks)


def markdown(pages: Sequence[Page], crashes: Sequence[Crash] = (), width: int = PIPED_WIDTH) -> str:
    """Return all pages as Markdown, with headings, lists and commands in code. `width` has no effect."""
    blocks = [printable.joined(_markdown(page, len(pages) > 1)) for page in pages]
    blocks += [printable.joined(crash_page.markdown(crash)) for crash in crashes]
    return "\n\n".join(blocks)


def as_json(pages: Sequence[Page], crashes: Sequence[Crash] = (), folder: Mapping[str, Any] | None = None) -> str:
    """Return the pages as JSON. Figures are in SI units, and each text has a code and facts.

    `folder`: the page about similar runs; None if there is no such page.
    """
    document = {"schema": SCHEMA, "pages": [_plain(page) for page in pages], "folder": folder}
    return json_document({**document, "crashes": [crash.to_dict() for crash in crashes]})


def _plain(page: Page) -> dict[str, Any]:
    """Return one page as a dictionary for JSON.

    For each list of texts, such as `got`, the dictionary has a second list, such as `got_codes`. The second list has
    the codes and facts of the texts.
    """
    plain = asdict(replace(page, crash=None))
    plain["crash"] = page.crash.to_dict() if page.crash is not None else None
    del plain["assessment"], plain["notes"]
    plain["decides"] = page.decides.text if page.decides else None
    plain["decides_code"] = _code(page.decides) if page.decides else None
    if page.best is not None:
        plain["best"]["contradicts"] = page.best.contradicts.text if page.best.contradicts else ""
    for section, lines in (("got", page.got), ("possible", page.possible), ("others", page.others)):
        plain[section] = [line.text for line in lines]
        plain[f"{section}_codes"] = [_code(line) for line in lines]
    plain["remarks"] = [note.text for note in page.notes]
    plain["remarks_codes"] = [_code(note) for note in page.notes]
    assessment = page.assessment
    plain["standing"] = _STANDING.get(assessment.verdict, assessment.verdict.template)
    plain["standing_code"] = assessment.verdict
    plain["because"] = assessment.why.text
    plain["because_code"] = assessment.why.code
    plain["because_facts"] = _code(assessment.why)["facts"]
    plain["ratio"] = assessment.ratio
    return plain


def _code(line: Coded) -> dict[str, Any]:
    facts = {name: value for name, value in line.facts.items() if value is not None}
    return {"code": line.code, "facts": facts}


def _short(page: Page, width: int) -> Iterator[str]:
    """Yield the lines of a shortened page: the verdict, the run and the likeliest reason."""
    yield from wrapped(f"# {_title(page, True)}", width, "#   ")
    for line in _answer(page):
        yield from wrapped(f"  {line}", width, "  ")
    if page.crash is not None:
        for line in list(crash_page.answer(page.crash))[1:]:
            yield from wrapped(f"  {line}", width, "  ")
    for reason in _shown_reasons(page)[:1]:
        yield from wrapped(f"  {reason.what}: {reason.evidence}", width, "  ")


def _title(page: Page, several: bool) -> str:
    """Return the first line of a page: `LOW: allreduce, 16 ranks on 2 nodes, by nccl-tests`.

    If the run failed, the line begins with the failure: `FAILED, RATES LOW: ...`, or `FAILED: ...` without a verdict.
    """
    verdict = page.assessment.verdict
    words = verdict.template.upper()
    if any(line.code == ResultCode.STATUS and line.facts["status"] == FAILED for line in page.got):
        judged = verdict not in (ResultVerdict.FAILED, ResultVerdict.CANNOT_BE_JUDGED)
        words = f"FAILED, RATES {words}" if judged else "FAILED"
    title = f"{words}: {page.title}"
    if not several:
        return title
    where = [page.source] if page.source else []
    if page.line:
        where.append(f"line {page.line}")
    return f"{title} ({', '.join(where)})"


def _answer(page: Page) -> Iterator[str]:
    """Yield one line about a failure or a missing option, and one line with the reason for the verdict.

    If the job crashed, the first line says what failed first. If there is no verdict, the first line names the option
    that linkbench needs for a verdict.
    """
    if page.crash is not None:
        yield crash_page.first_line(page.crash)
    elif page.decides is not None and page.decides.code != page.assessment.why.code:
        yield page.decides.text
    yield page.assessment.why.text


def _sections(page: Page) -> Iterator[tuple[str, list[str]]]:
    """Return the title and the lines of each section that is not empty.

    Without a verdict, fewer published results are shown.
    """
    others = [line.text for line in page.others]
    if page.decides is not None and len(others) > _MOST_OTHERS:
        others[_MOST_OTHERS:] = [f"and {len(others) - _MOST_OTHERS} more (--format json)"]
    lines = ([line.text for line in page.got], [line.text for line in page.possible], others)
    return ((title, found) for title, found in zip(_SECTIONS, lines, strict=True) if found)


def _text(page: Page, several: bool, width: int) -> Iterator[str]:
    yield from wrapped(f"# {_title(page, several)}", width, "#   ")
    for line in (*_answer(page), *(f"note: {note.text}" for note in page.notes)):
        yield from wrapped(line, width)
    if page.crash is not None:
        yield from _crash_lines(crash_page.text(page.crash, with_title=False), width)
    for title, lines in _sections(page):
        yield from ("", title)
        for line in lines:
            yield from wrapped(f"  - {line}", width, "    ")
    reasons = _shown_reasons(page)
    if reasons:
        yield from ("", _reasons_title(page))
        for number, reason in enumerate(reasons, start=1):
            yield from wrapped(f"  {number}. {reason.what}: {reason.evidence}", width, "     ")
    yield from _step_lines(page, _steps(reasons), width)


def _step_lines(page: Page, steps: Sequence[tuple[int, Reason]], width: int) -> Iterator[str]:
    """Yield what to do next. Commands are not wrapped."""
    if steps:
        yield from ("", _steps_title(page))
    for number, reason in steps:
        yield from wrapped(f"  {number}. {reason.step}", width, "     ")
        if reason.command:
            yield f"       {reason.command}"


def _markdown(page: Page, several: bool) -> Iterator[str]:
    yield f"# {_title(page, several)}"
    for line in _answer(page):
        yield from ("", line)
    if page.notes:
        yield ""
        yield from (f"- {note.text}" for note in page.notes)
    for title, lines in _sections(page):
        yield from ("", f"## {title}", "")
        yield from (f"- {line}" for line in lines)
    if page.crash is not None:
        yield ""
        yield from crash_page.markdown(page.crash, with_title=False)
    reasons = _shown_reasons(page)
    if reasons:
        yield from ("", f"## {_reasons_title(page)}", "")
        for number, reason in enumerate(reasons, start=1):
            yield f"{number}. **{reason.what}**: {reason.evidence}"
    steps = _steps(reasons)
    if steps:
        yield from ("", f"## {_steps_title(page)}", "")
        for number, reason in steps:
            yield f"{number}. {reason.step}" + (f": `{reason.command}`" if reason.command else "")


def _reasons_title(page: Page) -> str:
    return "Why it is not more" if page.assessment.verdict in _GOOD else "The likeliest reasons, in order"


def _steps_title(page: Page) -> str:
    return "To see it for yourself" if page.assessment.verdict in _GOOD else "What to do next"


def _shown_reasons(page: Page) -> Sequence[Reason]:
    """Return the reasons, except those that the crash section explains in more detail."""
    if page.crash is None:
        return page.reasons
    given = {cause.code for cause in page.crash.reasons} | set(_GENERAL_FAILURES)
    return [reason for reason in page.reasons if reason.code not in given]


def _crash_lines(lines: Iterable[str], width: int) -> Iterator[str]:
    """Yield the lines of the crash page, wrapped. Commands are not wrapped."""
    for line in lines:
        indent = len(line) - len(line.lstrip())
        is_command = indent > crash_page.EVIDENCE_INDENT
        yield from [line] if is_command or not line else wrapped(line, width, " " * (indent + 2))


def _steps(reasons: Sequence[Reason]) -> list[tuple[int, Reason]]:
    """Return the reasons that propose a next step, with their numbers."""
    return [(number, reason) for number, reason in enumerate(reasons, start=1) if reason.step]
