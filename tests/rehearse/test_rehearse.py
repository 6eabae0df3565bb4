"""`python -m ddplab rehearse`: scripts without a line of ours, on virtual GPUs, in real processes."""

import functools
import json
import os
import signal
import struct
import subprocess
import sys
from itertools import takewhile
from pathlib import Path

import psutil
import pytest
import torch

from ddplab.rehearse import circles, command, report, trail
from ddplab.rehearse.circles import circle

HERE, ROOT = Path(__file__).parent, Path(__file__).parent.parent.parent


def rehearse(*words, **env):
    words = [sys.executable, "-m", "ddplab", "rehearse", *map(str, words)]
    env = {**os.environ, "PYTHONPATH": str(ROOT), **env}
    return subprocess.run(words, capture_output=True, text=True, env=env, timeout=180)


@pytest.mark.fresh
def test_mistakes_are_named_in_the_words_of_cuda_and_nccl_and_right_things_work(tmp_path):
    """The whole table in one run of two ranks: see suite/."""
    done = rehearse("--gpu-memory=256MiB", "--nproc-per-node", 2, HERE / "suite" / "run.py", tmp_path / "found")
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        found = json.loads((tmp_path / f"found.{rank}").read_text())
        assert found["wrong"] == {} and found["mistakes"] >= 60 and found["works"] >= 40


@pytest.mark.fresh  # so that who dies is not gone before the other waits
def test_a_script_with_amp_workers_and_checkpoints_resumes_and_a_dead_rank_leaves_the_other_waiting(tmp_path):
    checkpoint, file = tmp_path / "checkpoint.pt", tmp_path / "report.json"
    page, kind = tmp_path / "summary.md", "--gpu-type=A10"
    options = (
        "--json",
        file,
        "--markdown",
        page,
        kind,
        "--nproc-per-node=2",
        HERE / "train.py",
        "--checkpoint",
        checkpoint,
    )
    first = rehearse(*options, "--epochs", 1)
    assert first.returncode == 0 and "epoch 0 loss" in first.stdout, first.stderr
    saved = torch.serialization.get_unsafe_globals_in_checkpoint(checkpoint)
    assert saved == [], "nothing of ours is in the file"
    found = json.loads(file.read_text())
    assert [len(gpu["users"]) for gpu in found["gpus"]] == [1, 1] and found["steps"] == 2
    user = found["gpus"][1]["users"][0]
    assert user["file"].endswith("train.py") and user["line"] > 1, "where the most was held"
    assert (found["gpu_type"], found["gpu_memory"]) == ("A10", 24 * 2**30)
    kinds = user["of which"]
    assert kinds["parameters"] == kinds["gradients"] == kinds["buckets"] and found["parameters"] == "equal"
    assert kinds["optimizer state"] >= 2 * kinds["parameters"] and "no GPU has run this" in first.stderr

    died = rehearse(*options, "--epochs", 2, "--die-at", 0)
    assert died.returncode != 0 and "epoch 0" not in died.stdout, "it resumes after the first epoch"
    found = json.loads(file.read_text())
    assert found["raised"]["rank 1"]["what"] == "ValueError: a bad sample"
    passed, failed = page.read_text().split("### ")[1:]
    assert passed.startswith("Rehearsal passed: on virtual GPUs") and failed.startswith("Rehearsal failed")
    assert "train.py, line" in found["waits"]["rank 0"] and "closed by peer" not in died.stderr


@pytest.mark.fresh
def test_a_script_that_spawns_its_ranks_and_what_strict_objects_to(tmp_path):
    options = ("--strict", "--json", tmp_path / "report.json", "--gpus", 2, "--python", HERE / "spawned.py")
    done = rehearse(*options, MEETING=str(tmp_path / "meeting"), TMPDIR=str(tmp_path))  # torch leaves a file there
    found = json.loads((tmp_path / "report.json").read_text())
    assert done.returncode == 1 and found["exit_status"] == 0, done.stderr
    assert found["objections"] == [
        "cuda:0 is used by 2 processes",
        "blocking copies in every step: 1, and 0 are allowed",
        "the ranks' parameters differ at the end",
    ]
    line = next(i for i, text in enumerate((HERE / "spawned.py").read_text().splitlines(), 1) if "loss.item()" in text)
    first, second = found["gpus"][0]["users"]  # rank 0 is at home there
    where = {"file": str(HERE / "spawned.py"), "line": line - 9, "how": "map_location says where to"}
    assert "loaded" not in first and second["loaded"] == where
    assert f"rank 1 loaded onto it at {HERE / 'spawned.py'}, line {line - 9}: map_location" in done.stderr
    copies = {row["line"]: (row["times"], row["every_step"]) for row in found["copies_to_cpu"]}
    assert copies == {line: (5, True), line - 6: (9, False)}
    assert f".item() 5 x in the whole run of one process, at {HERE / 'spawned.py'}, line {line}" in done.stderr


