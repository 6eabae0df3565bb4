"""A warm kernel is a kernel like any other: what ends with it, what differs from the next one, what it has imported."""

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import warm_kernels
from jupyter_client.provisioning import local_provisioner
from nbval.kernel import CURRENT_ENV_KERNEL_NAME, RunningKernel

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="torch cannot be forked here")

LOOK = """
import json, os, random, sys
from IPython.display import display
found = {"ddplab": "ddplab" in sys.modules, "torch": "torch" in sys.modules, "pid": os.getpid()}
found |= {"folder": os.getcwd(), "argv": sys.argv, "orig_argv": sys.orig_argv, "setting": os.environ.get("MY_SETTING")}
found["leads"] = os.getsid(0) == os.getpgid(0) == os.getpid()
import numpy, torch
found["random"] = [random.random(), numpy.random.rand(), torch.rand(1).item()]
from ddplab import launch
found["ranks"] = launch(lambda: (os.getppid(), random.random(), torch.rand(1).item()), quiet=True).results
found["children"] = [int(line) for line in os.popen(f"pgrep -P {os.getpid()}")]
print(json.dumps(found))
"""


UNDER_TORCHRUN = """
import ddplab, json, os, psutil
from pathlib import Path
Path("look.py").write_text('''
import json, os, random, sys, torch
found = [os.getpid(), os.getppid(), os.getsid(0), os.environ["OMP_NUM_THREADS"], torch.get_num_threads(), sys.argv[1:]]
print(json.dumps([*found, random.random(), torch.rand(1).item()]))
''')
run = ddplab.torchrun("look.py", "-c", 3, nproc_per_node=2, quiet=True)
print(json.dumps({"ranks": [json.loads(said) for said in run.output.values()], "kernel": os.getpid()}))
"""


TYPED = """
import json, subprocess
from pathlib import Path
Path("told.py").write_text('''
import json, os, sys
print(json.dumps([int(os.environ["RANK"]), os.environ["A"], sys.argv[1:], "torch._dynamo" in sys.modules]))
''')
line = "A=1 torchrun --standalone --nproc-per-node 2 told.py 'an argument'"
said = subprocess.run(["bash", "-c", line], capture_output=True, text=True).stdout
print(json.dumps(sorted(map(json.loads, said.splitlines()))))
"""


SPAWNING = """
import ddplab, json
from pathlib import Path
Path("spawns.py").write_text('''
import atexit, json, os, sys, threading, time
import torch.multiprocessing as mp

def leave():
    atexit.register(print, json.dumps([os.getpid(), os.getppid(), "torch._dynamo" in sys.modules]), flush=True)
    sys.exit(3)

if __name__ == "__main__":
    child = mp.get_context("spawn").Process(target=leave)  # as mp.spawn does
    child.start()
    child.join()
    atexit.register(lambda: print(json.dumps([os.getpid(), child.pid, child.exitcode]), flush=True))
    threading.Thread(target=lambda: (time.sleep(0.3), print(json.dumps("late"), flush=True))).start()
''')
run = ddplab.torchrun("spawns.py", nproc_per_node=1, quiet=True)
print(json.dumps([json.loads(line) for line in run.output[0].splitlines()]))
"""


SAYS = "print(json.dumps([repr(sys.modules['__main__']), 'matplotlib' in sys.modules]))"
BARE = """
import subprocess, sys
print(subprocess.check_output([sys.executable, "-c", {program!r}], text=True))
"""


class Warm(RunningKernel):
    def __init__(self, folder):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(local_provisioner, "launch_kernel", warm_kernels.launch_kernel)
            super().__init__(CURRENT_ENV_KERNEL_NAME, cwd=str(folder))

    @property
    def process(self) -> warm_kernels.WarmKernel:
        return self.km.provisioner.process

    def look(self, code: str = LOOK) -> dict:
        message_id = self.execute_cell_input(code, allow_stdin=False)
        while (message := self.get_message("iopub", 60))["msg_type"] != "stream":
            assert message["msg_type"] != "error", message["content"]
        self.await_reply(message_id, 60)
        return json.loads(message["content"]["text"])


@pytest.fixture(scope="module")
def spare():
    """Started before the tests, which look at what they leave; this process's notebooks have it too."""
    Warm(".").stop()


