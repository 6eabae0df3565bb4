"""Answers to the turns of lesson 6.5: other right ones, and mistakes that people make."""


def leaves_nobody():
    return 2, {33: "    if False:"}


def as_a_list():
    return [2, {34: "", 33: ""}]


def with_the_line_before():
    return None, {55: "    start = time.time()", 56: "    sampler.set_epoch(epoch)"}


def as_an_int():
    return [None, {56: "    sampler.set_epoch(int(epoch))"}]


def in_two_steps():
    return None, {58: "        out = model(x.to(device))\n        loss = cross_entropy(out, y.to(device))"}


def with_the_line_after():
    line = "        loss = cross_entropy(model(x.to(device)), y.to(device))"
    return None, {58: line, 59: "        optimizer.zero_grad()"}


def another_condition():
    return 2, {33: "    if rank == size:"}


def a_comment():
    return 2, {33: "    # if nobody:", 34: "    #     return 0.0"}


def only_the_return():
    return 2, {34: "        pass"}


def the_next_epoch():
    return None, {56: "    sampler.set_epoch(epoch + 1)"}


def seeded():
    return None, {56: "    sampler.set_epoch(SEED + epoch)"}


def through_the_loader():
    return None, {56: "    loader.sampler.set_epoch(epoch)"}


def a_line_below():
    return None, {57: "    sampler.set_epoch(epoch)\n    for x, y in loader:"}


def wrapped_net():
    return None, {50: "net = model = DDP(net)"}


def wrapped_at_once():
    return None, {49: "net = DDP(Net().to(device))", 50: "model = net"}


def by_hand():
    mean = "        for p in net.parameters():\n            dist.all_reduce(p.grad)\n            p.grad /= size"
    return None, {60: f"        loss.backward()\n{mean}"}


def of_the_weights():
    """They end as last night's, the momenta too: only the gradients of a rank are its own."""
    mean = "        for p in net.parameters():\n            dist.all_reduce(p.data)\n            p.data /= size"
    return None, {61: f"        optimizer.step()\n{mean}"}


BLOCK = ["raised IndentationError: line"]
ANSWERS = {
    "6.5.a": {
        "accepted": [leaves_nobody, as_a_list, another_condition, a_comment, only_the_return],
        "wrong": [
            (lambda: 2, ["returned an int: the check met TypeError"]),
            (lambda: (2, 33, ""), ["returned a tuple of 3", "not a rank and its patches: (2, 33, '')"]),
            (lambda: None, ["not a rank and its patches: None"]),
            (lambda: (2, {69: "    pass"}), ["stands as it was, and now the job fails"]),
            (lambda: (2, {35: "    hits = (guesses == y).sum()"}), ["stands as it was"]),
            (lambda: (3, {33: "", 34: ""}), ["incident 16, rank: not rank 3"]),
            (
                lambda: (2, {33: ""}),
                [
                    "line 34 of train.py: unexpected indent. Line 33 was `if (y == ",
                    "and its body is still there",
                    *BLOCK,
                ],
            ),
            (lambda: (2, {33: "if False:"}), ["Line 33 begins with 4 spaces, and its patch with none", *BLOCK]),
            (lambda: (2, {34: ""}), ["expected an indented block after 'if' statement on line 33", *BLOCK]),
            (
                lambda: (2, {33: "", 34: "", 35: "hits = 0"}),
                ["Line 35 begins with 4 spaces, and its patch with none"],
            ),
            (lambda: (0, {39: ""}), ["(The rank: not rank 0. The place: not there.)"]),
            (lambda: (2, {33: "    if (:", 34: ""}), ["raised SyntaxError: line 33 of train.py"]),
            (lambda: ("2", {33: "", 34: ""}), ["not a rank and its patches: ('2', "]),
            (lambda: (2, {33: None, 34: None}), ["not a line and its patch: 33: None"]),
        ],
    },
    "6.5.b": {
        "accepted": [as_an_int, with_the_line_before, the_next_epoch, seeded, through_the_loader, a_line_below],
        "wrong": [
            (
                lambda: (None, {56: "sampler.set_epoch(epoch)"}),
                ["Line 56 begins with 4 spaces, and its patch with none", *BLOCK],
            ),
            (lambda: (None, {56: "        sampler.set_epoch(epoch)"}), ["its patch with 8", *BLOCK]),
            (lambda: (None, {54: "    sampler.set_epoch(epoch)"}), ["Line 54 was `for epoch in range(EPOCHS):`"]),
            (lambda: (None, {56: "    sampler.set_epoch(epoch % 2)"}), ["trained on other rows"]),
            (lambda: (None, {56: "    sampler.set_epoch(epoch + rank)"}), ["trained on other rows"]),
            (
                lambda: (None, {48: "loader = DataLoader(train, BATCH, shuffle=True, sampler=sampler)"}),
                ["the place: not there", "the job then", "mutually exclusive"],
            ),
            (lambda: (None, {44: "torch.manual_seed(SEED + rank)"}), ["changes nothing"]),
            (lambda: (None, {47: "sampler = DistributedSampler(train)"}), ["the place: not there"]),
        ],
    },
    "6.5.c": {
        "accepted": [in_two_steps, with_the_line_after, wrapped_net, wrapped_at_once, by_hand, of_the_weights],
        "wrong": [
            (lambda: (None, {58: "        loss = cross_entropy(model(x), y)"}), ["the batch has stayed on the CPU"]),
            (lambda: (None, {60: "        dist.all_reduce(loss); loss.backward()"}), ["the losses are added up"]),
            (
                lambda: (None, {57: "        loss = cross_entropy(model(x.to(device)), y.to(device))"}),
                ["Line 57 was `for x, y in loader:`, and its body is still there", *BLOCK],
            ),
        ],
    },
}