SHARED = """
import torch, torch.multiprocessing as mp


def child(_, net, x):
    kinds = [(p.requires_grad, isinstance(p, torch.nn.Parameter), str(p.device)) for p in (*net.parameters(), x)]
    assert kinds == [(True, True, "cuda:0"), (False, True, "cuda:0"), (True, False, "cuda:0")], kinds
    net.weight.data.fill_(7)


if __name__ == "__main__":
    net, x = torch.nn.Linear(2, 1).cuda(), torch.zeros(2, device="cuda", requires_grad=True)
    net.bias.requires_grad_(False)
    mp.spawn(child, (net, x))
    print(net.weight.tolist())
"""


def test_a_model_given_to_another_process_is_shared_and_goes_on_learning(tmp_path):
    (tmp_path / "shared.py").write_text(SHARED)
    done = rehearse("--gpus=1", "--python", tmp_path / "shared.py", TMPDIR=str(tmp_path))  # torch leaves a file there
    assert done.stdout == "[[7.0, 7.0]]\n", done.stderr


def test_a_script_that_spawns_its_ranks_is_not_for_torchrun(tmp_path):
    env = {"MEETING": str(tmp_path / "meeting"), "TMPDIR": str(tmp_path)}
    under_torchrun = {"TORCHELASTIC_RUN_ID": "none", "RANK": "0", "LOCAL_WORLD_SIZE": "2"}
    options = ("--json", tmp_path / "report.json", "--gpus=2", "--python", HERE / "spawned.py")
    done = rehearse(*options, **env, **under_torchrun)
    found = json.loads((tmp_path / "report.json").read_text())
    assert done.returncode != 0 and found["waits"] == {} and {*found["raised"]} == {"rank 0"}
    for error in found["raised"].values():
        assert error["what"].endswith("Start it once: python -m ddplab rehearse --gpus 2 --python spawned.py")
        assert error["where"].startswith("spawned.py, line 13")


DROPS = """
import contextlib, sys, torch, torch.distributed as dist
from ddplab.vgpu import virtual_gpus

kind = sys.argv[1]
with virtual_gpus(1) if kind == "vgpu" else contextlib.nullcontext():
    for _ in range(200):
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4).to(kind))
        model(torch.ones(2, 4, device=kind)).sum().backward()
        dist.destroy_process_group()
        del model  # the last that holds the group, right after a collective
print("all gone")
"""


@pytest.mark.parametrize("kind", ["cuda", "vgpu"])
def test_a_group_that_is_dropped_right_after_a_collective_hangs_nothing(tmp_path, kind):
    (tmp_path / "drops.py").write_text(DROPS)
    if kind == "cuda":
        done = rehearse("--gpus=1", "--python", tmp_path / "drops.py", kind)
    else:
        words = [sys.executable, tmp_path / "drops.py", kind]
        done = subprocess.run(
            words, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": ROOT}, timeout=180
        )
    assert done.stdout.startswith("all gone"), done.stderr


def test_a_rank_that_leaves_early_leaves_the_other_waiting_and_it_does_not_wait_for_ever(tmp_path):
    options = ("--json", tmp_path / "report.json", "--gpus", 2, "--python", HERE / "leaves.py")
    done = rehearse(*options, MEETING=str(tmp_path / "meeting"), TMPDIR=str(tmp_path))  # torch leaves a file there
    found = json.loads((tmp_path / "report.json").read_text())
    assert done.returncode != 0 and found["raised"] == {} and "nobody is left who could wake it" in done.stderr
    assert "closed by peer" not in done.stderr
    assert found["waits"]["rank 0"].startswith("in all_reduce at ") and "leaves.py, line 15" in found["waits"]["rank 0"]


APART = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("nccl")
rank, n = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(rank)
model = DDP(torch.nn.Linear(4, 1).to(rank), device_ids=[rank])
for step in range(99):  # longer than what is remembered
    both = dist.new_group() if step == 1 else None
    uneven = [torch.zeros(1 + r, device="cuda") for r in range(n)]
    dist.all_gather(uneven, torch.ones(1 + rank, device="cuda"))
    later = dist.all_reduce(torch.ones(3, device="cuda"), group=both, async_op=True)
    ones = torch.ones(2, device="cuda")
    dist.gather(ones, [torch.zeros_like(ones) for _ in range(n)] if rank == 1 else None, 1)
    dist.broadcast_object_list(["x" * 99 * rank], src=1)
    later.wait()
