"""A real SLURM on loopback, without systemd: munged, slurmctld and two slurmd as children of this process.

Nothing outside a temporary folder is touched but two links in /etc/slurm: the plug-in drops SLURM_CONF inside its jobs.
Where slurm.conf is already there the machine has a SLURM of its own, and this one is not started.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

LINKS = (Path("/etc/slurm/slurm.conf"), Path("/etc/slurm/gres.conf"))
PREFIX = "fdamed-slurm-"
NODES = ("n1", "n2")
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel")
CONFIGURATION = """
ClusterName={name}
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={controller}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CryptoType=crypto/munge
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SlurmdParameters=config_overrides
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=1
JobAcctGatherParams=OverMemoryKill
AccountingStorageType=accounting_storage/none
MinJobAge=300
ReturnToService=2
KillWait=10
SlurmctldTimeout=10
SlurmdTimeout=300
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmdLogFile={folder}/slurmd.%n.log
SlurmdSpoolDir={folder}/spool.%n
GresTypes=gpu
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={n1} CPUs=2 RealMemory=16000 Gres=gpu:fake:2
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={n2} CPUs=2 RealMemory=16000 Gres=gpu:fake:2
PartitionName=main Nodes=ALL Default=YES MaxTime=UNLIMITED State=UP
"""
FAKE_GPUS = "AutoDetect=off\nNodeName=n[1-2] Name=gpu Type=fake File=/dev/tty[0-1]\n"


class NoSlurm(Exception):
    """SLURM cannot be started here; the text says why."""


def free_ports(n: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(n)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def _die_with_parent() -> None:
    """Even a test that is killed leaves no daemon behind (PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def _answers() -> bool:
    return subprocess.run(["scontrol", "ping"], capture_output=True, check=False, timeout=60).returncode == 0


class Cluster:
    """Two nodes of two processors and two pretended GPUs each."""

    def __init__(self) -> None:
        missing = [p for p in PROGRAMS if shutil.which(p) is None]
        if missing:
            raise NoSlurm(f"{', '.join(missing)} not installed: apt-get install slurm-wlm munge")
        if os.geteuid() != 0:
            raise NoSlurm("SLURM without systemd needs root")
        for link in LINKS:
            if link.is_symlink() and PREFIX in str(link.readlink()) and not _answers():
                link.unlink()  # of a test that was killed
            if link.exists() or link.is_symlink():
                raise NoSlurm(f"{link} is there: this machine has a SLURM of its own, or another test has one")
        self.folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir="/tmp"))
        self.name = f"loopback{os.getpid()}"
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    def _start(self) -> None:
        self.folder.chmod(0o755)
        for name in ("munge", "state", *(f"spool.{n}" for n in NODES)):
            (self.folder / name).mkdir()
        (self.folder / "munge").chmod(0o711)
        key = self.folder / "munge" / "key"
        key.touch(0o600)
        key.write_bytes(os.urandom(1024))
        controller, n1, n2 = free_ports(3)
        text = CONFIGURATION.format(
            name=self.name,
            host=socket.gethostname().split(".")[0],
            folder=self.folder,
            controller=controller,
            n1=n1,
            n2=n2,
        )
        (self.folder / "slurm.conf").write_text(text)
        (self.folder / "gres.conf").write_text(FAKE_GPUS)
        for link in LINKS:
            link.parent.mkdir(exist_ok=True)
            link.symlink_to(self.folder / link.name)
        files = {n: self.folder / "munge" / n for n in ("socket", "pid", "log", "seed")}
        options = [f"--{option}-file={files[option]}" for option in ("pid", "log", "seed")]
        self._run("munged", "--foreground", f"--key-file={key}", f"--socket={files['socket']}", *options)
        self._until(files["socket"].exists, "munged")
        self.start_controller()
        for node in NODES:
            self._run("slurmd", "-D", "-N", node, as_name=node)
        self._until(lambda: self.states().count("idle") == len(NODES), "the nodes")

    def stop(self) -> None:
        """Stop what was started, jobs first, and take the link away."""
        if "slurmctld" in self._daemons:
            subprocess.run(["scancel", "--user=root", "--full"], check=False, capture_output=True, timeout=30)
            begin = time.monotonic()
            while self.jobs("PENDING", "RUNNING", "COMPLETING") and time.monotonic() - begin < 30:
                time.sleep(0.5)
        for name in reversed(list(self._daemons)):
            self._end(name)
        for pid in self._left_over():
            os.kill(pid, signal.SIGKILL)
        for link in LINKS:
            if link.is_symlink() and self.folder in link.readlink().parents:
                link.unlink()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _left_over(self) -> list[int]:
        """Processes of this cluster's jobs that outlived it: SLURM's environment names the cluster."""
        mark = f"SLURM_CLUSTER_NAME={self.name}".encode()
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (process / "environ").read_bytes().split(b"\0"):
                    found.append(int(process.name))
            except OSError:
                continue  # it ended meanwhile, or is not ours
        return found

    def start_controller(self) -> None:
        self._run("slurmctld", "-D")
        self._until(lambda: "n1" in self._ask("sinfo", "-N", "-h", "-o", "%N"), "slurmctld")

    def stop_controller(self) -> None:
        """An outage: the nodes and their jobs go on, nobody answers."""
        self._end("slurmctld")

    def states(self) -> list[str]:
        return self._ask("sinfo", "-N", "-h", "-o", "%t").split()

    def jobs(self, *states: str) -> list[tuple[str, str]]:
        """(id, comment) of the jobs in these states."""
        lines = self._ask("squeue", "-h", "-t", ",".join(states) or "all", "-o", "%i|%k").splitlines()
        return [(number, comment) for number, comment in (line.split("|", 1) for line in lines)]

    def described(self, job: str) -> dict[str, str]:
        words = self._ask("scontrol", "show", "job", job).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def _run(self, program: str, *arguments: str, as_name: str | None = None) -> None:
        with open(self.folder / f"{as_name or program}.out", "ab") as out:
            self._daemons[as_name or program] = subprocess.Popen(
                [shutil.which(program), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                preexec_fn=_die_with_parent,
                start_new_session=True,
            )

    def _end(self, name: str) -> None:
        daemon = self._daemons.pop(name)
        daemon.terminate()
        try:
            daemon.wait(20)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()

    def _ask(self, *command: str) -> str:
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60).stdout

    def _until(self, true, what: str, seconds: float = 90) -> None:
        begin = time.monotonic()
        while not true():
            if time.monotonic() - begin > seconds:
                tails = "\n".join(f"{p.name}: {p.read_text(errors='replace')[-600:]}" for p in self._logs())
                raise NoSlurm(f"{what} did not come up within {seconds:.0f} s\n{tails}")
            time.sleep(0.2)

    def _logs(self) -> list[Path]:
        return sorted(self.folder.glob("*.out"))
