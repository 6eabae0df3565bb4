"""Servers that are played: what lesson 5.2 and its exercises rely on."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from leftovers import until

from ddplab.course import played_servers
from ddplab.course.played_servers import NIGHTS, free_port, play_night, sbatch, servers


def test_an_agent_knows_whether_it_holds_the_store():
    server1, server2 = servers()
    line = f"sh -c 'echo $PET_RDZV_CONF $PET_LOCAL_ADDR $SERVER' --rdzv-endpoint {server2}:1"
    for server in (server1, server2):
        server.type(line)
    assert (server1.wait(), server2.wait()) == (0, 0)
    assert server1.screen == "is_host=0 127.0.0.1 server1\n"
    assert server2.screen == "is_host=1 localhost server2\n"


def test_what_is_typed_about_the_meeting_is_kept():
    server1, _ = servers()
    server1.type(f"sh -c 'echo $3' sh --rdzv-endpoint {server1}:1 --rdzv-conf read_timeout=3")
    assert server1.wait() == 0
    server1.type(f"sh -c 'echo $4' sh --rdzv-endpoint {server1}:1 --rdzv-conf read_timeout=3")
    assert server1.wait() == 0 and server1.screen == "read_timeout=3,is_host=1\n"


def test_waiting_for_words_and_for_an_end():
    server1, _ = servers()
    server1.type("sh -c 'echo I am there; exec sleep 60'")
    server1.wait_for("am there")
    assert server1.busy and server1.says("there") == ["I am there"]
    with pytest.raises(TimeoutError, match="never said 'gone'"):
        server1.wait_for("gone", timeout=0.2)
    assert server1.end() != 0 and not server1.busy
    server1.type("sleep 60")
    with pytest.raises(TimeoutError, match="server1 was still busy"):
        server1.wait(timeout=0.2)
    assert not server1.busy


def test_a_command_that_ignores_sigterm_is_ended_too():
    server1, _ = servers()
    server1.type("sh -c 'trap : TERM; echo deaf; while :; do sleep 0.1; done'")
    server1.wait_for("deaf")
    server1.end(patience=0.2)
    assert not server1.busy


def test_sigterm_that_comes_as_the_command_starts_ends_the_command():
    """And not whoever is to pass it on, which would leave the command alone."""
    early = """import os, signal, subprocess
class Popen(subprocess.Popen):
    def __init__(self, *words, **options):
        super().__init__(*words, **options)
        os.kill(os.getpid(), signal.SIGTERM)
