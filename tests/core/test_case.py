"""A case and its command line say the same."""

from __future__ import annotations

import argparse
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.core.case import (
    ACCESSES,
    BINDS,
    CACHES,
    COMPUTES,
    DIRECTIONS,
    ENGINES,
    FACTOR,
    LIKE,
    LOOPS,
    MEMORIES,
    MODES,
    PIPELINES,
    SCHEDULES,
    SYNCS,
    THREAD_LEVELS,
    TIMERS,
    VIAS,
    Case,
    ignored_option,
    ineffective_flags,
    preset_fields,
)
from bench.core.case_argv import add_arguments, command_argv, from_args, from_argv, own_case, stored_value, to_argv
from bench.core.dtypes import DTYPES, REDUCE_OPS
from bench.core.errors import UsageError
from bench.core.option_parsers import REQUIRABLE
from bench.core.plugins import load, names
from bench.core.skips import SkipCode
from bench.core.step_model import AUTOCASTS, HOOKS, RECOMPUTED
from bench.core.topology import SPLITS
from bench.core.training_step import INJECTABLE, Injected, TimedLayers

SECONDS_OF_LAYERS = st.floats(1e-6, 10)
SECONDS = st.floats(1e-9, 1e9)
SMALL = st.integers(0, 10_000)
WORD = st.from_regex(r"[a-z][a-z0-9_.-]{0,10}", fullmatch=True)
SIZES = st.sets(st.integers(1, 1 << 45), min_size=1, max_size=12).map(lambda sizes: tuple(sorted(sizes)))
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "transport": st.sampled_from(("auto", *names("transport"))),
    "sizes": SIZES,
    "dtype": st.sampled_from(tuple(DTYPES)),
    "reduce_op": st.sampled_from(REDUCE_OPS),
    "root": SMALL,
    "in_place": st.booleans(),
    "mode": st.sampled_from(MODES),
    "cache": st.sampled_from(CACHES),
    "direction": st.sampled_from(DIRECTIONS),
    "window": st.integers(1, 1000),
    "topology": st.sampled_from(("world", "node", "rail", "pairs")) | st.integers(1, 64).map("groups of {}".format),
    "order": st.sampled_from(("linear", "reverse", "interleaved", "0", "1,0", "3,1,2,0")),
    "matrix": st.integers(1, 4).flatmap(
        lambda n: st.tuples(*[st.tuples(*[st.integers(0, 9)] * n)] * n).filter(lambda rows: any(map(any, rows)))
    ),
    "aggressor": st.sampled_from(("alltoall:4M", "sendrecv:8", "pingpong:1000001")),
    "split": st.sampled_from((*SPLITS[:-1], "0-3,6/4-5", "0/1")),
    "iterations": st.integers(1, 10_000),
    "warmup": SMALL,
    "max_s": SECONDS,
    "budget_s": SECONDS,
    "aggregate": st.integers(1, 64),
    "register": st.sampled_from(("none", "buffers", "symmetric")),
    "symmetric": st.sampled_from(("none", "one-shot", "two-shot", "multimem", "multimem-one-shot")),
    "ctas": st.sampled_from(("", "4", "1-16")),
    "cta_policy": st.sampled_from(("", "default", "efficiency", "zero")),
    "soak_s": SECONDS | st.just(0.0),
    "seed": st.integers(0, 1 << 62),
    "like": st.sampled_from(("", *LIKE)),
    "thread_level": st.sampled_from(THREAD_LEVELS),
    "loop": st.sampled_from(LOOPS),
    "timer": st.sampled_from(TIMERS),
    "bind": st.sampled_from(BINDS),
    "sync": st.sampled_from(SYNCS),
    "alignment": st.sampled_from((64, 4096, 1 << 21)),
    "instance": WORD,
    "nodes": st.integers(1, 1000),
    "ranks_per_node": st.integers(1, 1000),
    "links": st.lists(st.tuples(WORD, st.floats(1e-3, 1e20)), min_size=1, max_size=3).map(tuple),
    "schedule": st.sampled_from(SCHEDULES),
    "nics": st.lists(WORD, min_size=1, max_size=4).map(tuple),
    "racks": st.lists(st.tuples(WORD, st.lists(WORD, min_size=1, max_size=3).map(tuple)), min_size=1).map(tuple),
    "engine": st.sampled_from(ENGINES),
    "sms": st.integers(0, 200),
    "skew": st.integers(0, 16).map(lambda quarters: quarters / 4),
    "access": st.sampled_from(ACCESSES),
    "memory": st.sampled_from(MEMORIES),
    "via": st.sampled_from(VIAS),
    "plan": WORD.map("/tmp/{}.json".format),
    "compute": st.sampled_from(COMPUTES),
    "pause_s": st.floats(0.001, 1.0) | st.just(0.0),
    "graph": st.booleans(),
    "tf32": st.booleans(),
    "files": st.sampled_from(["raw", "tar"]),
    "read_order": st.sampled_from(["sequential", "shuffled", "random"]),
    "record": st.integers(1, 1 << 20),
    "workers": st.integers(0, 8),
    "destination": st.sampled_from(["host", "device", "gds"]),
    "method": st.sampled_from(["file", "dcp", "dcp_async"]),
    "exchange": st.integers(1, 1 << 20),
    "worker_kind": st.sampled_from(["thread", "process"]),
    "block": st.integers(1, 1 << 20),
    "ahead": st.integers(0, 64),
    "prepare": st.sampled_from(["none", "decode", "augment", "tokenise"]),
    "offline": st.booleans(),
    "step_s": st.floats(0.001, 1.0) | st.just(0.0),
    "prepare_s": st.floats(0.001, 1.0) | st.just(0.0),
    "batch": st.integers(1, 512),
    "prefetch": st.integers(1, 8),
    "direct_io": st.booleans(),
    "folder": st.sampled_from(["", "/data"]),
    "demand": st.sampled_from([0.0, 2e9]),
    "timed": st.none()
    | st.builds(
        TimedLayers,
        st.integers(1, 100),
        SECONDS_OF_LAYERS,
        SECONDS_OF_LAYERS,
        st.integers(1, 1 << 28).map(lambda elements: 4 * elements),
        st.just(0.0) | SECONDS_OF_LAYERS,
    ),
    "strategy": st.sampled_from(names("strategy")),
    "workload": st.sampled_from(["", "vit-l-306m"]),
    "layers": st.integers(1, 99),
    "resize": st.sampled_from(["", "hidden=64,heads=4"]),
    "samples": st.integers(1, 99),
    "autocast": st.sampled_from(AUTOCASTS),
    "recompute": st.sampled_from(RECOMPUTED),
    "bucket_view": st.booleans(),
    "hook": st.sampled_from([*HOOKS, "powersgd:2"]),
    "mesh": st.sampled_from(["", "1x4", "2x8"]),
    "pipeline": st.sampled_from(PIPELINES),
    "micro_batches": st.integers(1, 64),
    "sync_each": st.booleans(),
    "trained": st.sampled_from(("all", "head", "lora:8")),
    "compiled": st.booleans(),
    "trace": st.sampled_from(("", "/tmp/trace")),
    "period": st.integers(1, 64),
    "post_local": st.integers(0, 64),
    "staleness": st.integers(1, 8),
    "bucket": st.sampled_from([0, 4096, 25 << 20]),
    "inject": st.lists(
        st.builds(Injected, st.integers(0, 99), st.sampled_from(INJECTABLE), SECONDS_OF_LAYERS), max_size=2
    ).map(tuple),
    "share_gpu": st.booleans(),
    "require": st.lists(st.tuples(st.sampled_from(tuple(REQUIRABLE)), WORD), min_size=1, max_size=3).map(tuple),
}
OF_STEPS = {"prepare_s": "4ms", "batch": "32", "prefetch": "3"}
PATTERN: dict[str, st.SearchStrategy[Any]] = {"pattern": st.sampled_from(names("pattern"))}


