"""Answers to the exercises of lesson 5.5: the right one, the blank, and mistakes that people make."""

from functools import partial

from torch.nn.functional import cross_entropy


def my_loss(model, images, labels, rank, size):
    return loss_of(model, images, labels, rank, size) * size / len(images)


def loss_of(model, images, labels, rank, size, share=None, reduction="sum"):
    mine = share(rank, size) if share else slice(rank, None, size)
    return cross_entropy(model(images[mine]), labels[mine], reduction=reduction)


mean_of_share = partial(loss_of, reduction="mean")
everything = partial(mean_of_share, share=lambda rank, size: slice(None))
rest_lost = partial(mean_of_share, share=lambda rank, size: slice(rank * (10 // size), (rank + 1) * (10 // size)))


ANSWERS = {
    "5.5.1": {"correct": (32, 16, 24, 0)},
    "5.5.2": {
        "correct": my_loss,
        "wrong": [
            (mean_of_share, ["on 3 ranks", "4, 3, 3 images", "not that of the whole batch"]),
            (lambda *given: loss_of(*given) / 10, ["on 2 ranks", "0.5 times"]),
            (loss_of, ["on 1 rank ", "10 times"]),
            (everything, ["on 2 ranks", "takes all 10 images"]),
            (rest_lost, ["on 3 ranks", "3 + 3 + 3 images"]),
            (lambda *given: my_loss(*given).item(), ["returns a float, not a tensor"]),
            (0.5, ["not a function"]),
        ],
    },
}
