"""Ranks that are used again: what they carry out, what is left to fresh ones, and that a wrong answer stays wrong."""

import importlib
import os
import time

import cloudpickle
import pytest
import torch
import torch.distributed as dist
import used_ranks

from ddplab.course.messages import noted_messages, noted_sums
from ddplab.run import RankError


def who():
    return os.getpid(), dist.get_rank()


def whole():
    raise KeyError("bias")


def one():
    if dist.get_rank() == 0:
        raise KeyError("momentum")


def half():
    if dist.get_rank() == 0:
        raise KeyError("weight")
    dist.barrier()


def without_a_group():
    dist.destroy_process_group()
    return os.getpid()


def slow():
    time.sleep(2)  # longer than they have
    return os.getpid()


def replaces():
    noted_messages()
    noted_sums()
    return as_it_was()


def as_it_was():
    return dist.ProcessGroup.allreduce.__name__, torch._C._len_torch_dispatch_stack()


def test_what_a_check_replaces_in_its_ranks_is_put_back():
    cloudpickle.register_pickle_by_value(importlib.import_module(__name__))
    for function, found in ((as_it_was, ("allreduce", 0)), (replaces, ("noting", 1)), (as_it_was, ("allreduce", 0))):
        assert used_ranks.launch_on_used(function, nproc_per_node=2).results == [found, found]


def test_they_serve_again_until_one_fails_or_leaves_and_then_fresh_ones_do(monkeypatch):
    monkeypatch.setattr(used_ranks, "SOON", 60.0)
    cloudpickle.register_pickle_by_value(importlib.import_module(__name__))
    first, second = (used_ranks.launch_on_used(who, nproc_per_node=2).results for _ in range(2))
    assert first == second and [rank for _, rank in first] == [0, 1]
    with pytest.raises(RankError, match="bias"):
        used_ranks.launch_on_used(whole, nproc_per_node=2)
    assert used_ranks.launch_on_used(who, nproc_per_node=2).results == first  # it raised on all of them
    with pytest.raises(RankError, match="momentum"):
        used_ranks.launch_on_used(one, nproc_per_node=2)
    assert 2 not in used_ranks.kept
    used_ranks.launch_on_used(who, nproc_per_node=2)
    with pytest.raises(RankError, match="weight"):
        used_ranks.launch_on_used(half, nproc_per_node=2)
    assert 2 not in used_ranks.kept
    third = used_ranks.launch_on_used(who, nproc_per_node=2).results
    assert not set(third) & set(first) and used_ranks.kept[2].workers[0].process.pid in dict(third)
    for not_to_be_used_again in (without_a_group, slow):
        there = dict(used_ranks.launch_on_used(who, nproc_per_node=3).results)
        assert not set(there) & set(used_ranks.launch_on_used(not_to_be_used_again, nproc_per_node=3).results)
        assert 3 not in used_ranks.kept


def test_modules_that_a_function_reaches_are_those_that_cloudpickle_finds():
    def reaches(model):
        torch.nn.functional.relu(torch.nn.utils.parameters_to_vector(model.parameters()))
        return dist.algorithms.join.Join, os.path

    code, used = reaches.__code__, [torch, dist, os, importlib, 3]
    found = cloudpickle.cloudpickle._find_imported_submodules(code, used)
    assert {torch.nn.functional, torch.nn.utils} <= set(found)
    assert sorted(it.__name__ for it in used_ranks.submodules(code, used)) == sorted(it.__name__ for it in found)
