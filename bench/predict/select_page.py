"""Report a selection of machines: the answer, one line for each machine, and measurements that would help.

`wide` adds the parts of a step and every remark. Letters beside a number show the kind of evidence for the number. A
line below the table explains the letters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from bench.core.codes import Coded
from bench.predict import decision, derivation
from bench.predict.candidate import Candidate
from bench.predict.draws import DrawnRange
from bench.predict.goodput import PUBLISHED_MTBF_SOURCE, PUBLISHED_NODE_MTBF_S
from bench.predict.memory import OutOfMemoryError
from bench.predict.messages import DecisionNote
from bench.predict.predict import CONFIDENCE
from bench.predict.select import PairDecision, Refused, Selection
from bench.predict.whole_run import WholeRun
from bench.results.table import NOTHING, Block, Column, Heading, Lines, Report, Table, Verbatim

SCHEMA = "bench.select/1"
LETTERS = {"measured": "m", "imported": "i", "published": "p", "bound": "b", "assumed": "a"}
_MILLION = 1_000_000
_TITLES = (
    "",
    "instance",
    "nodes",
    "GPUs",
    "step (ms)",
    "compute (ms)",
    "bubble (ms)",
    "exposed (ms)",
    "feed (ms)",
    "bottleneck",
    "samples/s",
    "MFU (%)",
    "$/1M samples",
    "$/1M tokens",
    "$/epoch",
    "$/h",
    "$/h waiting",
    "price of",
)
_LEFT = ("instance", "bottleneck", "price of")
_COLUMNS = [
    Column(title, itemgetter(index), right=title not in _LEFT, optional=True) for index, title in enumerate(_TITLES)
]
# the shortest run that is shown in a unit, in seconds; the unit; its seconds
_SPANS = ((2 * 86400, "days", 86400), (2 * 3600, "hours", 3600), (0, "minutes", 60))
# from one set of draws to the next, the ends of an interval of thousands of draws differ by less than this
_BY_CHANCE = 0.01
_OPEN = "open"  # in the column `for sure`: the two machines cannot be told apart
_FEW = 4  # with more machines, some lines are merged, and some are only in JSON
_VERBS = {"cost": ("costs", "times as much as", "cheaper"), "time": ("takes", "times as long as", "faster")}


@dataclass(frozen=True)
class SelectReport(Report):
    """The selections of one or several workloads.

    `explained`: the instance type for which the page shows the derivation.
    `wide`: whether the page also has the parts of the step and all remarks. With `wide`, the lines are longer.
    """

    selections: Sequence[Selection]
    explained: str | None = None
    wide: bool = False

    def blocks(self) -> Iterable[Block]:
        """Yield the answer, then the machines for each workload, and then the derivation."""
        for selection in self.selections:
            title, settings = _workload_lines(selection)
            yield Heading(decision.answer(selection).text)
            yield Lines([title])
            yield Table(_decision_columns(selection), list(enumerate(selection.candidates)))
            yield Lines([_meaning(selection), *(note.text for note in decision_notes(selection))])
            if self.wide:
                yield Lines([settings])
                yield Table(_COLUMNS, [_cells(rank, each) for rank, each in enumerate(selection.candidates, 1)])
                yield Lines(fine_print(selection))
            else:
                yield Lines(_short_print(selection))
        if self.explained is not None:
            yield Verbatim("\n".join(self._derivations()))

    def _derivations(self) -> list[str]:
        lines = []
        for selection in self.selections:
            for each in selection.candidates:
                if each.instance.name == self.explained:
                    lines += derivation.lines(each)
        return lines or [f"{self.explained} was left out: see above"]

    def data(self) -> Mapping[str, Any]:
        """Return one selection, or a list if there are several selections."""
        selections = [_plain(selection) for selection in self.selections]
        return selections[0] if len(selections) == 1 else {"schema": SCHEMA, "selections": selections}

    def records(self) -> Iterable[Mapping[str, Any]]:
        """Yield one line for each machine of each workload."""
        for selection in self.selections:
            for rank, each in enumerate(selection.candidates, 1):
                run = _run(selection, each, selection.runs[rank - 1])
                run |= {f"narrowing_{name}": value for name, value in run.pop("narrowing").items()}
                yield {"workload": selection.question.workload.name} | _machine(rank, each) | run


def _workload_lines(selection: Selection) -> tuple[str, str]:
    workload = selection.question.workload
    title = f"{workload.name}: {workload.description}" if workload.description else workload.name
    settings = [f"{workload.model.parameters:.4g} parameters", workload.strategy]
    mesh = {"tensor": workload.mesh.tensor, "pipeline": workload.mesh.pipeline, "expert": workload.mesh.expert}
    settings += [f"{name} {size}" for name, size in mesh.items() if size > 1]
    settings.append(f"{workload.batch} samples per micro-batch and data-parallel rank")
    settings.append(f"accumulation {workload.accumulation}")
    dtypes = f"gradients {workload.gradients}, compression {workload.compression}, compute {workload.compute}"
    return f"{title} (modelled)", f"{', '.join(settings)}; {dtypes}"


def _cells(rank: int, each: Candidate) -> tuple[str, ...]:
    compute, exchange, feed_basis = (letters(each.bases[part]) for part in ("compute", "exchange", "feed"))
    whole = letters(each.basis)
    epoch = each.layout.workload.epoch_samples
    bubble = each.range("bubble_s")
    return (
        str(rank),
        each.instance.name + ("" if each.verified else " ?"),
        str(each.layout.num_nodes),
        str(each.layout.num_gpus),
        _ms(each.range("total_s"), whole),
        _ms(each.range("compute_s"), compute),
        _ms(bubble, compute) if bubble.high > 0 else NOTHING,
        _ms(each.range("exposed_s"), exchange) if each.exchanges else NOTHING,
        _feed(each, feed_basis),
        each.bottleneck,
        f"{each.samples_per_s.text()} {whole}",
        NOTHING if each.model_flops_utilization is None else each.model_flops_utilization.text(100),
        _dollars(each.usd(_MILLION), whole),
        _dollars(each.usd_per_million_tokens, whole),
        _dollars(each.usd(epoch) if epoch else None, whole),
        NOTHING if each.usd_per_hour is None else f"{each.usd_per_hour:.2f}",
        _dollars(each.usd_per_hour_waiting, whole),
        _price_source(each),
    )


def _feed(each: Candidate, basis: str) -> str:
    if each.feed is None:
        return NOTHING
    seconds = each.range("feed_s")
    return _ms(seconds, basis) if seconds.high > 0 else f"hidden {basis}"


def _price_source(each: Candidate) -> str:
    price = each.priced.price
    if price is None:
        return NOTHING
    date = price.date or "undated"
    return f"{date}, {price.region}" if price.region else date


def letters(basis: str) -> str:
    """Return one letter for each type of evidence: `ap` for assumed+published."""
    return "".join(LETTERS[word] for word in basis.split("+") if word)


def _ms(found: DrawnRange, basis: str) -> str:
    return f"{found.text(1e3)} {basis}"


def _dollars(found: DrawnRange | None, basis: str) -> str:
    return NOTHING if found is None else f"{found.text()} {basis}"


def _decision_columns(selection: Selection) -> list[Column]:
    """Return the columns of the decision.

    A row consists of an index in the ranking, which begins at 0, and a candidate.
    """
    runs = selection.runs
    longest_s = max((run.seconds.high for run in runs if run.seconds), default=0.0)
    _, unit, unit_s = next(span for span in _SPANS if longest_s >= span[0])

    def days(row: tuple[int, Candidate]) -> str:
        seconds = runs[row[0]].seconds
        return NOTHING if seconds is None else seconds.text(1 / unit_s)

    def dollars(row: tuple[int, Candidate]) -> str:
        usd = runs[row[0]].usd
        return NOTHING if usd is None else usd.text()

    def within(row: tuple[int, Candidate]) -> str:
        share = runs[row[0]].within
        if share is None:
            return ""
        unknown = selection.limits.budget_usd is not None and row[1].sample_usd is None
        return NOTHING if unknown else f"{100 * share:.0f} %"

    def even(row: tuple[int, Candidate]) -> str:
        price = decision.break_even(selection, row[1])
        return NOTHING if price is None else price.text()

    def rate(row: tuple[int, Candidate]) -> str:
        tokens = row[1].tokens_per_s
        return NOTHING if tokens is None else f"{tokens.text(1e-3)} {letters(row[1].basis)}"

    def per_million(row: tuple[int, Candidate]) -> str:
        usd = row[1].usd_per_million_tokens
        return NOTHING if usd is None else usd.text()

    step = [Column("step (ms)", lambda row: _ms(row[1].range("total_s"), letters(row[1].basis)), leave_out=1)]
    tokens = [Column("k tokens/s", rate, leave_out=1), Column("$/1M tokens", per_million, leave_out=2)]

    def hourly(row: tuple[int, Candidate]) -> str:
        return NOTHING if row[1].usd_per_hour is None else f"{row[1].usd_per_hour:.2f}"

    return [
        Column("", lambda row: str(row[0] + 1)),
        Column("machine", lambda row: row[1].name + ("" if row[1].verified else " ?"), right=False),
        *(step if selection.limits.tokens is None else tokens),
        Column(f"run ({unit})", days),
        Column("run ($)", dollars),
        Column("within", within, optional=True),
        Column("$/h", hourly, leave_out=3),
        Column("break-even $/h", even, leave_out=4),
        Column("for sure", lambda row: _sureness(selection, row[1]), right=False),
    ]


def _sureness(selection: Selection, each: Candidate) -> str:
    """Return a text that says how certain it is that this machine is worse than the first machine."""
    if each is selection.candidates[0]:
        return "first"
    verdict = next((one for one in selection.verdicts if one.other is each), None)
    if verdict is None or not verdict.decided:
        return _OPEN
    worse, better = ("dearer", "cheaper") if verdict.by == "cost" else ("slower", "faster")
    return worse if verdict.ratio.high < 1 else better


def decision_notes(selection: Selection) -> list[Coded]:
    """Return the evidence for the decision: the run, its limits, and measurements that would narrow intervals."""
    limits = selection.limits
    if limits.samples is None:
        notes = [Coded.of(DecisionNote.RUN_UNKNOWN)]
    else:
        is_epoch = limits.samples == selection.question.workload.epoch_samples
        tokens = {"tokens": limits.tokens, "per_sample": selection.question.workload.model.tokens}
        notes = [Coded.of(DecisionNote.RUN_LENGTH, samples=limits.samples, epoch=is_epoch, **tokens)]
    if limits.budget_usd is not None or limits.deadline_s is not None:
        both = limits.budget_usd is not None and limits.deadline_s is not None
        facts = {"budget_usd": limits.budget_usd, "deadline_s": limits.deadline_s, "both": both}
        notes.append(Coded.of(DecisionNote.LIMITS, **facts))
    if any(each.by == "cost" for each in selection.verdicts):
        notes.append(Coded.of(DecisionNote.BREAK_EVEN))
    if any(_sureness(selection, each) == _OPEN for each in selection.candidates):
        notes.append(Coded.of(DecisionNote.OPEN, cost=selection.by == "cost"))
    notes += _goodput_notes(selection)
    if selection.question.energy is not None:
        notes.append(Coded.of(DecisionNote.ENERGY, usd_per_kwh=selection.question.energy.usd_per_kwh))
    for each, run in list(zip(selection.candidates, selection.runs, strict=True))[:_FEW]:
        notes += _machine_notes(selection, each, run)
    return notes


def _goodput_notes(selection: Selection) -> list[Coded]:
    goodput = selection.question.goodput
    if goodput is None:
        return []
    notes = []
    for nodes in sorted({each.layout.num_nodes for each in selection.candidates})[:_FEW]:
        facts = {"num_nodes": nodes, "every_s": goodput.interval_s(nodes), "stretch": goodput.stretch(nodes)}
        notes.append(Coded.of(DecisionNote.GOODPUT, young=goodput.every_s is None, **facts))
    if goodput.node_mtbf_s == PUBLISHED_NODE_MTBF_S:
        notes.append(Coded.of(DecisionNote.GOODPUT_SOURCE, source=PUBLISHED_MTBF_SOURCE))
    return notes


def _machine_notes(selection: Selection, each: Candidate, run: WholeRun) -> list[Coded]:
    """Return the notes on one machine.

    The notes name the mesh (if meshes were searched), the effect of the user's runs, and the nearest published run. The
    notes also name the measurement that would narrow the machine's interval.
    """
    notes = []
    if selection.question.search_mesh:
        notes.append(Coded.of(DecisionNote.MESH, machine=each.name, **_mesh(each, absent=None)))
    before, step = selection.without_runs.get(each.name), each.range("total_s")
    if before is not None and _as_before(before, step):
        notes.append(Coded.of(DecisionNote.MEASURED_NOTHING, machine=each.name))
    elif before is not None:
        texts = {"before": before.text(1e3), "after": step.text(1e3)}
        factors = {"factor_before": before.high / before.low, "factor_after": step.high / step.low}
        notes.append(Coded.of(DecisionNote.MEASURED, machine=each.name, **texts, **factors))
    nearest = decision.nearest_published(each)
    if nearest is None and each.exchanges:
        notes.append(Coded.of(DecisionNote.NO_NEAREST, machine=each.name))
    elif nearest is not None:
        num_bytes, bytes_per_s = nearest.best
        where = nearest.instance or f"{nearest.num_ranks} x {nearest.gpu}"
        facts = {"pattern": nearest.pattern, "where": where, "source": nearest.source}
        rate = {"num_bytes": num_bytes, "bytes_per_s": bytes_per_s}
        notes.append(Coded.of(DecisionNote.NEAREST, machine=each.name, **facts, **rate))
    if run.narrowing.unknown:
        factors = {"factor": run.narrowing.factor, "factor_after": run.narrowing.factor_after}
        cause = {"description": run.narrowing.description, "command": run.narrowing.command}
        notes.append(Coded.of(DecisionNote.NARROW, machine=each.name, **factors, **cause))
    return notes


def _mesh(each: Candidate, absent: int | None) -> dict[str, Any]:
    """Return a machine's mesh. `absent`: the value to return for a dimension that has only one rank."""
    workload, data = each.layout.workload, each.layout.data
    mesh = {"tensor": workload.mesh.tensor, "pipeline": workload.mesh.pipeline, "context": workload.mesh.context}
    mesh["expert"] = workload.mesh.expert
    found: dict[str, Any] = {name: size if size > 1 else absent for name, size in mesh.items()}
    return found | {
        "data": data,
        "strategy": workload.strategy,
        "batch": workload.batch,
        "accumulation": workload.accumulation,
    }


