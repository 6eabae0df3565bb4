"""Answers to the exercises of lesson 04: the right ones, the blanks, and mistakes that people make."""

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


def blank(*args):
    raise NotImplementedError("your code here")


# 04.1: the cut, by arithmetic


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


def only_the_first(batch, gpus):
    return -(-batch // gpus)


# 04.2: a reader that needs no lengths


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 6)
        self.lstm = nn.LSTM(6, 6, batch_first=True)

    def forward(self, tokens):
        return self.read(tokens)

    def read(self, tokens, sort=False, width=None, cpu=True):
        lengths = (tokens != 0).sum(1)
        lengths = lengths.cpu() if cpu else lengths
        packed = pack_padded_sequence(self.embed(tokens), lengths, batch_first=True, enforce_sorted=sort)
        hidden, _ = self.lstm(packed)
        return pad_packed_sequence(hidden, batch_first=True, total_length=width or tokens.size(1))[0]


class BlankReader(Reader):
    def forward(self, tokens):
        raise NotImplementedError("your code here")


class MasksInstead(Reader):
    def forward(self, tokens):
        return self.lstm(self.embed(tokens))[0] * (tokens != 0)[..., None]


class WithoutTotalLength(Reader):
    def forward(self, tokens):
        lengths = (tokens != 0).sum(1).cpu()
        packed = pack_padded_sequence(self.embed(tokens), lengths, batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(self.lstm(packed)[0], batch_first=True)[0]


class LongestOfTheReplica(Reader):
    def forward(self, tokens):
        return self.read(tokens, width=int((tokens != 0).sum(1).max()))


class OnTheGpu(Reader):
    def forward(self, tokens):
        return self.read(tokens, cpu=False)


class MustBeSorted(Reader):
    def forward(self, tokens):
        return self.read(tokens, sort=True)


class WidthOfTheLesson(Reader):
    def forward(self, tokens):
        return self.read(tokens, width=8)


class TooNarrow(Reader):
    def forward(self, tokens):
        return self.read(tokens, width=4)


class WithoutPacking(Reader):
    def forward(self, tokens):
        return self.lstm(self.embed(tokens))[0]


class ThePair(Reader):
    def forward(self, tokens):
        return self.read(tokens), tokens


class FullLengths(Reader):
    def forward(self, tokens):
        lengths = torch.full((len(tokens),), tokens.size(1))
        packed = pack_padded_sequence(self.embed(tokens), lengths, batch_first=True)
        return pad_packed_sequence(self.lstm(packed)[0], batch_first=True)[0].flip(1)


class OtherLayers(Reader):
    def __init__(self):
        super().__init__()
        self.rnn = self.lstm
        del self.lstm


# 04.3: the mean, mended


class NextWord(nn.Module):
    reduction, count = "sum", "words"

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


class BlankNextWord(NextWord):
    def forward(self, tokens, targets):
        raise NotImplementedError("your code here")


class Scalars(NextWord):
    def forward(self, tokens, targets):
        return self.losses(tokens, targets, "sum"), (targets != 0).sum()


class EachWord(NextWord):
    def forward(self, tokens, targets):
        return self.losses(tokens, targets, "none"), targets != 0


class Means(NextWord):
    def forward(self, tokens, targets):
        return self.losses(tokens, targets, "mean").view(1)


class MeansAndSentences(NextWord):
    def forward(self, tokens, targets):
        mean, n = self.losses(tokens, targets, "mean"), torch.tensor([float(len(tokens))], device=tokens.device)
        return mean * n, n


class Cells(NextWord):
    def forward(self, tokens, targets):
        n = torch.tensor([targets.numel()], device=targets.device)
        return self.losses(tokens, targets, "sum").view(1), n


class OneNumber(NextWord):
    def forward(self, tokens, targets):
        return self.losses(tokens, targets, "sum").view(1).item()


class CountsOnTheCpu(NextWord):
    def forward(self, tokens, targets):
        return self.losses(tokens, targets, "sum").view(1), (targets != 0).sum().view(1).cpu()


def batch_loss(outputs):
    return outputs[0].sum() / outputs[1].sum()


def mean_of_quotients(outputs):
    return (outputs[0] / outputs[1]).mean()


def mean_of_the_counts(outputs):
    return outputs[0].sum() / outputs[1].float().mean()


def only_the_sum(outputs):
    return outputs[0].sum()


def a_vector(outputs):
    return outputs[0] / outputs[1].sum()


def a_float(outputs):
    return batch_loss(outputs).item()


def detached(outputs):
    return batch_loss(outputs).detach()


# 04.4: a state to carry


class Carrier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 6)
        self.lstm = nn.LSTM(6, 6, num_layers=2, batch_first=True)

    def forward(self, tokens, h, c):
        h, c = h.transpose(0, 1).contiguous(), c.transpose(0, 1).contiguous()
        hidden, (h, c) = self.lstm(self.embed(tokens), (h, c))
        return hidden, h.transpose(0, 1), c.transpose(0, 1)


class BlankCarrier(Carrier):
    def forward(self, tokens, h, c):
        raise NotImplementedError("your code here")


