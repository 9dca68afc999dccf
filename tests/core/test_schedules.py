from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.core.errors import UsageError
from bench.core.fabric import SWITCH, Flow
from bench.core.program import COLLECTIVES
from bench.core.schedules import Call, Phase, Phases, algorithms, schedule

SIZE = 4096.0
NODES = st.integers(1, 5)
PER_NODE = st.integers(1, 5)
BANDWIDTH_OPTIMAL = ("ring", "hierarchical", "halving", "doubling", "halving_doubling")
ALL_TO_ALL = [(op, name) for op in ("allreduce", "allgather", "reducescatter") for name in algorithms(op)]


def call(num_nodes: int, per_node: int, root: int = 0, **changes: object) -> Call:
    ranks = tuple(range(num_nodes * per_node))
    return Call(ranks, per_node, SIZE, root, **changes)  # type: ignore[arg-type]


def phases(op: str, name: str, each: Call) -> Phases:
    found = schedule(op, name, each)
    assert found is not None
    return found


def messages(phase: Phase) -> list[Flow]:
    """The messages of a phase: source rank, target rank, bytes."""
    return [(int(source), int(target), num_bytes) for source, target, num_bytes in phase.flows.tolist()]


def port_bytes(found: Phases) -> tuple[Counter[int], Counter[int]]:
    """Bytes that leave and that enter each rank."""
    sent: Counter[int] = Counter()
    received: Counter[int] = Counter()
    for phase in found:
        for source, target, num_bytes in messages(phase):
            sent[source] += phase.repeat * num_bytes  # type: ignore[assignment]
            received[target] += phase.repeat * num_bytes  # type: ignore[assignment]
    return sent, received


