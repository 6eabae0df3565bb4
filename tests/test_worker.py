"""Promise 2, and what a rank does: its environment and group, its random numbers, its workers, `log`, a good end."""

import linecache
import os
import random
import sys

import numpy
import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

import ddplab
import ddplab.panel
import ddplab.worker
from ddplab import RankError, launch, log


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


def test_what_a_rank_needs_first_is_done_before_it_is_asked_for():
    ready = launch(lambda: torch.random.__file__ in linecache.cache, quiet=True).results
    assert ready == [True, True]
    ddplab.worker.touch()  # whatever it raises in a rank is passed over there


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


def test_a_rank_without_a_keyboard_gets_a_hint():
    with pytest.raises(RankError, match="hint: a rank has no keyboard"):
        launch(lambda: input(), quiet=True)


# ------------------------------------------------------------------ random numbers, as torchrun has them


def test_unseeded_ranks_and_launches_differ():
    def draw():
        import numpy

        return torch.rand(()).item(), float(numpy.random.rand()), random.random(), torch.rand(()).item()

    drawn = [value for _ in range(2) for result in launch(draw, quiet=True).results for value in result]
    assert len(set(drawn)) == len(drawn), drawn


def test_a_seed_makes_ranks_equal():
    def draw():
        torch.manual_seed(7)
        return torch.rand(3).tolist()

    torch.manual_seed(7)
    assert launch(draw, quiet=True).results == [torch.rand(3).tolist()] * 2


def test_the_callers_own_random_state_is_left_alone():
    torch.manual_seed(0), numpy.random.seed(0)
    expected = torch.rand(3).tolist(), numpy.random.rand()
    torch.manual_seed(0), numpy.random.seed(0)
    launch(lambda: None, quiet=True)
    assert (torch.rand(3).tolist(), numpy.random.rand()) == expected


# ------------------------------------------------------------------ a data loader's workers


def test_data_loader_workers_work_in_a_rank_and_end_with_it():
    def load():
        loader = torch.utils.data.DataLoader(range(8), batch_size=4, num_workers=1, persistent_workers=True)
        return [batch.tolist() for batch in loader]

    assert launch(load, quiet=True).results == [[[0, 1, 2, 3], [4, 5, 6, 7]]] * 2


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere workers are spawned, and must import their data set")
def test_workers_of_a_rank_load_a_dataset_defined_in_a_cell():
    class Squares(Dataset):  # cannot be imported, as nothing from a cell can
        def __len__(self):
            return 4

        def __getitem__(self, index):
            return index**2

    def load():
        return list(DataLoader(Squares(), batch_size=None, num_workers=2))

    assert launch(load, quiet=True).results == [[0, 1, 4, 9]] * 2


# ------------------------------------------------------------------ log


def test_a_logged_value_that_cannot_travel_is_named():
    with pytest.raises(RankError, match=r"log\(loss=…\) got a Tensor of shape \(3,\)"):
        launch(lambda: log(loss=torch.ones(3)), quiet=True)
    with pytest.raises(RankError, match=r"log\(model=…\) got a Linear"):
        launch(lambda: log(model=torch.nn.Linear(1, 1)), quiet=True)


def test_a_step_that_is_no_number_is_refused():
    with pytest.raises(RankError, match=r"log\(step=…\) is a number"):
        launch(lambda: log(step="epoch 1"), quiet=True)


# ------------------------------------------------------------------ a good end


@pytest.mark.times(20, stress=300)
def test_tiny_ddp_jobs_in_a_row_end_well(times):
    def job():
        torch.manual_seed(0)
        model = DDP(torch.nn.Linear(4, 4))
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimiser.zero_grad()
            model(torch.ones(2, 4)).sum().backward()
            optimiser.step()
        return next(model.parameters()).sum().item()

    first = launch(job, device="cpu", quiet=True).results
    assert first[0] == first[1]
    for _ in times:
        run = launch(job, device="cpu", quiet=True, timeout=30)
        assert run.state == "finished" and run.results == first


@pytest.mark.times(5, stress=100)
def test_a_function_that_destroys_its_group_as_textbooks_do_ends_well(times):
    def textbook():
        model = DDP(torch.nn.Linear(4, 4))
        for _ in range(3):
            model(torch.ones(2, 4)).sum().backward()
        dist.destroy_process_group()
        return "done"

    def all_by_itself():
        dist.init_process_group("gloo")
        return textbook()

    for _ in times:
        assert launch(textbook, device="cpu", quiet=True, timeout=20).results == ["done"] * 2
        assert launch(all_by_itself, init=False, device="cpu", quiet=True, timeout=20).results == ["done"] * 2


def looks_at_a_gpu_from_the_cpu():
    torch.cuda.is_initialized = lambda: True  # as where there are more ranks than GPUs, and one asks for a random state
    ddplab.cleanup()
    return dist.is_initialized()


def test_cleanup_waits_for_no_gpu_on_the_cpu():
    assert launch(looks_at_a_gpu_from_the_cpu, device="cpu", quiet=True).results == [False, False]
