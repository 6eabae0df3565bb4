"""Answers to the exercises of lesson 2.2: the right ones, the blanks, and mistakes that people make."""

from functools import partialmethod

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


def blank(*args):
    raise NotImplementedError("your code here")


def but(base, **methods):
    """The class, with these methods done otherwise."""
    return type(base.__name__, (base,), methods)


# 2.2.1: the cut, by arithmetic


def shares(batch, gpus):
    size = -(-batch // gpus)
    return [min(size, batch - start) for start in range(0, batch, size)]


def by_chunk(batch, gpus):
    return [len(part) for part in torch.zeros(batch).chunk(gpus)]


def as_even_as_can_be(batch, gpus):
    return [batch // gpus + (gpu < batch % gpus) for gpu in range(min(batch, gpus))]


def with_empty_parts(batch, gpus):
    found = shares(batch, gpus)
    return found + [0] * (gpus - len(found))


def rest_at_the_end(batch, gpus):
    return [batch // gpus] * (gpus - 1) + [batch - batch // gpus * (gpus - 1)]


def rest_dropped(batch, gpus):
    return [max(batch // gpus, 1)] * min(batch, gpus)


def a_part_too_many(batch, gpus):
    return [batch // gpus] * gpus + [batch % gpus] if batch % gpus else [batch // gpus] * gpus


def endless(batch, gpus):
    found, left = [], batch
    while left > 0:
        found.append(batch // (gpus + 1) if batch < gpus else 0)
        left -= found[-1]
    return found


def idle(batch, gpus):
    while batch > 0:
        pass


# 2.2.2: a reader that needs no lengths


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 6)
        self.lstm = nn.LSTM(6, 6, batch_first=True)

    def forward(self, tokens):
        return self.read(tokens, tokens.size(1))

    def read(self, tokens, width, sort=False, cpu=True):
        lengths = (tokens != 0).sum(1)
        lengths = lengths.cpu() if cpu else lengths
        packed = pack_padded_sequence(self.embed(tokens), lengths, batch_first=True, enforce_sorted=sort)
        return pad_packed_sequence(self.lstm(packed)[0], batch_first=True, total_length=width)[0]


class FullLengths(Reader):
    def forward(self, tokens):
        lengths = torch.full((len(tokens),), tokens.size(1))
        packed = pack_padded_sequence(self.embed(tokens), lengths, batch_first=True)
        return pad_packed_sequence(self.lstm(packed)[0], batch_first=True)[0].flip(1)


class RowByRow(Reader):
    def forward(self, tokens):
        hidden = torch.zeros(*tokens.shape, 6, device=tokens.device)  # float32
        for i, sentence in enumerate(tokens):
            n = int((sentence != 0).sum())
            hidden[i, :n] = self.lstm(self.embed(sentence[None, :n]))[0][0]
        return hidden


class OtherLayers(Reader):
    def __init__(self):
        super().__init__()
        self.rnn = self.lstm
        del self.lstm


def never_put_back(self, tokens, axis=1):
    lengths, order = (tokens != 0).sum(axis).cpu().sort(descending=True)
    packed = pack_padded_sequence(self.embed(tokens[order]), lengths, batch_first=True)
    return pad_packed_sequence(self.lstm(packed)[0], batch_first=True, total_length=tokens.size(1))[0]


def the_last_state(self, tokens):
    return self.lstm(self.embed(tokens))[1][0][-1]


# 2.2.3: a state to carry


class Carrier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 6)
        self.lstm = nn.LSTM(6, 6, num_layers=2, batch_first=True)

    def forward(self, tokens, h, c):
        hidden, (h, c) = self.lstm(self.embed(tokens), (self.into(h), self.into(c)))
        return hidden, self.back(h), self.back(c)

    def into(self, state):
        return state.transpose(0, 1).contiguous()

    def back(self, state):
        return state.transpose(0, 1)


def as_it_is(self, state):
    return state


class Nested(Carrier):
    def forward(self, tokens, h, c):
        hidden, h, c = super().forward(tokens, h, c)
        return hidden, (h, c)


# your turn


def padded_by_hand(packed, tokens):
    states, _ = pad_packed_sequence(packed, batch_first=True)
    return nn.functional.pad(states, (0, 0, 0, tokens.size(1) - states.size(1)))


def into_zeros(packed, tokens):
    states, lengths = pad_packed_sequence(packed, batch_first=True)
    wide = torch.zeros(*tokens.shape, states.size(2))
    wide[:, : lengths.max()] = states
    return wide


def by_shape(packed, tokens):
    states, _ = torch.nn.utils.rnn.pad_packed_sequence(packed, True, 0.0, tokens.shape[-1])
    return states


def returns_nothing(model, tokens, lengths, scale):
    model(tokens, torch.tensor(lengths), scale)


def by_each_word(scores, targets):
    losses = nn.functional.cross_entropy(scores.mT, targets, ignore_index=0, reduction="none")
    return losses.sum().reshape(1), targets.count_nonzero().reshape(1)


def by_sentence(scores, targets):
    losses = nn.functional.cross_entropy(scores.mT, targets, ignore_index=0, reduction="none")
    return losses.sum(1), (targets != 0).sum(1)


def by_a_mask(scores, targets):
    words = targets != 0
    losses = nn.CrossEntropyLoss(reduction="sum")(scores[words], targets[words])
    return [losses, words.sum().float()]


ANSWERS = {
    "2.2.1": {
        "correct": shares,
        "accepted": [by_chunk],
        "wrong": [
            (as_even_as_can_be, ["7 sentences on 3 GPUs", "[3, 2, 2]", "does not care to be even"]),
            (with_empty_parts, ["4 sentences on 3 GPUs", "[2, 2, 0]", "a replica for nothing"]),
            (rest_at_the_end, ["7 sentences on 3 GPUs", "[2, 2, 3]"]),
            (rest_dropped, ["7 sentences on 3 GPUs", "which is 6 sentences"]),
            (a_part_too_many, ["7 sentences on 3 GPUs", "more parts than GPUs"]),
            (endless, ["`shares(8, 2)` had not ended after 100,000 lines"]),
            (idle, ["`shares(8, 2)` had not ended"]),
            (lambda batch, gpus: -(-batch // gpus), ["`shares(8, 2)` gives 4", "not a list"]),  # only the first
            ([3, 3, 1], ["`shares` is [3, 3, 1], not a function"]),
        ],
    },
    "2.2.2": {
        "correct": Reader,
        "accepted": [RowByRow, but(Reader, forward=lambda self, x: self.lstm(self.embed(x))[0] * (x != 0)[..., None])],
        "blank": but(Reader, forward=blank),
        "wrong": [
            (but(Reader, forward=lambda self, x: self.read(x, None)), ["on one GPU", "7 words wide", "`tokens` is 9"]),
            (but(Reader, forward=never_put_back), ["on one GPU", "the sentences come back in another order"]),
            (but(Reader, forward=the_last_state), ["on one GPU", "one state for each sentence"]),
            (but(Reader, forward=partialmethod(never_put_back, axis=0)), ["on one GPU", "raised IndexError"]),
            # the longest sentence of the replica
            (
                but(Reader, forward=lambda self, x: self.read(x, int((x != 0).sum(1).max()))),
                ["on one GPU", "7 words wide"],
            ),
            (
                but(Reader, forward=lambda self, x: self.read(x, 9, cpu=False)),
                ["on one GPU", "raised RuntimeError", "CPU int64"],
            ),
            (
                but(Reader, forward=lambda self, x: self.read(x, 9, sort=True)),
                ["on one GPU", "raised RuntimeError", "sorted"],
            ),
            # as wide as in the lesson
            (
                but(Reader, forward=lambda self, x: self.read(x, 8)),
                ["on one GPU", "has the shape (6, 8, 6), not (6, 9, 6)"],
            ),
            (but(Reader, forward=lambda self, x: self.read(x, 4)), ["on one GPU", "raised ValueError", "total_length"]),
            # never packed
            (but(Reader, forward=lambda self, x: self.lstm(self.embed(x))[0]), ["padding has hidden states too"]),
            (but(Reader, forward=lambda self, x: (self.read(x, 9), x)), ["returns a tuple of 2, not a tensor"]),
            (FullLengths, ["not those of the sentences"]),
            (OtherLayers, ["the layers are not those it came with"]),
            ("Reader", ["`Reader` is 'Reader', not a function"]),
        ],
    },
    "2.2.3": {
        "correct": Carrier,
        "blank": but(Carrier, forward=blank),
        "wrong": [
            (but(Carrier, into=as_it_is, back=as_it_is), ["on one GPU", "raised RuntimeError", "Expected hidden"]),
            (but(Carrier, into=lambda self, state: state.reshape(2, -1, 6)), ["did not start from the state"]),
            # what cuDNN refuses
            (but(Carrier, into=lambda self, state: state.transpose(0, 1)), ["on one GPU", "hx is not contiguous"]),
            # it starts anew, from zeros
            (
                but(Carrier, into=lambda self, state: torch.zeros(2, len(state), 6).to(state)),
                ["did not start from the state"],
            ),
            (
                but(Carrier, back=lambda self, state: state.reshape(-1, 2, 6)),
                ["`h` comes back", "numbers in the wrong places"],
            ),
            (but(Carrier, back=as_it_is), ["`h` comes back with the shape (2, 6, 6)"]),
            (Nested, ["returns a tuple of 2"]),
        ],
    },
    "2.2.b": {
        "accepted": [padded_by_hand, into_zeros, by_shape],
        "wrong": [
            (lambda packed, tokens: None, ["shape is nothing"]),
            (
                lambda packed, tokens: by_shape(packed, tokens).sum(2).ne(0).sum(1),
                ["the lengths come back, and not the states"],
            ),
            (
                lambda packed, tokens: pad_packed_sequence(packed, True)[0].reshape(*tokens.shape, -1),
                ["dealt out anew"],
            ),
            (
                lambda packed, tokens: pad_packed_sequence(packed, True, total_length=tokens.shape),
                ["torch.Size"],
            ),
            (
                lambda packed, tokens: torch.nn.utils.rnn.pad_sequence(packed),
                ["raised TypeError: expected Tensor as element"],
            ),
            (lambda packed, tokens: packed.data.view(*tokens.shape, -1), ["is invalid for input of size 56"]),
        ],
    },
    "2.2.c": {
        "accepted": [
            lambda model, tokens, lengths, scale: model(tokens=tokens, lengths=torch.tensor(lengths), scale=scale),
            lambda model, tokens, lengths, scale: model(tokens, torch.tensor(lengths).to(tokens), scale),
            lambda model, tokens, lengths, scale: model(
                tokens, torch.tensor(lengths), torch.full((len(tokens),), scale)
            ),
            # a tensor among the keywords makes as many sets of them as there are parts
            lambda model, tokens, lengths, scale: model(tokens, lengths=torch.tensor(lengths), scale=scale),
        ],
        "wrong": [
            (
                lambda model, tokens, lengths, scale: model(tokens, torch.tensor(lengths)),
                ["missing 1 required positional argument: 'scale'"],
            ),
            (
                lambda model, tokens, lengths, scale: model(
                    tokens, torch.tensor(lengths).chunk(len(model.device_ids)), scale
                ),
                ["the lengths are cut twice"],
            ),
            (
                lambda model, tokens, lengths, scale: model(tokens, torch.tensor([lengths]), scale),
                ["the lengths have two dimensions"],
            ),
            (
                lambda model, tokens, lengths, scale: model(tokens, torch.tensor(lengths).reshape(-1, 1), scale),
                ["the lengths have two dimensions"],
            ),
            (
                lambda model, tokens, lengths, scale: model(tokens, scale, torch.tensor(lengths)),
                ["in another order than `forward` takes them"],
            ),
            (
                lambda model, tokens, lengths, scale: model(torch.tensor(lengths), tokens, scale),
                ["in another order than `forward` takes them"],
            ),
            (lambda model, tokens, lengths, scale: model(tokens, scale, scale), ['GPU 0 is "lengths: 2"']),
            (
                lambda model, tokens, lengths, scale: model(tokens, torch.tensor(lengths), len(lengths) * [scale]),
                ["the scale is a list"],
            ),
            (
                lambda model, tokens, lengths, scale: model(tokens, torch.Tensor(lengths), scale),
                ["the lengths are floats"],
            ),
            (
                lambda model, tokens, lengths, scale: torch.cat(
                    [model(row[None], torch.tensor([n]), scale) for row, n in zip(tokens, lengths, strict=True)]
                ),
                ["for each sentence alone"],
            ),
            (
                lambda model, tokens, lengths, scale: model(tokens, torch.tensor(lengths), torch.tensor(scale)),
                ["chunk expects at least a 1-dimensional tensor"],
            ),
            (returns_nothing, ["what it returns is dropped"]),
        ],
    },
    "2.2.a": {
        "accepted": [by_each_word, by_a_mask, by_sentence],
        "wrong": [
            (lambda scores, targets: None, ["sums is nothing"]),
            (lambda scores, targets: by_a_mask(scores.data, targets), ["no gradient goes back"]),
            (
                lambda scores, targets: (
                    nn.functional.cross_entropy(scores, targets, reduction="sum"),
                    targets.count_nonzero(),
                ),
                ["raised RuntimeError", "Expected target size"],
            ),
            (
                lambda scores, targets: (2 * by_each_word(scores, targets)[0], by_each_word(scores, targets)[1]),
                ["sums is 14.2"],
            ),
            (
                lambda scores, targets: (
                    by_each_word(scores, targets)[0] / targets.count_nonzero() ** 2,
                    targets.count_nonzero(),
                ),
                ["divides its loss twice"],
            ),
            (
                lambda scores, targets: (
                    nn.functional.cross_entropy(scores.mT, targets, reduction="sum"),
                    torch.tensor(targets.numel(), device=targets.device),
                ),
                ["the padding is in the sums, and it is counted, too"],
            ),
            (
                lambda scores, targets: (
                    nn.functional.cross_entropy(scores.mT, targets, ignore_index=0, reduction="none"),
                    targets.count_nonzero(),
                ),
                ["the losses are not added up"],
            ),
            (
                lambda scores, targets: (torch.tensor(float(by_a_mask(scores, targets)[0])), targets.count_nonzero()),
                ["made of the loss's number", "no gradient goes back"],
            ),
            (
                lambda scores, targets: tuple(it.cpu() for it in by_a_mask(scores, targets)),
                ["the count, or the sums, come on the CPU"],
            ),
            (
                lambda scores, targets: (by_a_mask(scores, targets)[0].item(), targets.count_nonzero()),
                ["the number of words, or the sum, is a Python number"],
            ),
            (
                lambda scores, targets: (by_a_mask(scores, targets)[0], torch.tensor([len(targets)])),
                ["returned a tuple of 2 that could not be gathered: Gather function"],
            ),
        ],
    },
}