if rank == 0:
    EXTRA
model(torch.ones(2, 4, device="cuda")).sum().backward()
dist.barrier()
print("done")
"""


@pytest.mark.parametrize(
    "extra, says",
    [
        ("dist.all_gather([torch.zeros(1, device='cuda') for _ in range(n)], loss)", "in all_gather (allgather of "),
        ("dist.all_reduce(loss)", "in all_reduce (allreduce of 4 bytes) at "),
    ],
)
def test_ranks_in_different_collectives_are_told_at_once_and_where(tmp_path, extra, says):
    """At once: within its timeout, which is shorter than gloo's."""
    script = APART.lstrip().replace("EXTRA", f"loss = torch.ones(1, device='cuda'); {extra}")
    (tmp_path / "apart.py").write_text(script)
    done = rehearse("--json", tmp_path / "report.json", "--nproc-per-node=2", tmp_path / "apart.py")
    found = json.loads((tmp_path / "report.json").read_text())
    assert found["raised"] == {} and found["exit_status"] and "done" not in done.stdout, done.stderr
    number = {text: i for i, text in enumerate(script.splitlines(), 1)}
    backward = 'model(torch.ones(2, 4, device="cuda")).sum().backward()'
    first, second = found["waits"]["rank 0"], found["waits"]["rank 1"]
    assert first.startswith(says) and f"apart.py, line {number[backward] - 1}: " in first
    assert second.startswith("in ") and f"apart.py, line {number[backward]}: {backward}" in second
    assert f"rank 0 waits {first}\n  rank 1 waits {second}" in done.stderr


def test_ranks_that_name_different_roots_are_told(tmp_path):
    lines = APART.split("model = ")[0] + "dist.broadcast(torch.ones(2, device='cuda'), src=rank)\n"
    (tmp_path / "roots.py").write_text(lines.lstrip())
    done = rehearse("--nproc-per-node=2", tmp_path / "roots.py")
    assert done.returncode and "closed by peer" not in done.stderr
    for rank in range(2):
        assert f"rank {rank} waits in broadcast (broadcast of 8 bytes with root {rank}) at roots.py" in done.stderr


TOGETHER = (
    APART.lstrip().replace("EXTRA", "pass")
    + """
mine, sent = torch.ones(999, device="cuda"), [None, None]
dist.all_gather_object(sent, mine[:2].clone())  # what others send is on the others' GPUs
x = torch.ones(2, 4, device="cuda") * rank
model(x).sum().backward()
loss = model.module(x).sum()  # trained past DDP
loss.backward()
torch.optim.SGD(model.parameters(), lr=0.1).step()
with torch.no_grad():
    model.module(x)
model.eval().module(x)
narrow = torch.nn.Conv2d(8, 8, 1).to(rank, memory_format=torch.channels_last)  # compared at the end, like the other
narrow = DDP(narrow, device_ids=[rank])
dist.destroy_process_group()
"""
)


def test_what_ranks_do_together_is_no_alarm_and_tensors_of_others_and_steps_past_ddp_are_told(tmp_path):
    file = tmp_path / "together.py"
    file.write_text(TOGETHER)
    done = rehearse("--json", tmp_path / "report.json", "--nproc-per-node=2", file)
    found = json.loads((tmp_path / "report.json").read_text())
    assert (done.stdout.count("done"), done.returncode, found["waits"], found["raised"]) == (2, 0, {}, {}), done.stderr
    number = {text.partition("  #")[0]: i for i, text in enumerate(TOGETHER.splitlines(), 1)}
    line = number["dist.all_gather_object(sent, mine[:2].clone())"]
    for rank, gpu in enumerate(found["gpus"]):
        loads = {user["who"]: user.get("loaded") for user in gpu["users"]}
        where = {"file": str(file), "line": line, "how": "send tensors.cpu()"}
        assert loads == {f"rank {rank}": None, f"rank {1 - rank}": where}
    line = number["loss = model.module(x).sum()"]
    assert found["parameters"] == "differ" and f"{file}, line {line} trains the module past DDP" in done.stderr
    assert found["past_ddp"] == [{"file": str(file), "line": line}]


