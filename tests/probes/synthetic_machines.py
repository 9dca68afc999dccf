"""Synthetic records of machines: topology tables, NCCL's files and `nvidia-smi -q`, in the layouts of real ones.

Machines are invented. `TABLES`, `TREES` and `DRIVERS` are expectations in the form of tests/probes/test_recorded.py;
`TEXTS` maps `folder/stem` to the text of a file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Kind = Callable[[int, int], str]
TEXTS: dict[str, str] = {}
TABLES: dict[str, Any] = {}
TREES: dict[str, Any] = {}
DRIVERS: dict[str, Any] = {}
LEGEND = "\nLegend:\n\n  X    = Self\n  SYS  = Connection traversing PCIe as well as the SMP interconnect\n"

# ------------------------------------------------------------------------------------------------ nvidia-smi topo -m


def switches(per_switch: int, per_node: int, near: str = "PIX", middle: str = "NODE") -> Kind:
    """Devices below one switch, of one processor, and of two."""

    def kind(a: int, b: int) -> str:
        if a // per_switch == b // per_switch:
            return near
        return middle if a // per_node == b // per_node else "SYS"

    return kind


def matrix(
    names: Sequence[str], kind: Callable[[str, str], str], gpus: int, node: Callable[[int], str], gap: str
) -> str:
    """A table with a row for each device. `gap`: between cells; blanks are aligned in columns."""
    wide = gap == " "
    head = ["", *names, "CPU Affinity", "NUMA Affinity"]
    lines = ["".join(f"{word:<8}" for word in head) if wide else gap.join(head)]
    for index, name in enumerate(names):
        cells = [name, *(" X " if name == other else kind(name, other) for other in names)]
        if index < gpus:
            cells += [f"{8 * index}-{8 * index + 7}", node(index)]
        lines.append("".join(f"{cell:<8}" for cell in cells) if wide else gap.join(cells))
    return "\n".join(lines) + "\n"


def add_table(
    name: str,
    gpus: int,
    cards: int,
    between: Callable[[int, int], str],
    to_card: Kind | None = None,
    nodes: int | None = None,
    gap: str = " ",
    named: str = "NIC",
    before: str = "",
    after: str = LEGEND,
    rows: int | None = None,
) -> None:
    """One table more. `nodes`: memory nodes that the GPUs are divided among. `rows`: how many are left of a cut one."""
    names = [f"GPU{n}" for n in range(gpus)] + [f"{named}{n}" for n in range(cards)]
    place = {
        device: (device.startswith("GPU"), int(device.removeprefix("GPU").removeprefix(named))) for device in names
    }

    def kind(a: str, b: str) -> str:
        (a_gpu, first), (b_gpu, second) = place[a], place[b]
        if a_gpu and b_gpu:
            return between(first, second)
        assert to_card is not None
        return to_card(first, second)

    def node(index: int) -> str:
        return "N/A" if nodes is None else str(index * nodes // gpus)

    table = matrix(names, kind, gpus, node, gap)
    if rows is not None:
        table = "".join(table.splitlines(keepends=True)[: rows + 1])
    TEXTS[f"topo_logs/{name}"] = before + table + after
    kept = names[:rows] if rows is not None else names
    shown = {device: device.lower() if device.startswith("GPU") else device for device in names}
    cells = {}
    for index, a in enumerate(names):
        for b in names[index + 1 :]:
            cells[f"{shown[a]} {shown[b]}"] = kind(a, b) if a in kept or b in kept else None
    num_paths = sum(value is not None for value in cells.values())
    counts = {"gpus": gpus, "cards": cards, "paths": num_paths, "lost": int(len(kept) < len(names))}
    TABLES[name] = (counts, [None if nodes is None else n * nodes // gpus for n in range(gpus)], cells)


def _tables() -> None:
    switched = switches(2, 4)
    add_table("2_gpus_of_a_bridge", 2, 0, lambda a, b: "NV2")
    add_table("2_gpus_of_a_host", 2, 0, lambda a, b: "PHB", after="")
    add_table("8_gpus_of_nvswitch", 8, 0, lambda a, b: "NV18", nodes=2)
    add_table("8_gpus_8_cards", 8, 8, lambda a, b: "NV12", switched, nodes=2)
    add_table("8_gpus_8_cards_by_tabs", 8, 8, lambda a, b: "NV18", switched, nodes=2, gap="\t", named="mlx5_")
    add_table("8_gpus_without_nvlink", 8, 0, switched, nodes=2, before="\x1b[4m", after="\x1b[0m\n" + LEGEND)
    add_table("8_gpus_without_a_legend", 8, 0, switches(4, 8, "PIX", "PHB"), after="")
    add_table("8_gpus_8_cards_cut", 8, 8, lambda a, b: "NV18", switched, nodes=2, gap="\t", after="", rows=10)


# ------------------------------------------------------------------------------------------------ topology of NCCL


def device(bus: str, kind: str, speed: str, inside: str = "") -> str:
    """A PCI device of a class."""
    return f'<pci busid="{bus}" class="{kind}" link_speed="{speed} GT/s" link_width="16">{inside}</pci>\n'


def add_tree(name: str, generation: int, speed: str, kind: str, vendor: str = "", top: str = "ffff:ff") -> None:
    """A topology file: two processors, two switches each, with two GPUs and an adapter below each switch."""
    text, buses, cards = '<system version="1">\n', [], []
    adapter_class = {"infiniband": "0x020700", "efa": "0x020000"}[kind]
    for cpu in range(2):
        text += f'<cpu numaid="{cpu}" affinity="ffff" arch="x86_64" vendor="GenuineIntel">\n'
        for switch in range(2 * cpu, 2 * cpu + 2):
            inside = ""
            for gpu in range(2):
                bus = f"0000:{switch + 1}0:1{gpu}.0"
                buses.append(bus)
                inside += device(bus, "0x030200", speed)
            card = f"0000:{switch + 1}0:1b.0"
            cards.append(card)
            inside += device(card, adapter_class, speed).replace("<pci ", f"<pci {vendor} ".replace("  ", " "))
            text += device(f"{top}:0{switch + 1}.0", "0x060400", speed, inside)
        text += "</cpu>\n"
    TEXTS[f"topo_xml/{name}"] = f"<!-- an invented machine -->\n{text}</system>\n"
    cells = {"gpu0 gpu1": "PIX", "gpu1 gpu2": "PHB", "gpu3 gpu4": "SYS"}
    cells |= {f"gpu0 {cards[0]}": "PIX", f"{cards[0]} gpu7": "SYS", f"gpu7 {cards[3]}": "PIX"}
    TREES[name] = (buses, [0] * 4 + [1] * 4, (generation, 16), cards, kind, cells, "NVLinks")


def _trees() -> None:
    add_tree("8_gpus_of_generation_4", 4, "16.0", "infiniband")
    add_tree("8_gpus_of_generation_5", 5, "32.0", "infiniband")
    add_tree("8_gpus_of_generation_3_efa", 3, "8", "efa", 'vendor="0x1d0f" device="0xefa0"')
    graph = "".join(f'<gpu dev="{n}"/>' for n in range(4))
    TEXTS["topo_xml/a_graph"] = f'<graphs version="1"><graph id="0"><channel>{graph}</channel></graph></graphs>'
    TREES["a_graph"] = ([None] * 4, [None] * 4, (None, None), [], None, {"gpu0 gpu1": None}, "graph")


# ------------------------------------------------------------------------------------------------ nvidia-smi -q


def described(index: int, name: str, memory: int, pcie: Sequence[int | None], ecc: bool | None) -> str:
    """A GPU of the XML form. `pcie`: generation now, most, own, of the slot; lanes now and most."""
    now, most, own, slot, lanes, most_lanes = ("N/A" if value is None else value for value in pcie)
    mode = "N/A" if ecc is None else "Enabled" if ecc else "Disabled"
    count = "N/A" if ecc is None else "0"
    return f"""<gpu id="00000000:{index + 1}0:00.0"><product_name>{name}</product_name>