def _as_before(before: DrawnRange, after: DrawnRange) -> bool:
    """Check whether two ranges are equal apart from the randomness of their draws."""
    ends = ((before.low, after.low), (before.high, after.high))
    return all(abs(new / old - 1) < _BY_CHANCE for old, new in ends)


def _short_print(selection: Selection) -> list[str]:
    """Return lines about the first machines that were left out. The last line says what --wide shows."""
    left_out = _left_out(selection.refused)
    lines = left_out[:_FEW]
    if len(left_out) > _FEW:
        lines.append(f"left out: {len(selection.refused) - _FEW} more (--wide)")
    num_remarks = len(selection.remarks) + len(selection.price_changes)
    return [*lines, Coded.of(DecisionNote.WIDE, num_remarks=num_remarks).text]


def _meaning(selection: Selection) -> str:
    used = {word for each in selection.candidates for word in each.basis.split("+") if word}
    meaning = ", ".join(f"{letter} {word}" for word, letter in LETTERS.items() if word in used)
    first = f"{100 * CONFIDENCE:.0f} % intervals; letters name the evidence: {meaning}"
    if not all(each.verified for each in selection.candidates):
        first += "; ? marks machines with a figure that was not checked in a source"
    return first


def fine_print(selection: Selection) -> list[str]:
    """Return the verdicts, the machines that were left out, and the remarks."""
    unit = "sample" if selection.limits.tokens is None else "token"
    lines = [*_verdicts(selection, unit), *_left_out(selection.refused)]
    lines += [remark.text for remark in selection.remarks]
    lines += [change.text for change in selection.price_changes[:_FEW]]
    more = len(selection.price_changes) - _FEW
    if more > 0:
        lines.append(f"earlier prices change the result for {more} more pairs (--format json)")
    return lines


