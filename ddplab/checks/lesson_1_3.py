"""Checks of lesson 1.3, Where the memory goes."""

from collections.abc import Callable

from ddplab.checks import NotYet, exercise
from ddplab.checks.common import needs_function, number


@exercise("1.3.1", "What fits on a device")
def what_fits(bytes_to_train: Callable[[int, str], float]) -> None:
    """`bytes_to_train(n, optimizer)`: parameters, gradients and state of n float32 parameters, without activations."""
    needs_function("bytes_to_train", bytes_to_train)
    right = {"sgd": 8, "momentum": 12, "adam": 16}
    each = {name: number("bytes_to_train", bytes_to_train(1000, name)) / 1000 for name in right}
    if each == right:
        large = number("bytes_to_train", bytes_to_train(7_000_000_000, "adam"))
        if large != 112e9:
            raise NotYet(f"7 billion parameters gave {large:g}, not 112e9", "Is it the same formula for every n?")
        return
    told = "for each parameter it counts " + ", ".join(f"{name} {size:g}" for name, size in each.items()) + " bytes"
    mistakes = [
        ({"sgd": 4, "momentum": 8, "adam": 12}, "the gradients are missing", "One gradient for each parameter."),
        ({"sgd": 2, "momentum": 3, "adam": 4}, "those are numbers, not bytes", "A float32 has 4 bytes."),
        ({"sgd": 16, "momentum": 24, "adam": 32}, "a float32 has 4 bytes, not 8", "8 bytes would be float64."),
        ({"sgd": 4, "momentum": 6, "adam": 8}, "a float32 has 4 bytes, not 2", "2 bytes would be float16."),
        ({"sgd": 0, "momentum": 4, "adam": 8}, "that is the state alone", "Add the parameters and their gradients."),
    ]
    for sizes, what, hint in mistakes:
        if each == sizes:
            raise NotYet(f"{told}: {what}", hint)
    if len(set(each.values())) == 1:
        raise NotYet(f"{told}: the same for every optimiser", "Only the optimiser's state differs: 0, 1 or 2 numbers.")
    name = next(name for name in right if each[name] != right[name])
    hints = {
        "sgd": "Plain SGD keeps nothing: a parameter and its gradient, 4 bytes each.",
        "momentum": "Momentum keeps one number more for each parameter.",
        "adam": "Adam keeps two numbers more for each parameter.",
    }
    raise NotYet(f"{told}: {name} is not right", hints[name])