<mig_mode><current_mig>Disabled</current_mig></mig_mode><uuid>GPU-{index:08d}</uuid>
<pci><pci_bus_id>00000000:{index + 1}0:00.0</pci_bus_id><pci_gpu_link_info>
<pcie_gen><max_link_gen>{most}</max_link_gen><current_link_gen>{now}</current_link_gen>
<max_device_link_gen>{own}</max_device_link_gen><max_host_link_gen>{slot}</max_host_link_gen></pcie_gen>
<link_widths><max_link_width>{most_lanes}x</max_link_width>
<current_link_width>{lanes}x</current_link_width></link_widths>
</pci_gpu_link_info></pci>
<clocks_event_reasons><clocks_event_reason_gpu_idle>Active</clocks_event_reason_gpu_idle></clocks_event_reasons>
<fb_memory_usage><total>{memory} MiB</total></fb_memory_usage>
<ecc_mode><current_ecc>{mode}</current_ecc></ecc_mode>
<ecc_errors><aggregate><sram_uncorrectable>{count}</sram_uncorrectable></aggregate></ecc_errors>
<temperature><gpu_temp>31 C</gpu_temp></temperature>
<gpu_power_readings><power_draw>61.50 W</power_draw>
<current_power_limit>700.00 W</current_power_limit></gpu_power_readings>
<clocks><sm_clock>345 MHz</sm_clock><mem_clock>2619 MHz</mem_clock></clocks>
<max_clocks><sm_clock>1980 MHz</sm_clock><mem_clock>2619 MHz</mem_clock></max_clocks></gpu>
"""


def add_driver(name: str, count: int, product: str, memory: int, pcie: Sequence[int | None], ecc: bool | None) -> None:
    """What the driver said of some equal GPUs, as XML."""
    gpus = "".join(described(index, product, memory, pcie, ecc) for index in range(count))
    head = "<driver_version>599.10</driver_version><cuda_version>13.9</cuda_version>"
    head += f"<attached_gpus>{count}</attached_gpus>"
    TEXTS[f"pcie_logs/{name}"] = f'<?xml version="1.0" ?>\n<nvidia_smi_log>{head}\n{gpus}</nvidia_smi_log>\n'
    slot = pcie[3]
    if slot is None and pcie[1] is not None and pcie[2] is not None and pcie[1] < pcie[2]:
        slot = pcie[1]
    expected = (*pcie[:3], slot, *pcie[4:])
    modes = (ecc, False, None)
    buses = ("10:00.0", f"{count}0:00.0")
    DRIVERS[name] = (count, product, memory, *buses, expected, (345, 1980, 2619, 2619), (61.5, 700, 31), modes)


def _drivers() -> None:
    add_driver("8_gpus_generation_5", 8, "NVIDIA H100 80GB HBM3", 81559, (5, 5, 5, 5, 16, 16), True)
    add_driver("1_gpu_in_an_older_slot", 1, "NVIDIA L4", 23034, (1, 3, 4, None, 16, 16), True)
    add_driver("8_gpus_with_half_the_lanes", 8, "NVIDIA L40S", 46068, (1, 4, 4, None, 8, 16), True)
    add_driver("2_gpus_without_ecc", 2, "NVIDIA GeForce RTX 4090", 24564, (4, 4, 4, 4, 16, 16), None)


_tables()
_trees()
_drivers()
