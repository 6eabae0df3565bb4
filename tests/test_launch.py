"""Promises 1, 2, 3, 8, 9, 10 of a launch: what travels, what a rank finds, and that nothing stays."""

import functools
import json
import os
import subprocess
import sys
import textwrap
import threading
import time

import pytest
import torch
import torch.distributed as dist
from leftovers import ranks_alive, run_folders, until

import ddplab
import ddplab.panel
from ddplab import RankError, Run, launch, launcher, log


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


def test_a_logged_value_that_cannot_travel_is_named():
    with pytest.raises(RankError, match=r"log\(loss=…\) got a Tensor of shape \(3,\)"):
        launch(lambda: log(loss=torch.ones(3)), quiet=True)
    with pytest.raises(RankError, match=r"log\(model=…\) got a Linear"):
        launch(lambda: log(model=torch.nn.Linear(1, 1)), quiet=True)


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


def test_a_module_of_the_folder_one_has_changed_to_is_found(tmp_path, monkeypatch):
    (tmp_path / "my_helpers.py").write_text("def train():\n    return 'found'\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    from my_helpers import train

    assert launch(train, quiet=True).results == ["found"] * 2


def test_launches_from_several_threads_leave_main_alone():
    main = sys.modules["__main__"]
    threads = [threading.Thread(target=launch, args=[print], kwargs={"quiet": True}) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sys.modules["__main__"] is main


def test_a_panel_that_fails_does_not_end_the_run(monkeypatch):
    class Broken(sys.modules["ddplab.panel"].Quiet):
        def update(self):
            raise ZeroDivisionError

    monkeypatch.setattr(sys.modules["ddplab.panel"], "view_of", lambda run, wait, quiet: Broken(run))
    with pytest.warns(UserWarning, match="the panel stopped, the run goes on"):
        assert launch(lambda: time.sleep(0.2)).state == "finished"


# ------------------------------------------------------------------ 2. what a rank finds


def test_a_rank_finds_torchruns_environment_and_an_initialised_group(monkeypatch):
    monkeypatch.setenv("MY_SETTING", "set after the forkserver began")
    names = ["LOCAL_WORLD_SIZE", "WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"]

    def look():
        here = {name: os.environ.get(name) for name in names}
        return os.environ["RANK"], os.environ["LOCAL_RANK"], here, dist.get_rank(), dist.get_world_size(), (
            dist.get_backend(), str(ddplab.device()), torch.get_num_threads(), os.environ["MY_SETTING"], os.getcwd(),
        )  # fmt: skip

    results = launch(look, nproc_per_node=2, device="cpu", quiet=True).results
    for rank, (env_rank, local_rank, env, group_rank, size, rest) in enumerate(results):
        assert (int(env_rank), int(local_rank), group_rank, size) == (rank, rank, rank, 2)
        assert (env["WORLD_SIZE"], env["LOCAL_WORLD_SIZE"], env["GROUP_RANK"]) == ("2", "2", "0")
        assert env["MASTER_ADDR"] == "127.0.0.1" and int(env["MASTER_PORT"]) > 0 and env["TORCHELASTIC_RUN_ID"]
        threads = max(1, ddplab.devices().cpu_cores // 2)
        assert rest == ("gloo", "cpu", threads, "set after the forkserver began", os.getcwd())


def test_init_false_leaves_it_to_the_learner():
    def train():
        before = dist.is_initialized()
        dist.init_process_group("gloo")
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        return before, tensor.item()

    assert launch(train, init=False, device="cpu", quiet=True).results == [(False, 2.0)] * 2


def test_initialising_twice_gets_torchs_error_and_a_hint():
    with pytest.raises(RankError, match="twice") as caught:
        launch(lambda: dist.init_process_group("gloo"), quiet=True)
    assert "hint: launch() has already initialised" in str(caught.value)


def test_using_no_group_gets_torchs_error_and_a_hint():
    with pytest.raises(RankError, match=r"hint: call dist.init_process_group"):
        launch(lambda: dist.get_rank(), init=False, quiet=True)


@pytest.mark.skipif(torch.cuda.device_count() > 0, reason="says what a machine without a GPU says")
def test_asking_for_gpus_that_are_not_there_fails_at_the_door():
    with pytest.raises(ValueError, match="sees no GPU"):
        launch(print, device="cuda")
    with pytest.raises(ValueError, match="needs one GPU per rank"):
        launch(print, backend="nccl")


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


def test_importing_ddplab_begins_to_warm_the_forkserver_and_imports_nothing_heavy():
    program = """
        import sys, torch
        before = set(sys.modules)
        import ddplab
        from multiprocessing.forkserver import _forkserver
        heavy = {"matplotlib", "ipywidgets", "IPython", "torch._dynamo"} & (set(sys.modules) - before)
        print(_forkserver._forkserver_pid is not None, sorted(heavy))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "[]"]


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
    monkeypatch.setattr(launcher, "START_METHOD", "spawn")
    offset = 5
    assert launch(lambda x: dist.get_rank() + x + offset, 1, quiet=True).results == [6, 7]


def test_windows_is_told_to_use_wsl():
    program = "import sys; sys.platform = 'win32'; import ddplab"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode != 0 and "On Windows use WSL" in done.stderr


# ------------------------------------------------------------------ 8. stopping


def test_a_run_without_wait_can_be_watched_and_stopped():
    def endless():
        for step in range(10**9):
            log(step=step, loss=1.0 / (step + 1))
            time.sleep(0.01)

    run = launch(endless, wait=False, quiet=True)
    assert run.state == "running" and until(lambda: len(run.metrics) > 10)
    run.stop()
    assert run.state == "stopped" and run.results == [None, None] and not ranks_alive()
    assert len(run.metrics.column("loss", rank=1)) > 1
    assert run.wait() is run


def test_wait_raises_the_error_of_a_run_that_failed():
    run = launch(lambda: 1 / 0, wait=False, quiet=True)
    with pytest.raises(RankError, match="ZeroDivisionError"):
        run.wait()
    assert run.state == "failed"


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


def test_data_loader_workers_work_in_a_rank_and_end_with_it():
    def load():
        loader = torch.utils.data.DataLoader(range(8), batch_size=4, num_workers=1, persistent_workers=True)
        return [batch.tolist() for batch in loader]

    assert launch(load, quiet=True).results == [[[0, 1, 2, 3], [4, 5, 6, 7]]] * 2


def test_no_descriptor_leaks():
    launch(lambda: None, quiet=True)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        launch(lambda: None, quiet=True)
    assert len(os.listdir("/proc/self/fd")) <= before + 1


def test_launches_at_once_do_not_collide():
    def total():
        tensor = torch.ones(1)
        for _ in range(20):
            dist.all_reduce(tensor)
            tensor /= dist.get_world_size()
        return tensor.item()

    runs = [launch(total, wait=False, quiet=True) for _ in range(6)]
    assert [run.wait().results for run in runs] == [[1.0, 1.0]] * 6


def test_ten_programs_launch_at_once_without_colliding():
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
    programs = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(10)]
    assert [program.communicate(timeout=400)[0] for program in programs] == ["[2.0, 2.0]\n"] * 10


def test_a_run_folder_goes_when_the_door_is_shut():
    with pytest.raises(TypeError):
        launch(print, (i for i in range(3)))
    assert run_folders() == []


# ------------------------------------------------------------------ 10. output


def test_output_is_kept_apart_python_and_c_alike(capfd):
    def talk():
        print("python", dist.get_rank())
        os.write(1, f"descriptor {dist.get_rank()}\n".encode())
        print("error", file=sys.stderr)
        print("no newline", end="")

    run = launch(talk, quiet=True)
    for rank in (0, 1):
        assert sorted(run.output[rank].splitlines()) == sorted(
            [f"python {rank}", f"descriptor {rank}", "error", "no newline"]
        )
    assert capfd.readouterr().out == ""


def test_a_hundred_megabytes_neither_block_nor_flood():
    def shout():
        line = "x" * 999 + "\n"
        for _ in range(100):
            sys.stdout.write(line * 1000)
        print("the end")
        return "done"

    run = launch(shout, nproc_per_node=1, quiet=True)
    assert run.results == ["done"]
    text = run.output[0]
    assert len(text) < 1_100_000 and text.endswith("the end\n")
    assert text.startswith("[99000008 bytes of earlier output were not kept]")


def test_a_progress_bar_reads_as_a_terminal_shows_it():
    def bar():
        for i in range(5):
            print(f"\r{i} of 5", end="")
        print("\nafter")

    assert launch(bar, nproc_per_node=1, quiet=True).output[0] == "4 of 5\nafter\n"


# ------------------------------------------------------------------ metrics


def test_metrics_are_rows_with_rank_step_and_time():
    def train():
        for epoch in range(3):
            log(epoch=epoch, loss=torch.tensor(1.5), name="a", flag=True, nothing=None)

    metrics = launch(train, quiet=True).metrics
    assert len(metrics) == 6 and metrics.column("loss", rank=0) == [1.5] * 3
    assert metrics.columns() == ["epoch", "loss", "name", "flag", "nothing"]
    assert [row["step"] for row in metrics if row["rank"] == 1] == [0, 1, 2]
    assert all(0 <= row["time"] < 60 for row in metrics)
    with pytest.raises(KeyError, match="there is: epoch, loss"):
        metrics.column("accuracy")
    assert "<table>" in metrics._repr_html_()


def test_nan_and_infinity_survive():
    run = launch(lambda: log(a=float("nan"), b=float("inf")), nproc_per_node=1, quiet=True)
    row = run.metrics[0]
    assert row["a"] != row["a"] and row["b"] == float("inf")


def test_no_row_is_lost_when_the_rank_is_killed():
    def die():
        for step in range(1000):
            log(step=step)
        os.kill(os.getpid(), 9)

    with pytest.raises(RankError) as caught:
        launch(die, nproc_per_node=1, quiet=True)
    assert [row["step"] for row in caught.value.run.metrics] == list(range(1000))


def test_the_curves_are_drawn_with_a_visible_line_that_says_what_they_show():
    def train():
        for step in range(4):
            log(loss=float(step), accuracy=0.5)

    run = launch(train, quiet=True)
    figure = run.plot("loss")
    (axis,) = figure.axes
    assert axis.get_title() == "loss at each step, one line per rank" and len(axis.lines) == 2
    assert axis.lines[0].get_linestyle() != axis.lines[1].get_linestyle()
    assert len(run.plot().axes) == 2
    with pytest.raises(KeyError):
        run.plot("nothing")


def test_the_summary_is_one_stable_line(capsys):
    launch(lambda: print("hello"), device="cpu")
    lines = capsys.readouterr().out.splitlines()
    assert sorted(lines) == ["2 ranks on cpu (gloo): finished", "[rank 0] hello", "[rank 1] hello"]