def test_what_a_script_catches_and_ends_with_is_told(tmp_path):
    """So does hydra's main."""
    script = tmp_path / "caught.py"
    lines = ["import sys, torch", "try:", "    torch.ones(3).cuda() @ torch.ones(3)"]
    script.write_text("\n".join([*lines, "except RuntimeError:", "    sys.exit('it did not work')", ""]))
    done = rehearse("--json", tmp_path / "report.json", "--gpus=1", "--python", script)
    (told,) = json.loads((tmp_path / "report.json").read_text())["raised"].values()
    assert done.returncode == 1 and "it did not work" in done.stderr
    assert told["what"].startswith("RuntimeError: Expected all tensors") and "caught.py, line 3" in told["where"]


@pytest.mark.fresh
def test_what_starts_the_script_imports_no_torch_itself(tmp_path):
    (tmp_path / "script.py").write_text("print('runs')\n")
    (tmp_path / "torch.py").write_text("raise ImportError('torch was imported')\n")
    done = rehearse("--gpus", 2, "--python", tmp_path / "script.py", PYTHONPATH=f"{tmp_path}:{HERE.parent.parent}")
    assert done.returncode == 0 and done.stdout == "runs\n" and "rehearsed on 2 virtual GPUs" in done.stderr


def test_a_report_shows_nccls_last_words_whole():
    said = "DistBackendError: " + "x" * 200 + "\nncclInvalidUsage\nLast error:\nDuplicate GPU"
    found = {"gpus": [], "traffic": [], "skipped": [], "waits": {}, "copies_to_cpu": [], "steps": 0, "objections": []}
    found |= {"raised": {"rank 1": {"what": said, "where": "a.py"}}, "parameters": "equal"}
    assert "      Duplicate GPU\n      at a.py" in report.text(found)


def test_a_rank_whose_thread_has_no_line_of_the_script_is_told_all_the_same():
    assert trail._where(b"3\nbarrier\n1\nbarrier\n0\n\n".ljust(trail.BYTES)) == ("rank 1", "in barrier")


def test_a_report_shows_what_a_worker_raised():
    said = (
        "RuntimeError: Caught RuntimeError in replica 0.\nOriginal Traceback (most recent call last):\n  …\nError: why"
    )
    found = {"gpus": [], "traffic": [], "skipped": [], "waits": {}, "copies_to_cpu": [], "steps": 0, "objections": []}
    found |= {"raised": {"rank 1": {"what": said, "where": "a.py"}}, "parameters": "equal"}
    assert "in replica 0.\n      Error: why\n      at a.py" in report.text(found)


@pytest.mark.fresh
@pytest.mark.parametrize(
    "send, what",
    [(os.kill, signal.SIGINT), (os.killpg, signal.SIGINT), (os.kill, signal.SIGTERM)],
    ids=["to it alone", "as a terminal does", "as timeout does"],
)
def test_an_interrupt_ends_all_that_was_started_and_reports(tmp_path, send, what):
    waits = "import time; time.sleep(99)"
    starts = f"print(subprocess.Popen([sys.executable, '-S', '-c', '{waits}']).pid, flush=True)"
    (tmp_path / "job.py").write_text(f"import subprocess, sys, torch\ntorch.ones(1).cuda()\n{starts}\n{waits}")
    words = [sys.executable, "-m", "ddplab", "rehearse", "--python", str(tmp_path / "job.py")]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    hearing = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # a background job does not
    with subprocess.Popen(words, **pipes, env=env, process_group=0, preexec_fn=hearing) as it:
        below = int(it.stdout.readline())
        send(it.pid, what)
        heard = list(takewhile(lambda line: "interrupted" not in line, it.stderr))
        send(it.pid, what)  # by someone impatient
        said = "".join(heard) + it.communicate(timeout=60)[1]
    assert it.returncode == 130 and "rehearsed on 2 virtual GPUs" in said, said
    stood = f"stood at job.py, line 4: {waits}" in said
    assert stood or send is os.killpg, said  # a terminal's interrupt reaches the script itself, which says so
    there = psutil.process_iter(["status"])  # skips those that end meanwhile
    alive = {process.pid for process in there if process.info["status"] != psutil.STATUS_ZOMBIE}
    assert not [*tmp_path.glob("rehearsal-*")]
    assert below not in alive and "ddplab/rehearse/command.py" not in said


def test_options_are_ours_until_one_is_not():
    ours, rest = command.parsed("--gpus 3 --gpu-memory 24GiB --nproc-per-node 2 --max-restarts 1 a.py --gpus 9".split())
    assert (ours["gpus"], ours["memory"]) == (3, 24 * 2**30)
    assert rest == "--nproc-per-node=2 --max-restarts 1 a.py --gpus 9".split()
    assert command.parsed(["--python", "a.py", "--strict"])[1] == ["a.py", "--strict"]
    for wrong in (["--gpus"], ["--gpus", "two", "a.py"], ["--gpu-memory", "24 cats", "a.py"], ["--gpu-type=X"]):
        with pytest.raises(ValueError, match=r"needs a value|not understood"):
            command.parsed(wrong)
    assert (command.main([]), command.main(["--gpus", "2"]), command.main(["--help"])) == (2, 2, 0)


