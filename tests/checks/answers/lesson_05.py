"""Answers to the exercises of lesson 05: the right ones, the blanks, and mistakes that people make."""

import torch
from torch import nn

# 05.2: a layer, mended


class Mended(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.register_buffer("wave", torch.sin(torch.arange(100.0)), persistent=False)
        self.gains = nn.ParameterList([nn.Parameter(torch.full((channels,), 2.0)) for _ in range(2)])

    def forward(self, x):
        places = torch.arange(x.shape[1], device=x.device)
        return (x + self.wave[places, None]) * self.gains[0] + self.gains[1]


class Blank(nn.Module):
    def __init__(self, *args):
        raise NotImplementedError("your code here")


class StillAList(Mended):
    def __init__(self, channels):
        super().__init__(channels)
        del self.gains
        self.gains = [nn.Parameter(torch.full((channels,), 2.0)) for _ in range(2)]


class SavesTheWave(Mended):
    def __init__(self, channels):
        super().__init__(channels)
        self.register_buffer("wave", torch.sin(torch.arange(100.0)))


class LearnsTheWave(Mended):
    def __init__(self, channels):
        super().__init__(channels)
        del self.wave
        self.wave = nn.Parameter(torch.sin(torch.arange(100.0)))


class PlainWave(Mended):
    def __init__(self, channels):
        super().__init__(channels)
        del self.wave
        self.wave = torch.sin(torch.arange(100.0))


class MovesThePlainWave(PlainWave):
    def forward(self, x):
        self.places = torch.arange(x.shape[1], device=next(self.parameters()).device)
        return (x + self.wave.to(x.device)[self.places, None]) * self.gains[0] + self.gains[1]


class WantsADevice(Mended):
    def __init__(self, channels, device):
        super().__init__(channels)


class KeepsAFunction(Mended):
    def __init__(self, channels):
        super().__init__(channels)
        self.mix = lambda x: x * self.gains[0] + self.gains[1]

    def forward(self, x):
        return self.mix(x + self.wave[: x.shape[1], None])


class ForgetsTheWave(Mended):
    def forward(self, x):
        return x * self.gains[0] + self.gains[1]


class CutsTheWayBack(Mended):
    def forward(self, x):
        return (x + self.wave[: x.shape[1], None]) * self.gains[0].detach() + self.gains[1].data


class ReturnsNothing(Mended):
    def forward(self, x):
        super().forward(x)


# 05.3: detective


def holds_a_tensor(value):
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return any(holds_a_tensor(part) for part in value)
    return isinstance(value, torch.Tensor)


DRAWERS = {"_parameters", "_buffers", "_modules"}


def strays(model, looks=holds_a_tensor, drawers=DRAWERS, deep=True, prefixed=True):
    found = []
    for prefix, module in model.named_modules() if deep else [("", model)]:
        for name, value in vars(module).items():
            if name not in drawers and looks(value):
                found.append(f"{prefix}.{name}" if prefix and prefixed else name)
    return found


def with_drawers(model):
    return strays(model, drawers=set())


def at_the_top_only(model):
    return strays(model, deep=False)


def without_prefix(model):
    return strays(model, prefixed=False)


def with_a_leading_dot(model):
    return [
        f"{prefix}.{name}"
        for prefix, module in model.named_modules()
        for name, value in vars(module).items()
        if name not in DRAWERS and holds_a_tensor(value)
    ]


def tensors_only(model):
    return strays(model, looks=lambda value: isinstance(value, torch.Tensor))


def lists_only(model):
    return strays(model, looks=lambda value: not isinstance(value, dict) and holds_a_tensor(value))


def any_list(model):
    return strays(model, looks=lambda value: isinstance(value, list | tuple | torch.Tensor))


def not_parameters(model):
    def looks(value):
        if isinstance(value, list | tuple):
            return any(isinstance(part, torch.Tensor) and not isinstance(part, nn.Parameter) for part in value)
        return holds_a_tensor(value)

    return strays(model, looks=looks)


def prints_them(model):
    print(strays(model))


def gives_tensors(model):
    return [value for module in model.modules() for value in module.parameters()]


def blank(model):
    raise NotImplementedError("your code here")


# 05.4: a switch


class Switch(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([2.0]))

    def stretch(self, x):
        return x * self.weight

    def shift(self, x):
        return x + self.weight

    def forward(self, x, op):
        return getattr(self, op)(x)


class StillBound(Switch):
    def __init__(self):
        super().__init__()
        self.ops = {"stretch": self.stretch, "shift": self.shift}

    def forward(self, x, op):
        return self.ops[op](x)


class Lambdas(Switch):
    def __init__(self):
        super().__init__()
        self.ops = {"stretch": lambda x: x * self.weight, "shift": lambda x: x + self.weight}

    def forward(self, x, op):
        return self.ops[op](x)


class AlwaysStretches(Switch):
    def forward(self, x, op):
        return self.stretch(x)


class NoParameter(Switch):
    def __init__(self):
        super().__init__()
        del self.weight
        self.weight = torch.tensor([2.0])


class Detached(Switch):
    def stretch(self, x):
        return x * self.weight.detach()


ANSWERS = {
    "05.1": {
        "correct": ("acfi", "acdfi", "a, f, i"),
        "blank": (..., ..., ...),
        "wrong": [
            (("acdfi", "acdfi", "afi"), ["`saved` has d"]),
            (("acf", "acdfi", "afi"), ["`saved` lacks i"]),
            (("acfi", "abcdfi", "afi"), ["`follow` has b"]),
            (("acfi", "acfi", "afi"), ["`follow` lacks d"]),
            (("acfi", "acdefi", "afi"), ["`follow` has e"]),
            (("acfi", "acdfi", "aefi"), ["`learn` has e"]),
            (("acfi", "acdfi", "acfi"), ["`learn` has c"]),
            (("acfi", "acdfi", "afgi"), ["`learn` has g"]),
            (("acfi", "acdfi", "afz"), ["`learn` has z", "nothing in the class"]),
            ((4, "acdfi", "afi"), ["`saved` is 4, not a string"]),
        ],
    },
    "05.2": {
        "correct": Mended,
        "blank": Blank,
        "wrong": [
            (StillAList, ["has 0 parameters, not 2"]),
            (SavesTheWave, ["also holds wave"]),
            (LearnsTheWave, ["has 3 parameters, not 2", "wave"]),
            (PlainWave, ["on one GPU, `Mended` fails"]),
            (MovesThePlainWave, ["on two GPUs", "Caught StopIteration in replica 0"]),
            (WantsADevice, ["`Mended(4)` does not work", "device"]),
            (KeepsAFunction, ["on two GPUs", "Caught RuntimeError in replica 1", "two devices"]),
            (ForgetsTheWave, ["on the CPU", "not that of the original"]),
            (CutsTheWayBack, ["no gradient reaches `gains.0`"]),
            (ReturnsNothing, ["`forward` returns nothing"]),
            (Mended(4), ["a module already"]),
            ("Mended", ["not a class"]),
        ],
    },
    "05.3": {
        "correct": strays,
        "blank": blank,
        "wrong": [
            (with_drawers, ["a Linear", "names '_parameters'"]),
            (at_the_top_only, ["a module inside", "misses '1.scale'"]),
            (without_prefix, ["a module inside", "names 'scale'"]),
            (with_a_leading_dot, ["names '.scale'"]),
            (tensors_only, ["a module with lists", "misses 'masks'"]),
            (any_list, ["a module with lists", "names 'empty'"]),
            (lists_only, ["a module with a dictionary", "misses 'cache'"]),
            (not_parameters, ["a list of parameters", "misses 'scales'"]),
            (prints_them, ["returns nothing"]),
            (gives_tensors, ["not a list of names"]),
        ],
    },
    "05.4": {
        "correct": Switch,
        "blank": Blank,
        "wrong": [
            (StillBound, ["'stretch' on two GPUs", "Caught RuntimeError in replica 1"]),
            (Lambdas, ["'stretch' on two GPUs", "Caught RuntimeError in replica 1"]),
            (AlwaysStretches, ["'shift' on one GPU", "not that of the original"]),
            (NoParameter, ["has 0 parameters, not 1"]),
            (Detached, ["'stretch' on one GPU", "no gradient reaches `weight`"]),
        ],
    },
}
