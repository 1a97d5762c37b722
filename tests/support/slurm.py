"""A Slurm cluster of two nodes on this machine, from Debian's packages; its daemons live in a folder of their own."""

from __future__ import annotations

import getpass
import os
import platform
import shutil
import signal
import socket
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

DAEMONS = ("munged", "slurmctld", "slurmd", "sbatch")
NODES = ("node1", "node2")
START = 60  # seconds until both nodes are idle

CONF = """
ClusterName=loop
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n.spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
ReturnToService=2
SlurmdTimeout=10
KillWait=5
SchedulerParameters=sched_interval=1,batch_sched_delay=0,defer_batch
NodeName=node[1-2] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{ports}] CPUs=1 State=UNKNOWN
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str:
    """Say which daemons are not installed; empty if all are."""
    path = os.pathsep.join([os.environ["PATH"], "/usr/sbin", "/sbin"])
    return ", ".join(name for name in DAEMONS if shutil.which(name, path=path) is None)


class Slurm:
    """The daemons of a running cluster; :attr:`environment` leads Slurm's commands to it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.processes = folder, dict[str, subprocess.Popen[bytes]]()
        path = os.pathsep.join([os.environ["PATH"], "/usr/sbin", "/sbin"])
        self.environment = {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": path}

    def start(self, name: str, *command: str) -> None:
        """Start a daemon, or start it again."""
        with (self.folder / f"{name}.out").open("ab") as log:
            environment = {**os.environ, **self.environment}
            self.processes[name] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, cwd=self.folder
            )

    def start_node(self, name: str) -> None:
        """Start the daemon of a node."""
        self.start(name, "slurmd", "-D", "-N", name)

    def kill(self, name: str) -> None:
        """Kill a daemon; the jobs of a node go on without it."""
        self.processes[name].send_signal(signal.SIGKILL)
        self.processes[name].wait()

    def command(self, *words: str) -> str:
        """Return what one of Slurm's commands prints; empty if it fails."""
        environment = {**os.environ, **self.environment}
        return subprocess.run(words, capture_output=True, text=True, env=environment).stdout

    def log(self) -> str:
        """The last lines of what the daemons wrote."""
        files = sorted([*self.folder.glob("*.log"), *self.folder.glob("*.out")])
        return "\n".join(f"{path.name}: {path.read_text(errors='replace')[-1500:]}" for path in files)


@contextmanager
def cluster(folder: Path):
    """Start the daemons in a folder, yield a :class:`Slurm` with two idle nodes of one slot each, and stop them."""
    folder.mkdir(mode=0o755)
    (folder / "state").mkdir()
    slurm = Slurm(folder)
    ports = free_ports(3)
    conf = CONF.format(
        host=platform.node().partition(".")[0],
        user=getpass.getuser(),
        folder=folder,
        controller=ports[0],
        ports=",".join(map(str, ports[1:])),
    )
    (folder / "slurm.conf").write_text(conf)
    key = folder / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(os.urandom(128))
    files = [f"--{name}-file={folder}/munge.{name}" for name in ("key", "pid", "log", "seed")]
    try:
        slurm.start("munged", "munged", "--foreground", "--force", f"--socket={folder}/munge.socket", *files)
        until(lambda: (folder / "munge.socket").exists(), slurm)
        slurm.start("slurmctld", "slurmctld", "-D")
        for node in NODES:
            (folder / f"{node}.spool").mkdir()
            slurm.start_node(node)
        until(
            lambda: slurm.command("sinfo", "-N", "-h", "-o%N %t").split() == ["node1", "idle", "node2", "idle"], slurm
        )
        yield slurm
    finally:
        slurm.command("scancel", "--full", "--user", getpass.getuser())
        time.sleep(2 if slurm.command("squeue", "-h") else 0)
        for process in reversed(slurm.processes.values()):
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def until(condition, slurm: Slurm) -> None:
    """Wait for a condition; raise with the daemons' logs if it takes too long."""
    end = time.monotonic() + START
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"Slurm did not start:\n{slurm.log()}")
        time.sleep(0.2)


def free_ports(count: int) -> list[int]:
    """Ports that nothing listens on now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()