subprocess.Popen = Popen
"""
    watch = [sys.executable, "-c", early + played_servers._WATCH, "sh", "-c", "echo $$; exec sleep 60"]
    with subprocess.Popen(watch, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as watching:
        try:
            assert watching.wait(20) == 256 - signal.SIGTERM, "it tells how the command has ended"
        finally:
            if pid := watching.stdout.readline().strip():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)


def test_no_process_outlives_the_kernel():
    code = (
        "import time; from ddplab.course.played_servers import servers; one, _ = servers()\n"
        "one.type('sh -c \"echo $$; exec sleep 60\"')\n"
        "while not one.screen: time.sleep(0.05)\n"
        "print(one.screen.strip(), flush=True); time.sleep(60)"
    )
    kernel = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    pid = kernel.stdout.readline().strip()
    kernel.send_signal(signal.SIGKILL)
    kernel.wait()
    kernel.stdout.close()
    assert until(lambda: not os.path.exists(f"/proc/{pid}"), 20)
    for disk in Path(tempfile.gettempdir()).glob("ddplab-server*"):  # a kernel that is killed cannot tidy up
        shutil.rmtree(disk)


def test_what_a_cut_cable_has_stopped_ends_with_the_kernel_too(tmp_path):
    stopped = subprocess.Popen(["sleep", "60"])
    stopped.send_signal(signal.SIGSTOP)
    (tmp_path / "stopped").write_text(str(stopped.pid))
    code = "from ddplab.course import played_agent; played_agent._end_with_the_kernel()"
    env = {**os.environ, "STOPPED": str(tmp_path / "stopped")}
    kernel_is_gone = subprocess.DEVNULL  # as a pipe that nobody holds any more
    agent = subprocess.run([sys.executable, "-c", code], stdin=kernel_is_gone, env=env, timeout=60)
    assert agent.returncode == -signal.SIGTERM and stopped.wait(5) == -signal.SIGKILL


def test_when_the_agent_that_holds_a_c10d_store_is_gone_the_other_ends_too_and_blames_the_store():
    server1, server2 = servers()
    line = f"torchrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint {server2}:{free_port()} --rdzv-id 7 waits.py"
    for server in (server1, server2):
        (server.disk / "waits.py").write_text("import time; print('it waits', flush=True); time.sleep(3600)")
        server.type(line)
    for server in (server1, server2):
        server.wait_for("it waits")
    server2.switch_off()
    assert server1.wait() != 0
    assert "The connection to the C10d store has failed" in server1.screen
    # the system's word for it depends on what still lay unread when the store went
    assert re.search("Failed to recv, got 0 bytes|Connection reset by peer|Broken pipe", server1.screen)


SCRIPT = """#!/bin/bash
set -eu
hosts=($(scontrol show hostnames "$SLURM_JOB_NODELIST"))
srun --label echo "${hosts[0]}" "$SLURM_NNODES  $SLURM_GPUS_ON_NODE" "$((10000 + SLURM_JOB_ID % 20000))"
"""


def test_a_batch_script_is_run_once_a_node(tmp_path):
    file = tmp_path / "job.sbatch"
    file.write_text(SCRIPT)
    job = sbatch(str(file), nodes=3, gpus=4)
    [asked] = job.asked
    assert asked[:4] == ["--label", "echo", "localhost", "3  4"] and 10000 <= int(asked[4]) < 30000
    assert job.status == 0 and job.output == f"localhost 3  4 {asked[4]}\n" * 3
    dry = sbatch(str(file), job=7, dry=True)
    assert dry.asked == [["--label", "echo", "localhost", "2  1", "10007"]] and not dry.output


def test_a_node_that_fails_fails_the_batch(tmp_path):
    file = tmp_path / "job.sbatch"
    file.write_text("#!/bin/bash\nsrun sh -c 'exit $SLURM_NODEID'\n")
    assert sbatch(str(file)).status == 1


def test_without_gpus_their_number_is_not_set_as_under_slurm(tmp_path):
    file = tmp_path / "job.sbatch"
    file.write_text("#!/bin/bash\necho ${SLURM_GPUS_ON_NODE:-none}\n")
    assert [sbatch(str(file), gpus=gpus, dry=True).output for gpus in (4, 0)] == ["4\n", "none\n"]


TRAIN = str(Path(__file__).parents[2] / "lessons/5_torchrun/train.sbatch")


def after(night, without=""):
    """The state of the lesson's job after a night, and the epochs in its log."""
    told = play_night(TRAIN, night, without).splitlines()
    [state] = [line.split()[1] for line in told if line.startswith("state")]
    return state, " and ".join(line.removeprefix("epochs ") for line in told if line.startswith("epochs "))


def test_the_lessons_script_gets_through_the_nights_that_one_can_get_through():
    calm, preempted, fails, slow = NIGHTS
    assert after(calm) == ("COMPLETED", "0 to 89")
    assert after(preempted) == ("COMPLETED", "0 to 40 and 41 to 89")
    assert after(fails) == ("FAILED", "0 to 25")
    assert after(slow) == ("COMPLETED", "0 to 60 and 61 to 89")
    told = play_night(TRAIN, preempted, job="24242")
    assert "gpu03:14242; under the id: 24242.1;" in told and told.count("--checkpoint train-24242.pt") == 2


def test_which_lines_change_no_night_and_without_which_nothing_starts():
    lines = Path(TRAIN).read_text().splitlines()[1:]
    calm = play_night(TRAIN, NIGHTS[0])
    nights = {line: play_night(TRAIN, NIGHTS[0], line) for line in lines}
    alike = [line for line, told in nights.items() if told == calm]
    assert len(alike) == 7  # four of them are missed in another night, as above; these three in none
    for line in ("#SBATCH --ntasks-per-node=1", "#SBATCH --time=04:00:00", "set -eu"):
        assert line in alike and all(after(night) == after(night, line) for night in NIGHTS[1:])
    starts = ["first=$(scontrol", "gpus=${SLURM_GPUS_ON_NODE:?ask", "port=$((10000", "srun"]
    nothing = [line.split()[0] for line, told in nights.items() if "no agent is started" in told]
    assert nothing == ["#SBATCH", "#SBATCH", *starts, "train.py"]
    assert "ask for GPUs" in nights["#SBATCH --gpus-per-node=4"]


def test_a_free_port_is_free():
    assert 1024 <= free_port() <= 65535
