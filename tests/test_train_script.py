"""The script to keep, of lesson 5.6: killed and restarted under torchrun, it ends with the bits of a calm run."""

import ast
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
import torch

from ddplab import launch

FOLDER = Path(__file__).parent.parent / "lessons" / "5_torchrun"
SCRIPT = FOLDER / "train.py"
# train.py itself, and an accident: on the first attempt rank 1 is killed when epoch 1 is trained and not yet saved
KILLED = f"""
import os, signal, sys
sys.path.insert(0, {str(FOLDER)!r})
import train
evaluate, calls = train.evaluate, []
def evaluate_or_die(*args):
    calls.append(1)
    if len(calls) == 2 and os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)  # rank 0 waits for this rank's count
    return evaluate(*args)
train.evaluate = evaluate_or_die
train.main()
"""


def test_it_imports_torch_and_the_standard_library_alone():
    tree = ast.walk(ast.parse(SCRIPT.read_text()))
    names = [alias.name for node in tree if isinstance(node, ast.Import) for alias in node.names]
    tree = ast.walk(ast.parse(SCRIPT.read_text()))
    names += [node.module for node in tree if isinstance(node, ast.ImportFrom)]
    assert {name.split(".")[0] for name in names} - set(sys.stdlib_module_names) == {"torch"}


def calm(path):
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    sys.argv = ["train.py", "--epochs", "3", "--checkpoint", path]
    runpy.run_path(str(SCRIPT), run_name="__main__")


def test_killed_and_restarted_it_ends_with_the_same_bits(tmp_path):
    (tmp_path / "killed.py").write_text(KILLED)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--max-restarts=1", "killed.py"]
    env = os.environ | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    arguments = ["--epochs", "3", "--checkpoint", "killed.pt"]
    done = subprocess.run([*command, *arguments], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    told = [line.split("  ")[0] for line in done.stdout.splitlines()]
    first, second = "2 ranks on cpu, 3 epochs, beginning at 0", "2 ranks on cpu, 3 epochs, beginning at 1"
    assert told == [first, "epoch 0", second, "epoch 1", "epoch 2"]

    launch(calm, str(tmp_path / "calm.pt"), nproc_per_node=2, device="cpu", init=False, quiet=True)
    ends = [torch.load(tmp_path / f"{name}.pt") for name in ("killed", "calm")]
    assert ends[0]["next_epoch"] == ends[1]["next_epoch"] == 3
    for name, weights in ends[0]["model"].items():
        assert torch.equal(weights, ends[1]["model"][name]), name
    assert sorted(path.name for path in tmp_path.iterdir()) == ["calm.pt", "killed.pt", "killed.py"]


@pytest.mark.parametrize(
    ("name", "start"),
    [("checkpointing.py", "%%writefile "), ("train_digits.py", "%%torchrun --nproc-per-node 2 --save ")],
)
def test_the_files_beside_the_lessons_are_what_their_cells_write(name, start):
    cells = [cell for path in FOLDER.glob("5.*.ipynb") for cell in nbformat.read(path, as_version=4).cells]
    [first] = [cell.source for cell in cells if cell.source.startswith(f"{start}{name}\n")]
    more = [cell.source for cell in cells if cell.source.startswith(f"%%writefile -a {name}\n")]
    there = (FOLDER / name).read_text().removeprefix(f"# torchrun --nproc-per-node 2 {name}\n")
    assert "\n".join(source.split("\n", 1)[1] for source in [first, *more]).strip() == there.strip()


def test_the_elastic_batch_script_differs_where_the_lesson_says():
    lines = [set((FOLDER / f"{name}.sbatch").read_text().splitlines()) for name in ("train", "train_elastic")]
    new = {line.split()[-1] if line.startswith("#SBATCH") else line.split()[0] for line in lines[1] - lines[0]}
    assert new == {
        "--job-name=elastic",
        "--nodes=1-4",
        "--no-kill",
        "export",
        "srun",
        "--nnodes",
        "--max-restarts",
        "train.py",
    }


def test_the_elastic_batch_can_be_shared_out_by_as_many_nodes_as_may_come():
    text = (FOLDER / "train_elastic.sbatch").read_text()
    least, most = map(int, re.search(r"--nodes=(\d+)-(\d+)", text).groups())
    gpus, batch = (int(re.search(rf"--{name}[= ](\d+)", text)[1]) for name in ("gpus-per-node", "batch"))
    assert [nodes for nodes in range(least, most + 1) if batch % (nodes * gpus)] == []