def test_a_report_without_any_step_has_no_copies_per_step():
    found = {"gpus": [], "steps": 0, "copies_to_cpu": [{"times": 9, "every_step": True}], "parameters": "equal"}
    found |= {"raised": {}, "exit_status": 0}
    assert report.objections(found, 0) == []


ASKS = """
import torch

x = torch.nn.Parameter(torch.ones(4, device="cuda"))
optimizer = torch.optim.SGD([x], 0.1)
for step in range(2):
    x[x > 0].sum().backward()
    torch.nonzero(x)
    torch.equal(x, x)
    str(x)
    x.unique()
    x[[1, 0]]
    x[torch.tensor([1, 0])]
    repeats = torch.tensor([1, 0, 2, 1], device="cuda")
    x.repeat_interleave(repeats)
    torch.cuda.synchronize()
    torch.cuda.current_stream().synchronize()
    y = x.detach().clone()
    y[y > 0] = y[y > 0]
    x[:2], x[repeats], x.where(x > 0, 0), x == x, x.repeat_interleave(repeats, output_size=4)
    y[y > 0] = 1
    optimizer.step()
"""


def test_what_asks_a_gpu_without_a_word_of_it_is_told(tmp_path):
    (tmp_path / "own.py").write_text(ASKS)
    done = rehearse("--strict", "--json", tmp_path / "found", "--gpus=1", "--python", tmp_path / "own.py")
    rows = json.loads((tmp_path / "found").read_text())["copies_to_cpu"]
    told = [(row["line"], row["what"], row["times"]) for row in rows if row["every_step"]]
    index = "an index from the CPU"
    expected = [(7, "a mask", 4), (8, "nonzero", 2), (9, "equal", 2), (10, "its repr", 2), (11, "unique", 2)]
    expected += [(12, index, 2), (13, index, 2), (15, "repeat_interleave", 2), (16, "torch.cuda.synchronize()", 2)]
    expected += [(17, "Stream.synchronize()", 2), (19, "a mask", 4)]
    assert sorted(told) == expected
    objection = "objection: blocking copies in every step: 11, and 0 are allowed"  # not of what copies nothing
    assert objection in done.stderr


IN_TURNS = """
import torch, torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer as Zero

dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
a, b = (torch.nn.Linear(4, 4).cuda() for _ in range(2))
for net in (a, b):
    for p in net.parameters():
        dist.broadcast(p.data, 0)
takes_turns = [OPTIMIZERS]
for step in range(3):
    for optimizer in takes_turns:
        loss = b(a(torch.ones(2, 4, device="cuda"))).sum()
        loss.backward()
        optimizer.step()
    print(loss.item())
"""
GAN = "torch.optim.Adam(a.parameters()), torch.optim.Adam(b.parameters())"
ZERO = "Zero([*a.parameters(), *b.parameters()], torch.optim.Adam)"


@pytest.mark.parametrize("optimizers, states", [(GAN, 320), (ZERO, 160)])
def test_several_optimizers_that_take_turns_make_one_step(tmp_path, optimizers, states):
    """ZeRO has one inside, which steps this rank's part. Else no line would copy in each of twice as many steps."""
    (tmp_path / "own.py").write_text(IN_TURNS.replace("OPTIMIZERS", optimizers))
    done = rehearse("--strict", "--json", tmp_path / "found", "--nproc-per-node=2", tmp_path / "own.py")
    found = json.loads((tmp_path / "found").read_text())
    assert found["steps"] == 3 and done.returncode == 1, done.stderr
    assert found["objections"][0] == "blocking copies in every step: 1, and 0 are allowed"
    kinds = [gpu["users"][0]["of which"] for gpu in found["gpus"]]
    assert {(it["parameters"], it["gradients"], it["optimizer state"]) for it in kinds} == {(160, 160, states)}


EACH_ITS_OWN = """
import torch, torch.distributed as dist

def main():
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    torch.cuda.set_device(rank)
    torch.manual_seed(SEED)
    model = torch.nn.Linear(4, 4).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(2):
        model(torch.ones(2, 4, device="cuda") * rank).sum().backward()
        EXTRA
        optimizer.step()

main()
"""
AVERAGED = "[dist.all_reduce(p.grad, dist.ReduceOp.AVG) for p in model.parameters()]"
HANDED_ON = "dist.send(model.bias, 1) if rank == 0 else dist.recv(torch.ones(4, device='cuda'), 0)"