def _verdicts(selection: Selection, unit: str) -> list[str]:
    """Return the verdicts as lines. `unit`: the unit of work whose cost or time is compared.

    If there are many machines, one line names all machines that are worse than the best machine.
    """
    if len(selection.candidates) <= _FEW:
        return [sentence(each, unit) for each in selection.verdicts]
    asked = [each for each in selection.verdicts if each.by == selection.verdicts[0].by]
    best, better = selection.candidates[0].name, _VERBS[asked[0].by][2]
    beaten = [each.other.name for each in asked if each.decided and each.ratio.high < 1]
    others = [each for each in asked if each.other.name not in beaten]
    lines = [f"{best} is {better} than each of {', '.join(beaten)}"] if beaten else []
    lines += [sentence(each, unit) for each in others[:_FEW]]
    more = [each.other.name for each in others[_FEW:]]
    if more:
        lines.append(f"also UNDECIDED against {', '.join(more)} (--format json has the reasons)")
    return lines


def headline(selection: Selection) -> str:
    """Return the answer in one sentence: the best machine, its cost or time, and any undecided comparison."""
    best = selection.candidates[0]
    in_tokens = selection.limits.tokens is not None
    unit = "tokens" if in_tokens else "samples"
    usd = best.usd_per_million_tokens if in_tokens else best.usd(_MILLION)
    rate = (best.tokens_per_s if in_tokens else None) or best.samples_per_s
    by = "time" if selection.by == "time" or usd is None else "cost"
    undecided = [each.other.name for each in selection.verdicts if each.by == by and not each.decided]
    if by == "cost" and usd is not None:
        verb, value = "costs least", f"{usd.text()} $ for a million {unit}"
    else:
        verb, value = "is fastest", f"{rate.text()} {unit}/s"
    if not undecided:
        return f"{best.name} {verb}, {value}"
    more = f" and {len(undecided) - _FEW} more" if len(undecided) > _FEW else ""
    return f"UNDECIDED which {verb}: {best.name} ({value}) or {', '.join(undecided[:_FEW])}{more}"


