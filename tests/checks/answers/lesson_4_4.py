"""Answers to the exercises of lesson 4.4: the right ones, the blanks, and mistakes that people make."""

from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F

# 4.4.1: seeds that agree and differ


def seed_ranks(seed, *, mask=None, order=None):
    """mask, order: the seeds, made of the seed and the rank."""
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(mask(seed, rank) if mask else seed * size + rank)
    return torch.Generator().manual_seed(order(seed, rank) if order else seed)


def never_seeded(seed):
    return torch.Generator().manual_seed(seed)


def fixed_order(seed):
    seed_ranks(seed)
    return torch.Generator()


def returns_the_seed(seed):
    seed_ranks(seed)
    return seed


def the_global_one(seed):
    return torch.manual_seed(1000 * seed + dist.get_rank())


# 4.4.2: a loss over words


def loss_over_words(logits, labels, *, padding_too=False, ranks=None):
    words = torch.tensor(labels.numel()).to(labels.device) if padding_too else (labels != -100).sum()
    dist.all_reduce(words)
    return a_sum(logits, labels) * (ranks or dist.get_world_size()) / words


def flattened(logits, labels, reduction):
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction=reduction)


a_sum, plain_mean, one_for_each_word = (partial(flattened, reduction=how) for how in ("sum", "mean", "none"))


def in_other_dimensions(logits, labels):
    words = (labels != -100).sum()
    dist.all_reduce(words)
    total = F.cross_entropy(logits.transpose(1, 2), labels, reduction="sum")
    return total / words * dist.get_world_size()


def counts_in_float32(logits, labels):
    words = (labels != -100).sum().float().reshape(1)
    dist.all_reduce(words)
    return a_sum(logits, labels) / (words / dist.get_world_size())


def zero_from_nowhere(logits, labels):
    loss = loss_over_words(logits, labels)
    return loss if (labels != -100).any() else torch.zeros((), requires_grad=True)


def classes_by_view(logits, labels):
    sentences, words, classes = logits.shape
    mixed = logits.reshape(sentences, classes, words).transpose(1, 2)
    return loss_over_words(mixed, labels)


def weighted_mean(logits, labels):
    mine = (labels != -100).sum()
    words = mine.clone()
    dist.all_reduce(words)
    return plain_mean(logits, labels) * mine / words * dist.get_world_size()


def not_flattened(logits, labels):
    return F.cross_entropy(logits, labels, reduction="sum")


def skips_when_empty(logits, labels):
    return logits.sum() * 0 if (labels == -100).all() else loss_over_words(logits, labels)


def imported_by_name(logits, labels):
    from torch.distributed import all_reduce, get_world_size

    words = (labels != -100).sum().float()
    all_reduce(words)
    return a_sum(logits, labels) * get_world_size() / words


# your turn


def order_of_seed_0(seed):
    torch.manual_seed(seed + dist.get_rank())
    return torch.Generator().manual_seed(0)


def far_apart(seed):
    order = torch.Generator()
    order.manual_seed(seed + 10**6)
    torch.manual_seed(1000 * seed + dist.get_rank())
    return order


def by_python(seed):
    torch.random.manual_seed(hash((seed, dist.get_rank())))
    return torch.Generator().manual_seed(seed)


def times_the_rank(seed):
    torch.manual_seed(seed * dist.get_rank())
    return torch.Generator().manual_seed(seed)


def never_the_same(seed):
    torch.seed()
    return torch.Generator().manual_seed(seed)


def hands_out_its_own(seed):
    generator = torch.manual_seed(seed)
    torch.manual_seed(seed + dist.get_rank())
    return generator


def generator_of_a_seed(seed):
    torch.manual_seed(seed + dist.get_rank())
    return torch.Generator(seed)


def by_hand(model, optimizer, loss, limit):
    model.zero_grad()
    loss.backward()
    length = torch.cat([p.grad.flatten() for p in model.parameters()]).norm()
    for p in model.parameters():
        p.grad *= min(1.0, limit / length.item())
    optimizer.step()


def by_zero_grad_of_the_model(model, optimizer, loss, limit):
    for p in model.module.parameters():
        p.grad = None
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.module.parameters(), max_norm=limit)
    optimizer.step()


def always_as_long(model, optimizer, loss, limit):
    optimizer.zero_grad()
    loss.backward()
    length = torch.cat([p.grad.flatten() for p in model.parameters()]).norm()
    for p in model.parameters():
        p.grad *= limit / length
    optimizer.step()


def clips_the_model(model, optimizer, loss, limit):
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model, limit)
    optimizer.step()


def over_words(losses):
    words = torch.tensor([len(losses)], device=losses.device)
    dist.all_reduce(words)
    return losses.sum() / words.item() * dist.get_world_size()


def with_everybodys_losses(losses, ranks=1):
    total = losses.sum()
    dist.all_reduce(total.data)
    return over_words(losses) * 0 + total * ranks / 5


def reports_the_mean(losses):
    loss = over_words(losses)
    shown = loss.detach().clone()
    dist.all_reduce(shown)
    return loss


def mean_words(losses):
    each = torch.tensor(len(losses) / dist.get_world_size(), device=losses.device)
    dist.all_reduce(each)
    return losses.sum() / each


def by_objects(losses):
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, len(losses))
    return losses.mean() * len(losses) * len(everyone) / sum(everyone)


def order_by_rank_alone(seed):
    order = torch.Generator()
    order.manual_seed(seed + dist.get_rank())
    return order


def scales_the_loss(model, optimizer, loss, limit):
    optimizer.zero_grad()
    (loss * limit / loss.detach()).backward()
    optimizer.step()