def consistent(fields: dict[str, Any]) -> Case:
    """`like` fixes settings, a ladder has no aggressor, and a pass without steps has no batches."""
    if fields.get("schedule") == "ladder":
        fields = {name: value for name, value in fields.items() if name != "aggressor"}
    if not fields.get("step_s"):
        fields = {name: value for name, value in fields.items() if name not in OF_STEPS}
    return Case(**fields | preset_fields(fields.get("like", ""), fields["pattern"]))


CASES = st.fixed_dictionaries(PATTERN, optional=FIELDS).map(consistent)


@given(CASES)
@settings(max_examples=40)
def test_a_printed_case_reads_back(case: Case) -> None:
    assert from_argv(to_argv(case)) == case


def test_a_ladder_measures_pairs() -> None:
    assert typed("pairs", "--schedule", "ladder").schedule == "ladder"
    with pytest.raises(UsageError, match="--schedule ladder"):
        typed("allreduce", "--schedule", "ladder")
    assert from_argv(["allreduce", "--schedule", "ladder"]).schedule == "ladder"  # a stored run stays readable


def test_a_ladder_has_no_aggressor() -> None:
    with pytest.raises(UsageError, match="--aggressor"):
        from_argv(["pairs", "--schedule", "ladder", "--aggressor", "alltoall:4M"])


@pytest.mark.parametrize("name", OF_STEPS)
def test_options_of_steps_need_steps(name: str) -> None:
    argv = ["feed", FACTOR[name].flags[-1], OF_STEPS[name]]
    for none in ([], ["--step-time", "0s"]):
        with pytest.raises(UsageError, match=f"{argv[1]} .*--step-time"):
            from_argv([*argv, *none])
    assert from_argv([*argv, "--step-time", "1ms"]).step_s == 0.001