@pytest.mark.parametrize(
    "seed, extra, found",
    [("0", AVERAGED, "equal"), ("rank", AVERAGED, "differ"), ("0", "", "differ"), ("0", HANDED_ON, "not compared")],
)
def test_what_optimizers_step_is_compared_where_no_ddp_wraps_it(tmp_path, seed, extra, found):
    """Also of a script that has let go of its model when it ends."""
    (tmp_path / "own.py").write_text(EACH_ITS_OWN.replace("SEED", seed).replace("EXTRA", extra))
    done = rehearse("--strict", "--nproc-per-node=2", tmp_path / "own.py")
    assert f"parameters of the ranks at the end: {found}" in done.stderr, done.stderr
    assert done.returncode == (found == "differ") == ("objection" in done.stderr)
    assert ("ranks that use send may hold parts of it" in done.stderr) == (found == "not compared")


SHARDED = """
import torch, torch.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
torch.manual_seed(0)
model = torch.nn.Linear(4, 4, bias=False).cuda()
whole = model.weight.data.view(-1)
mine = torch.nn.Parameter(whole.chunk(2)[rank].clone()) if SHARDS else model.weight
optimizer = torch.optim.Adam([mine])
for step in range(2):
    model(torch.ones(2, 4, device="cuda") * rank).sum().backward()
    dist.all_reduce(model.weight.grad)
    mine.grad = model.weight.grad.view(-1).chunk(2)[rank].clone() if SHARDS else model.weight.grad
    optimizer.step()
    model.weight.grad = None
    parts = [torch.empty_like(mine) for _ in range(2)]
    dist.all_gather(parts, mine.data)
    if SHARDS:
        whole.copy_(torch.cat(parts))
"""


@pytest.mark.parametrize("shards, found", [("True", "not compared; left out: what ranks gather"), ("False", "equal\n")])
def test_what_ranks_step_a_part_of_each_and_gather_is_no_objection(tmp_path, shards, found):
    """Where all have the whole of it, and gather to look, it is compared."""
    (tmp_path / "sharded.py").write_text(SHARDED.replace("SHARDS", shards))
    done = rehearse("--strict", "--nproc-per-node=2", tmp_path / "sharded.py")
    assert done.returncode == 0 and f"parameters of the ranks at the end: {found}" in done.stderr, done.stderr


def test_what_a_script_asks_nvidia_smi_was_not_rehearsed(tmp_path):
    lines = [
        "import subprocess, torch",
        "torch.ones(1).cuda()",
        "try:",
        "    subprocess.run(['nvidia-smi'])",
        "except OSError:",
        "    pass",
    ]
    (tmp_path / "asks.py").write_text("\n".join(lines))
    done = rehearse("--python", tmp_path / "asks.py")
    assert "what nvidia-smi says of this machine's own GPUs (skipped)" in done.stderr
    (tmp_path / "asks.py").write_text("import torch, os; torch.ones(1).cuda(); os.system('echo nvidia')")
    assert "nvidia-smi" not in rehearse("--python", tmp_path / "asks.py").stderr


def test_a_gpu_that_a_script_chooses_by_its_environment_is_the_machines(tmp_path):
    lines = ["import os, torch, torch.distributed as dist", "os.environ['CUDA_VISIBLE_DEVICES'] = os.environ['RANK']"]
    lines += ["dist.init_process_group('nccl')", "dist.all_reduce(torch.ones(1, device='cuda'))"]
    lines += ["try:", "    torch.ones(1, device='cuda:1')", "except RuntimeError:", "    print('there is one')"]
    (tmp_path / "chooses.py").write_text("\n".join(lines))
    done = rehearse("--strict", "--nproc-per-node=2", tmp_path / "chooses.py")
    assert done.returncode == 0 and done.stdout.count("there is one") == 2, done.stderr
    assert "cuda:1  rank 1 held at most" in done.stderr
    (tmp_path / "asks.py").write_text("import torch; torch.ones(1, device='cuda')")
    done = rehearse("--python", tmp_path / "asks.py", CUDA_VISIBLE_DEVICES="")
    assert done.returncode and "No CUDA GPUs are available" in done.stderr


