"""Promises 1, 3 and 9 of a launch: what travels, how ranks start, and that nothing stays."""

import functools
import json
import os
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist
from leftovers import until
from torch.nn.parallel import DistributedDataParallel as DDP

from ddplab import RankError, Run, launch, processes


def test_a_function_runs_on_every_rank_and_its_values_come_back():
    def total(x):
        tensor = torch.tensor([float(dist.get_rank() + x)])
        dist.all_reduce(tensor)
        return tensor

    run = launch(total, 10, nproc_per_node=3, quiet=True)
    assert isinstance(run, Run) and run.state == "finished"
    assert [r.item() for r in run.results] == [33.0, 33.0, 33.0]


# ------------------------------------------------------------------ 1. what travels


def test_closures_lambdas_partials_and_cell_classes_travel():
    offset = 5

    class Point:
        def __init__(self, x):
            self.x = x

    def closure(p, scale=1):
        return Point(p.x * scale + offset)

    (point, _) = launch(closure, Point(2), scale=3, quiet=True).results
    assert type(point) is Point and point.x == 11
    assert launch(lambda: json.dumps({"a": offset}), quiet=True).results == ['{"a": 5}'] * 2
    assert [p.x for p in launch(functools.partial(closure, scale=2), Point(1), quiet=True).results] == [7, 7]


def test_large_tensors_and_models_travel_both_ways():
    weights = torch.randn(2_000_000, generator=torch.Generator().manual_seed(0))
    model = torch.nn.Linear(3, 3)

    def double():
        return weights * 2, model

    (first, copy), _ = launch(double, quiet=True).results
    assert torch.equal(first, weights * 2) and torch.equal(copy.weight, model.weight)


@pytest.mark.parametrize("where", ["variable", "argument", "keyword", "helper"])
def test_what_cannot_travel_is_named(where, tmp_path):
    handle = open(tmp_path / "x", "wb")

    def helper():
        return handle.name

    calls = {
        "variable": lambda: launch(lambda: handle.name, quiet=True),
        "argument": lambda: launch(print, handle, quiet=True),
        "keyword": lambda: launch(lambda sink: sink, sink=handle, quiet=True),
        "helper": lambda: launch(lambda: helper(), quiet=True),
    }
    named = {"variable": "'handle'", "argument": "argument 1", "keyword": "argument 'sink'", "helper": "'handle'"}
    with pytest.raises(TypeError, match=f"{named[where]}.*BufferedWriter.*cannot travel"):
        calls[where]()
    handle.close()


def test_a_result_that_cannot_travel_is_named():
    with pytest.raises(RankError, match="returned a generator that cannot travel back"):
        launch(lambda: (i for i in range(3)), quiet=True)


def test_a_result_that_cannot_be_opened_here_is_named_and_the_rest_is_kept():
    def train():
        model = DDP(torch.nn.Linear(2, 2))
        return model if dist.get_rank() == 0 else "kept"

    with pytest.raises(RankError) as caught:
        launch(train, quiet=True)
    error = caught.value
    assert "what rank 0 returned cannot be opened" in str(error) and "return model.module" in str(error)
    assert error.run.results == [None, "kept"]


# ------------------------------------------------------------------ what is refused at the door


def test_the_door_is_clear():
    def train(lr, timeout=3):
        return lr, timeout

    with pytest.raises(TypeError, match=r"parameter called 'timeout', which launch.. takes for itself"):
        launch(train, 0.1)
    assert launch(functools.partial(train, timeout=9), 0.1, quiet=True).results == [(0.1, 9)] * 2
    with pytest.raises(TypeError, match="missing a required argument: 'lr'"):
        launch(lambda lr: lr)
    with pytest.raises(TypeError, match="takes a function, not int"):
        launch(3)
    with pytest.raises(TypeError, match="for a script write torchrun"):
        launch("train.py")

    async def asynchronous(): ...

    for idle in (asynchronous, lambda: (yield)):
        with pytest.raises(TypeError, match="generator or async function"):
            launch(idle)
    for wrong in (0, -1, 2.0, "2", True):
        with pytest.raises(ValueError, match="nproc_per_node must be a whole number"):
            launch(print, nproc_per_node=wrong)
    with pytest.raises(ValueError, match="timeout is a positive number"):
        launch(print, timeout=0)
    with pytest.raises(ValueError, match='backend must be "gloo"'):
        launch(print, backend="mpi")
    with pytest.raises(ValueError, match='device must be "cpu"'):
        launch(print, device="cuda:0")


@pytest.mark.skipif(torch.cuda.device_count() > 0, reason="says what a machine without a GPU says")
def test_asking_for_gpus_that_are_not_there_fails_at_the_door():
    with pytest.raises(ValueError, match="sees no GPU"):
        launch(print, device="cuda")
    with pytest.raises(ValueError, match="needs one GPU per rank"):
        launch(print, backend="nccl")


# ------------------------------------------------------------------ who launches