def test_the_property_above_covers_every_field() -> None:
    assert set(FIELDS) | {"pattern"} == set(Case.__dataclass_fields__)


def test_only_what_differs_from_the_defaults_is_printed() -> None:
    assert to_argv(Case("allreduce")) == ["allreduce"]
    assert to_argv(Case("allreduce", root=3, in_place=True)) == ["allreduce", "--root", "3", "--in-place", "1"]


def test_the_options_of_nccl_tests_mean_the_same_here() -> None:
    case = from_argv(["allreduce", "-b", "8", "-e", "128", "-f", "4", "-d", "half", "-o", "max", "-n", "20", "-w", "5"])
    assert case == Case("allreduce", sizes=(8, 32, 128), dtype="float16", reduce_op="max", iterations=20, warmup=5)


def test_a_range_may_give_one_end_only() -> None:
    assert from_argv(["allreduce", "-e", "32"]).sizes == (8, 16, 32)
    assert from_argv(["allreduce", "-b", "8M"]).sizes == (8 << 20, 16 << 20)
    assert from_argv(["allreduce", "-b", "1G"]).sizes == (1 << 30,)


def test_both_modes_are_two_modes() -> None:
    assert Case("allreduce").modes == ("isolated", "pipelined")
    assert Case("allreduce", mode="isolated").modes == ("isolated",)


@pytest.mark.parametrize(
    ("argv", "facts"),
    [
        (["alreduce"], ("alreduce", "allreduce")),
        (["allreduce", "--transport", "mpj"], ("--transport", "mpj", "mpi")),
        (["allreduce", "--dtype", "flot32"], ("--dtype", "flot32", "float32")),
        (["allreduce", "--op", "summ"], ("--op", "summ", "sum")),
        (["allreduce", "--mode", "pipeline"], ("--mode", "pipeline", "pipelined")),
        (["allreduce", "--cache", "warm"], ("--cache", "warm", "cold, hot")),
        (["allreduce", "--sizes", "-1"], ("--sizes", "'-1'")),
        (["allreduce", "--sizes", "8Q"], ("--sizes", "8Q")),
        (["allreduce", "--sizes", "1G:1M"], ("--sizes", "1G", "1M")),
        (["allreduce", "--sizes", "8:1M:1"], ("--sizes", "'1'")),
        (["allreduce", "-b", "8Q"], ("8Q",)),
        (["allreduce", "-b", "8", "-f", "1"], ("-f", "'1'")),
        (["allreduce", "-b", "8", "--sizes", "8"], ("-b", "--sizes")),
        (["allreduce", "--root", "-1"], ("--root", "'-1'", "0 or more")),
        (["allreduce", "--window", "0"], ("--window", "'0'", "1 or more")),
        (["allreduce", "--iterations", "0"], ("--iterations", "'0'")),
        (["allreduce", "--iterations", "1.5"], ("--iterations", "1.5")),
        (["allreduce", "--in-place", "yes"], ("--in-place", "yes", "true")),
        (["allreduce", "--topology", "ring"], ("--topology", "ring")),
        (["allreduce", "--order", "random"], ("--order", "random")),
        (["allreduce", "--direction", "both"], ("--direction", "both")),
        (["allreduce", "--max-seconds", "0"], ("--max-seconds", "'0'")),
        (["allreduce", "--budget", "soon"], ("--budget", "soon")),
        (["alltoallv", "--matrix", "0,1;1"], ("--matrix", "0,1;1")),
        (["alltoallv", "--matrix", "0,0;0,0"], ("--matrix", "0,0;0,0")),
        (["alltoallv", "--matrix", "0,-1;1,0"], ("--matrix", "0,-1;1,0")),
        (["allreduce", "--links", "nic"], ("--links", "'nic'", "name=rate")),
        (["allreduce", "--links", "nic=fast"], ("--links", "fast")),
        (["allreduce", "--rot", "1"], ("--rot", "--root")),
        (["allreduce", "--root"], ("--root",)),
        (["allreduce", "--alignment", "63"], ("--alignment", "'63'")),
        (["allreduce", "--alignment", "100"], ("--alignment", "'100'")),
        (["allreduce", "--alignment", "32"], ("--alignment", "'32'")),
        ([], ("pattern",)),
    ],
)
def test_an_error_names_the_option_the_value_and_the_nearest_word(argv: list[str], facts: tuple[str, ...]) -> None:
    with pytest.raises(UsageError) as raised:
        from_argv(argv)
    assert all(fact in str(raised.value) for fact in facts), str(raised.value)


