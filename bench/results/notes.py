"""Write the legend and the notes that follow a table. Each note has a code. The most urgent notes come first.

`legend` explains the letters and marks in the rows. `notes` returns all notes (shown with `--notes`). `brief` returns
the notes that may change what the reader does next, and the number of the remaining notes. These are at most TEN lines.
A note is shown completely or not at all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from bench.core.codes import Coded, fill
from bench.core.dtypes import DTYPES
from bench.core.links import FloorKind
from bench.core.record import Flag, Header
from bench.core.sweep import order_of
from bench.core.units import format_size
from bench.core.wrapping import PIPED_WIDTH, wrapped
from bench.results import text
from bench.results.busy import busy_run
from bench.results.document import Conflict, Document, RankComparison, Summary
from bench.results.gpus import MATTERS, threshold
from bench.results.messages import FLAGS, FOLDED, MARKS, SHOWN_IN_ROW, SUMMARIES, NoExpectationCode, NoteCode
from bench.results.run_table import replaces

TEN = 10
_WIDTH = PIPED_WIDTH - len("# ")
_MOST_STRAGGLERS = 8
_MOST_SIZES = 8
_MOST_COUNTED = 6  # kinds of notes that the last line names


def legend(document: Document, letters: Mapping[tuple[str, str], str]) -> list[Coded]:
    """Return a note for each letter in the column `bound`, and one note that explains the marks in the rows.

    Each mark is followed by the number of rows with this mark, such as `* not converged (36)`.

    `letters`: the letter of each bound (name, kind).
    """
    found = _bounds(document.summaries, letters)
    num = Counter(mark for row in document.summaries for mark in text.marks(row.flags))
    marks = [f"{mark} {words} ({num[mark]})" for mark, words in MARKS.items() if num[mark]]
    return [*found, Coded.of(NoteCode.MARKS, marks=marks)] if marks else found


def notes(document: Document) -> list[Coded]:
    """Return all notes of a run, in the order of NoteCode."""
    rows = document.summaries
    found = [] if rows else [Coded.of(NoteCode.NOTHING_MEASURED)]
    found += [*_invalid(rows), *failures(document.failures), *document.notes, *_ranks(document.standings)]
    found += [*_starved(rows), *_busy(document)]
    found += [*contradictions(document.conflicts), *skips(document.skipped)]
    found += [*_flags(rows), *_overheads(document.headers.values()), *_floors(rows)]
    if not document.spreads and any(not (row.modelled or row.imported) for row in rows):
        found.append(Coded.of(NoteCode.SINGLE_LAUNCH))
    found += _not_expected(rows)
    found += _soaks(rows)
    found += [*_repeated(rows), *_rounded(rows), *_sampled(rows), *_stragglers(rows), *_slowest(rows), *_products(rows)]
    order = {code.value: place for place, code in enumerate(NoteCode)}
    uncoded = order[NoteCode.WARNING]  # text from files and other programs has no code
    return sorted(found, key=lambda note: order.get(note.code, uncoded))


def texts(found: Iterable[Coded]) -> list[str]:
    """Return the texts of all notes, without duplicates."""
    return list(dict.fromkeys(note.text for note in found))


def brief(found: Sequence[Coded], above: Sequence[Coded] = ()) -> list[str]:
    """Return the notes to show by default. The last line says how many notes are not shown.

    The legend (`above`) and the returned notes together have at most TEN printed lines. If the notes need more lines, a
    line that summarises several notes is shortened to their number. If this is not enough, the least urgent notes are
    left out. The most urgent note is always shown.
    """
    most = TEN - _height(note.text for note in above)
    by_code: dict[str, list[Coded]] = {}
    for note in found:
        by_code.setdefault(note.code if note.code in _CODES else NoteCode.WARNING, []).append(note)
    lines: dict[str, str] = {}
    left_out: Counter[str] = Counter()
    for code, of_code in by_code.items():
        if code in FOLDED:
            left_out.update(_counts(NoteCode(code), of_code))
        elif code != NoteCode.MARK:  # the legend explains the marks
            lines[code] = _one_line(NoteCode(code), of_code)
    for code in reversed(list(lines)):
        if _height([*lines.values(), *_more(left_out)]) > most and _is_summary(code, by_code[code]):
            lines[code] = _counted(NoteCode(code), texts(by_code[code]))
    for code in reversed(list(lines)):
        if len(lines) > 1 and _height([*lines.values(), *_more(left_out)]) > most:
            left_out[code.replace("-", " ")] = len(by_code[code])
            del lines[code]
    return [*lines.values(), *_more(left_out)]


_CODES = frozenset(NoteCode)


def _height(lines: Iterable[str]) -> int:
    """Return the number of printed lines that these texts need."""
    return sum(len(wrapped(line, _WIDTH, rest="    ")) or 1 for line in lines)


def _more(left_out: Mapping[str, int]) -> list[str]:
    """Return the line that says how many notes are left out. If no note is left out, return no line."""
    counts = [f"{what} ({number})" if number > 1 else what for what, number in left_out.items()]
    if len(counts) > _MOST_COUNTED:
        counts[_MOST_COUNTED:] = [f"and {len(counts) - _MOST_COUNTED} other kinds"]
    return [f"more (--notes): {', '.join(counts)}"] if counts else []


def _counts(code: NoteCode, of_code: Sequence[Coded]) -> dict[str, int]:
    """Return what the last line says about the hidden notes of one code: a description, and the number of notes.

    For flags, the count is the number of rows with the flag.
    """
    if code == NoteCode.FLAG:
        return {note.facts["flag"]: note.facts["num"] for note in of_code}
    return {FOLDED[code]: len(of_code)}


def _one_line(code: NoteCode, of_code: Sequence[Coded]) -> str:
    """Return one line that represents all notes with the same code.

    A single note is shown in full. If there are several notes, the line has their number and the text of the first
    note.
    """
    found = texts(of_code)
    if not _is_summary(code, of_code):
        return "; ".join(found)
    example = fill(SUMMARIES[code][1], {"text": found[0], **of_code[0].facts})
    return f"{_counted(code, found)}; {example}"


def _is_summary(code: str, of_code: Sequence[Coded]) -> bool:
    return code in SUMMARIES and len(texts(of_code)) > 1


def _counted(code: NoteCode, found: Sequence[str]) -> str:
    return f"{SUMMARIES[code][0].format(num=len(found))} (--notes lists them)"


# -- what went wrong


def _invalid(rows: Sequence[Summary]) -> list[Coded]:
    invalid = [row for row in rows if row.verified is False]
    if not invalid:
        return []
    sizes = list(dict.fromkeys(format_size(row.payload_bytes) for row in invalid))
    places = ", ".join(sizes[:_MOST_SIZES])
    if len(sizes) > _MOST_SIZES:
        places += f" and {len(sizes) - _MOST_SIZES} more sizes"
    return [Coded.of(NoteCode.INVALID, num=len(invalid), of=len(rows), places=places, sizes=sizes)]


def failures(rows: Iterable[Mapping[str, Any]]) -> list[Coded]:
    """Return a note for each failure: the reason, and the rank and host if they are known."""
    found = []
    for row in rows:
        words = _row_words(row)
        if row.get("requested_bytes"):
            words += f" at {format_size(row['requested_bytes'])}"
        if "rank" not in (row.get("facts") or {}):  # otherwise the reason already names the rank
            words += f" on rank {row['rank']}" if row.get("rank") is not None else ""
            words += f" ({row['host']})" if row.get("host") else ""
        reason = str(row.get("what") or "for an unknown reason")
        found.append(Coded.of(NoteCode.FAILED, row=words, reason=reason, cause=row.get("code")))
    return found


def skips(rows: Iterable[Mapping[str, Any]]) -> list[Coded]:
    """Return notes on what was not measured, and why.

    If several sizes were not measured for the same reason, one note names all these sizes.
    """
    sizes: dict[tuple[str, str, str | None], dict[str, None]] = {}
    for row in rows:
        key = (_row_words(row), str(row.get("reason") or "no reason given"), row.get("code"))
        of_key = sizes.setdefault(key, {})
        if row.get("requested_bytes"):
            of_key[format_size(row["requested_bytes"])] = None
    found = []
    for (words, reason, cause), at in sizes.items():
        words += f" at {', '.join(at)}" if at else ""
        found.append(Coded.of(NoteCode.SKIPPED, row=words, reason=reason, cause=cause, sizes=list(at)))
    return found


def contradictions(conflicts: Iterable[Conflict]) -> list[Coded]:
    """Return notes on pairs of rows that contradict each other.

    There is one note for each rule, job and mode. A note describes the pair with the largest ratio, and lists the sizes
    of the other pairs.
    """
    alike: dict[tuple[Any, ...], list[Conflict]] = {}
    for conflict in conflicts:  # `conflicts` has the largest first
        alike.setdefault((conflict.rule, conflict.first["job"], conflict.first["mode"]), []).append(conflict)
    found = []
    for first, *others in alike.values():
        sizes = [format_size(size) for size in sorted({other.first["payload_bytes"] for other in others})]
        sentence = f"{first.sentence}; likewise at {', '.join(sizes)}" if sizes else first.sentence
        found.append(
            Coded.of(NoteCode.CONTRADICTION, sentence=sentence, rule=first.rule, cause=first.code, sizes=sizes)
        )
    return found


def _row_words(row: Mapping[str, Any]) -> str:
    words = str(row.get("pattern") or row.get("job") or "a job")
    if row.get("transport"):
        words += f" over {row['transport']}"
    if row.get("group") not in (None, "", "world"):
        words += f", group {row['group']}"
    return words


# -- slow ranks


def _ranks(standings: Iterable[RankComparison]) -> list[Coded]:
    """Return notes on slow ranks, for each job, mode and size.

    If no rank is slow, the note names the slowest rank, and says how far its rate is below the median.
    """
    alike: dict[tuple[str, str, int], list[RankComparison]] = {}
    for one in standings:
        alike.setdefault((one.job, one.mode, one.payload_bytes), []).append(one)
    found = []
    for of_size in alike.values():
        slow = sorted((one for one in of_size if one.slow), key=lambda one: one.rate)
        for one in slow:
            rate = f"{text.gigabytes(one.rate)} GB/s"
            if one.unit == "FLOP/s":
                rate = f"{text.teraflops(one.rate)} TFLOP/s"
            found.append(Coded.of(NoteCode.SLOW_RANK, rate=rate, **_rank_facts(one)))
        if not slow:
            last = max(of_size, key=lambda one: one.behind)
            limits = {"limit": MATTERS, "limit_z": threshold(last.num)}
            found.append(Coded.of(NoteCode.NO_SLOW_RANK, **_rank_facts(last), **limits))
    return found


def _rank_facts(one: RankComparison) -> dict[str, Any]:
    gpu = "" if one.gpu is None else f"GPU {one.gpu} of "
    return {
        "rank": one.rank,
        "place": f"{gpu}host {one.host}",
        "row": f"{one.pattern} {format_size(one.payload_bytes)}, {one.mode}",
        "behind": one.behind,
        "num": one.num,
        "z": one.z,
    }


def _starved(rows: Iterable[Summary]) -> list[Coded]:
    """Return a note on each rank that lacked CPU time in at least one row.

    The rank that got the smallest share of the CPU time it needed comes first.
    """
    by_rank: dict[tuple[int, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        for short in row.starved:
            by_rank.setdefault((short["rank"], short["host"]), []).append(short)
    found = []
    for (rank, host), of_rows in by_rank.items():
        cpu_s, needed_s = (sum(each[key] for each in of_rows) for key in ("cpu_s", "needed_s"))
        others_share = median(each["others_share"] for each in of_rows)
        facts = {"rank": rank, "host": host, "cpu_s": cpu_s, "needed_s": needed_s, "share": cpu_s / needed_s}
        found.append(Coded.of(NoteCode.STARVED_RANK, num=len(of_rows), others_share=others_share, **facts))
    return sorted(found, key=lambda note: float(note.facts["share"]))


def _busy(document: Document) -> list[Coded]:
    """Return a note on each host that was busy while rows were timed, the busiest first."""
    busy = busy_run(document)
    found = []
    for host, use in busy.hosts.items():
        num = sum(any(one.host == host and one.is_busy for one in row.hosts) for row in document.summaries)
        causes = use.causes()
        facts = {"causes": [cause.text for cause in causes], "codes": [cause.code for cause in causes]}
        found.append(Coded.of(NoteCode.BUSY_HOST, host=host, num=num, of=busy.of, **facts))
    return found


# -- how to read the figures


def _bounds(rows: Iterable[Summary], letters: Mapping[tuple[str, str], str]) -> list[Coded]:
    """Return a note for each letter in the column `bound`. The note names the bound that the letter means."""
    bounds = text.bound_ranges(rows)
    found = []
    for (name, kind), letter in letters.items():
        kind_words = "hard bound" if kind == "hard" else f"{kind}, not a limit"
        facts = {"letter": letter, "rate": bounds[name, kind], "name": name, "kind": kind_words}
        found.append(Coded.of(NoteCode.BOUND, **facts))
    return found


def _flags(rows: Sequence[Summary]) -> list[Coded]:
    """Return a note on each flag of these rows.

    The note explains the flag, and counts the rows of each mode with the flag.
    """
    found = []
    modes_of: dict[str, Counter[str]] = {}
    for (flags, mode), num in Counter((row.flags, row.mode) for row in rows).items():  # many rows have equal flags
        for flag in set(flags):
            modes_of.setdefault(flag, Counter())[mode] += num
    known = [flag for flag in FLAGS if flag not in SHOWN_IN_ROW]
    others = sorted(set(modes_of) - set(Flag))
    for flag in [*known, *others]:
        if modes := modes_of.get(flag):
            mark, meaning = FLAGS.get(flag, ("", str(flag)))
            counts = ", ".join(f"{number} {mode}" for mode, number in modes.items())
            facts = {"flag": str(flag), "meaning": meaning, "counts": counts, "num": modes.total(), "mark": mark}
            found.append(Coded.of(NoteCode.MARK if mark else NoteCode.FLAG, **facts))
    return found


def _not_expected(rows: Iterable[Summary]) -> list[Coded]:
    """Return the note on modelled rows without an expectation. The note names the patterns and the reasons."""
    patterns: dict[str, dict[str, None]] = {}
    num = 0
    for row in rows:
        if row.not_expected is not None:
            patterns.setdefault(row.not_expected, {})[row.pattern] = None
            num += 1
    if not patterns:
        return []
    words = {code.value: code.template for code in NoExpectationCode}
    reasons = [f"{', '.join(names)} ({words.get(code, code)})" for code, names in patterns.items()]
    codes = {code: list(names) for code, names in patterns.items()}
    return [Coded.of(NoteCode.NOT_EXPECTED, num=num, reasons=reasons, codes=codes)]


def _overheads(headers: Iterable[Header]) -> list[Coded]:
    """Return notes on the call overhead and the start skew that each job measures before its first row.

    The time of a small message includes the overhead and the skew.
    """
    calibrations = [header.calibration for header in headers]
    found = []
    for code, key in (
        (NoteCode.ENQUEUE, "enqueue_s"),
        (NoteCode.CALL_OVERHEAD, "software_s"),
        (NoteCode.START_SKEW, "sync_skew_p50_s"),
    ):
        known = sorted(value for value in (calibration.get(key) for calibration in calibrations) if value is not None)
        if known:
            ends = dict.fromkeys(text.significant(value * 1e6, 2) for value in (known[0], known[-1]))
            found.append(Coded.of(code, range=" to ".join(ends), low_s=known[0], high_s=known[-1]))
    return found


def _soaks(rows: Iterable[Summary]) -> list[Coded]:
    """Return a note on each row that was measured with --soak.

    The note compares the row's time at the beginning with its time in the second half.
    """
    return [
        Coded.of(
            NoteCode.SOAK,
            row=f"{row.pattern} {format_size(row.payload_bytes)} {row.mode}",
            burst_us=text.significant(row.burst_s * 1e6, 4),
            sustained_us=text.significant(row.sustained_s * 1e6, 4),
            ratio=row.sustained_s / row.burst_s,
        )
        for row in rows
        if row.burst_s and row.sustained_s
    ]


def _floors(rows: Iterable[Summary]) -> list[Coded]:
    kinds = {row.floor_name: row.floor_kind for row in rows if row.floor_s is not None and row.floor_name}
    if not kinds:
        return []
    meaning = "of the links alone"
    if FloorKind.REFERENCE in kinds.values():
        meaning = "a reference: a library may need no messages if ranks share memory"
    return [Coded.of(NoteCode.FLOOR, names=list(kinds), meaning=meaning)]


# -- other notes on rows


def _repeated(rows: Iterable[Summary]) -> list[Coded]:
    """If rows of an interrupted attempt were measured again, return a note with the number of these rows."""
    last: dict[tuple[Any, ...], Summary] = {}
    num = 0
    for row in rows:
        key = (row.job, row.payload_bytes, row.dtype, row.reduce_op, row.group, row.mode)
        num += key in last and replaces(row, last[key])
        last[key] = row
    return [Coded.of(NoteCode.REPEATED, num=num)] if num else []


def _rounded(rows: Iterable[Summary]) -> list[Coded]:
    found = []
    for row in rows:
        if row.also_requested_bytes:
            asked = [format_size(size) for size in (row.requested_bytes, *row.also_requested_bytes)]
            found.append(Coded.of(NoteCode.ROUNDED_SIZES, asked=asked, bytes=row.payload_bytes))
    return found


def _sampled(rows: Iterable[Summary]) -> list[Coded]:
    sizes = list(dict.fromkeys(format_size(row.payload_bytes) for row in rows if row.compared == "sampled"))
    return [Coded.of(NoteCode.SAMPLED_CHECK, sizes=sizes)] if sizes else []


def _stragglers(rows: Iterable[Summary]) -> list[Coded]:
    """Return a note on how often each rank was the slowest in isolated calls of three or more ranks.

    The note also says whether the same rank was always the slowest. Rows in which a rank lacked CPU time are left out,
    because the other ranks only waited for this rank.
    """
    rows = [row for row in rows if row.mode == "isolated" and row.group == "world" and len(row.slowest_counts) > 2]
    rows = [row for row in rows if not row.starved]
    counts: Counter[int] = Counter()
    for row in rows:
        counts.update({rank: number for rank, number in enumerate(row.slowest_counts) if number})
    if not counts:
        return []
    ranked = sorted(counts, key=lambda rank: (-counts[rank], rank))[:_MOST_STRAGGLERS]
    shares = ", ".join(f"rank {rank} {100 * counts[rank] / counts.total():.0f} %" for rank in ranked)
    rotations = sorted(row.rotation for row in rows if row.rotation is not None)
    ends = " to ".join(dict.fromkeys(f"{value:.2f}" for value in rotations[:1] + rotations[-1:]))
    return [Coded.of(NoteCode.STRAGGLERS, shares=shares, rotation=ends)]


def _slowest(rows: Sequence[Summary]) -> list[Coded]:
    slowest = Counter(row.slowest_rank for row in rows if row.slowest_rank is not None)
    judged = sum(row.num_ranks is not None and row.num_ranks > 2 for row in rows)
    return [
        Coded.of(NoteCode.SLOWEST_RANK, rank=rank, num=number, judged=judged) for rank, number in slowest.most_common(3)
    ]


def _products(rows: Sequence[Summary]) -> list[Coded]:
    """For each job, mode and size, return a note on the rate of the matrix products.

    The note shows the rates of the slowest and of the fastest rank.
    """
    alike: dict[tuple[str, str, int], list[Summary]] = {}
    for row in rows:
        if row.flops_per_s is not None:
            alike.setdefault((row.job, row.mode, row.payload_bytes), []).append(row)
    found = []
    for of_size in alike.values():
        ends = sorted(of_size, key=lambda row: row.flops_per_s or 0.0)
        slowest, fastest = ends[0], ends[-1]
        rate = "..".join(dict.fromkeys(map(text.teraflops, (slowest.flops_per_s, fastest.flops_per_s))))
        peak = ""
        if slowest.peak_flops_per_s is not None:
            share = "..".join(dict.fromkeys(map(text.peak_share, (slowest, fastest))))
            rated = f"{text.teraflops(slowest.peak_flops_per_s)} TFLOP/s ({slowest.peak_name}, dense, boost clock)"
            peak = f", {share} % of {rated}"
        facts = {
            "dtype": slowest.dtype,
            "order": order_of(slowest.payload_bytes, DTYPES[slowest.dtype or "float32"].num_bytes),
            "mode": slowest.mode,
            "ranks": f", {len(of_size)} ranks" if len(of_size) > 1 else "",
            "rate": rate,
            "peak": peak,
        }
        found.append(Coded.of(NoteCode.PRODUCT, **facts))
    return found
