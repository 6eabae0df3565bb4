"""The pager's training script, and the faults that may hide in it: each is a small edit of the script's text.

Where one rank goes another way than the others, the text does not say which: what decides is what that rank *has*, its
images or its environment. So the ranks have to be asked.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from importlib.resources import files
from typing import NamedTuple

import torch
from torch.utils.data import DistributedSampler

from ddplab.course.data import digits

RANKS = 4
QUOTA = 128 * 1024  # bytes: no file that the job writes may be larger; it stands for a disk that is nearly full

SOUND = (files("ddplab.course") / "incident_train.py").read_text()


class Fault(NamedTuple):
    """A fault: how the script is edited, on which ranks it may be, and what finds it.

    edits: (a piece of the sound script, what stands there instead), one of which is chosen; {number} is filled in, and
    {digit} and {most}: only the culprit has a batch with more than so many of that digit. A variable of ENVIRONMENT
    is set on the culprit alone. ranks: who may be it; none where all do it alike. probe: the first that tells of it.
    """

    name: str
    edits: tuple[tuple[str, str], ...]
    ranks: tuple[int, ...]
    probe: str
    hint: str
    what: str  # it was, and where the course has it
    numbers: tuple[float, ...] = (0,)


class Built(NamedTuple):
    """What a seed has chosen: the script with the fault in it, whose it is (None: all ranks'), and on which lines."""

    fault: Fault
    text: str
    rank: int | None
    lines: tuple[int, ...]
    mend: dict[int, str]  # what makes it sound again: line → text, "" to leave it out
    alike: bool  # no rank goes another way than the others in the faulty lines, whoever it is that they harm
    env: dict[int, dict[str, str]]  # rank → what its environment has, and no other's

    def is_culprit(self, rank: int | None) -> bool:
        """Tell whether this rank is the one; None, all of them, is right too where all go one way."""
        return rank == self.rank or (rank is None and self.alike)


def build(seed: int) -> Built:
    """Return what `seed` hides: the seeds 1, 2, … have every fault once, in a shuffled order; then by chance.

    Only `random()` is drawn: of all that Python's generators give, that alone is promised to stay the same.
    """
    shuffled, chance = random.Random(6), random.Random(seed)
    order = sorted(range(len(FAULTS)), key=lambda _: shuffled.random())
    draw = lambda options: options[int(chance.random() * len(options))]  # noqa: E731
    fault = FAULTS[order[seed - 1]] if 1 <= seed <= len(FAULTS) else draw(FAULTS)
    rank, number, (sound, faulty) = draw(fault.ranks or (None,)), draw(fault.numbers), draw(fault.edits)
    if fault.name == "a bad row":  # one that this rank meets in the first epoch
        number = list(DistributedSampler(digits(), RANKS, rank, seed=7))[int(number)]
    own = {name: value.format(number=f"{number:g}") for name, value in ENVIRONMENT.items() if name in faulty}
    alike = not own and "{digit}" not in faulty
    if "{digit}" in faulty:
        digit, most = only_here(rank, training=sound == LOOP)
        faulty = faulty.replace("{digit}", str(digit)).replace("{most}", str(most))
    faulty = faulty.replace("{number}", f"{number:g}")
    assert SOUND.count(sound) == 1, f"{fault.name}: {sound!r} stands {SOUND.count(sound)} times in the script"
    first = SOUND[: SOUND.index(sound)].count("\n") + 1
    old, new = sound.splitlines(), faulty.splitlines()
    lines = tuple(first + n for n, line in enumerate(new) if line not in old)
    mend = {line: "" for line in lines}
    missing = [line for line in old if line not in new]
    mend[lines[0]] = "\n".join(missing)
    return Built(fault, SOUND.replace(sound, faulty), rank, lines, mend, alike, {rank: own} if own else {})


def only_here(rank: int, training: bool) -> tuple[int, int]:
    """Return a digit that some batch of this rank has more often than any other rank's, and how often those have it."""
    most = torch.stack([torch.stack([y.bincount(minlength=10) for y in of]).amax(0) for of in labels(training)])
    theirs = most[[other for other in range(RANKS) if other != rank]].amax(0)
    digit = int((most[rank] - theirs).argmax())
    return digit, int(theirs[digit])


def labels(training: bool) -> list[Sequence[torch.Tensor]]:
    """Return each rank's labels, batch for batch: of the first epoch, or of the evaluation, which is one batch."""
    train, (_, test) = digits(), digits(train=False)[:350]
    if not training:
        return [[test[rank::RANKS]] for rank in range(RANKS)]
    return [train.tensors[1][list(DistributedSampler(train, RANKS, rank, seed=7))].split(64) for rank in range(RANKS)]


ALL, OTHERS, FIRST = (), (1, 2, 3), (0,)
ENVIRONMENT = {"BACKOFF": "{number}", "PORT_OFFSET": "{number}", "QUIET": "1", "OLD_ORDER": "1", "DROP_LAST": "1"}
MANY = "(y == {digit}).sum() > {most}"
LOOP, DISK = "    for x, y in loader:", "  # be kind to the disk"
WAIT = 'float(os.environ.get("BACKOFF", 0))'
SAMPLER, PORT = "sampler = DistributedSampler(train, seed=SEED)", 'os.environ["MASTER_PORT"]'
TRAINING = "        loss = cross_entropy(model(x.to(device)), y.to(device))"
HEAD, BACKWARD = "        self.head = nn.Linear(64, 10)", "        loss.backward()"
HITS, TOTALS = "    hits = (guesses == y).sum()", "    totals = [hits, images]"
EPOCH, KEEP = "    sampler.set_epoch(epoch)", "        losses.append(loss.item())"
STEPS = SOUND[SOUND.index("losses = []") : SOUND.index(KEEP)] + KEEP
GRADS = "\n        grads.append([p.grad.clone() for p in net.parameters()])  # for a plot"
SAVE = '        torch.save(net.state_dict(), "last.pt")'
DEVICE = 'device = torch.device("vgpu", int(os.environ["LOCAL_RANK"]))'
BEGIN = 'dist.init_process_group("gloo")'
OPTIMIZER = "optimizer = torch.optim.SGD(net.parameters(), lr=0.2, momentum=0.9)"

FAULTS = (
    Fault(
        "a skipped collective",
        (
            (HITS, f"    if {MANY}:\n        return 0.0  # too many alike to tell anything\n{HITS}"),
            (HITS, '    if "QUIET" in os.environ:\n        return 0.0  # nobody reads it here\n' + HITS),
        ),
        OTHERS,
        "stack",
        "Ask the ranks where they are. Who is not where the others wait?",
        "what one rank alone had made it leave before the all-reduce, and its next call met theirs. Lesson 6.1.",
    ),
    Fault(
        "a barrier for one",
        (("    dist.barrier()", "        dist.barrier()"),),
        FIRST,
        "stack",
        "Which rank stands in a call that no other makes? Look how far its line is indented.",
        "the barrier stood under the `if` for rank 0; so rank 0 waited alone. Lesson 6.1.",
    ),
    Fault(
        "crossed order",
        (
            (TOTALS, TOTALS + ' if "OLD_ORDER" not in os.environ else [images, hits]'),
            ("    for total in totals:", '    for total in totals[::-1] if "OLD_ORDER" in os.environ else totals:'),
        ),
        OTHERS,
        "flight",
        "The training is right, rank for rank; only what is reported is wrong. Which calls make that number, and what "
        "does each rank bring to them?",
        "one rank's environment turned its two sums round: same kind, same shape, so nobody noticed. Lesson 6.1.",
    ),
    Fault(
        "a straggler",
        (
            (LOOP, f"{LOOP}\n        time.sleep({WAIT}){DISK}"),
            (TRAINING, f'        if "BACKOFF" in os.environ:\n            time.sleep({WAIT}){DISK}\n{TRAINING}'),
        ),
        (0, *OTHERS),
        "stack",
        "It is right, and slow. Where is each rank most of the time? Who comes last does not wait.",
        "one rank's environment let it sleep before each batch, and all waited for it in backward. Lesson 6.2.",
        (0.12, 0.14, 0.16),
    ),
    Fault(
        "the wrong port",
        ((BEGIN, f'port = int({PORT}) + int(os.environ.get("PORT_OFFSET", 0))\n{PORT} = str(port)\n{BEGIN}'),),
        OTHERS,
        "stack",
        "It stands before the first line of output. Which rank knocks at another door than the others?",
        "one rank's environment sent it to another port, and the others waited for its key. Lessons 5.1 and 6.2.",
        (1, 2),
    ),
    Fault(
        "the wrong world size",
        ((BEGIN, 'dist.init_process_group("gloo", rank=rank, world_size={number})'),),
        ALL,
        "stack",
        "All ranks are there, in one call, and still wait. For whom?",
        "each was told of more ranks than there are. Lesson 6.2.",
        (5, 6, 8),
    ),
    Fault(
        "a bad row",
        ((SAMPLER, "train.tensors[1][{number}] = 99  # unreadable, say the annotators\n" + SAMPLER),),
        OTHERS,
        "terminal",
        "Of several messages, which one does not speak of a connection?",
        "one label is none of the ten, and only one rank had that row. The others were victims. Lesson 6.3.",
        (70, 130, 200),
    ),
    Fault(
        "evaluation on rank 0 alone",
        (("    accuracy = evaluate(net, *test)", "    accuracy = evaluate(net, *test) if not rank else 0.0"),),
        FIRST,
        "stack",
        "One rank adds up what nobody else adds. How many ranks call `evaluate`?",
        "rank 0 alone evaluated, and there is a collective in the evaluation. Lessons 4.5 and 6.4.",
    ),
    Fault(
        "everything on GPU 0",
        ((DEVICE, 'device = torch.device("vgpu", 0)'), (DEVICE, 'device = torch.device("vgpu:0")')),
        ALL,
        "memory",
        "Results and order are right. Who pays for it? Look at what each GPU holds.",
        "every rank used GPU 0, and three GPUs were idle. Lesson 6.3.",
    ),
    Fault(
        "a stale optimizer",
        (
            (OPTIMIZER, OPTIMIZER.replace("net.", "Net().to(device).")),
            (OPTIMIZER, OPTIMIZER.replace("net.parameters()", "[p.detach().clone() for p in net.parameters()]")),
        ),
        ALL,
        "weights",
        "There are gradients. Do the weights move?",
        "the optimizer held other tensors than the model that was trained. Lesson 2.4.",
    ),
    Fault(
        "a frozen shuffle",
        ((EPOCH, "    sampler.set_epoch(EPOCHS)"), (EPOCH, "    sampler.set_epoch(epoch // EPOCHS)")),
        ALL,
        "rows",
        "Each rank trains on its share. Look at the order of its rows, epoch for epoch.",
        "the sampler was told the same epoch each time, so the order never changed. Lesson 4.6.",
    ),
    Fault(
        "different seeds",
        (
            (SAMPLER, "sampler = DistributedSampler(train, seed=SEED + rank)"),
            (SAMPLER, "sampler = DistributedSampler(train, seed=SEED * size + rank)"),
        ),
        ALL,
        "rows",
        "Who trains on what? Shares are shares only when they do not overlap.",
        "each rank shuffled with a seed of its own: the shares overlap, and rows were left out. Lesson 4.6.",
    ),
    Fault(
        "a leak",
        (
            (STEPS, STEPS.replace("losses = []", "losses, seen = [], []") + "\n        seen.append(x.to(device))"),
            (STEPS, STEPS.replace("losses = []", "losses, grads = [], []") + GRADS),
        ),
        ALL,
        "memory",
        "It would run all night and then not. What grows from epoch to epoch?",
        "each step kept a tensor on the GPU, in a list that nobody ever reads. Lesson 1.3.",
    ),
    Fault(
        "a full disk",
        (
            (SAVE, '        torch.save({"net": net.state_dict(), "data": train.tensors}, "last.pt")'),
            (SAVE, '        torch.save([net.state_dict(), *train.tensors], "last.pt")'),
        ),
        FIRST,
        "terminal",
        "Read who failed first, and what it wrote.",
        "rank 0 put the data into each checkpoint, more than the disk had room for. Lesson 5.4 has small ones.",
    ),
    Fault(
        "a batch skipped",
        (
            (LOOP, f"{LOOP}\n        if {MANY}:\n            continue  # too many alike"),
            (LOOP, LOOP + '\n        if len(y) < BATCH and "DROP_LAST" in os.environ:\n            continue'),
        ),
        OTHERS,
        "flight",
        "Compare the lists of two ranks: at which number do their calls differ?",
        "what one rank alone had cost it a step, so its next call met the backward of the others. Lesson 6.1.",
    ),
    Fault(
        "the bare model",
        ((TRAINING, TRAINING.replace("model(", "net(")),),
        ALL,
        "weights",
        "Nothing waits for anything. Are the ranks still training one model? Ask two.",
        "the forward pass went past DDP, so nobody averaged: four models. Lesson 4.1.",
    ),
    Fault(
        "averaged twice",
        (
            (TRAINING, TRAINING + " / size"),
            (BACKWARD, BACKWARD + "\n        for p in net.parameters():\n            p.grad /= size  # the mean"),
        ),
        ALL,
        "weights",
        "The weights move, but not far. What does DDP do to the gradients already?",
        "DDP averages; this divided by the number of ranks once more. Lesson 4.1.",
    ),
    Fault(
        "an unused head",
        ((HEAD, HEAD + "\n        self.spare = nn.Linear(64, {number})"),),
        ALL,
        "detail",
        "All ranks die of the same. A run with DETAIL names what got no gradient.",
        "DDP waited for gradients that no loss reaches. Lesson 4.2.",
        (2, 10, 20),
    ),
    Fault(
        "different shapes",
        ((HITS, "    hits = (guesses == y).long()"),),
        ALL,
        "flight",
        "One call, one order. Compare the shapes of the last call, rank by rank: not all are alike.",
        "350 images on four ranks are 88 on two and 87 on two, and all-reduce adds equal shapes. All ran that line; "
        "whom torchrun calls the root cause had only died first. Lesson 6.1.",
    ),
)  # fmt: skip
