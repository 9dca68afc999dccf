"""Who has the port of the ranks' meeting is asked at once, because the program with the port may end before the job."""

from __future__ import annotations

import socket
from pathlib import Path

from bench.controller import watch
from bench.launchers import torchrun

ROOT = Path(__file__).resolve().parents[2]
AGENT = ("sh", "-c", 'exec sh -c "$1"', "{host}")
TAKEN = (
    "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
    "port: {}, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use\n"
)


def test_who_has_the_port_is_known_after_its_program_has_ended(tmp_path: Path) -> None:
    log, before = tmp_path / "log", "an earlier attempt\n"
    log.write_text(before)
    reached = watch.JobHosts(("here",), AGENT)
    port = watch.MeetingPort("run/job/1", reached, torchrun.LAUNCHER.blamed)
    with socket.create_server(("127.0.0.1", 0)) as door:
        port.look(log, len(before))
        log.write_text(before + "it starts\n")
        port.look(log, len(before))
        assert port.answer() is None
        log.write_text(before + "it starts\n" + TAKEN.format(door.getsockname()[1]))
        port.look(log, len(before))
        answer = port.answer()
    blame = torchrun.LAUNCHER.blamed(log.read_text())
    found = watch.gather("run/job/1", 2, tmp_path, "", blame, reached, False, {}, 1.0, answer)
    assert found.first_host is not None
    assert [holder["address"] for holder in found.port_holders[found.first_host]] == ["127.0.0.1"]
    assert watch.gather("run/job/1", 2, tmp_path, "", blame, reached, False, {}, 1.0).port_holders == {
        found.first_host: ()
    }
