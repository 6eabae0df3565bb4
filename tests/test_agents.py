"""Promise 11 (and 6, 7, 9 for scripts): the real torchrun, followed as a launch is."""

import os
import subprocess
import sys
import tempfile
import textwrap

import pytest
from leftovers import ranks_alive

from ddplab import RankError, RankTimeoutError, torchrun

START = "import os, sys, time\nimport torch, torch.distributed as dist\nfrom ddplab import cleanup, device, log\n"
TINY_DDP = START + textwrap.dedent("""
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        optimiser.zero_grad()
        loss = model(torch.ones(2, 4)).sum()
        loss.backward()
        optimiser.step()
        log(loss=loss.item())
    cleanup()
""")


@pytest.fixture
def script(tmp_path):
    def write(text: str) -> str:
        path = tmp_path / "job.py"
        path.write_text(START + textwrap.dedent(text))
        return str(path)

    return write


@pytest.mark.fresh
@pytest.mark.times(1, stress=20)
def test_every_variable_that_torchrun_sets_is_there_and_scripts_that_end_with_cleanup_end_well(tmp_path, times):
    path = tmp_path / "job.py"
    path.write_text(
        TINY_DDP
        + textwrap.dedent("""
        names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")
        values = [os.environ[name] for name in names[:5]]
        print(values, sys.argv[1:], sys.executable, __name__, os.path.basename(__file__))
        assert all(os.environ[name] for name in names)
        """)
    )
    for _ in times:
        run = torchrun(str(path), "--lr", 0.1, nproc_per_node=2, quiet=True)
        for rank in (0, 1):
            words = f"['{rank}', '{rank}', '2', '2', '0'] ['--lr', '0.1'] {sys.executable} __main__ job.py\n"
            assert run.output[rank] == words
        assert run.state == "finished" and len(run.metrics) == 6
        assert run.results == [None, None] and not ranks_alive()


def test_torchruns_own_folder_for_logs_goes_too(script):
    before = set(os.listdir(tempfile.gettempdir()))
    torchrun(script("print('hello')"), nproc_per_node=1, quiet=True)
    assert not [name for name in set(os.listdir(tempfile.gettempdir())) - before if name.startswith("torchelastic")]


def test_two_agents_on_this_machine_stand_for_two_nodes(script):
    run = torchrun(
        script("""
        dist.init_process_group("gloo")
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        log(total=tensor.item(), rank_here=int(os.environ["LOCAL_RANK"]), node=int(os.environ["GROUP_RANK"]))
        cleanup()
        """),
        nproc_per_node=1, nnodes=2, quiet=True,
    )  # fmt: skip
    assert run.nnodes == 2 and run.world_size == 2
    assert run.metrics.column("total") == [2.0, 2.0] and run.metrics.column("rank_here") == [0, 0]
    assert sorted(run.metrics.column("node")) == [0, 1]


def test_a_failing_rank_is_named_with_its_line(script):
    with pytest.raises(RankError) as caught:
        torchrun(
            script("""
            dist.init_process_group("gloo")
            log(step=0)
            if dist.get_rank() == 1:
                raise ValueError("boo")
            dist.barrier()
            """),
            nproc_per_node=2, quiet=True,
        )  # fmt: skip
    error = caught.value
    assert error.rank == 1 and error.type_name == "ValueError" and len(error.run.metrics) == 2
    assert "job.py, line 8\n    --> raise ValueError" in str(error) and "rank 0 was stopped" in str(error)
    assert not ranks_alive()


@pytest.mark.parametrize(
    ("end", "words"),
    [("os._exit(0)", "rank 1 left with exit status 0"), ("os.kill(os.getpid(), 9)", "rank 1 was killed by SIGKILL")],
)
def test_a_rank_that_dies_is_named(script, end, words):
    with pytest.raises(RankError, match=words):
        torchrun(script(f"if os.environ['RANK'] == '1':\n    {end}"), nproc_per_node=2, quiet=True)


def test_a_restart_by_torchrun_is_a_success_and_leaves_its_trace(script):
    run = torchrun(
        script("""
        attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
        print("attempt", attempt)
        if attempt == 0:
            raise ValueError("only once")
        """),
        nproc_per_node=1, max_restarts=1, quiet=True,
    )  # fmt: skip
    assert run.state == "finished"
    assert "attempt 0" in run.output[0] and "ValueError: only once" in run.output[0] and "attempt 1" in run.output[0]


def test_a_hang_in_a_script_is_told(script):
    with pytest.raises(RankTimeoutError) as caught:
        torchrun(
            script("""
            dist.init_process_group("gloo")
            if dist.get_rank() == 1:
                time.sleep(1000)
            dist.barrier()
            """),
            nproc_per_node=2, quiet=True, timeout=20,
        )  # fmt: skip
    assert "rank 0 waits in barrier for rank 1, which never came" in str(caught.value)
    assert "at job.py, line 8" in str(caught.value) and not ranks_alive()


def test_the_door_is_clear(script):
    with pytest.raises(ValueError, match="torchrun does not take this"):
        torchrun(script(""), nproc_per_nodes=2)
    with pytest.raises(ValueError, match=r"Unsupported nproc_per_node"):
        torchrun(script(""), nproc_per_node="many")
    with pytest.raises(ValueError, match="torchrun --help in a terminal"):
        torchrun(script(""), help=True)
    with pytest.raises(FileNotFoundError, match=r"there is no script .nowhere.py."):
        torchrun("nowhere.py")


def test_what_torchrun_itself_says_is_shown_when_no_rank_began(script):
    with pytest.raises(RankError, match=r"torchrun ended with exit status"):
        torchrun(script(""), nproc_per_node=1, rdzv_backend="no-such-backend", rdzv_endpoint="x:1", quiet=True)


@pytest.mark.fresh
def test_the_same_script_runs_unchanged_under_plain_torchrun_where_log_prints(tmp_path):
    path = tmp_path / "job.py"
    path.write_text(TINY_DDP)
    options = ["--standalone", "--nproc-per-node=2", f"--log-dir={tmp_path}"]
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *options, str(path)],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert sorted(line.split("  loss")[0] for line in done.stdout.splitlines()) == [
        f"[rank {rank}] step {step}" for rank in (0, 1) for step in range(3)
    ]