def test_a_warm_kernel_is_what_was_asked_for_and_another_one_each_time(spare, tmp_path, monkeypatch):
    monkeypatch.setenv("MY_SETTING", "new")
    found = []
    for _ in range(2):
        kernel = Warm(tmp_path)
        found.append(look := kernel.look())
        assert look["torch"] and not look["ddplab"] and look["leads"]
        assert (look["pid"], look["folder"], look["setting"]) == (kernel.process.pid, str(tmp_path), "new")
        assert look["orig_argv"][:3] == [sys.executable, "-m", "ipykernel_launcher"]
        assert look["argv"][1:] == look["orig_argv"][3:] and look["argv"][0].endswith("ipykernel_launcher.py")
        shown = psutil.Process(kernel.process.pid).cmdline()  # who looks from outside sees no other
        assert shown[1:] == look["orig_argv"][1:] and shown[0].endswith(sys.executable)
        assert {rank[0] for rank in look["ranks"]} < set(look["children"]), "the forkserver is the kernel's child"
        kernel.stop()
    numbers = [[*look["random"], *(number for rank in look["ranks"] for number in rank[1:])] for look in found]
    assert len({*numbers[0], *numbers[1]}) == 14


def test_an_agent_of_a_warm_kernel_and_its_ranks_are_processes_of_their_own(spare, tmp_path):
    kernel = Warm(tmp_path)
    ranks = kernel.look(UNDER_TORCHRUN)["ranks"]
    pids, agents, sessions, threads, torchs, arguments, *numbers = zip(*ranks, strict=True)
    assert len({*pids, *agents, kernel.process.pid}) == 4 and sessions == pids
    assert threads == ("1", "1") and torchs == (1, 1) and arguments == (["-c", "3"],) * 2
    assert len({number for drawn in numbers for number in drawn}) == 4
    kernel.stop()


def test_a_line_that_is_torchrun_and_no_more_is_warm_and_any_other_is_the_shells(spare, tmp_path):
    def typed(line):
        argv, env = ["bash", "-c", line], {"A": "0"}
        return warm_kernels.typed(argv, env) != argv, env

    assert typed("A=1 B='2 3' torchrun --standalone job.py 'an argument'") == (True, {"A": "1", "B": "2 3"})
    for line in (
        "torchrun job.py | cat",
        "cd .. && torchrun job.py",
        "echo torchrun",
        "torchrun 'job.py",
        "A=$B torchrun",
    ):
        assert typed(line) == (False, {"A": "0"}), line
    kernel = Warm(tmp_path)
    said = kernel.look(TYPED)
    assert said == [[rank, "1", ["an argument"], True] for rank in (0, 1)], "with what a fresh one has not imported"
    kernel.stop()


def test_bare_programs_of_lessons_are_warm_and_their_main_module_is_as_python_has_it(spare, tmp_path):
    lessons = Path(__file__).parent.parent / "lessons"
    cells = [cell for path in lessons.glob("*/*.ipynb") for cell in json.loads(path.read_text())["cells"]]
    sources = ["".join(cell["source"]) for cell in cells]
    kernel = Warm(tmp_path)
    for begins in warm_kernels.BARE:
        assert sum(f'"""{begins}' in source for source in sources) == 1, "no lesson has a program that begins so"
        for program, warm in ((begins, True), ("\n", False)):
            said = kernel.look(BARE.format(program=f"{program}import json, sys\n{SAYS}"))
            assert said == ["<module '__main__' (built-in)>", warm]
    kernel.stop()


def test_what_a_warm_rank_spawns_is_its_own_child_and_both_end_as_python_does(spare, tmp_path):
    """With their threads, what they have registered, and their exit codes."""
    kernel = Warm(tmp_path)
    (spawned, its_parent, warm), late, (rank, child, code) = kernel.look(SPAWNING)
    assert late == "late" and (its_parent, spawned, code) == (rank, child, 3)
    assert warm, "it has imported what a fresh one imports"
    kernel.stop()


def test_a_warm_kernel_tells_how_it_ended(spare, tmp_path):
    asked, killed = Warm(tmp_path), Warm(tmp_path)
    process = killed.process
    assert process.poll() is None
    process.kill()
    assert process.wait() == process.poll() == -9
    process = asked.process
    asked.km.shutdown_kernel()
    assert process.wait() == 0
    for kernel in (asked, killed):
        kernel.kc.stop_channels()


def test_nothing_is_left_of_a_killed_client(tmp_path):
    """Not its spare, no kernel with a forkserver and processes for ranks, none whose forkserver still waits."""
    code = "import sys, test_warm_kernels as test\nidle, used = test.Warm('.'), test.Warm('.')\nused.look()"
    code += "\nprint('up', flush=True)\nsys.stdin.read()"
    env = {**os.environ, "PYTHONPATH": os.path.dirname(__file__), "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout.readline() == "up\n"
        family = psutil.Process(client.pid).children(recursive=True)
        assert len(family) >= 6  # the spare, two kernels, their spares, a forkserver
        client.kill()
    assert psutil.wait_procs(family, 15)[1] == []
