"""The batch scripts of the part on torchrun, under a real Slurm: its controller and two nodes on this machine.

Skipped where its programs are missing; on Debian: apt-get install slurmctld slurmd slurm-client. The GPUs are in the
books only (two harmless device files), so that the ranks train on the CPU.
"""

import getpass
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from leftovers import until

from ddplab.course.played_servers import free_port

FILES = Path(__file__).parent.parent / "lessons" / "5_torchrun"
PROGRAMS = ["slurmctld", "slurmd", "sbatch", "srun", "scontrol", "scancel"]
CONF = """
ClusterName=here
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
AuthInfo=cred_expire=5
CredType=cred/none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
GresTypes=gpu
ReturnToService=2
SlurmdParameters=config_overrides
KillWait=5
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
NodeName={host} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=4 Gres=gpu:2
NodeName={host}-b NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=4 Gres=gpu:2
PartitionName=low Nodes=ALL Default=YES PriorityTier=1 State=UP GraceTime=5
PartitionName=high Nodes=ALL PriorityTier=10 State=UP PreemptMode=OFF
"""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    """A running Slurm; `slurm.run("squeue", …)` runs one of its commands, in a folder with the files for use."""
    if missing := [name for name in PROGRAMS if shutil.which(name) is None]:
        pytest.skip(f"needs Slurm's programs, and here is no {', '.join(missing)}")
    host = socket.gethostname()
    try:
        socket.gethostbyname(host)
    except OSError:
        pytest.skip(f"this machine does not know its own name, {host!r}")
    folder = tmp_path_factory.mktemp("slurm")
    (folder / "state").mkdir()
    ports = [free_port() for _ in range(3)]
    conf = folder / "slurm.conf"
    conf.write_text(CONF.format(host=host, ports=ports, user=getpass.getuser(), folder=folder))
    (folder / "gres.conf").write_text(f"NodeName={host},{host}-b Name=gpu File=/dev/null,/dev/zero\n")
    (folder / "cgroup.conf").write_text("CgroupAutomount=no\n")
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    env = {**os.environ, "SLURM_CONF": str(conf), "PATH": path, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    disk = folder / "disk"
    disk.mkdir()
    for name in ("train.py", "train.sbatch", "train_elastic.sbatch"):
        text = (FILES / name).read_text()
        (disk / name).write_text(text.replace("--epochs 90", "--epochs 5000"))  # so that it is never done here

    def run(*words: str) -> str:
        return subprocess.run(words, cwd=disk, env=env, capture_output=True, text=True, check=True, timeout=60).stdout

    daemons = []
    try:
        for n, words in enumerate([["slurmctld"], ["slurmd", "-N", host], ["slurmd", "-N", f"{host}-b"]]):
            with open(folder / f"daemon{n}.log", "w") as log:
                command = [*words, "-D", "-f", str(conf)]
                daemons.append(subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True))
        if not until(lambda: "idle" in _quietly(run, "sinfo", "-h", "-o", "%D %t").replace("2 idle", "idle"), 30):
            pytest.skip(f"Slurm does not come up here: {(folder / 'daemon0.log').read_text()[-500:]}")
        yield SimpleNamespace(run=run, disk=disk, env=env)
    finally:
        _quietly(run, "scancel", f"--user={getpass.getuser()}")
        until(lambda: not _quietly(run, "squeue", "-h"), 20)
        for daemon in reversed(daemons):
            daemon.terminate()
        for daemon in daemons:
            daemon.wait(20)


def _quietly(run, *words):
    try:
        return run(*words)
    except subprocess.CalledProcessError:
        return ""


def submit(slurm, script, *options):
    """Submit with one GPU and one core a node, as this machine has no more; returns the job's number and its log."""
    here = ["--nodes=2", "--gpus-per-node=1", "--cpus-per-task=1", "--time=20"]
    job = slurm.run("sbatch", "--parsable", *here, *options, script).strip()
    return job, slurm.disk / f"{'elastic' if 'elastic' in script else 'train'}-{job}.log"


def wait_for(log, words, seconds=180):
    """Wait until the log has these words; returns its lines."""
    if not until(lambda: log.exists() and words in log.read_text(), seconds):
        pytest.fail(f"{words!r} never came: {log.read_text()[-3000:] if log.exists() else 'no log at all'}")
    return log.read_text().splitlines()