@pytest.mark.parametrize(
    ("option", "transport", "ignored"),
    [
        ("graph", "nccl", None),
        ("graph", "gloo", "--graph"),
        ("graph", "model", None),  # a model has no calls whose overhead a graph could save
        ("require", "nccl", None),
        ("require", "mpi", "--require"),
        ("require", "model", "--require"),
        ("sync", "gloo", None),
    ],
)
def test_options_that_a_transport_would_ignore(option: str, transport: str, ignored: str | None) -> None:
    value: Any = {"graph": True, "require": (("network", "efa"),), "sync": "none"}[option]
    skip = ignored_option(Case("allreduce", **{option: value}), transport)
    assert (skip and (skip.code, skip.facts["option"])) == (ignored and (SkipCode.OPTION_IGNORED, ignored))


def test_options_without_effect_are_those_of_other_patterns_and_transports_and_of_factors_that_are_not_set() -> None:
    def flags(pattern: str, transport: str, *words: str) -> list[str]:
        return ineffective_flags(typed(pattern, *words), load("pattern", pattern).PATTERN, transport)

    assert flags("allreduce", "gloo", "--sync", "barrier", "--bind", "none") == ["--sync"]
    assert flags("allreduce", "mpi", "--sync", "barrier", "--skew", "1") == ["--skew"]
    assert flags("allreduce", "gloo", "--like", "osu") == []
    assert flags("allreduce", "model", "--graph", "1") == []
    assert flags("allreduce", "mpi", "--split", "halves") == ["--split"]
    assert flags("allreduce", "mpi", "--split", "halves", "--aggressor", "alltoall") == []


def test_an_option_that_no_transport_obeys_can_only_be_omitted(monkeypatch: pytest.MonkeyPatch) -> None:
    def words(transports: tuple[str, ...]) -> str:
        monkeypatch.setattr("bench.core.case.names_obeying", lambda _: transports)
        skip = ignored_option(Case("allreduce", graph=True), "gloo")
        assert skip is not None and skip.facts["transports"] == list(transports)
        return skip.text

    assert "use nccl" in words(("nccl",)) and "no transport" not in words(("nccl",))
    assert "no transport" in words(()) and " use" not in words(())


def test_measuring_like_another_tool_fixes_its_settings() -> None:
    case = typed("allreduce", "--like", "nccl-tests")
    assert (case.mode, case.cache) == ("pipelined", "hot")
    assert typed("pingpong", "--like", "osu").sync == "none"
    with pytest.raises(UsageError, match=r"--like nccl-tests .*\bmode .*pipelined"):
        typed("allreduce", "--like", "nccl-tests", "--mode", "isolated")


def test_a_stored_case_is_read_with_the_settings_that_it_was_measured_with() -> None:
    """As by versions whose `--like osu` set no timer, or whose `--like nccl-tests` set another mode."""
    measured = ["--mode", "isolated", "--cache", "hot", "--like", "osu", "--sync", "barrier", "--alignment", "4096"]
    older = ["allreduce", *measured]
    case = own_case(older)
    assert case is not None and (case.like, case.sync, case.timer) == ("osu", "barrier", "system")
    assert to_argv(case) == older
    assert typed("allreduce", "--like", "osu").timer == "library"
    other = own_case(["allreduce", "--mode", "isolated", "--like", "nccl-tests"])
    assert other is not None and (other.mode, other.cache) == ("isolated", "cold")


def test_the_command_of_a_job_of_an_older_version_keeps_its_settings() -> None:
    for older in (["allreduce", "--like", "osu"], ["allreduce", "--mode", "isolated", "--like", "nccl-tests"]):
        case = from_argv(older)
        pattern, *words = command_argv(case)
        assert typed(pattern, *words, planned=True) == case != typed(pattern, "--like", case.like)
        with pytest.raises(UsageError, match=f"--like {case.like} "):
            typed(pattern, *words)
    today = typed("allreduce", "--like", "osu")
    assert command_argv(today) == to_argv(today)


def typed(pattern: str, *words: str, planned: bool = False) -> Case:
    """The case of a command line that a user types, or of a planned job."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_arguments(parser)
    return from_args(pattern, parser.parse_args(words), planned=planned)


@pytest.mark.parametrize(
    ("argv", "name", "value"),
    [
        (["pairs", "--schedule", "ladder"], "schedule", "ladder"),
        (["pairs", "--transport", "of-another-version", "--schedule", "ladder"], "schedule", "ladder"),
        (["of-another-version", "--order", "reverse"], "order", "reverse"),
        (["of-another-version", "--engine", "of-another-version"], "engine", "of-another-version"),
        (["of-another-version", "--like"], "like", ""),
        ([], "order", "linear"),
    ],
)
def test_a_stored_case_of_another_version_still_states_its_factors(argv: list[str], name: str, value: str) -> None:
    assert stored_value(argv, name) == value