def clips_as(model, optimizer, loss, limit, clip, steps=1):
    optimizer.zero_grad()
    loss.backward()
    clip(model, limit)
    for _ in range(steps):
        optimizer.step()


def clips(model, limit):
    torch.nn.utils.clip_grad_norm_(model.parameters(), limit)


def clips_on_rank_0(model, limit):
    if dist.get_rank() == 0:
        clips(model, limit)


def by_words(losses, count):
    words = torch.tensor(len(losses), device=losses.device)
    count(words)
    return losses.sum() * dist.get_world_size() / words


def times_words(losses):
    words = torch.tensor(len(losses), device=losses.device)
    dist.all_reduce(words)
    return losses.sum() * words / dist.get_world_size()


def adds_up_the_losses(losses):
    dist.all_reduce(losses)
    return losses.mean()


ANSWERS = {
    "4.4.1": {
        "correct": seed_ranks,
        "accepted": [partial(seed_ranks, mask=lambda seed, rank: 1000 * seed + rank)],
        "wrong": [
            (
                partial(seed_ranks, mask=lambda seed, rank: seed + rank),
                ["rank 1 of the run with seed 7", "rank 0 of the run with seed 8"],
            ),
            (partial(seed_ranks, mask=lambda seed, rank: seed), ["all ranks draw the same dropout mask"]),
            (partial(seed_ranks, order=lambda seed, rank: seed + rank), ["different orders"]),
            (never_seeded, ["the same seed gives another mask"]),
            (fixed_order, ["the seeds 7 and 8 give the same order"]),
            (partial(seed_ranks, mask=lambda seed, rank: 1000 * seed + rank % 2), ["two of three ranks"]),
            (returns_the_seed, ["returned int, not a Generator"]),
            (the_global_one, ["different orders"]),
        ],
    },
    "4.4.2": {
        "correct": loss_over_words,
        "accepted": [in_other_dimensions, imported_by_name, counts_in_float32],
        "wrong": [
            (zero_from_nowhere, ["on rank 1, raised TypeError", "hangs on no weight"]),
            (classes_by_view, ["with 8 and 8 words", "% off"]),
            (lambda logits, labels: a_sum(logits, labels).detach(), ["does not require grad"]),
            (plain_mean, ["with 7 and 3 words", "% off"]),
            (weighted_mean, ["with 7 and 0 words", "not a number"]),
            (partial(loss_over_words, ranks=1), ["with 8 and 8 words", "0.5 times"]),
            (partial(loss_over_words, padding_too=True), ["with 7 and 3 words", "0.625 times"]),
            (partial(loss_over_words, ranks=2), ["with 6, 4 and 2 words", "0.6667 times"]),
            (a_sum, ["with 8 and 8 words", "8 times"]),
            (not_flattened, ["raised RuntimeError", "target size"]),
            (one_for_each_word, ["raised TypeError", "shape (8,)"]),
            (
                lambda logits, labels: loss_over_words(logits, labels).item(),
                ["raised TypeError", "not a tensor with one number"],
            ),
            (lambda logits, labels: None, ["raised TypeError", "returned None"]),
            (skips_when_empty, ["SIGABRT"]),
        ],
    },
    "4.4.a": {
        "accepted": [far_apart, by_python],
        "wrong": [
            (lambda seed: torch.manual_seed(seed + dist.get_rank()), ["torch's own generator"]),
            (hands_out_its_own, ["torch's own generator"]),
            (torch.manual_seed, ["torch's own generator"]),
            (lambda seed: order_of_seed_0(seed).seed(), ["returned an int: the check met AttributeError"]),
            (times_the_rank, ["rank 0 always draws the same"]),
            (order_by_rank_alone, ["torch's own random numbers are not seeded, and the order is another"]),
            (order_of_seed_0, ["the order does not depend on the seed"]),
            (never_the_same, ["with the same seed the noise is another each time"]),
            (generator_of_a_seed, ["raised "]),
        ],
    },
    "4.4.b": {
        "accepted": [by_hand, by_zero_grad_of_the_model],
        "wrong": [
            (always_as_long, ["a gradient that is short enough is lengthened"]),
            (clips_the_model, ["raised TypeError"]),
            (scales_the_loss, ["the loss is brought down to the limit"]),
            (partial(clips_as, clip=clips, steps=2), ["it steps twice"]),
            (partial(clips_as, clip=clips_on_rank_0), ["only rank 0 clips"]),
            (partial(clips_as, clip=lambda model, limit: clips(model, 1.0)), ["clipped to 1"]),
        ],
    },
    "4.4.c": {
        "accepted": [mean_words, by_objects, reports_the_mean],
        "wrong": [
            (with_everybodys_losses, ["the losses are all-reduced, too"]),
            (partial(with_everybodys_losses, ranks=2), ["the losses are all-reduced, too"]),
            (lambda losses: over_words(losses.detach()), ["returned a Tensor", "does not require grad"]),
            (lambda losses: losses.sum() / 2, ["on 2 ranks", "by the ranks twice"]),
            (lambda losses: losses.mean() * len(losses) / dist.get_world_size(), ["on 2 ranks", "by the ranks twice"]),
            (partial(by_words, count=partial(dist.broadcast, src=0)), ["by the words of the rank that has most"]),
            (partial(by_words, count=partial(dist.reduce, dst=0)), ["only rank 0 divides by the words of all"]),
            (times_words, ["multiplied by the words of all ranks"]),
            (adds_up_the_losses, ["waits in"]),
        ],
    },
}