def test_an_error_in_a_process_that_its_parent_does_not_look_at_is_an_objection(tmp_path):
    lines = ["import subprocess, sys", "if len(sys.argv) == 1:", "    subprocess.run([sys.executable, __file__, '1'])"]
    lines += ["else:", "    import torch", "    torch.ones(2).cuda() + torch.ones(2)"]
    (tmp_path / "ignores.py").write_text("\n".join(lines))
    done = rehearse("--strict", "--gpus=1", "--python", tmp_path / "ignores.py")
    assert done.returncode == 1 and "nobody looked at how it ended" in done.stderr
    assert "raised an error, and the script ended as if nothing had been" in done.stderr


def test_a_rank_that_torchrun_starts_again_is_no_objection(tmp_path):
    lines = ["import os, sys, torch", "torch.ones(1, device='cuda:' + os.environ['LOCAL_RANK'])"]
    lines += ["if os.environ['RANK'] + os.environ['TORCHELASTIC_RESTART_COUNT'] == '10':", "    sys.exit(1 / 0)"]
    (tmp_path / "again.py").write_text("\n".join(lines))
    done = rehearse("--strict", "--nproc-per-node=2", "--max-restarts=1", tmp_path / "again.py")
    assert done.returncode == 0 and "rank 1 raised ZeroDivisionError" in done.stderr, done.stderr
    assert "and was started again" in done.stderr and "objection" not in done.stderr


@pytest.mark.parametrize("pids", [(40, 41), (41, 40)])  # the machine's numbers begin anew
def test_a_rank_that_is_started_again_comes_after_itself_whatever_its_pid(tmp_path, pids):
    book, error = report.Book(str(tmp_path / "book"), gpus=1), {"what": "ValueError: a row", "where": "a.py, line 1"}
    for row, (pid, raised) in enumerate(zip(pids, (error, None), strict=True)):
        struct.pack_into("5q", book.map, row * book.width, pid, 1, 1, 0, 4)
        said = {key: [] for key in ("rows", "lines", "skipped", "past", "digests", "left_out")}
        said |= {key: {} for key in ("kinds", "peaks", "loads", "waits")} | {"error": raised, "steps": 0}
        (tmp_path / f"book.{pid}.json").write_text(json.dumps(said))
    assert "again" in report.read(str(tmp_path / "book"), gpus=1)["raised"]["rank 1"]


AT_THE_PEAK = """
import torch


def weights():
    return torch.nn.Linear(512, 512).cuda()


def step(net):
    hidden = net(torch.ones(64, 512, device="cuda"))
    return hidden, torch.zeros(99, device="cuda")


def main():
    net = weights()
    kept = step(net)
    del net, kept


main()
"""


def test_what_is_held_at_the_peak_was_made_by_these_calls(tmp_path):
    file = tmp_path / "own.py"
    file.write_text(AT_THE_PEAK)
    done = rehearse("--json", tmp_path / "found", "--gpus=1", "--python", file)
    user = json.loads((tmp_path / "found").read_text())["gpus"][0]["users"][0]
    stacks = [user["stack"], *(row["stack"] for row in user["largest"])]
    calls = [[(frame["function"], frame["line"]) for frame in stack[-3:]] for stack in stacks]
    begin, net, out = ("<module>", 20), ("weights", 6), ("step", 10)
    assert calls == [[begin, ("main", 16), out], [begin, ("main", 15), net], [begin, ("main", 16), out]]
    assert [row["bytes"] for row in user["largest"]] == [512 * 512 * 4, 2 * 64 * 512 * 4]
    assert f"1.00 MiB of it were made at {file}, line 6, in weights, called at own.py, line 15\n" in done.stderr


TOO_LARGE = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    dist.init_process_group("nccl")
    torch.cuda.set_device(dist.get_rank())
    net = torch.nn.Linear(256, 256, bias=False).cuda()
    if WRAPPED:
        net = DDP(net)
    optimizer = torch.optim.Adam(net.parameters())
    for step in range(2):
        net(torch.ones(4, 256, device="cuda")).sum().backward()
        FULL
        optimizer.step()


main()
"""


@pytest.mark.parametrize(
    "wrapped, full, state", [("True", "torch.ones(2**20, device='cuda')", 0), ("False", "pass", 256 * 1024)]
)
def test_a_first_step_for_which_memory_is_short_tells_what_held_it(tmp_path, wrapped, full, state):
    """Also where the optimizer's own first step is the one: its first state is there, and no room for the second."""
    (tmp_path / "own.py").write_text(TOO_LARGE.replace("WRAPPED", wrapped).replace("FULL", full))
    memory = "--gpu-memory=2MiB" if wrapped == "True" else "--gpu-memory=900KiB"
    done = rehearse(memory, "--json", tmp_path / "found", "--nproc-per-node=1", tmp_path / "own.py")
    found = json.loads((tmp_path / "found").read_text())
    assert found["steps"] == 0 and "CUDA out of memory" in found["raised"]["rank 0"]["what"], done.stderr
    kinds = found["gpus"][0]["users"][0]["of which"]
    assert (kinds["parameters"], kinds["gradients"]) == (256 * 1024, 256 * 1024)
    assert kinds.get("optimizer state", 0) == state