class AsItIs(Carrier):
    def forward(self, tokens, h, c):
        hidden, (h, c) = self.lstm(self.embed(tokens), (h, c))
        return hidden, h, c


class Viewed(Carrier):
    def forward(self, tokens, h, c):
        h, c = h.reshape(2, -1, 6), c.reshape(2, -1, 6)
        hidden, (h, c) = self.lstm(self.embed(tokens), (h, c))
        return hidden, h.transpose(0, 1), c.transpose(0, 1)


class ViewedBack(Carrier):
    def forward(self, tokens, h, c):
        h, c = h.transpose(0, 1).contiguous(), c.transpose(0, 1).contiguous()
        hidden, (h, c) = self.lstm(self.embed(tokens), (h, c))
        return hidden, h.reshape(-1, 2, 6), c.reshape(-1, 2, 6)


class NotBack(Carrier):
    def forward(self, tokens, h, c):
        h, c = h.transpose(0, 1).contiguous(), c.transpose(0, 1).contiguous()
        hidden, (h, c) = self.lstm(self.embed(tokens), (h, c))
        return hidden, h, c


class StartsAnew(Carrier):
    def forward(self, tokens, h, c):
        hidden, (h, c) = self.lstm(self.embed(tokens))
        return hidden, h.transpose(0, 1), c.transpose(0, 1)


class Nested(Carrier):
    def forward(self, tokens, h, c):
        hidden, h, c = super().forward(tokens, h, c)
        return hidden, (h, c)


ANSWERS = {
    "04.1": {
        "correct": shares,
        "accepted": [by_chunk],
        "blank": blank,
        "wrong": [
            (as_even_as_can_be, ["7 sentences on 3 GPUs", "[3, 2, 2]", "does not care to be even"]),
            (with_empty_parts, ["4 sentences on 3 GPUs", "[2, 2, 0]", "a replica for nothing"]),
            (rest_at_the_end, ["7 sentences on 3 GPUs", "[2, 2, 3]"]),
            (rest_dropped, ["7 sentences on 3 GPUs", "which is 6 sentences"]),
            (a_part_too_many, ["7 sentences on 3 GPUs", "more parts than GPUs"]),
            (only_the_first, ["`shares(8, 2)` gives 4", "not a list"]),
            ([3, 3, 1], ["`shares` is [3, 3, 1], not a function"]),
        ],
    },
    "04.2": {
        "correct": Reader,
        "accepted": [MasksInstead],
        "blank": BlankReader,
        "wrong": [
            (WithoutTotalLength, ["on one GPU", "7 words wide", "`tokens` is 9"]),
            (LongestOfTheReplica, ["on one GPU", "7 words wide"]),
            (OnTheGpu, ["on one GPU", "raised RuntimeError", "CPU int64"]),
            (MustBeSorted, ["on one GPU", "raised RuntimeError", "sorted"]),
            (WidthOfTheLesson, ["on one GPU", "has the shape (6, 8, 6), not (6, 9, 6)"]),
            (TooNarrow, ["on one GPU", "raised ValueError", "total_length"]),
            (WithoutPacking, ["padding has hidden states too"]),
            (ThePair, ["returns a tuple of 2, not a tensor"]),
            (FullLengths, ["not those of the sentences"]),
            (OtherLayers, ["the layers are not those it came with"]),
            ("Reader", ["`Reader` is 'Reader', not a function"]),
        ],
    },
    "04.3": {
        "correct": (NextWord, batch_loss),
        "accepted": [(Scalars, batch_loss), (EachWord, batch_loss)],
        "blank": (BlankNextWord, blank),
        "wrong": [
            ((Means, torch.mean), ["on 2 GPUs", "% off that of the mean over all words"]),
            ((NextWord, mean_of_quotients), ["on 2 GPUs", "% off"]),
            ((MeansAndSentences, batch_loss), ["on 2 GPUs", "% off"]),
            ((NextWord, mean_of_the_counts), ["on 2 GPUs", "2 times"]),
            ((NextWord, only_the_sum), ["on one GPU", "18 times"]),
            ((Cells, batch_loss), ["on one GPU", "0.3333 times"]),
            ((NextWord, a_vector), ["on 2 GPUs", "a tensor of shape (2,)"]),
            ((NextWord, a_float), ["on one GPU", "returns a float"]),
            ((NextWord, detached), ["no history"]),
            ((OneNumber, batch_loss), ["raised TypeError"]),
            ((CountsOnTheCpu, batch_loss), ["on 2 GPUs", "CPU tensors"]),
        ],
    },
    "04.4": {
        "correct": Carrier,
        "blank": BlankCarrier,
        "wrong": [
            (AsItIs, ["on one GPU", "raised RuntimeError", "Expected hidden"]),
            (Viewed, ["did not start from the state"]),
            (StartsAnew, ["did not start from the state"]),
            (ViewedBack, ["`h` comes back", "numbers in the wrong places"]),
            (NotBack, ["`h` comes back with the shape (2, 6, 6)"]),
            (Nested, ["returns a tuple of 2"]),
        ],
    },
}
