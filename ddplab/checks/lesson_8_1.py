"""Checks of lesson 8.1, Beyond DDP."""

import math
import operator
from collections.abc import Callable
from typing import Any

from ddplab.checks import NotYet, exercise
from ddplab.checks.common import Number, needs_function, numbers

ALL = 8 * (4096 + 64 + 640 + 10)
HALF = ("that counts one number a parameter", "Adam keeps two numbers a parameter, of 4 bytes each.")
WHOLE = ("that is all of Adam's state, as DDP has it", "Two ranks share it.")
DEALT = ("an exact half", "ZeRO does not cut tensors. Who gets the one with 4,096 numbers?")

# Adam's state in float32 of a network with tensors of 4096, 64, 640 and 10 numbers, on two ranks.
numbers(
    "8.1.1",
    "Whose bytes?",
    Number("fsdp_rank_0", ALL / 2, "8 bytes for each of 4,810 parameters, cut in two.").with_mistakes(
        (ALL, *WHOLE),
        (ALL / 4, *HALF),
        (4810 / 2, "that is a number of parameters", "Bytes: two numbers a parameter, 4 bytes each."),
    ),
    Number("zero_rank_0", 8 * 4096, "The largest tensor first, each to the rank that has least so far.").with_mistakes(
        (ALL / 2, *DEALT),
        (ALL, *WHOLE),
        (4 * 4096, *HALF),
        (8 * (4096 + 64), "that gives rank 0 the first layer", "It is dealt tensor by tensor, to who has least."),
        (8 * (4096 + 10), "one tensor too many", "When the smallest is dealt, who has least?"),
        (8 * (64 + 640 + 10), "that is rank 1's", "The largest tensor is dealt first, to rank 0."),
    ),
    Number("zero_rank_1", 8 * (64 + 640 + 10), "What rank 0 does not keep.").with_mistakes(
        (ALL / 2, *DEALT),
        (8 * 4096, "that is rank 0's", "All the others are left."),
        (4 * (64 + 640 + 10), *HALF),
        (8 * (640 + 10), "that is the second layer alone", "64 numbers more: the bias of the first."),
    ),
)


BYTES = {"ddp": (16, 0), "zero": (8, 8), "fsdp": (0, 16)}  # a parameter: whole on every rank, and shared out
MODELS = ((4e9, 80e9), (5e9, 80e9), (7e9, 80e9), (10e9, 80e9), (30e9, 80e9), (1e9, 24e9), (1.5e9, 24e9), (70e9, 24e9),
          (9.999e9, 80e9))  # fmt: skip  # the last needs thousands: no guessed end of a search will do


class Room(float):
    """A number that lets itself be compared so many times, and then says that a search goes on for ever."""

    def __new__(cls, value: float) -> "Room":
        room = super().__new__(cls, value)
        room.compared = 0
        return room

    def _compare(self, other: Any, how: Callable[..., bool]) -> bool:
        self.compared += 1
        if self.compared > 200_000:
            hint = "Where no number is enough, a search never ends. Can you tell beforehand?"
            raise NotYet("`fewest` searches on and on, where no number of GPUs is enough", hint)
        return how(float(self), other)

    def __lt__(self, other: Any) -> bool:
        return self._compare(other, operator.lt)

    def __le__(self, other: Any) -> bool:
        return self._compare(other, operator.le)

    def __gt__(self, other: Any) -> bool:
        return self._compare(other, operator.gt)

    def __ge__(self, other: Any) -> bool:
        return self._compare(other, operator.ge)


@exercise("8.1.2", "How many GPUs?")
def how_many_gpus(fewest: Callable[..., Any]) -> None:
    """`fewest(parameters, tool, room)` for eight models and three tools."""
    needs_function("fewest", fewest)
    for parameters, room in MODELS:
        for tool in BYTES:
            _number_of_gpus(fewest(parameters, tool, Room(room)), parameters, tool, room)


def _number_of_gpus(given: Any, parameters: float, tool: str, room: float) -> None:
    whole, shared = BYTES[tool]
    left = room - whole * parameters
    wanted = None
    if left > 0 or left == shared == 0:
        wanted = math.ceil(shared * parameters / left) if shared else 1
    case = f"fewest({parameters / 1e9:g}e9, {tool!r}, {room / 1e9:g}e9) gives {given!r}"
    hint = f"With {tool} {whole} bytes a parameter are whole on every rank, and {shared} are shared out."
    if given is not None and (isinstance(given, bool) or not isinstance(given, int | float)):
        raise NotYet(case, "A number of GPUs, or `None`.")
    if given == wanted:
        return
    if wanted is None:
        raise NotYet(f"{case}, and no number is enough", f"{hint} How much of {room / 1e9:g} GB does the first leave?")
    if given is None:
        if wanted > 99:
            hint += " A search needs no end that is guessed: can you tell beforehand whether any number is enough?"
        raise NotYet(f"{case}, and {wanted} would do", hint)
    if given < 1 or given % 1:
        raise NotYet(f"{case}, which is no number of GPUs", "Round up: `math.ceil`.")
    raise NotYet(f"{case}: {'it does not fit on so few' if given < wanted else 'fewer would do'}", hint)
