"""Slips that are seen in the code of an answer: what is told of them, and where nothing is."""

import os  # noqa: F401

import pytest
import torch
import torch.distributed as dist

from ddplab.checks.slips import slip


def without_f(restarts):
    return "torchrun --max-restarts {restarts} train.py"


def expression_without_f():
    return torch.device("cpu:{os.environ['LOCAL_RANK']}")


def with_f(restarts):
    return f"torchrun --max-restarts {restarts} train.py, {{restarts}}"


def with_format(restarts):
    """Put {restarts} in."""
    return "torchrun --max-restarts {restarts} train.py".format(restarts=restarts)  # noqa: UP032


def of_another_name(restarts):
    return "{name} is none of its names"


def not_kept(noted, here):
    seen = torch.tensor(noted)
    seen.to(here)
    return seen


def a_module(model, here):
    model.to(here)
    return model


def not_divided(total):
    dist.all_reduce(total)
    total / dist.get_world_size()


def in_place(total):
    total /= dist.get_world_size()
    total.div_(2)


def fails_on_purpose(rank, broken):
    1 / (rank - broken)
    1 / 0  # noqa: B018


def step_not_called(optimizer):
    optimizer.step  # noqa: B018


def mean(x):
    x /= 2


def calls_its_own(x):
    mean(x)


def either(stack):
    if "all_reduce" or "barrier" in stack:
        return 1


def a_default(name):
    name = name or "gloo"
    return name or "nccl"


def goes_nowhere(old, new, rate):
    torch.lerp(old, new, rate)


def makes_a_group():
    dist.new_group()
    dist.barrier()


def reckons_in_vain(total):
    mean = total / 2  # noqa: F841
    return total


def rank_not_called(x):
    if dist.get_rank == 0:
        x += 1


def loss_not_called(output, target):
    return torch.nn.MSELoss(output, target)


def loss_called(output, target):
    return torch.nn.CrossEntropyLoss(torch.ones(2), reduction="sum")(output, target)


def rank_passed_on(x):
    return list(map(dist.get_rank, x))


def takes_what_comes_back(x):
    total = dist.all_reduce(x)
    return total


def takes_the_work(x):
    work = dist.all_reduce(x, async_op=True)
    work.wait()


def divides_by_a_default(update, warm):
    return (update + 1) / (warm or 1)


def renames(model):
    for p in model.parameters():
        p = p / 2


def moves_first(model, batches, here):
    for x in batches:
        x = x.to(here)
        model(x)


def renames_what_was_given(x):
    x = x / 2


def begins_anew_in_each_turn(x, turns):
    for _ in range(turns):
        print(x)
        x = x / 2


def is_read_within(x):
    x = x / 2

    def inner():
        return x

    return inner


def keeps_the_length(model, limit):
    n = torch.nn.utils.clip_grad_norm_(model.parameters(), limit)  # noqa: F841
    model.step()


TOLD = {
    without_f: "`{restarts}` stands in a text with no `f` before it, and stays as it is.",
    expression_without_f: "`{os.environ['LOCAL_RANK']}` stands in a text with no `f` before it, and stays as it is.",
    either: "`'all_reduce' or 'barrier' in stack` is always true: each side of `or` needs a comparison of its own.",
    goes_nowhere: "What `torch.lerp(old, new, rate)` makes is kept nowhere.",
    makes_a_group: "What `dist.new_group()` makes is kept nowhere.",
    reckons_in_vain: "`mean` is never used.",
    not_kept: "Of a tensor `seen.to(here)` makes another one, and it is kept nowhere.",
    not_divided: "What comes out of `total / dist.get_world_size()` is kept nowhere.",
    step_not_called: "`optimizer.step` alone does nothing: a call has `()`.",
    rank_not_called: "`dist.get_rank` is a function, and no number: it is called with `()`.",
    loss_not_called: "`torch.nn.MSELoss` makes a loss function: what the loss is of goes into a call of that, "
    "`(…)(…)`.",
    takes_what_comes_back: "`dist.all_reduce` fills what it is given, and returns nothing.",
    renames: "`p = p / 2` makes something new, and what `p` was stays as it is.",
    renames_what_was_given: "`x = x / 2` makes something new, and what `x` was stays as it is.",
}
NOTHING = [with_f, with_format, of_another_name, a_module, in_place, rank_passed_on, takes_the_work, moves_first]
NOTHING += [
    divides_by_a_default,
    fails_on_purpose,
    loss_called,
    a_default,
    calls_its_own,
    begins_anew_in_each_turn,
    is_read_within,
    keeps_the_length,
    torch.ones,
    3,
    lambda x: dist.get_rank == x,
]


@pytest.mark.parametrize("answer, told", TOLD.items(), ids=[it.__name__ for it in TOLD])
def test_a_slip_is_told(answer, told):
    assert slip(answer) == told


@pytest.mark.parametrize("answer", NOTHING, ids=lambda it: getattr(it, "__name__", str(it)))
def test_nothing_is_told_where_there_is_no_slip(answer):
    assert slip(answer) == ""


def test_what_was_said_already_is_not_told_twice():
    assert slip(takes_what_comes_back, "what `all_reduce` returns? It returns nothing") == ""