def _left_out(refused: Sequence[Refused]) -> list[str]:
    """Return a line for each machine that was left out, with the reason.

    If there are many machines, each memory calculation is shown only once, after these lines.
    """
    lines: list[str] = []
    machines: dict[str, list[str]] = {}  # the machines with each memory calculation
    for each in refused:
        machine = f"{each.num_nodes} x {each.instance}"
        reason = str(each.error)
        if isinstance(each.error, OutOfMemoryError) and len(refused) > _FEW:
            reason = each.error.summary
            machines.setdefault(each.error.need.calculation, []).append(machine)
        lines.append(f"left out: {machine}: {reason}")
    for calculation, names in machines.items():
        lines.append(f"memory of one GPU of {', '.join(names)}: {calculation}")
    return lines


def sentence(verdict: PairDecision, unit: str = "sample") -> str:
    """Return a verdict as a sentence. `unit`: the unit of work whose cost or time is compared.

    The sentence has the ratio of the two machines and names the better machine. If the verdict is open, the sentence
    says UNDECIDED and names the measurement that would decide.
    """
    verb, times_as, better = _VERBS[verdict.by]
    first, other = verdict.first.name, verdict.other.name
    ratio = f"a {unit} on {first} {verb} {verdict.ratio.text()} {times_as} on {other}: "
    doubt = verdict.doubt
    if doubt is None:
        winner = first if verdict.ratio.high < 1 else other
        return f"{ratio}{winner} is {better}"
    if not doubt.unknown:
        return f"{ratio}UNDECIDED, both are equal"
    reason = f"{100 * doubt.share:.0f} % of the uncertainty comes from {doubt.description}"
    return f"{ratio}UNDECIDED; {reason}. To decide, {doubt.command}"


