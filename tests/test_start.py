"""Promise 3 where a program or a kernel imports ddplab first: its forkserver is a fork of it, and ranks start clean."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from kernel import Kernel
from leftovers import run_folders, until

import ddplab

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="torch cannot be forked here")
KERNELS = Path(ddplab.__file__).parent / "jupyter"

PROGRAM = """
import mine                      # the learner's own module, which changes before the launch
held = open("held.txt", "w")     # a file of the program, open when the forkserver is forked
import atexit
atexit.register(print, "the program ends")
import ddplab, json, os, pathlib, psutil, sys, torch
pathlib.Path("mine.py").write_text("value = 'new, and read by the rank itself'")
os.environ["MY_SETTING"] = "of the call"
torch.manual_seed(0)

def look():
    import mine, multiprocessing, random
    from torch.nn.parallel import DistributedDataParallel
    model = DistributedDataParallel(torch.nn.Linear(512, 512))
    loss = model(torch.randn(512, 512)).sum()     # with threads of OpenMP, where there are cores
    loss.backward()
    with multiprocessing.get_context("forkserver").Pool(1) as pool:  # a rank may have a forkserver too
        absolute = pool.apply(abs, (-1,))
    files = [os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd") if int(name) > 2
             and os.path.exists(f"/proc/self/fd/{name}")]
    return {"mine": mine.value, "setting": os.environ["MY_SETTING"], "server": os.getppid(), "absolute": absolute,
            "held": any("held.txt" in file for file in files), "main": sys.modules["__main__"].__name__,
            "random": (random.random(), torch.rand(1).item())}

def servers():
    return [child.pid for child in psutil.Process().children() if os.getpgid(child.pid) == child.pid]

if __name__ == "__main__":
    ranks = ddplab.launch(look, quiet=True).results
    print(json.dumps({"ranks": ranks, "dynamo": "torch._dynamo" in sys.modules, "me": os.getpid(), "servers": servers(),
                      "commands": {pid: psutil.Process(pid).cmdline() for pid in servers()}}))
"""


def test_the_forkserver_of_a_program_that_imports_ddplab_first_is_its_fork_and_ranks_find_a_clean_process(tmp_path):
    (tmp_path / "mine.py").write_text("value = 'old'")
    (tmp_path / "program.py").write_text(PROGRAM)
    env = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    command = [sys.executable, "program.py"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
    assert done.stderr == "" and done.stdout.count("the program ends") == 1, done.stderr
    found = json.loads(done.stdout.splitlines()[0])
    server = found["ranks"][0]["server"]
    assert server in found["servers"] and found["commands"][str(server)] == command  # a fork: no new command line
    for rank in found["ranks"]:
        assert rank["mine"] == "new, and read by the rank itself" and rank["setting"] == "of the call"
        assert rank["absolute"] == 1 and not rank["held"] and rank["main"] == "__main__"
    numbers = [number for rank in found["ranks"] for number in rank["random"]]
    assert len({*numbers}) == 4
    assert until(lambda: not any(psutil.pid_exists(pid) for pid in found["servers"])), "the forkserver stays"


def test_our_kernel_shares_what_it_has_imported_with_its_ranks_and_is_a_kernel_like_any_other(monkeypatch, tmp_path):
    monkeypatch.setenv("JUPYTER_PATH", str(KERNELS))
    (tmp_path / "random.py").write_text("raise ImportError('a file of the learner shadows a module of Python')")
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "t"
    folder.mkdir()
    kernel = Kernel(TMPDIR=str(folder))
    try:
        outcome = kernel.run("import sys\nprint('torch._dynamo' in sys.modules)")
        assert outcome.text == "True\n" and not kernel.run("from ddplab import launch").error
        family = psutil.Process(kernel.pid).children()
        assert any(child.cmdline() == psutil.Process(kernel.pid).cmdline() for child in family), "no fork of the kernel"
        outcome = kernel.run("def f():\n    print('hello')\n    return 7\nprint(launch(f, quiet=True).output)")
        assert outcome.text == "{0: 'hello\\n', 1: 'hello\\n'}\n", outcome.traceback
        outcome = kernel.run("launch(lambda: 1 / 0)")
        assert outcome.error == "RankError" and "ZeroDivisionError" in outcome.message
        assert kernel.run("get_ipython().find_cell_magic('torchrun') is not None").error is None
        kernel.run("from ddplab.folder import Folder\nFolder.new(2)")  # as if no rank had seen it yet
        assert len(run_folders(str(folder))) == 1
        family = psutil.Process(kernel.pid).children(recursive=True)
        kernel.manager.provisioner.process.send_signal(signal.SIGKILL)
        assert until(lambda: not any(p.is_running() and p.status() != "zombie" for p in family), 15)
        assert until(lambda: not [name for name in os.listdir(folder) if name.startswith(("ddplab", "pymp"))])
    finally:
        kernel.close()
