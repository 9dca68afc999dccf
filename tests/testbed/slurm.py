"""A real Slurm on the hosts of a testbed: slurmctld on the first, a slurmd on each, eight pretended GPUs per host.

It needs root (the pretended GPUs are device nodes, and the daemons insist) and Debian's slurmctld, slurmd and
slurm-client; neither munge nor systemd nor cgroups. The daemons live in the hosts' process trees and end with them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.testbed.hosts import Remote, Testbed

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol", "scancel", "sinfo")
_GPUS = 8

_CONF = """\
ClusterName=testbed
SlurmctldHost={first}({address})
SlurmUser=root
SlurmctldPort=16817
SlurmdPort=16818
AuthType=auth/none
CredType=cred/none
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool/%n
TmpFS={root}/tmp/%n
SlurmctldPidFile={root}/run/slurmctld.pid
SlurmdPidFile={root}/run/slurmd.%n.pid
SlurmctldLogFile={root}/log/slurmctld.log
SlurmdLogFile={root}/log/slurmd.%n.log
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
SwitchType=switch/none
MpiDefault=none
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=5
MinJobAge=300
GresTypes=gpu
"""


def why_not() -> str | None:
    """Why no Slurm can be started here; None when one can."""
    if os.geteuid() != 0:
        return "only root can start its daemons and make the device nodes of pretended GPUs"
    gone = [name for name in PROGRAMS if _found(name) is None]
    return f"{', '.join(gone)} not found (Debian: slurmctld, slurmd, slurm-client)" if gone else None


class Slurm:
    """`with Slurm(bed) as slurm:` all hosts are in partition `all`; `slurm.env` makes every client use it."""

    def __init__(self, bed: Testbed, cpus_per_host: int = 8) -> None:
        """Write the configuration of a cluster that is not started yet."""
        self.bed, self.nodes = bed, bed.hosts
        self._root = bed.shared / "slurm"
        per_node = [f"{part}/{node}" for part in ("spool", "tmp") for node in self.nodes]
        for name in ("state", "log", "run", "dev", *per_node):
            (self._root / name).mkdir(parents=True)
        for index in range(_GPUS):  # Gres takes only character devices: twins of /dev/null
            os.mknod(self._root / "dev" / f"nvidia{index}", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        conf = [_CONF.format(root=self._root, first=self.nodes[0], address=bed.address(self.nodes[0]))]
        gres = []
        for node in self.nodes:
            conf += [f"NodeName={node} NodeAddr={bed.address(node)} CPUs={cpus_per_host} Gres=gpu:{_GPUS}\n"]
            gres += [f"NodeName={node} Name=gpu File={self._root}/dev/nvidia[0-7] Flags=nvidia_gpu_env\n"]
        conf += [f"PartitionName=all Nodes={','.join(self.nodes)} Default=YES MaxTime=INFINITE State=UP\n"]
        files = {"slurm.conf": conf, "gres.conf": gres, "cgroup.conf": ["CgroupPlugin=cgroup/v1\n"]}
        for file, lines in files.items():
            (self._root / file).write_text("".join(lines), encoding="utf-8")
        self.env = {"SLURM_CONF": str(self._root / "slurm.conf")}

    def __enter__(self) -> Self:
        self.ask("slurmctld", "-i")
        for node in self.nodes:
            self.ask("slurmd", on=node)
        self.until(lambda: self.ask("sinfo", "-h", "-N", "-o", "%T").split() == ["idle"] * len(self.nodes))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with contextlib.suppress(AssertionError, TimeoutError):
            self.ask("scancel", "--user", "root")
            self.until(lambda: not self.jobs())

    def ask(self, program: str, *words: str, on: str = "") -> str:
        """What one of Slurm's programs prints on the first host; AssertionError with its words when it fails."""
        ran = self.bed.on(on or self.nodes[0], [_found(program) or program, *words], env=self.env, timeout_s=30)
        assert ran.code == 0, f"{program} {' '.join(words)}: {ran.out}{ran.err}"
        return ran.out

    def start(self, words: list[str], env: dict[str, str], cwd: Path) -> Remote:
        """A command on the login node, which is the first host."""
        return self.bed.popen(self.nodes[0], words, env={**env, **self.env}, cwd=cwd)

    def jobs(self) -> list[str]:
        """The ids of the jobs that wait or run."""
        return self.ask("squeue", "-h", "-o", "%A").split()

    def until(self, holds: Callable[[], bool], timeout_s: float = 30.0) -> None:
        """Wait for it; AssertionError with the controller's last words when it never comes."""
        end = time.monotonic() + timeout_s
        while not holds():
            if time.monotonic() > end:
                raise AssertionError((self._root / "log" / "slurmctld.log").read_text()[-2000:])
            time.sleep(0.05)

    def fail(self, node: str) -> None:
        """The node's daemon dies, and the controller takes note."""
        pid = (self._root / "run" / f"slurmd.{node}.pid").read_text().strip()  # of that host's own processes
        self.bed.on(node, ["kill", "-KILL", pid])
        self.ask("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=power lost")

    def mend(self, node: str) -> None:
        """The node comes back; the controller takes it as soon as it says so (ReturnToService)."""
        self.ask("slurmd", on=node)
        self.until(lambda: self.ask("sinfo", "-h", "-n", node, "-o", "%T").strip() == "idle")


def _found(program: str) -> str | None:
    """Daemons stand in sbin, which is not on every PATH."""
    return shutil.which(program, path=os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin")
