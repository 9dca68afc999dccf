"""`nvidia-smi nvlink -s` as drivers of several versions print it, whole and damaged."""

from __future__ import annotations

import pytest

from bench.core.inventory import Inventory
from bench.probes.nvlink_status import inventory, recognises
from bench.probes.topology import inventory_of

_HEADING = "GPU {}: NVIDIA A100-SXM4-80GB (UUID: GPU-0000-{})"


def status(*gpus: tuple[int, list[str]]) -> str:
    lines = []
    for number, links in gpus:
        lines += [_HEADING.format(number, number), *(f"\t Link {index}: {link}" for index, link in enumerate(links))]
    return "\n".join(lines) + "\n"


def active(found: Inventory) -> dict[int, list[bool | None]]:
    return {gpu.index: [link.active for link in gpu.nvlinks] for gpu in found.gpus}


def test_links_have_their_state_and_rate() -> None:
    found = inventory(status((0, ["26.562 GB/s"] * 2 + ["<inactive>"]), (1, ["25 GB/s"] * 3)))
    assert active(found) == {0: [True, True, False], 1: [True, True, True]}
    first, second = found.gpus
    assert (first.name, first.uuid) == ("NVIDIA A100-SXM4-80GB", "GPU-0000-0")
    assert [link.bytes_per_s for link in first.nvlinks] == [26.562e9, 26.562e9, None]
    assert second.nvlinks[0].rate_from == "driver" and found.lost == ()


@pytest.mark.parametrize("sentence", ["all links are inactive", "all links are inActive"])
def test_a_sentence_in_place_of_links_means_as_many_inactive_ones(sentence: str) -> None:
    text = (
        status((0, ["25 GB/s"] * 12))
        + f"{_HEADING.format(1, 1)}\nNVML: Unable to retrieve NVLink information as {sentence}\n"
    )
    assert active(inventory(text))[1] == [False] * 12


def test_a_gpu_alone_without_active_links_is_not_given_a_number_of_links() -> None:
    text = _HEADING.format(6, 6) + "\nNVML: Unable to retrieve NVLink information as all links are inactive\n"
    assert recognises(text) and [link.active for link in inventory(text).gpus[0].nvlinks] == [False]


def test_a_list_of_gpus_is_no_status() -> None:
    assert not recognises(f"{_HEADING.format(0, 0)}\n{_HEADING.format(1, 1)}\n")


def test_error_counters_and_remote_devices_are_not_read_as_states() -> None:
    text = f"{_HEADING.format(0, 0)}\n\t Link 0: Replay Errors: 0\n\t Link 0: Remote Device 00000000:C4:00.0: Link 2\n"
    assert not recognises(text)


def test_links_join_the_gpus_of_a_table_in_the_same_text() -> None:
    table = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV2\t0-3\nGPU1\tNV2\t X \t0-3\n\n"
    found = inventory_of(table + status((0, ["25 GB/s"] * 2), (1, ["25 GB/s", "<inactive>"])))
    assert found is not None and active(found) == {0: [True, True], 1: [True, False]}
    assert [path.kind for path in found.paths] == ["NV2"]


@pytest.mark.parametrize(
    "text",
    ["Link 0: 25 GB/s\n", "GPU 0: x\n Link 999: 25 GB/s\n Link 0: <inac", "GPU 0: x\n Link 0: 25 GB/s\nGPU 0: y\n"],
    ids=["no heading", "cut", "twice"],
)
def test_damaged_text_raises_nothing(text: str) -> None:
    assert len(inventory(text).gpus) <= 1


def test_a_link_without_its_gpu_is_reported_as_lost() -> None:
    assert len(inventory("Link 0: 25 GB/s\n" + status((0, ["25 GB/s"]))).lost) == 1