def cancel(slurm, job):
    _quietly(slurm.run, "scancel", job)
    assert until(lambda: not _quietly(slurm.run, "squeue", "-h", "-j", job), 60)


def test_a_preempted_job_is_requeued_and_goes_on(slurm):
    job, log = submit(slurm, "train.sbatch")
    wait_for(log, "epoch 1 ")
    slurm.run("sbatch", "--partition=high", "--nodes=2", "--exclusive", "--wrap=sleep 1")
    wait_for(log, "DUE TO PREEMPTION")
    assert until(lambda: log.read_text().count("beginning at") == 2, 180), log.read_text()[-3000:]
    second = [line for line in log.read_text().splitlines() if "beginning at" in line][1]
    start = int(second.split("beginning at ")[1])
    wait_for(log, f"epoch {start} ")
    cancel(slurm, job)
    epochs = [int(line.split("epoch ")[1].split()[0]) for line in log.read_text().splitlines() if "]:epoch " in line]
    assert start >= 2 and "2 ranks on cpu" in second
    assert sorted(set(epochs)) == list(range(max(epochs) + 1)), "an epoch is missing"


def test_a_job_whose_time_is_over_has_itself_requeued(slurm):
    """The signal comes a minute before the end at most, so the time is a minute: at once."""
    job, log = submit(slurm, "train.sbatch", "--time=1", "--signal=B:USR1@59")
    assert until(lambda: "Restarts=1" in slurm.run("scontrol", "show", "job", job), 90), log.read_text()[-3000:]
    cancel(slurm, job)


def test_an_elastic_job_goes_on_without_a_lost_agent(slurm):
    text = (slurm.disk / "train_elastic.sbatch").read_text()
    settings = "--rdzv-conf last_call_timeout=3,keep_alive_interval=1,keep_alive_max_attempt=3 --rdzv-backend"
    (slurm.disk / "quick_elastic.sbatch").write_text(text.replace("--rdzv-backend", settings))
    job, log = submit(slurm, "quick_elastic.sbatch", "--job-name=elastic")
    wait_for(log, "2 ranks on cpu")
    wait_for(log, "epoch 1 ")
    # the endpoint's name is that of both nodes here, so either may hold the store; it is the other that is lost
    agents = [process for process in psutil.process_iter() if is_agent(process, job)]
    [agent] = [process for process in agents if not listens(process, 10000 + int(job) % 20000)]
    for process in [agent, *agent.children(recursive=True)]:  # all that the node was
        process.send_signal(signal.SIGKILL)
    wait_for(log, "1 ranks on cpu")
    assert job in slurm.run("squeue", "-h", "-o", "%i", "-t", "R").split()
    cancel(slurm, job)


def is_agent(process, job):
    try:
        words = " ".join(process.cmdline())
        return "torchrun --nnodes" in words and "srun" not in words and process.environ().get("SLURM_JOB_ID") == job
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False


def listens(process, port):
    return any(it.status == psutil.CONN_LISTEN and it.laddr.port == port for it in process.net_connections())


def test_without_gpus_asked_for_the_script_says_so(slurm):
    text = (slurm.disk / "train.sbatch").read_text().replace("#SBATCH --gpus-per-node=4\n", "")
    (slurm.disk / "none.sbatch").write_text(text)
    here = ["--nodes=2", "--cpus-per-task=1", "--job-name=train"]
    job = slurm.run("sbatch", "--parsable", *here, "none.sbatch").strip()
    wait_for(slurm.disk / f"train-{job}.log", "SLURM_GPUS_ON_NODE: ask for GPUs with --gpus-per-node")
    assert until(lambda: "JobState=FAILED" in slurm.run("scontrol", "show", "job", job), 20)


@pytest.mark.parametrize("script", ["train.sbatch", "train_elastic.sbatch"])
def test_slurm_takes_every_line(slurm, script):
    here = ["--nodes=1-2", "--gpus-per-node=1", "--cpus-per-task=1"]
    slurm.run("sbatch", "--test-only", *here, script)  # fails when it is refused
