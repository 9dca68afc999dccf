"""What NCCL says of itself, read from lines of its kind, and from real logs where the corpus is at hand."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bench.transports import _nccl_debug
from bench.transports._nccl_debug import Choice, Debug, NcclReport, broken_demand, merge
from tests.logs import corpus

HEAD = "desk:7:7 [0] NCCL INFO "
RING = Choice("ring", "simple", "the line")


def heard(*words: str) -> NcclReport:
    """What a rank knows after these lines."""
    seen = NcclReport()
    for line in words:
        seen.read_line(line if " NCCL " in line else HEAD + line + "\n")
    return seen


def test_networks_paths_channels_and_nvls_are_read_from_the_lines_of_set_up() -> None:
    seen = heard(
        "NET/OFI Selected provider is efa, fabric is efa (found 4 nics)",
        "Using network AWS Libfabric",
        "8 coll channels, 8 collnet channels, 16 nvls channels, 12 p2p channels, 2 p2p channels per peer",
        "NVLS multicast support is available on dev 0",
        "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read",
        "Channel 01 : 0[0] -> 1[1] via SHM/direct/direct comm 0x55aa nRanks 04",
        "Channel 00/0 : 3[3] -> 4[0] [send] via NET/AWS Libfabric/2(5)/GDRDMA/Shared",
        "Channel 02/08 :    0   1   2   3",
        "desk:7:7 [0] NCCL WARN something is odd",
    )
    assert set(seen.networks) == {"efa"} and "GDRDMA" in seen.networks["efa"]
    assert seen.facts(2) == {
        "nccl_network": "efa",
        "nccl_network_selected": "AWS Libfabric",
        "nccl_nvls": "yes, 16 channels",
        "nccl_channels": "8 collective, 12 point-to-point",
        "nccl_p2p": "P2P/CUMEM, SHM",
        "nccl_gpudirect": "yes",
    }
    assert seen.warning == "something is odd"


def test_a_call_is_read_with_its_algorithm_and_protocol() -> None:
    seen = heard("AllReduce: 4096 Bytes -> Algo NVLS_TREE proto SIMPLE channel{Lo..Hi}={0..15}")
    assert [(one.algorithm, one.protocol) for one in seen.choices] == [("nvls_tree", "simple")]
    assert heard("4096 Bytes -> Algo 1 proto 2 time 12.5").choices == [], "older versions name no words"


def test_nothing_heard_is_unknown_and_one_node_needs_no_network() -> None:
    assert NcclReport().facts(1) == {}
    assert heard("Using network IB").facts(1)["nccl_network"].startswith("none, ")
    assert "nccl_network" not in heard("Using network IB").facts(2), "no peer was connected over it"


def test_ranks_know_together_what_one_of_them_saw_and_say_which() -> None:
    inner, edge = heard("Channel 00/0 : 0[0] -> 1[1] via P2P/IPC"), heard("Channel 00/0 : 1[1] -> 2[0] [send] via NET/IB/1")  # noqa: E501 # fmt: skip
    whole = merge([inner, edge])
    assert whole.networks["ib"].startswith("rank 1: desk:7:7") and whole.paths == {"P2P/IPC"}
    assert whole.gpudirect is False


@pytest.mark.parametrize(
    ("required", "seen", "choice", "words"),
    [
        (("network", "efa"), heard("Channel 0 : 0[0] -> 1[0] [send] via NET/Socket/0"), None, "socket"),
        (("network", "socket"), heard("Channel 0 : 0[0] -> 1[0] [send] via NET/Socket/0"), None, None),
        (("network", "efa"), NcclReport(), None, "network=efa"),
        (("network", "efa"), heard("Channel 0 : 0[0] -> 1[0] via P2P/IPC"), None, "used no network"),
        (("algorithm", "tree"), None, RING, "ring (the line)"),
        (("protocol", "simple"), None, RING, None),
        (("protocol", "ll"), None, None, "protocol=ll"),
        (("network", "efa"), None, RING, None),
        (("algorithm", "tree"), heard("Using network IB"), None, None),
    ],
)
def test_an_unmet_demand_is_reported(
    required: tuple[str, str], seen: NcclReport | None, choice: Choice | None, words: str | None
) -> None:
    said = broken_demand([required], seen, choice)
    assert (said is None) if words is None else (said is not None and words in said)


class FakeNccl:
    """Writes as NCCL does: to the file and of the subsystems that stood in the environment at its first line."""

    def __init__(self, environ: dict[str, str]) -> None:
        self.environ, self.file, self.reads = environ, "", 0

    def reset(self) -> None:
        """ncclResetDebugInit."""
        self.file = ""

    def call(self) -> None:
        """One collective."""
        if not self.file and "NCCL_DEBUG_FILE" in self.environ:
            self.file, self.subsystems = self.environ["NCCL_DEBUG_FILE"].replace("%%", "%"), self.environ["NCCL_DEBUG_SUBSYS"]  # noqa: E501 # fmt: skip
            Path(self.file).write_text("", encoding="utf-8")
            self.reads += 1
        if "TUNING" in self.subsystems:
            with Path(self.file).open("a", encoding="utf-8") as file:
                file.write(
                    HEAD + f"AllReduce: {self.reads} Bytes -> Algo RING proto LL128 channel{{Lo..Hi}}={{0..1}}\n"
                )


def test_the_line_of_a_call_is_switched_on_for_one_untimed_call_only() -> None:
    environ: dict[str, str] = {}
    debug = Debug(environ, every_call=False)
    nccl = FakeNccl(environ)
    nccl.call()
    debug.opened()
    assert environ == {} and debug.can_switch
    for _ in range(2):
        choice = debug.choice(nccl.call, nccl.reset)
        assert choice is not None and (choice.algorithm, choice.protocol) == ("ring", "ll128")
        assert environ == {} and "TUNING" not in nccl.subsystems
    assert nccl.reads == 5 and len(debug.seen.choices) == 2
    assert debug.choice(nccl.call, None) is None, "a library without the reset function"
    debug.close()
    assert not Path(nccl.file).exists()


def test_what_the_user_set_is_left_alone(tmp_path: Path) -> None:
    environ = {"NCCL_DEBUG": "WARN"}
    debug = Debug(environ, every_call=True)
    debug.opened()
    assert environ == {"NCCL_DEBUG": "WARN"} and debug.source is None and debug.given_by_user == "NCCL_DEBUG"
    own = tmp_path / f"nccl.{os.getpid()}.log"
    environ = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": f"{tmp_path}/nccl.%p.log", "NCCL_DEBUG_SUBSYS": "ALL"}
    debug = Debug(environ, every_call=False)
    own.write_text(HEAD + "Using network IB\n" + HEAD + "Channel 00/0 : 0[0] -> 1[1] via P2P/IPC", encoding="utf-8")
    debug.opened()
    assert len(environ) == 3 and debug.seen.selected == "IB" and not debug.seen.paths, "a line is read when it is whole"
    assert not debug.can_switch
    debug.close()
    assert own.exists()


@corpus.needs_corpus
def test_real_output_tells_the_network_and_the_paths() -> None:
    logs = corpus.real("nccl_logs", "")

    def of(begin: str) -> NcclReport:
        seen = NcclReport()
        with next(logs.glob(f"{begin}_*")).open(encoding="utf-8", errors="replace") as file:
            for line in file:
                seen.read_line(line)
        return seen

    efa = of("16")
    assert set(efa.networks) == {"efa"} and efa.gpudirect and efa.paths == {"P2P/IPC"} and efa.channels == 8
    bridge = of("44")
    assert bridge.facts(1)["nccl_nvls"] == "no" and bridge.selected == "IB" and not bridge.networks
    assert {(one.algorithm, one.protocol) for one in of("45").choices} == {("ring", "simple")}


def test_file_names_are_expanded_as_nccl_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "node1.site")
    assert _nccl_debug._expanded("/x/%h.%p%%") == f"/x/node1.{os.getpid()}%"
