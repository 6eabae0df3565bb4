"""Answers to the exercises of lesson 1.3 (see lesson_1_1 for the form)."""

import torch


def bytes_to_train(n, optimizer):
    return 4 * n * {"sgd": 2, "momentum": 3, "adam": 4}[optimizer]


def without_gradients(n, optimizer):
    return bytes_to_train(n, optimizer) - 4 * n


def capital_letters(n, optimizer):
    return 4 * n * {"SGD": 2, "Momentum": 3, "Adam": 4}[optimizer]


# your turn


def in_two_loops(model):
    parameters = gradients = 0
    for p in model.parameters():
        parameters += p.numel() * p.element_size()
        if p.grad is not None:
            gradients += p.grad.numel() * p.grad.element_size()
    return [parameters, gradients]


def by_requires_grad(model):
    return torch.tensor(
        [sum(p.nbytes for p in model.parameters()), sum(p.nbytes for p in model.parameters() if p.requires_grad)]
    )


def by_state_dict(model):
    gradients = sum(p.grad.nbytes for p in model.parameters() if p.grad is not None)
    return sum(tensor.nbytes for tensor in model.state_dict().values()), gradients


def by_both(model):
    return by_state_dict(model)[0], sum(p.nbytes for p in model.parameters() if p.requires_grad)


def as_a_tensor(model):
    return torch.tensor(in_two_loops(model))


def takes_the_size_of_none(model):
    return sum(p.nbytes for p in model.parameters()), sum(p.grad.nbytes for p in model.parameters())


def in_loops(optimizer):
    total = 0
    for held in optimizer.state.values():
        for name, value in held.items():
            if name != "step":
                total += value.numel() * value.element_size()
    return total


def from_state_dict(optimizer):
    state = optimizer.state_dict()["state"]
    return float(sum(t.nbytes for held in state.values() for t in held.values() if t.dim() >= 1))


def takes_the_size_of_a_dictionary(optimizer):
    return sum(held.nbytes for held in optimizer.state.values())


def keeps_the_last(optimizer):
    for held in optimizer.state.values():
        total = sum(t.nbytes for t in held.values() if t.dim())
    return total


def of_their_shape(optimizer):
    return sum(t.nbytes for p, held in optimizer.state.items() for t in held.values() if t.shape == p.shape)


def of_four_bytes_each(optimizer):
    return sum(4 * t.numel() for held in optimizer.state.values() for t in held.values() if t.dim())


def without_the_biases(optimizer):
    return sum(t.nbytes for held in optimizer.state.values() for t in held.values() if t.dim() > 1)


def by_adams_names(optimizer):
    held = [it for it in optimizer.state.values() if "exp_avg" in it]
    return sum(it["exp_avg"].nbytes + it["exp_avg_sq"].nbytes for it in held)


def returns_at_once(optimizer):
    for held in optimizer.state.values():
        return sum(t.nbytes for t in held.values() if t.dim())


ANSWERS = {
    "1.3.1": {
        "correct": bytes_to_train,
        "wrong": [
            (without_gradients, ["sgd 4, momentum 8, adam 12", "gradients are missing"]),
            (lambda n, optimizer: bytes_to_train(n, optimizer) / 4, ["numbers, not bytes"]),  # numbers not bytes
            (lambda n, optimizer: 2 * bytes_to_train(n, optimizer), ["4 bytes, not 8"]),  # in float64
            (lambda n, optimizer: bytes_to_train(n, optimizer) / 2, ["4 bytes, not 2"]),  # in float16
            (lambda n, optimizer: bytes_to_train(n, optimizer) - 8 * n, ["the state alone"]),  # state alone
            (lambda n, optimizer: 16 * n, ["the same for every optimiser"]),  # the same for all
            # adam like momentum
            (lambda n, optimizer: 8 * n if optimizer == "sgd" else 12 * n, ["adam 12", "adam is not right"]),
            (lambda n, optimizer: bytes_to_train(n, optimizer) / 1e9, ["sgd 8e-09", "sgd is not right"]),  # gigabytes
            (capital_letters, ["KeyError", "capital_letters"]),
            # right for small n only
            (lambda n, name: bytes_to_train(min(n, 10**6), name), ["7 billion parameters gave 1.6e+07, not 112e9"]),
            (112e9, ["not a function"]),
        ],
    },
    "1.3.a": {
        "accepted": [in_two_loops, as_a_tensor],
        "wrong": [
            (takes_the_size_of_none, ["100 of them frozen raised AttributeError"]),
            (by_requires_grad, ["gradients are counted before there are any"]),
            (by_state_dict, ["a buffer is counted as a parameter"]),
            (by_both, ["a buffer is counted as a parameter, and gradients before"]),
            (lambda net: dict(zip("pg", in_two_loops(net), strict=True)), ["a dictionary comes back"]),
        ],
    },
    "1.3.b": {
        "accepted": [in_loops, from_state_dict],
        "wrong": [
            (takes_the_size_of_a_dictionary, ["raised AttributeError"]),
            (keeps_the_last, ["raised UnboundLocalError"]),
            (
                lambda optimizer: sum(t.nbytes for held in optimizer.state.values() for t in held if t.dim()),
                ["'str' object has no attribute"],
            ),
            (of_four_bytes_each, ["4 bytes are taken for granted"]),
            (of_their_shape, ["a tensor that has not its parameter's shape is left out"]),
            (without_the_biases, ["what has one dimension is left out"]),
            (returns_at_once, ["only what is kept for the first parameter"]),
            (lambda optimizer: [in_loops(optimizer)], ["[0], and should be 0"]),
            (by_adams_names, ["only Adam's state is counted"]),
            (
                lambda optimizer: 2 * by_adams_names(optimizer),  # and doubled
                ["SGD with momentum: bytes of state is 0, and should be 440"],
            ),
        ],
    },
    "1.3.c": {
        "accepted": [
            lambda weights, gradients, state, kept, n: (n * (weights + gradients + state) + kept) / n,
            lambda *gb: sum(gb[:4]) - gb[3] * (1 - 1 / gb[4]),
            lambda *gb: round(sum(gb[:3]) + gb[3] / gb[4], 1),
        ],
        "wrong": [
            (
                lambda *gb: 111 + gb[3] / gb[4],
                ["2 + 30 + 400 + 500 GB, on 3: GB on each device is 277.7, and should be 598.7"],
            ),
            (
                lambda *gb: gb[0] + gb[1] + gb[2] / gb[4] + gb[3],
                ["the state is shared out, and the activations are not"],
            ),
            (lambda *gb: {"each": sum(gb[:3]) + gb[3] / gb[4]}, ["{'each': 1111.0}", "and should be 1111"]),
            (lambda *gb: gb[0] + (gb[1] + gb[3]) / gb[4], ["the state is left out, and the gradients are shared out"]),
        ],
    },
}
