"""Answers to the exercises of lesson 2.3: the right ones, the blanks, and mistakes that people make."""

import copy
from functools import partial

import torch
from torch import nn


def but(base, **methods):
    """The class, with these methods done otherwise."""
    return type(base.__name__, (base,), methods)


# 2.3.2: a layer, mended


class Mended(nn.Module):
    keep_gains = nn.ParameterList

    def __init__(self, channels):
        super().__init__()
        self.keep_wave(torch.sin(torch.arange(100.0)))
        self.gains = self.keep_gains([nn.Parameter(torch.full((channels,), 2.0)) for _ in range(2)])

    def keep_wave(self, wave):
        self.register_buffer("wave", wave, persistent=False)

    def forward(self, x):
        places = torch.arange(x.shape[1], device=x.device)
        return (x + self.wave[places, None]) * self.gains[0] + self.gains[1]


PlainWave = but(Mended, keep_wave=lambda self, wave: setattr(self, "wave", wave))


class Blank(nn.Module):
    def __init__(self, *args):
        raise NotImplementedError("your code here")


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


class CutsTheWayBack(Mended):
    def forward(self, x):
        return (x + self.wave[: x.shape[1], None]) * self.gains[0].detach() + self.gains[1].data


class ComputesTheWave(Mended):
    def __init__(self, channels):
        nn.Module.__init__(self)
        self.gain, self.shift = nn.Parameter(torch.full((channels,), 2.0)), nn.Parameter(torch.full((channels,), 2.0))

    def forward(self, x):
        return (x + torch.arange(x.shape[1], device=x.device).sin()[:, None]) * self.gain + self.shift


# 2.3.3: detective


def holds_a_tensor(value):
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return any(holds_a_tensor(part) for part in value)
    return isinstance(value, torch.Tensor)


DRAWERS = {"_parameters", "_buffers", "_modules"}


def dotted(prefix, name):
    return f"{prefix}.{name}" if prefix else name


def strays(model, looks=holds_a_tensor, drawers=DRAWERS, deep=True, path=dotted):
    found = []
    for prefix, module in model.named_modules() if deep else [("", model)]:
        for name, value in vars(module).items():
            if name not in drawers and looks(value):
                found.append(path(prefix, name))
    return found


def not_parameters(model):
    def looks(value):
        if isinstance(value, list | tuple):
            return any(isinstance(part, torch.Tensor) and not isinstance(part, nn.Parameter) for part in value)
        return holds_a_tensor(value)

    return strays(model, looks=looks)


# 2.3.4: a switch


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


class MovesTheWeight(StillBound):
    def stretch(self, x):
        return x * self.weight.to(x.device)

    def shift(self, x):
        return x + self.weight.to(x.device)


class AllOnGpu0(StillBound):
    def forward(self, x, op):
        return self.ops[op](x.to(self.ops[op].__self__.weight.device))


class LearnsFromReplica0(Switch):
    def forward(self, x, op):
        output = super().forward(x, op)
        return output if x.device.index == 0 else output.detach()


class ByIf(Switch):
    def forward(self, x, op):
        return self.stretch(x) if op == "stretch" else self.shift(x)


class Lambdas(StillBound):
    def __init__(self):
        super().__init__()
        self.ops = {"stretch": lambda x: x * self.weight, "shift": lambda x: x + self.weight}


class NoParameter(Switch):
    def __init__(self):
        super().__init__()
        del self.weight
        self.weight = torch.tensor([2.0])


# your turn


def with_buffers_by_name(module, gain, mean, mask):
    module.mean, module.mask = nn.Buffer(mean), nn.Buffer(mask, persistent=False)
    module.register_parameter("gain", nn.Parameter(gain))


def with_a_parameter_that_does_not_learn(module, gain, mean, mask):
    module.gain = torch.nn.Parameter(gain)
    module.mean = torch.nn.Parameter(mean, requires_grad=False)
    module.register_buffer("mask", mask, False)


