"""Answers to the turns of lesson 6.3: other right ones, and mistakes that people make."""

import torch
import torch.distributed as dist


def in_a_loop(deaths):
    cause = None
    for death in deaths:
        victim = "Connection" in death["said"] or (death["exit"] == -15 and death["said"] == "")
        if not victim and (cause is None or death["at"] < cause["at"]):
            cause = death
    return cause["rank"]


def sorted_by_time(deaths):
    return next(it["rank"] for it in sorted(deaths, key=lambda it: it["at"]) if told_own(it))


def told_own(death):
    return "peer" not in death["said"] and (death["said"] != "" or death["exit"] not in (0, -15))


def who_was_signalled(deaths):
    own = [it for it in deaths if "by peer" not in it["said"] and it["exit"] != -15]
    return min(own, key=lambda it: it["at"])["rank"]


def by_gathering(work):
    numbers = [None] * dist.get_world_size()
    try:
        mine = work()
    except Exception:
        mine = None
    dist.all_gather_object(numbers, mine)
    return None if None in numbers else numbers[dist.get_rank()]


def by_the_least(work):
    value, good = 0, torch.ones(1)
    try:
        value = work()
    except BaseException:
        good.zero_()
    dist.all_reduce(good, op=dist.ReduceOp.MIN)
    if good.item() == 1:
        return value


def all_of_them_true(work):
    numbers = [None] * dist.get_world_size()
    try:
        mine = work()
    except Exception:
        mine = None
    dist.all_gather_object(numbers, mine)
    if not all(numbers):
        return None
    return mine


def its_number_or_none(work):
    return by_the_least(work) or None


def one_that_is_false(work):
    numbers = [None] * dist.get_world_size()
    try:
        mine = work()
    except Exception:
        mine = None
    dist.all_gather_object(numbers, mine)
    return None if any(not it for it in numbers) else mine


def met_in_the_try(work):
    try:
        mine = work()
        dist.all_reduce(torch.ones(1))
    except Exception:
        mine = None
    return mine


def over_the_cpu(model, file):
    model.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))


def with_a_map(model, file):
    weights = torch.load(file, map_location={"vgpu:0": "cpu"})
    for name, it in model.named_parameters():
        it.data.copy_(weights[name])


def moved_afterwards(model, file):
    mine = next(model.parameters()).device
    model.load_state_dict({name: it.to(mine) for name, it in torch.load(file).items()})


def taken_out_meanwhile(deaths):
    for it in deaths:
        if "by peer" in it["said"] or it["exit"] == -15:
            deaths.remove(it)  # and the next one is passed over
    return min(deaths, key=lambda it: it["at"])["rank"]


def one_is_enough(work):
    number, well = None, torch.zeros(1)
    try:
        number, well = work(), torch.ones(1)
    except Exception:
        pass
    dist.all_reduce(well, op=dist.ReduceOp.MAX)
    return number if well else None


def on_cuda(model, file):
    model.load_state_dict(torch.load(file, map_location=f"cuda:{dist.get_rank()}"))


def with_two_all_reduces(work):
    try:
        number = work()
    except ValueError:
        dist.all_reduce(torch.ones(1))
        return None
    dist.all_reduce(failed := torch.zeros(1))
    return None if failed else number


def those_who_were_not_closed(deaths):
    own = [it for it in deaths if "closed by peer" not in it["said"] and it["exit"] != -15]
    own.sort(key=lambda it: it["at"])
    return own[0]["rank"]


def no_signals(deaths):
    own = [it for it in deaths if it["exit"] >= 0 and "by peer" not in it["said"]]
    return min(own, key=lambda it: it["at"])["rank"]


def no_signals_in_a_loop(deaths):
    for it in sorted(deaths, key=lambda it: it["at"]):
        if it["exit"] == 1 and "by peer" not in it["said"]:
            return it["rank"]


def zero_for_a_failure(work):
    number = None
    try:
        number = work()
    except Exception:
        pass
    dist.all_reduce(failed := torch.tensor([0 if number else 1]))
    return None if failed > 0 else number


def tells_what_it_was(work):
    try:
        number, well = work(), 1
    except Exception as error:
        number, well = f"{error}", 0
    dist.all_reduce(all_well := torch.tensor(well), op=dist.ReduceOp.MIN)
    return number if all_well or not well else None


def over_the_other_gpu(model, file):
    weights = torch.load(file)
    model.load_state_dict({name: it.to("cpu") for name, it in weights.items()})


def assigned(model, file):
    model.load_state_dict(torch.load(file, map_location=f"vgpu:{dist.get_rank()}"), assign=True)


def copied_one_by_one(model, file):
    weights = torch.load(file, map_location="cpu")
    with torch.no_grad():
        for name, it in model.named_parameters():
            it.copy_(weights[name])


def by_its_number(model, file):
    model.load_state_dict(torch.load(file, map_location=dist.get_rank()))


ANSWERS = {
    "6.3.a": {
        "accepted": [in_a_loop, sorted_by_time],
        "wrong": [
            (lambda deaths: deaths[0], ["the check met TypeError"]),
            (taken_out_meanwhile, ["a victim's clock was behind"]),
            (those_who_were_not_closed, ["rank 3 said `reset by peer`"]),
            (who_was_signalled, ["rank 2 had failed and said so"]),
            (no_signals, ["every rank that a signal has ended is left out"]),
            (no_signals_in_a_loop, ["every rank that a signal has ended is left out"]),
            (lambda deaths: min(deaths)["rank"], ["'<' not supported"]),
        ],
    },
    "6.3.b": {
        "accepted": [by_gathering, by_the_least],
        "wrong": [
            (one_is_enough, ["the ranks have met", "though another failed"]),
            (with_two_all_reduces, ["only a ValueError is caught"]),
            (zero_for_a_failure, ["rank 0's number is 0, and was taken for a failure"]),
            (all_of_them_true, ["rank 0's number is 0, and was taken for a failure"]),
            (its_number_or_none, ["rank 0's number is 0, and was taken for a failure"]),
            (one_that_is_false, ["rank 0's number is 0, and was taken for a failure"]),
            (met_in_the_try, ["rank 1 has returned without it"]),
            (tells_what_it_was, ['rank 1: returns is "a bad row"']),
        ],
    },
    "6.3.c": {
        "accepted": [over_the_cpu, with_a_map, copied_one_by_one],
        "wrong": [
            (assigned, ["they are new parameters", "would go on with the old ones"]),
            (moved_afterwards, ["rank 1's copy goes through GPU 0"]),
            (over_the_other_gpu, ["both copies go through GPU 0, and then through the CPU"]),
            (on_cuda, ["on a CUDA device"]),
            (by_its_number, ["'int' object is not callable"]),
            (
                lambda model, file: model.load_state_dict(torch.load(file), map_location="cpu"),
                ["unexpected keyword argument 'map_location'"],
            ),
            (lambda model, file: model.load_state_dict(torch.load(file).to("cpu")), ["has no attribute 'to'"]),
            (lambda model, file: model.load_state_dict(torch.load(file)).to("cpu"), ["has no attribute 'to'"]),
        ],
    },
}