def leaving(found: Phases, per_node: int) -> Counter[int]:
    """Bytes that leave each node."""
    out: Counter[int] = Counter()
    for phase in found:
        for source, target, num_bytes in messages(phase):
            if source // per_node != target // per_node:
                out[source // per_node] += phase.repeat * num_bytes  # type: ignore[assignment]
    return out


def num_steps(found: Phases) -> int:
    return sum(phase.repeat for phase in found)


@given(num_nodes=NODES, per_node=PER_NODE)
@pytest.mark.parametrize(("op", "name"), [case for case in ALL_TO_ALL if case[1] in BANDWIDTH_OPTIMAL])
def test_bandwidth_optimal_algorithms_move_the_least_bytes_through_each_port(
    op: str, name: str, num_nodes: int, per_node: int
) -> None:
    n = num_nodes * per_node
    found = schedule(op, name, call(num_nodes, per_node))
    if not found:
        return
    least = (2 if op == "allreduce" else 1) * (n - 1) / n * SIZE
    sent, received = port_bytes(found)
    assert [sent[rank] for rank in range(n)] == pytest.approx([least] * n)
    assert [received[rank] for rank in range(n)] == pytest.approx([least] * n)


@given(num_nodes=st.integers(2, 6), per_node=st.integers(2, 6))
def test_hierarchical_algorithms_move_the_least_bytes_between_nodes(num_nodes: int, per_node: int) -> None:
    for op, factor in (("allreduce", 2.0), ("allgather", 1.0), ("reducescatter", 1.0)):
        out = leaving(phases(op, "hierarchical", call(num_nodes, per_node)), per_node)
        least = factor * (num_nodes - 1) / num_nodes * SIZE
        assert [out[node] for node in range(num_nodes)] == pytest.approx([least] * num_nodes)


@given(num_nodes=st.integers(2, 6), per_node=PER_NODE)
def test_rings_cross_each_node_boundary_with_what_a_port_carries(num_nodes: int, per_node: int) -> None:
    n = num_nodes * per_node
    out = leaving(phases("allreduce", "ring", call(num_nodes, per_node)), per_node)
    assert [out[node] for node in range(num_nodes)] == pytest.approx([2 * (n - 1) / n * SIZE] * num_nodes)


def test_rings_load_every_rail_equally() -> None:
    found = phases("allreduce", "ring", call(3, 4))
    crossing = [flow for flow in messages(found[0]) if flow[0] // 4 != flow[1] // 4]
    assert len({flow[0] for flow in crossing}) == len({flow[1] for flow in crossing}) == 12
    assert {flow[2] for flow in crossing} == {SIZE / 12 / 4}


def test_a_ring_keeps_the_order_of_the_members() -> None:
    found = phases("allgather", "ring", Call((0, 4, 1, 5), 4, SIZE))
    assert {flow[:2] for flow in messages(found[0])} == {(0, 4), (4, 1), (1, 5), (5, 0)}


def test_hierarchical_algorithms_need_even_nodes_of_two_or_more() -> None:
    assert schedule("allreduce", "hierarchical", call(1, 8)) is None
    assert schedule("allreduce", "hierarchical", call(8, 1)) is None
    assert schedule("allreduce", "hierarchical", Call((0, 1, 2, 8), 8, SIZE)) is None


@pytest.mark.parametrize(
    ("op", "name", "steps"),
    [
        ("allreduce", "ring", 30),
        ("allreduce", "halving_doubling", 8),
        ("allreduce", "recursive_doubling", 4),
        ("allreduce", "tree", 8),
        ("allreduce", "hierarchical", 16),
        ("allgather", "ring", 15),
        ("broadcast", "tree", 4),
        ("broadcast", "chain", 15),
        ("gather", "linear", 15),
        ("gather", "tree", 4),
        ("alltoall", "pairwise", 15),
        ("barrier", "dissemination", 4),
    ],
)
def test_algorithms_take_the_steps_of_the_textbook_on_two_nodes_of_eight(op: str, name: str, steps: int) -> None:
    assert num_steps(phases(op, name, call(2, 8))) == steps


@pytest.mark.parametrize("name", ["halving_doubling", "recursive_doubling"])
def test_exchanges_with_partners_need_a_power_of_two(name: str) -> None:
    assert schedule("allreduce", name, call(3, 2)) is None
    assert schedule("allreduce", name, call(4, 2)) is not None


@given(num_nodes=NODES, per_node=PER_NODE, data=st.data())
@pytest.mark.parametrize("name", algorithms("broadcast"))
def test_every_rank_but_the_root_receives_a_broadcast_once_and_only_holders_send(
    name: str, num_nodes: int, per_node: int, data: st.DataObject
) -> None:
    root = data.draw(st.integers(0, num_nodes * per_node - 1))
    found = phases("broadcast", name, call(num_nodes, per_node, root))
    _, received = port_bytes(found)
    wanted = {rank: SIZE for rank in range(num_nodes * per_node) if rank != root}
    assert {rank: size for rank, size in received.items() if size} == pytest.approx(wanted)
    if name == "tree":
        held = {root}
        for phase in found:
            assert {source for source, _, _ in messages(phase)} <= held
            held |= {target for _, target, _ in messages(phase)}


@given(num_nodes=NODES, per_node=PER_NODE, data=st.data())
def test_a_reduce_is_a_broadcast_backwards(num_nodes: int, per_node: int, data: st.DataObject) -> None:
    root = data.draw(st.integers(0, num_nodes * per_node - 1))
    for name in algorithms("reduce"):
        sent, _ = port_bytes(phases("reduce", name, call(num_nodes, per_node, root)))
        wanted = {rank: SIZE for rank in range(num_nodes * per_node) if rank != root}
        assert {rank: size for rank, size in sent.items() if size} == pytest.approx(wanted)


def test_a_tree_crosses_the_network_once_per_other_node() -> None:
    out = leaving(phases("broadcast", "tree", call(4, 4, root=6)), 4)
    assert sum(out.values()) == 3 * SIZE


@given(num_nodes=NODES, per_node=PER_NODE, data=st.data())
@pytest.mark.parametrize("name", algorithms("gather"))
def test_a_gather_brings_every_block_to_the_root_and_a_scatter_the_other_way(
    name: str, num_nodes: int, per_node: int, data: st.DataObject
) -> None:
    n = num_nodes * per_node
    root = data.draw(st.integers(0, n - 1))
    sent, received = port_bytes(phases("gather", name, call(num_nodes, per_node, root)))
    assert received[root] == pytest.approx((n - 1) / n * SIZE)
    assert all(sent[rank] - received[rank] == pytest.approx(SIZE / n) for rank in range(n) if rank != root)
    back, _ = port_bytes(phases("scatter", name, call(num_nodes, per_node, root)))
    assert back[root] == pytest.approx(received[root])


@given(num_nodes=NODES, per_node=PER_NODE)
def test_alltoall_joins_each_pair_once_in_rounds_inside_or_between_nodes(num_nodes: int, per_node: int) -> None:
    n = num_nodes * per_node
    found = phases("alltoall", "pairwise", call(num_nodes, per_node))
    pairs = Counter(flow[:2] for phase in found for flow in messages(phase))
    assert pairs == Counter((a, b) for a in range(n) for b in range(n) if a != b)
    for phase in found:
        assert len({flow[0] for flow in messages(phase)}) == len({flow[1] for flow in messages(phase)}) == n
        assert len({flow[0] // per_node == flow[1] // per_node for flow in messages(phase)}) == 1


def test_alltoall_between_two_nodes_of_eight_moves_four_times_the_payload() -> None:
    assert leaving(phases("alltoall", "pairwise", call(2, 8)), 8) == {0: 4 * SIZE, 1: 4 * SIZE}


def test_alltoall_runs_on_uneven_nodes_too() -> None:
    found = phases("alltoall", "pairwise", Call((0, 1, 2, 8), 8, SIZE))
    assert len({flow[:2] for phase in found for flow in messages(phase)}) == 12


def test_alltoallv_sends_each_pair_its_own_bytes_and_no_empty_messages() -> None:
    split = ((1, 2, 0), (0, 0, 5), (7, 0, 9))
    found = phases("alltoallv", "pairwise", Call((4, 5, 6), 8, 9.0, split=split))
    assert sorted(flow for phase in found for flow in messages(phase)) == [(4, 5, 2.0), (5, 6, 5.0), (6, 4, 7.0)]


@given(num_nodes=NODES, per_node=PER_NODE)
def test_after_a_barrier_every_rank_has_heard_from_all(num_nodes: int, per_node: int) -> None:
    n = num_nodes * per_node
    heard = [{rank} for rank in range(n)]
    for phase in phases("barrier", "dissemination", call(num_nodes, per_node)):
        before = [set(known) for known in heard]
        for source, target, num_bytes in messages(phase):
            assert num_bytes == 0
            heard[target] |= before[source]
    assert all(known == set(range(n)) for known in heard)


def test_a_switch_that_reduces_is_sent_the_payload_and_a_share_of_the_result() -> None:
    found = phases("allreduce", "nvls", call(1, 8, reduces=True))
    sent, received = port_bytes(found)
    assert {sent[rank] for rank in range(8)} == {received[rank] for rank in range(8)} == {SIZE * 9 / 8}
    assert all(SWITCH in flow[:2] for phase in found for flow in messages(phase))
    assert schedule("allreduce", "nvls", call(1, 8)) is None
    assert schedule("allreduce", "nvls", call(2, 4, reduces=True)) is None


def test_one_rank_has_no_phases() -> None:
    for op in ("allreduce", "alltoall", "broadcast", "gather", "barrier"):
        assert all(schedule(op, name, call(1, 1)) == [] for name in algorithms(op))


def test_every_collective_has_an_algorithm() -> None:
    assert all(algorithms(op) for op in COLLECTIVES)


def test_unknown_names_are_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"'allredcue'.*'allreduce'"):
        algorithms("allredcue")
    with pytest.raises(UsageError, match=r"'rings'.*'ring'"):
        schedule("allreduce", "rings", call(1, 2))
