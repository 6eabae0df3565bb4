"""What each replica has of a module: copies of what is registered, and the very same object for all else."""

import torch
from torch import nn

from ddplab.course.belongings import inside, times
from ddplab.vgpu import virtual_gpus


class Packed(nn.Module):
    def __init__(self, device):
        super().__init__()
        self.gain, self.plain = nn.Parameter(torch.zeros(3, device=device)), torch.zeros(3, device=device)
        self.register_buffer("mean", torch.zeros(3, device=device))
        self.some, self.cache, self.device, self.rate = [torch.zeros(3, device=device)] * 2, {}, device, 0.1
        self.listed = nn.ParameterList([self.gain])
        caught = self.plain
        self.tensor, self.itself, self.nothing = lambda x: x * caught, lambda x: x * self.gain, lambda x: x
        self.method = self.half

    def half(self, x):
        return x / 2


def test_each_thing_of_a_module_on_two_gpus():
    with virtual_gpus(2) as gpus:
        head, *lines = inside(Packed(gpus[0]), gpus).splitlines()
        cells = [[cell.strip() for cell in line.split("  ") if cell] for line in lines]
    assert head.split() == ["drawer", "replica", "0", "replica", "1"]
    assert cells == [
        ["gain", "parameters", "on GPU 0", "a copy, on GPU 1"],
        ["mean", "buffers", "on GPU 0", "a copy, on GPU 1"],
        ["plain", "none", *["shared, on GPU 0"] * 2],
        ["some", "none", *["shared, a list of 2, on GPU 0"] * 2],
        ["cache", "none", *["shared, a dict of 0"] * 2],
        ["device", "none", *["shared, means vgpu:0"] * 2],
        ["tensor", "none", *["shared, caught is on GPU 0"] * 2],
        ["itself", "none", *["shared, self is the module"] * 2],
        ["nothing", "none", *["shared"] * 2],
        ["method", "none", *["shared, self is the module"] * 2],
        ["listed.0", "parameters", "on GPU 0", "a copy, on GPU 1"],
    ]


def test_a_module_without_belongings():
    with virtual_gpus(2) as gpus:
        assert inside(nn.ReLU(), gpus).splitlines()[1].strip() == "(nothing)"


def test_what_a_line_of_a_learners_keeps_has_a_part_in_the_output():
    """Of a list or a dictionary the first; what is called, a layer or a function, computes itself."""
    three, x = torch.full((3,), 3.0), torch.ones(2, 3)
    kept = [three, 3.0, [three], (three, x), {"a": three}, nn.ParameterList([three]), nn.ParameterDict({"a": three})]
    kept += [nn.Parameter(three), lambda x: x * three, nn.Sequential(nn.Linear(3, 3))]
    torch.nn.init.constant_(kept[-1][0].weight, 1)
    torch.nn.init.zeros_(kept[-1][0].bias)
    assert all(torch.equal(times(x, it), 3 * x) for it in kept)
