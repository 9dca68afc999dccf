"""A real sshd on two hosts: a run over it, whose connection to a host is killed, goes on."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from typing import NoReturn

import pytest

from bench.controller.messages import ConnectionCode
from tests.testbed.hosts import Testbed
from tests.testbed.test_connections import Run

pytestmark = [pytest.mark.netns, pytest.mark.slow]
PORT = 22022
CONFIG = """
Port {port}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
PidFile none
PasswordAuthentication no
StrictModes no
"""


@pytest.fixture
def sshd(missing: Callable[[str, str], NoReturn]) -> str:
    """The path of sshd. It must be absolute, and root must start it."""
    found = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")
    if found is None or shutil.which("ssh") is None or shutil.which("ssh-keygen") is None:
        missing("sshd", "sshd, ssh or ssh-keygen is not installed")
    if os.geteuid():
        missing("sshd", "only root can start an sshd that lets users in")
    return found


def agent(bed: Testbed, sshd: str) -> list[str]:
    """Start sshd on each host, with keys and settings of its own. Returns the words for `agent:`."""
    folder = bed.shared / "ssh"
    folder.mkdir(mode=0o700)
    for name in ("host_key", "user_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    config = folder / "sshd_config"
    config.write_text(CONFIG.format(port=PORT, folder=folder))
    for host in bed.hosts:
        assert bed.on(host, ["mkdir", "-p", "/run/sshd"]).code == 0
        bed.popen(host, [sshd, "-D", "-e", "-f", str(config)])
    settings = ("BatchMode=yes", "StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR")
    options = [word for setting in (*settings, "ConnectTimeout=5") for word in ("-o", setting)]
    return ["ssh", "-F", "none", "-i", str(folder / "user_key"), "-p", str(PORT), *options, "{host}"]


@pytest.mark.parametrize("end", ["ssh ", "sshd: root@"])
def test_a_run_over_ssh_survives_the_loss_of_a_connection(end: str, sshd: str, testbed: Callable[..., Testbed]) -> None:
    bed = testbed(2)
    words = agent(bed, sshd)
    run = Run(bed, "gloo", 5000, agent=words)
    host = "h1" if end.startswith("sshd:") else "h0"
    found = [process for process in bed.processes() if process.host == host and process.words.startswith(end)]
    lost = [process for process in found if host == "h1" or " h1 " in process.words]
    assert lost, bed.processes()
    for process in lost:
        os.kill(process.number, signal.SIGKILL)
    assert run.controller.wait(100) == 0, run.controller.err
    outcome = run.outcome()
    [remark] = outcome["remarks"]
    print(remark["text"])
    assert (remark["code"], remark["facts"]["host"]) == (ConnectionCode.RESTORED, "h1")
    run.wait(lambda: not bed.processes("BENCH_JOB"), 10)
