"""Derive the decision from a selection: the answer, the break-even prices and the nearest published runs.

This module returns codes and numbers. The texts are in predict/messages.py.
"""

from __future__ import annotations

from typing import Any

from bench.core.codes import Coded
from bench.hardware import catalogue, reference
from bench.hardware.reference import Reference
from bench.predict.candidate import Candidate
from bench.predict.draws import DrawnRange
from bench.predict.messages import Answer
from bench.predict.select import PairDecision, Selection


def break_even(selection: Selection, each: Candidate) -> DrawnRange | None:
    """Return the price at which a sample on this machine costs as much as a sample on its rival.

    The price is in dollars per hour of all nodes.

    The rival is the first machine of the ranking. For the first machine, the rival is the second machine. If the price
    is below the returned range, this machine is certainly cheaper. If the price is above the range, this machine is
    certainly more expensive. Return None if a price is unknown or if costs are not compared.
    """
    first = selection.candidates[0]
    for verdict in selection.verdicts:
        if verdict.by != "cost":
            continue
        price, ratio = each.usd_per_hour, verdict.ratio
        if price is None:
            continue
        if each is first:
            return DrawnRange(price / ratio.high, price / ratio.middle, price / ratio.low)
        if verdict.other is each:
            return DrawnRange(price * ratio.low, price * ratio.middle, price * ratio.high)
    return None


def nearest_published(each: Candidate) -> Reference | None:
    """Return the published result that is most similar to the machine's most expensive collective.

    The result is for the collective that takes most of the communication time, with the same numbers of ranks and
    nodes. Results of the same instance type come first, then results of the same GPU model, then results of GPUs with
    the same links.
    """
    if not each.exchanges:
        return None
    call, _ = max(each.exchanges, key=lambda pair: pair[0].calls * pair[1].centre_s)
    # an instance type of bench.yaml has no published run
    listed = each.instance.name if each.instance.name in catalogue.instances() else None
    found = reference.same_shape(call.collective, each.gpu.name, listed, call.group.num_nodes, call.group.size)
    return next((one for one in found if one.busbw), None)


def answer(selection: Selection) -> Coded:
    """Return the answer: the best machine, how certain its rank is, and the price that would change the answer."""
    best = selection.candidates[0]
    by = "time" if selection.by == "time" or best.sample_usd is None else "cost"
    asked = [each for each in selection.verdicts if each.by == by]
    facts: dict[str, Any] = {"best": best.name, "by": by, "cost": by == "cost"}
    facts["tokens"] = selection.limits.tokens is not None
    facts |= _limits_facts(selection)
    if not selection.verdicts:
        return Coded.of(Answer.ONLY_ONE, **facts)
    if not asked:
        return Coded.of(Answer.NOT_COMPARED, **facts)
    open_ones = [each for each in asked if each.ratio.low <= 1 <= each.ratio.high]
    if open_ones:
        faster = _surely_faster(selection, open_ones) if by == "cost" else None
        return Coded.of(Answer.CANNOT_TELL, **facts, **_open_facts(open_ones), faster=faster)
    behind = [each for each in asked if each.ratio.low > 1]
    if behind:  # a machine that misses the limits may be better by the metric
        return Coded.of(Answer.BETTER_BUT_OUTSIDE, **facts, others=[each.other.name for each in behind])
    return Coded.of(Answer.SURE, **facts, **_sure_facts(selection, asked))


def _limits_facts(selection: Selection) -> dict[str, Any]:
    within = selection.runs[0].within
    return {"limited": within is not None, "within": within}


def _open_facts(open_ones: list[PairDecision]) -> dict[str, Any]:
    first = open_ones[0]
    doubt = first.doubt
    return {
        "others": [each.other.name for each in open_ones],
        "other": first.other.name,
        "low": first.ratio.low,
        "high": first.ratio.high,
        "doubt": doubt.description if doubt and doubt.unknown else None,
        "share": doubt.share if doubt and doubt.unknown else None,
    }


def _surely_faster(selection: Selection, open_ones: list[PairDecision]) -> str | None:
    """Return the machine that is certainly faster: the best machine by cost, or its only rival.

    A rival is a machine that may be better by cost. Return None if there are several rivals, or if neither machine is
    certainly faster.
    """
    if len(open_ones) > 1:
        return None
    rival = open_ones[0].other
    times = [each.ratio for each in selection.verdicts if each.by == "time" and each.other is rival]
    if any(ratio.high < 1 for ratio in times):
        return selection.candidates[0].name
    return rival.name if any(ratio.low > 1 for ratio in times) else None


def _sure_facts(selection: Selection, asked: list[PairDecision]) -> dict[str, Any]:
    nearest = max(asked, key=lambda each: each.ratio.high)
    other = next(each for each in selection.candidates if each is nearest.other)
    price = break_even(selection, other) if asked[0].by == "cost" else None
    return {
        "num_others": len(asked),
        "several": len(asked) > 1,
        "other": other.name,
        "low": nearest.ratio.low,
        "high": nearest.ratio.high,
        "below_usd": price.low if price else None,
        "now_usd": other.usd_per_hour,
    }
