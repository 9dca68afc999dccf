import json
import os
from pathlib import Path

from bench.probes import machine


def test_the_facts_of_this_machine_are_plain_data() -> None:
    facts = machine.facts()
    assert json.loads(json.dumps(facts, allow_nan=False)) == facts
    assert facts["num_cpus"] == len(os.sched_getaffinity(0))
    assert facts["memory_bytes"] > facts["available_memory_bytes"] > 0


def test_where_nothing_can_be_found_out_the_facts_say_none(tmp_path: Path) -> None:
    facts = machine.facts(tmp_path)
    unknown = {"product", "cpu_model", "num_cores", "memory_bytes", "last_level_cache_bytes", "container", "governor"}
    assert {name: facts[name] for name in unknown} == dict.fromkeys(unknown)


def test_every_fact_is_explained() -> None:
    page = (Path(__file__).parents[2] / "docs/facts.md").read_text(encoding="utf-8")
    assert [key for key in machine.facts() if f"`{key}`" not in page] == []