def _plain(selection: Selection) -> dict[str, Any]:
    """Return a selection as plain values for JSON, in seconds, bytes and dollars. An unknown value is null."""
    skipped = []
    for each in selection.refused:
        machine = {"instance": each.instance, "num_nodes": each.num_nodes, "reason": str(each.error)}
        error = {"code": each.error.code, "facts": each.error.facts}
        skipped.append(machine | {"code": each.code, "error": error})
    remarks = [each.remark for each in selection.remarks]
    notes: list[Coded] = [*remarks, *selection.price_changes]
    return {
        "schema": SCHEMA,
        "modelled": True,
        "workload": selection.question.workload.name,
        "ranked_by": selection.by,
        "confidence": CONFIDENCE,
        "answer": decision.answer(selection).to_plain(),
        "run": {
            "samples": selection.limits.samples,
            "tokens": selection.limits.tokens,
            "budget_usd": selection.limits.budget_usd,
            "deadline_s": selection.limits.deadline_s,
        },
        "machines": [
            _machine(rank, each) | _run(selection, each, selection.runs[rank - 1])
            for rank, each in enumerate(selection.candidates, 1)
        ],
        "decision_notes": [note.to_plain() for note in decision_notes(selection)],
        "verdicts": [_verdict(each) for each in selection.verdicts],
        "skipped": skipped,
        "notes": [*(each.text for each in selection.remarks), *(each.text for each in selection.price_changes)],
        "note_codes": [{"code": note.code, "facts": note.facts} for note in notes],
    }