def test_a_module_of_the_folder_one_has_changed_to_is_found(tmp_path, monkeypatch):
    (tmp_path / "my_helpers.py").write_text("def train():\n    return 'found'\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    from my_helpers import train

    assert launch(train, quiet=True).results == ["found"] * 2


def test_launches_from_several_threads_leave_main_alone():
    main = sys.modules["__main__"]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: launch(dist.get_rank, quiet=True).results, range(4)))
    assert results == [[0, 1]] * 4
    assert sys.modules["__main__"] is main


def test_a_rank_cannot_launch_ranks():
    with pytest.raises(RankError, match="called inside a rank"):
        launch(lambda: launch(print), quiet=True)


# ------------------------------------------------------------------ 3. over a forkserver that stays clean


def test_it_works_after_autograd_and_openmp_were_used_here():
    big = torch.randn(512, 512, requires_grad=True)
    (big @ big).sum().backward()  # starts threads in this process that a fork would lose

    def work():
        x = torch.randn(512, 512, requires_grad=True)
        (x @ x).sum().backward()
        return x.grad.shape == x.shape

    assert launch(work, quiet=True).results == [True, True]


def test_a_rank_is_a_fork_of_a_warm_forkserver():
    def look():
        return "torch._dynamo" in sys.modules, torch.cuda.is_initialized(), os.getppid()

    one, two = launch(look, device="cpu", quiet=True).results
    assert one == two and one[0] and not one[1]
    from multiprocessing.forkserver import _forkserver

    assert one[2] == _forkserver._forkserver_pid != os.getpid()


@pytest.mark.parametrize("under_nbval", [False, True])
def test_importing_ddplab_begins_to_warm_the_forkserver_and_imports_nothing_heavy(under_nbval):
    program = """
        import sys, torch
        before = set(sys.modules)
        import ddplab
        from multiprocessing.forkserver import _forkserver
        heavy = {"matplotlib", "ipywidgets", "IPython", "torch._dynamo"} & (set(sys.modules) - before)
        print(_forkserver._forkserver_pid is not None, sorted(heavy))
    """
    env = {k: v for k, v in os.environ.items() if under_nbval or k != "PYTEST_CURRENT_TEST"}  # pytest sets it, too
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, env=env)
    assert done.stdout.split() == [str(not under_nbval), "[]"], done.stderr


def test_a_script_needs_no_main_guard_and_is_not_run_again_in_the_ranks(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "print('imported')\nfrom ddplab import launch\n"
        "def f():\n    print('from a rank')\n    return 7\n"
        "print(launch(f, device='cpu').results)\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    lines = ["imported", "[7, 7]", "[rank 0] from a rank", "[rank 1] from a rank", "2 ranks on cpu (gloo): finished"]
    assert sorted(done.stdout.splitlines()) == sorted(lines)


def test_it_works_by_spawn_too_as_on_macos(monkeypatch):
    monkeypatch.setattr(processes, "START_METHOD", "spawn")
    monkeypatch.setattr(processes, "_spares", [])
    offset = 5
    assert launch(lambda x: dist.get_rank() + x + offset, 1, quiet=True).results == [6, 7]


def test_windows_is_told_to_use_wsl():
    program = "import sys; sys.platform = 'win32'; import ddplab"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode != 0 and "On Windows use WSL" in done.stderr


# ------------------------------------------------------------------ 9. nothing stays


def test_what_a_rank_has_started_ends_with_it():
    def starts_a_sleeper():
        return subprocess.Popen(["sleep", "1000"]).pid

    pids = launch(starts_a_sleeper, quiet=True).results
    for pid in pids:
        assert until(lambda pid=pid: not _exists(pid)), "a sleeper outlived its rank"


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rsplit(")", 1)[1].split()[0] != "Z"


def test_no_descriptor_leaks():
    launch(lambda: None, quiet=True)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        launch(lambda: None, quiet=True)
    # one that a spare needs while it is started comes and goes
    assert until(lambda: len(os.listdir("/proc/self/fd")) <= before + 1)


@pytest.mark.times(4, stress=20)
def test_launches_at_once_do_not_collide(times):
    def total():
        tensor = torch.ones(1)
        for _ in range(20):
            dist.all_reduce(tensor)
            tensor /= dist.get_world_size()
        return tensor.item()

    runs = [launch(total, wait=False, quiet=True) for _ in times]
    assert [run.wait().results for run in runs] == [[1.0, 1.0]] * len(times)


@pytest.mark.times(2, stress=10)
def test_programs_launch_at_once_without_colliding(times):
    program = """
        import torch, torch.distributed as dist
        from ddplab import launch
        def total():
            tensor = torch.ones(1)
            dist.all_reduce(tensor)
            return tensor.item()
        print(launch(total, device="cpu", quiet=True, timeout=None).results)
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    programs = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in times]
    assert [program.communicate(timeout=400)[0] for program in programs] == ["[2.0, 2.0]\n"] * len(times)
