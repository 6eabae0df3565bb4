"""Answers to the exercises of lesson 2.2: the right ones, the blanks, and mistakes that people make."""

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
    found = []
    while sum(found) < batch:
        found.append(batch // (gpus + 1) if batch < gpus else 0)
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


# 2.2.3: the mean, mended


class NextWord(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 6)
        self.lstm = nn.LSTM(6, 6, batch_first=True)
        self.head = nn.Linear(6, 20)

    def losses(self, tokens, targets, reduction):
        scores = self.head(self.lstm(self.embed(tokens))[0])
        return nn.functional.cross_entropy(scores.mT, targets, ignore_index=0, reduction=reduction)

    def forward(self, tokens, targets):
        return self.losses(tokens, targets, "sum").view(1), (targets != 0).sum().view(1)


class MeansAndSentences(NextWord):
    def forward(self, tokens, targets):
        mean, n = self.losses(tokens, targets, "mean"), torch.tensor([float(len(tokens))], device=tokens.device)
        return mean * n, n


class Cells(NextWord):
    def forward(self, tokens, targets):
        n = torch.tensor([targets.numel()], device=targets.device)
        return self.losses(tokens, targets, "sum").view(1), n


class CountsOnTheCpu(NextWord):
    def forward(self, tokens, targets):
        return self.losses(tokens, targets, "sum").view(1), (targets != 0).sum().view(1).cpu()


class InFloat32(NextWord):
    def forward(self, tokens, targets):
        loss, count = super().forward(tokens, targets)
        return loss.float(), count.float()


class PaddingLearns(NextWord):
    def forward(self, tokens, targets):
        scores = self.head(self.lstm(self.embed(tokens))[0])
        return nn.functional.cross_entropy(scores.mT, targets, reduction="sum").view(1), (targets != 0).sum().view(1)


class OneSentence(NextWord):
    def forward(self, tokens, targets):
        return super().forward(tokens[:1], targets[:1])


def batch_loss(outputs):
    return outputs[0].sum() / outputs[1].sum()


# 2.2.4: a state to carry


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
        "correct": (NextWord, batch_loss),
        "accepted": [
            # without a dimension; and a loss for each word
            (but(NextWord, forward=lambda self, x, y: (self.losses(x, y, "sum"), (y != 0).sum())), batch_loss),
            (but(NextWord, forward=lambda self, x, y: (self.losses(x, y, "none"), y != 0)), batch_loss),
            (InFloat32, batch_loss),
        ],
        "blank": (but(NextWord, forward=blank), blank),
        "wrong": [
            (
                (but(NextWord, forward=lambda self, x, y: self.losses(x, y, "mean").view(1)), torch.mean),
                ["on 2 GPUs", "% off that of the mean over all words"],
            ),
            ((NextWord, lambda outputs: (outputs[0] / outputs[1]).mean()), ["on 2 GPUs", "% off"]),
            ((MeansAndSentences, batch_loss), ["on 2 GPUs", "% off"]),
            ((NextWord, lambda outputs: outputs[0].sum() / outputs[1].float().mean()), ["on 2 GPUs", "2 times"]),
            ((NextWord, lambda outputs: outputs[0].sum()), ["on one GPU", "18 times"]),
            ((PaddingLearns, batch_loss), ["on one GPU", "padding has a loss"]),
            ((OneSentence, batch_loss), ["on one GPU", "% off that of the mean over all words"]),
            ((Cells, batch_loss), ["on one GPU", "0.3333 times"]),
            ((NextWord, lambda outputs: outputs[0] / outputs[1].sum()), ["on 2 GPUs", "a tensor of shape (2,)"]),
            ((NextWord, lambda outputs: batch_loss(outputs).item()), ["on one GPU", "returns a float"]),
            ((NextWord, lambda outputs: batch_loss(outputs).detach()), ["no history"]),
            (
                (but(NextWord, forward=lambda self, x, y: self.losses(x, y, "sum").view(1).item()), batch_loss),
                ["raised TypeError"],
            ),
            ((CountsOnTheCpu, batch_loss), ["on 2 GPUs", "CPU tensors"]),
        ],
    },
    "2.2.4": {
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
}
