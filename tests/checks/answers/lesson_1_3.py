"""Answers to the exercises of lesson 1.3 (see lesson_1_1 for the form)."""


def bytes_to_train(n, optimizer):
    return 4 * n * {"sgd": 2, "momentum": 3, "adam": 4}[optimizer]


def without_gradients(n, optimizer):
    return bytes_to_train(n, optimizer) - 4 * n


def capital_letters(n, optimizer):
    return 4 * n * {"SGD": 2, "Momentum": 3, "Adam": 4}[optimizer]


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
}