def _run(selection: Selection, each: Candidate, run: WholeRun) -> dict[str, Any]:
    """Return the run on one machine, its break-even price, and the unknown quantity that widens its interval most."""
    narrowing, known = run.narrowing, each.has_middle
    found: dict[str, Any] = {"within_limits": run.within}
    found |= _ends("run", "_s", run.seconds, known)
    found |= _ends("usd_per_run", "", run.usd, known)
    found |= _ends("break_even_usd_per_hour", "", decision.break_even(selection, each), known)
    found["narrowing"] = {
        "unknown": narrowing.unknown or None,
        "share": narrowing.share,
        "high_over_low": narrowing.factor,
        "high_over_low_after": narrowing.factor_after,
        "description": narrowing.description or None,
        "command": narrowing.command or None,
    }
    before = selection.without_runs.get(each.name)
    if before is not None:
        found |= _ends("step_without_runs", "_s", before, known)
    return found


def _machine(rank: int, each: Candidate) -> dict[str, Any]:
    price, epoch = each.priced.price, each.layout.workload.epoch_samples
    found: dict[str, Any] = {
        "rank": rank,
        "instance": each.instance.name,
        "gpu": each.gpu.name,
        "num_nodes": each.layout.num_nodes,
        "num_gpus": each.layout.num_gpus,
        "samples_per_step": each.layout.samples,
        "mesh": _mesh(each, absent=1),
        "bottleneck": each.bottleneck,
        "verified": each.verified,
        "basis": each.basis,
        "compute_basis": each.bases["compute"],
        "exposed_basis": each.bases["exchange"] or None,
        "feed_basis": each.bases["feed"] or None,
        "memory_needed_bytes": each.memory.total,
        "memory_bytes": each.gpu.memory_bytes,
        "usd_per_hour": each.usd_per_hour,
        "price_date": price.date if price else None,
        "price_region": price.region or None if price else None,
        "price_source": price.source if price else None,
    }
    for part in ("step", "compute", "bubble", "exposed", "feed", "exchange"):
        seconds = each.range("total_s" if part == "step" else f"{part}_s")
        found |= _ends(part, "_s", seconds, each.has_middle or part in ("compute", "bubble"))
    known = each.has_middle
    found |= _ends("samples_per_s", "", each.samples_per_s, known)
    found |= _ends("tokens_per_s", "", each.tokens_per_s, known)
    found |= _ends("usd_per_million_samples", "", each.usd(_MILLION), known)
    found |= _ends("usd_per_million_tokens", "", each.usd_per_million_tokens, known)
    found |= _ends("mfu", "", each.model_flops_utilization, known)
    found |= _ends("usd_per_epoch", "", each.usd(epoch) if epoch else None, known)
    found |= _ends("usd_per_hour_waiting", "", each.usd_per_hour_waiting, known)
    return found


def _ends(name: str, unit: str, found: DrawnRange | None, has_middle: bool) -> Mapping[str, float | None]:
    """Return the ends and the middle of a range, with names such as `step_low_s`, `step_s` and `step_high_s`.

    The middle of an interval is null if it is unknown.
    """
    low = middle = high = None
    if found is not None:
        low, high = found.low, found.high
        middle = found.middle if has_middle else None
    return {f"{name}_low{unit}": low, f"{name}{unit}": middle, f"{name}_high{unit}": high}


def _verdict(each: PairDecision) -> dict[str, Any]:
    found: dict[str, Any] = {
        "by": each.by,
        "first": each.first.name,
        "other": each.other.name,
        "ratio_low": each.ratio.low,
        "ratio": each.ratio.middle,
        "ratio_high": each.ratio.high,
        "decided": each.decided,
        "doubt": None,
        "doubt_unknown": None,
        "doubt_share": None,
        "to_decide": None,
    }
    if each.doubt is not None:
        found["doubt"] = each.doubt.description
        found["doubt_unknown"] = each.doubt.unknown or None
        found["doubt_share"] = each.doubt.share
        found["to_decide"] = each.doubt.command or None
    return found