LINKS = """
import torch, torch.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
x = torch.ones(2).to(rank)  # and the current device stays cuda:0
dist.all_reduce(x)
if rank == 1:
    x.to("cuda:0")
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1).to(rank), device_ids=[rank])
net(x).sum().backward()
"""


def test_bytes_are_told_by_link(tmp_path):
    (tmp_path / "own.py").write_text(LINKS)
    done = rehearse("--json", tmp_path / "found", "--nproc-per-node=2", tmp_path / "own.py")
    rows = json.loads((tmp_path / "found").read_text())["traffic"]
    links = {(row["cause"], row["from"], row["to"]): row["bytes"] for row in rows}
    assert links["allreduce", "cuda:0", "peers"] == links["allreduce", "cuda:1", "peers"] == 8 + 12, "also of DDP's"
    assert links[".to", "cuda:1", "cuda:0"] == 8 and (".to", "cuda:0", "cuda:1") not in links
    assert "  allreduce        cuda:0,1 -> peers         2 x     20 bytes each\n" in done.stderr, done.stderr
    assert "  .to              cuda:1 -> cuda:0          1 x      8 bytes\n" in done.stderr


def test_a_report_stays_short_where_each_link_carries_another_amount():
    traffic = [{"cause": "gather", "from": f"cuda:{i}", "to": "cuda:0", "copies": i, "bytes": i} for i in range(1, 8)]
    assert report._links(traffic[:1]) == [("gather", "cuda:1 -> cuda:0", 1, 1, False)]
    assert report._links(traffic) == [("gather", "7 links, in all", 28, 28, False)]


NOBODY_RECEIVES = """
import torch, torch.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
x = torch.ones(1000000, device="cuda")
later = dist.isend(x, 1 - rank)
dist.recv(torch.empty_like(x), 1 - rank)
later.wait()
dist.barrier()
if rank == 0:
    dist.send(x, 1)
dist.barrier()
"""


def test_a_send_that_nobody_receives_is_told(tmp_path):
    (tmp_path / "own.py").write_text(NOBODY_RECEIVES)
    done = rehearse("--json", tmp_path / "found", "--nproc-per-node=2", tmp_path / "own.py")
    found = json.loads((tmp_path / "found").read_text())
    expected = {"rank 0": "in send at own.py, line 13: dist.send(x, 1)"}
    expected["rank 1"] = "in barrier at own.py, line 14: dist.barrier()"
    assert found["waits"] == expected and found["raised"] == {} and done.returncode, done.stderr
    assert "ranks wait for each other for ever" in done.stderr and "rank 0 waits in send at own.py" in done.stderr


def test_who_waits_for_somebody_that_can_go_on_is_in_no_circle():
    def cell(*needs, at="in send", **begun):
        return {"at": at, "needs": needs, "begun": begun}

    sends, comes = cell((1, "recv 0", 1)), cell((0, "barrier", 2), barrier=1)
    assert circle([sends, comes]) == {0, 1}, "each needs what the other has not begun"
    assert circle([sends, cell(at="")]) == set(), "rank 1 computes, and may receive yet"
    assert circle([sends, cell((2, "recv 1", 1)), cell(at="")]) == set(), "rank 1 does not wait in vain"
    assert circle([sends, cell((0, "barrier", 2), **{"recv 0": 1})]) == set(), "rank 1 has begun what is needed"
    assert circle([sends, comes, cell((0, "x", 1))]) == {0, 1, 2}, "who waits for a circle goes on as little"
    assert circle([sends, {}]) == set(), "rank 1 has said nothing yet"


@pytest.mark.parametrize(
    "needs, stuck",
    [
        ([(1, "recv 0", 1)], set()),  # it has begun to
        ([(1, "recv 0", 2)], {0, 1}),
        ([(2, "recv 0", 1)], set()),  # that one does not stand
    ],
)
def test_only_who_can_never_go_on_is_stuck(needs, stuck):
    first = {"at": "in send", "needs": needs, "begun": {"send 1": 2}}
    second = {"at": "in barrier", "needs": [(0, "world", 1)], "begun": {"recv 0": 1, "world": 1}}
    assert circles.circle([first, second, {"at": "", "needs": [], "begun": {}}, {}]) == stuck