def gain_first(module, gain, mean, mask):
    module.gain, module.mean = nn.Parameter(gain), nn.Parameter(mean)
    module.register_buffer("mask", mask, persistent=False)


def registered_too_late(module, gain, mean, mask):
    module.mean = mean
    module.register_buffer("mean", mean)


def by_a_helper(model, x):
    try:
        return model(x) is not None
    except RuntimeError:
        return False


def and_back_again(model, x):
    return bool(in_other_words(model, x) + 0 * len(list(model.to(x.device).parameters())))


def only_asks(model, x):
    model(x)
    model.to("cpu")
    return all(not p.is_cuda and p.device.type == "cpu" for p in model.parameters())


def sends_a_copy(model, x):
    try:
        model(x)
        copy.deepcopy(model).to("cpu")(x.cpu())
    except RuntimeError:
        return False
    return True


def in_other_words(model, x):
    model(x)
    model, x = model.cpu(), x.to("cpu")
    try:
        model(x)
    except RuntimeError:
        return False
    else:
        return True


ANSWERS = {
    "2.3.1": {
        "correct": ("acfi", "acdfi", "a, f, i"),
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
    "2.3.2": {
        "correct": Mended,
        "accepted": [
            ComputesTheWave,
            but(Mended, keep_wave=lambda self, wave: setattr(self, "wave", nn.Buffer(wave, persistent=False))),
        ],
        "blank": Blank,
        "wrong": [
            (but(Mended, keep_gains=list), ["has 0 parameters, not 2"]),
            (
                but(Mended, keep_gains=lambda self, gains: nn.ParameterList(nn.Parameter(gain[:1]) for gain in gains)),
                ["`gains.0` of `Mended(4)` has 1 numbers, not 4"],
            ),
            (but(Mended, keep_wave=lambda self, wave: self.register_buffer("wave", wave)), ["also holds wave"]),
            (
                but(Mended, keep_wave=lambda self, wave: setattr(self, "wave", nn.Parameter(wave))),
                ["has 3 parameters, not 2", "wave"],
            ),
            (PlainWave, ["on one GPU, `Mended` fails"]),
            (MovesThePlainWave, ["on two GPUs", "Caught StopIteration in replica 0"]),
            (WantsADevice, ["`Mended(4)` does not work", "device"]),
            (KeepsAFunction, ["on two GPUs", "Caught RuntimeError in replica 1", "two devices"]),
            # forgets the wave
            (
                but(Mended, forward=lambda self, x: x * self.gains[0] + self.gains[1]),
                ["on the CPU", "not that of the original"],
            ),
            (CutsTheWayBack, ["no gradient reaches `gains.0`"]),
            (but(Mended, forward=lambda self, x: None), ["`forward` returns nothing"]),
            (Mended(4), ["a module already"]),
            ("Mended", ["not a class"]),
        ],
    },
    "2.3.3": {
        "correct": strays,
        "accepted": [lambda model: (name for name in strays(model))],
        "wrong": [
            (lambda model: len(strays(model)), ["`strays` gives 0, not a list of names"]),
            (lambda model: strays(model, drawers=set()), ["a Linear", "names '_parameters'"]),  # with drawers
            # whatever begins with an underscore, not the three drawers alone
            (
                lambda model: [name for name in strays(model) if not name.split(".")[-1].startswith("_")],
                ["a module with a private tensor", "misses '_mask'"],
            ),
            (lambda model: strays(model, deep=False), ["a module inside", "misses '1.scale'"]),  # at the top only
            (partial(strays, path=lambda prefix, name: name), ["a module inside", "names 'scale'"]),
            (partial(strays, path=lambda prefix, name: f"{prefix}.{name}"), ["names '.scale'"]),
            # tensors only
            (
                partial(strays, looks=lambda value: isinstance(value, torch.Tensor)),
                ["a module with lists", "misses 'masks'"],
            ),
            # any list
            (
                partial(strays, looks=lambda value: isinstance(value, list | tuple | torch.Tensor)),
                ["a module with lists", "names 'empty'"],
            ),
            # no dictionary
            (
                partial(strays, looks=lambda value: not isinstance(value, dict) and holds_a_tensor(value)),
                ["a module with a dictionary", "misses 'cache'"],
            ),
            (not_parameters, ["a list of parameters", "misses 'scales'"]),
            (lambda model: print(strays(model)), ["returns nothing"]),
            (lambda model: [value for part in model.modules() for value in part.parameters()], ["not a list of names"]),
        ],
    },
    "2.3.4": {
        "correct": Switch,
        "accepted": [ByIf],
        "blank": Blank,
        "wrong": [
            (StillBound, ["'stretch' on two GPUs", "Caught RuntimeError in replica 1"]),
            (MovesTheWeight, ["replica 1 computes with the module's weight"]),
            (AllOnGpu0, ["replica 1 computes with the module's weight"]),
            (LearnsFromReplica0, ["'stretch' on two GPUs", "the gradient of the sum"]),
            (Lambdas, ["'stretch' on two GPUs", "Caught RuntimeError in replica 1"]),
            (
                but(Switch, forward=lambda self, x, op: self.stretch(x)),
                ["'shift' on one GPU", "not that of the original"],
            ),
            (NoParameter, ["has 0 parameters, not 1"]),
            (
                but(Switch, stretch=lambda self, x: x * self.weight.detach()),
                ["'stretch' on one GPU", "no gradient reaches `weight`"],
            ),
        ],
    },
    "2.3.a": {
        "accepted": [with_buffers_by_name, with_a_parameter_that_does_not_learn],
        "wrong": [
            (registered_too_late, ["raised KeyError", "already exists"]),
            (gain_first, ["`mean` learns too"]),
            (lambda module, gain, mean, mask: module.register_buffer(mean), ["raised TypeError", "register_buffer()"]),
            (
                lambda module, gain, mean, mask: module.register_parameter("gain", gain),
                ["raised TypeError", "nn.Parameter or None required"],
            ),
        ],
    },
    "2.3.b": {
        "accepted": [
            lambda module, x: x + torch.arange(x.shape[1]).to(x.device),
            lambda module, x: x + x.new_ones(x.shape[1]).cumsum(0) - 1,
            lambda module, x: x + torch.arange(x.shape[-1], device=module.gain.device),
        ],
        "wrong": [
            (lambda module, x: None, ["result is nothing"]),
            (
                lambda module, x: x + torch.arange(len(x), device=x.device),
                ["raised RuntimeError", "must match the size"],
            ),
            (
                lambda module, x: x + torch.arange(x.numel(), device=x.device).view(x.shape),
                ["10 11 12 / 13 14 15", "should be"],
            ),
            (lambda module, x: x[0] + torch.arange(x.shape[1], device=x.device), ["in another shape"]),
            (lambda module, x: x + torch.arange(x.shape[1]), ["raised RuntimeError", "cpu"]),
            (lambda module, x: x.__iadd__(torch.arange(x.shape[1], device=x.device)), ["`x` itself is changed"]),
        ],
    },
    "2.3.c": {
        "accepted": [
            in_other_words,
            and_back_again,
            lambda model, x: by_a_helper(model, x) and by_a_helper(model.to("cpu"), x.cpu()),
        ],
        "wrong": [
            (lambda model, x: None, ["your detector says is nothing"]),
            (lambda model, x: [by_a_helper(model.cpu(), x.cpu())], ["a list"]),
            (lambda model, x: by_a_helper(model.cpu(), x), ["the input stays on the GPU"]),
            (only_asks, ["nobody has run it there"]),
            (sends_a_copy, ["a copy of the model is sent"]),
            (
                lambda model, x: by_a_helper(model, x) and by_a_helper(copy.deepcopy(model).cpu(), x.cpu()),
                ["deepcopy protocol"],
            ),
        ],
    },
}
