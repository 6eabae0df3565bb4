"""Answers to the turns of lesson 5.8: other right ones, and mistakes that people make."""

import os

import torch
import torch.distributed as dist


def chosen():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    return torch.device("cuda", torch.cuda.current_device())


def chosen_without_a_number():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    return torch.device("cuda")


def on_the_current_gpu(noted, here):
    seen = torch.tensor(noted, device="cuda")
    dist.all_reduce(seen)
    return seen.item()


def gathered_through_the_current_gpu(noted, here):
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, noted)
    return sum(everyone)


def sent_nowhere(noted, here):
    seen = torch.tensor(noted)
    seen.to(here)
    dist.all_reduce(seen)
    return seen.item()


def total_of_a_list(noted, here):
    seen = torch.tensor([float(noted)]).to(here)
    dist.all_reduce(seen, op=dist.ReduceOp.SUM)
    return float(seen)


def gathered(noted, here):
    everyone = [None] * dist.get_world_size()
    torch.cuda.set_device(here)
    dist.all_gather_object(everyone, float(noted))
    return sum(everyone)


def then_moved_to_cuda(path, here):
    return {name: weight.cuda() for name, weight in torch.load(path, map_location="cpu").items()}


def added_in_place(noted, loss):
    noted += loss.data
    return noted


def without_a_graph(noted, loss):
    with torch.no_grad():
        return noted + loss


def printed(noted, loss):
    print(loss)
    return noted + loss.detach()


ANSWERS = {
    "5.8.a": {
        "accepted": [chosen, lambda: torch.device(f"cuda:{os.environ['LOCAL_RANK']}")],
        "wrong": [
            (chosen_without_a_number, ["without a number"]),
            (lambda: torch.device("cuda", dist.get_rank()), ["process group has not been initialized"]),
            (lambda: torch.device("cuda", int(os.environ["RANK"]) - 1), ["its GPU, on a second machine is cuda:1"]),
            (lambda: os.environ["LOCAL_RANK"], ["that is text"]),
        ],
    },
    "5.8.b": {
        "accepted": [total_of_a_list, gathered],
        "wrong": [
            (
                lambda noted, here: dist.all_reduce(torch.tensor(noted, device=here)),
                ["nothing comes back"],
            ),
            (on_the_current_gpu, ["raised DistBackendError"]),
            (gathered_through_the_current_gpu, ["raised DistBackendError"]),
            (sent_nowhere, ["what lies on the CPU"]),
            (lambda noted, here: dist.all_reduce(noted.to(here)), ["'float' object has no attribute 'to'"]),
            (lambda noted, here: total_of_a_list(round(noted), here), ["the halves are lost"]),
        ],
    },
    "5.8.c": {
        "accepted": [
            lambda path, here: torch.load(path, map_location="cpu"),
            lambda path, here: torch.load(path, map_location={"cuda:0": str(here)}),
        ],
        "wrong": [
            (lambda path, here: torch.load(path), ["where it was saved"]),
            (lambda path, here: torch.load(path, map_location="cuda"), ["arrives on the current GPU"]),
            (then_moved_to_cuda, ["arrives on the current GPU"]),
            (lambda path, here: [*torch.load(path, map_location=here).values()], ["not what the file holds"]),
        ],
    },
    "5.8.d": {
        "accepted": [added_in_place, without_a_graph],
        "wrong": [
            (lambda noted, loss: noted + loss.cpu().detach(), ["each step waits for its GPU"]),
            (printed, ["each step waits for its GPU"]),
            (lambda noted, loss: torch.tensor([noted, loss]).sum(), ["each step waits for its GPU"]),
            (lambda noted, loss: noted + float(loss), ["each step waits for its GPU"]),
        ],
    },
}
