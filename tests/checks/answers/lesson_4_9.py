"""Answers to the puzzles of lesson 4.9: other right ways, and mistakes beside those that the puzzles name."""

import torch
import torch.distributed as dist
from torch.distributed import all_reduce

# a: begin alike


def by_name(net):
    with torch.no_grad():
        for tensor in [*net.parameters(), *net.buffers()]:
            dist.broadcast(tensor, 0)


def as_an_object(net):
    held = [net.state_dict()]
    dist.broadcast_object_list(held, src=0)
    net.load_state_dict(held[0])


def by_its_names(net):
    for name in net.state_dict():
        dist.broadcast(name, 0)


def the_net_itself(net):
    dist.broadcast(net, 0)


def each_from_itself(net):
    [dist.broadcast(tensor, dist.get_rank()) for tensor in net.state_dict().values()]


def each_from_its_neighbour(net):
    [dist.broadcast(tensor, (dist.get_rank() + 1) % 2) for tensor in net.state_dict().values()]


def only_the_giver(net):
    if not dist.get_rank():
        [dist.broadcast(tensor, 0) for tensor in net.state_dict().values()]


def only_the_takers(net):
    for tensor in net.state_dict().values() if dist.get_rank() else ():
        dist.broadcast(tensor, 0)


def by_name_and_tensor(net):
    for _, tensor in net.state_dict():
        dist.broadcast(tensor, 0)


def from_nobody(net):
    for tensor in net.state_dict().values():
        dist.broadcast(tensor)


# b: a hook


def the_other_hook(net):
    def average(p):
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()

    for p in net.parameters():
        p.register_hook(average)


def the_other_hook_divides_first(net):
    for p in net.parameters():
        p.register_hook(lambda grad: all_reduce(grad.grad.div_(dist.get_world_size())))


def the_other_hook_uses_what_comes_back(net):
    for p in net.parameters():
        p.register_hook(lambda came: all_reduce(came) / dist.get_world_size())


def the_loops_last(net):
    for p in net.parameters():

        def average(_):
            all_reduce(p.grad)  # noqa: B023
            p.grad.div_(dist.get_world_size())  # noqa: B023

        p.register_post_accumulate_grad_hook(average)


def only_the_last(net):
    def average(p):
        all_reduce(p.grad)
        p.grad.div_(dist.get_world_size())

    [*net.parameters()][-1].register_post_accumulate_grad_hook(average)


def called_not_handed_over(net):
    def average(p):
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()

    for p in net.parameters():
        p.register_post_accumulate_grad_hook(average(p))


def divided_first(net):
    def average(p):
        p.grad.div_(dist.get_world_size())
        all_reduce(p.grad)

    [p.register_post_accumulate_grad_hook(average) for p in net.parameters()]


def with_the_gradients_own_hook(net):
    def average(grad):
        total = grad.clone()
        dist.all_reduce(total)
        return total / dist.get_world_size()

    for p in net.parameters():
        p.register_hook(average)


def hooks_the_network(net):
    net.register_post_accumulate_grad_hook(lambda p: all_reduce(p.grad))


def gives_it_back(net):
    def average(p):
        total = p.grad.clone()
        all_reduce(total)
        return total / dist.get_world_size()

    for p in net.parameters():
        p.register_post_accumulate_grad_hook(average)


def under_another_name(net):
    def average(p):
        grad = p.grad
        all_reduce(grad)
        grad = grad / dist.get_world_size()

    [p.register_post_accumulate_grad_hook(average) for p in net.parameters()]


def without_a_hook(net):
    for p in net.parameters():
        averaged(p)


def all_of_them_in_each(net):
    for p in net.parameters():
        p.register_post_accumulate_grad_hook(lambda _: [averaged(p) for p in net.parameters()] and None)


def only_rank_0_divides(net):
    def average(p):
        all_reduce(p.grad)
        if dist.get_rank() == 0:
            p.grad /= dist.get_world_size()

    [p.register_post_accumulate_grad_hook(average) for p in net.parameters()]


# c: a bucket


def bucketed(net, cut=None, by=None, weights=False):
    vector = torch.cat([p.grad.flatten() for p in net.parameters()])
    all_reduce(vector)
    vector /= by(vector) if by else dist.get_world_size()
    for p, piece in zip(net.parameters(), vector.split(cut or [p.numel() for p in net.parameters()]), strict=False):
        (p.data if weights else p.grad).copy_(piece.view_as(p) if not cut else piece)


def cut_by_how_many(net):
    bucketed(net, cut=2)


def divided_by_its_length(net):
    bucketed(net, by=len)


def into_the_weights(net):
    bucketed(net, weights=True)


def all_in_one_number(net):
    total = sum(p.grad.sum() for p in net.parameters())
    all_reduce(total)
    for p in net.parameters():
        p.grad.fill_(total / dist.get_world_size())


def flattened(net):
    from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

    grads = [p.grad for p in net.parameters()]
    vector = _flatten_dense_tensors(grads)
    dist.all_reduce(vector)
    for p, mean in zip(net.parameters(), _unflatten_dense_tensors(vector / dist.get_world_size(), grads), strict=True):
        p.grad = mean


def at_an_offset(net):
    vector, at = torch.cat([p.grad.reshape(-1) for p in net.parameters()]) / dist.get_world_size(), 0
    all_reduce(vector)
    for p in net.parameters():
        p.grad[:] = vector[at : at + p.numel()].reshape(p.shape)
        at += p.numel()


def cut_into_ones(net):
    vector = torch.cat([p.grad.flatten() for p in net.parameters()])
    all_reduce(vector)
    for p, piece in zip(net.parameters(), vector.split(1), strict=False):
        p.grad.copy_(piece.view_as(p) / dist.get_world_size())


def one_number_for_many(net):
    vector = torch.cat([p.grad.flatten() for p in net.parameters()])
    all_reduce(vector)
    vector /= dist.get_world_size()
    for p, piece in zip(net.parameters(), vector.split(1), strict=False):
        p.grad.copy_(piece)


def takes_what_comes_back(net):
    vector = torch.cat([p.grad.flatten() for p in net.parameters()])
    vector = all_reduce(vector)
    vector /= dist.get_world_size()


def all_at_once(net):
    all_reduce([p.grad for p in net.parameters()])


def stacked(net):
    vector = torch.stack([p.grad for p in net.parameters()])
    all_reduce(vector)
    for p, piece in zip(net.parameters(), vector, strict=True):
        p.grad.copy_(piece / dist.get_world_size())


# d: overlap


def kept(net, wait=True, early=False, give=lambda finish: finish):
    sent = []

    def send(p):
        sent.append((p, all_reduce(p.grad, async_op=True)))
        if early:
            p.grad /= dist.get_world_size()

    def finish():
        for p, work in sent if wait else sent[-1:]:
            work.wait()
            if not early:
                p.grad /= dist.get_world_size()

    for p in net.parameters():
        p.register_post_accumulate_grad_hook(send)
    return give(finish)


def divided_before_it_came(net):
    return kept(net, early=True)


def divided_before_it_came_on_rank_0(net):
    return kept(net, early=dist.get_rank() == 0)


def waits_twice(net):
    sent = []
    for p in net.parameters():
        p.register_post_accumulate_grad_hook(lambda p: sent.append(all_reduce(p.grad, async_op=True)))

    def finish():
        for work in [*sent, *sent]:
            work.wait()
        sent.clear()
        for p in net.parameters():
            p.grad /= dist.get_world_size()

    return finish


def waits_for_the_last(net):
    return kept(net, wait=False)


def not_waited_for(net):
    sent = []
    for p in net.parameters():
        p.register_post_accumulate_grad_hook(lambda p: sent.append(all_reduce(p.grad, async_op=True)))

    def finish():
        sent.clear()
        for p in net.parameters():
            p.grad /= dist.get_world_size()

    return finish


def emptied_by_assignment(net):
    sent = []
    for p in net.parameters():
        p.register_post_accumulate_grad_hook(lambda p: sent.append((p, all_reduce(p.grad, async_op=True))))

    def finish():
        for p, work in sent:  # noqa: F823
            work.wait()
            p.grad /= dist.get_world_size()
        sent = []  # noqa: F841

    return finish


def hooked_to_nothing(net):
    sent = []

    def finish():
        for p, work in sent:
            work.wait()
            p.grad /= dist.get_world_size()

    return finish


def the_loops_last_sent(net):
    sent = []
    for p in net.parameters():
        p.register_post_accumulate_grad_hook(lambda _: sent.append((p, all_reduce(p.grad, async_op=True))))  # noqa: B023

    def finish():
        for p, work in sent:
            work.wait()
            p.grad /= dist.get_world_size()
        sent.clear()

    return finish


def gives_what_was_sent(net):
    return kept(net, give=lambda finish: [finish])


def wants_an_argument(net):
    return kept(net, give=lambda finish: lambda sent: finish())


def called_finish(net):
    return kept(net, give=lambda finish: finish())


def by_class(net):
    class Sender:
        def __init__(self):
            self.works = {}
            for p in net.parameters():
                p.register_post_accumulate_grad_hook(self.send)

        def send(self, p):
            p.grad /= dist.get_world_size()
            self.works[p] = dist.all_reduce(p.grad, async_op=True)

        def __call__(self):
            for work in self.works.values():
                work.wait()

    return Sender()


def in_copies(net):
    sent = []

    def send(p):
        total = p.grad.clone()
        sent.append((p, total, all_reduce(total, async_op=True)))

    def finish():
        while sent:
            p, total, work = sent.pop()
            work.wait()
            p.grad = total / dist.get_world_size()

    for p in net.parameters():
        p.register_post_accumulate_grad_hook(send)
    return finish


def the_other_hook_in_the_background(net):
    sent = []
    for p in net.parameters():
        p.register_hook(lambda p: sent.append((p, all_reduce(p.grad, async_op=True))))
    return sent.clear


# e: a switch


def asked_once(net):
    switch = {"send": True}
    if switch["send"]:
        the_hook = [p.register_post_accumulate_grad_hook(averaged) for p in net.parameters()]  # noqa: F841
    return switch


def never_asked(net):
    [p.register_post_accumulate_grad_hook(averaged) for p in net.parameters()]
    return {"send": True}


def averaged(p):
    all_reduce(p.grad)
    p.grad /= dist.get_world_size()


def the_other_hook_with_a_switch(net):
    switch = {"send": True}
    [p.register_hook(lambda p: averaged(p) if switch["send"] else None) for p in net.parameters()]
    return switch


def early_return(net):
    switch = {"send": True}

    def hook(p):
        if not switch["send"]:
            return
        mean = p.grad / dist.get_world_size()
        dist.all_reduce(mean)
        p.grad.copy_(mean)

    for p in net.parameters():
        p.register_post_accumulate_grad_hook(hook)
    return switch


class Switch(dict):
    def __call__(self, p):
        if self["send"]:
            dist.all_reduce(p.grad)
            p.grad.div_(dist.get_world_size())


def read_in_forward(net):
    switch, read = {"send": True}, {}

    def average(p):
        if read["send"]:
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()

    net.register_forward_pre_hook(lambda net, inputs: read.update(switch))
    for p in net.parameters():
        p.register_post_accumulate_grad_hook(average)
    return switch


def callable_switch(net):
    switch = Switch(send=True)
    for p in net.parameters():
        p.register_post_accumulate_grad_hook(switch)
    return switch


def no_switch_back(net):
    callable_switch(net)


def another_switch_back(net):
    return dict(callable_switch(net))


def turns_itself(net, to):
    switch = {"send": True}

    def hook(p):
        if switch["send"]:
            averaged(p)
        switch["send"] = to

    [p.register_post_accumulate_grad_hook(hook) for p in net.parameters()]
    return switch


def turns_itself_on(net):
    return turns_itself(net, True)


# f: the unused head


def zeros_in_one_message(net):
    parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in net.parameters()]
    vector = torch.cat([part.detach().flatten() for part in parts])
    dist.all_reduce(vector)
    for p, piece in zip(net.parameters(), vector.split([p.numel() for p in net.parameters()]), strict=True):
        p.grad = piece.view_as(p) / dist.get_world_size()


def asks_for_truth(net):
    for p in net.parameters():
        if not p.grad:
            p.grad = torch.zeros_like(p)
        all_reduce(p.grad)
        p.grad /= dist.get_world_size()


def by_loop(net):
    for p in net.parameters():
        mine = p.grad if p.grad is not None else p.new_zeros(p.shape)
        mine = mine.detach() / dist.get_world_size()
        dist.all_reduce(mine)
        p.grad = mine


def zeros_like_nothing(net):
    for p in net.parameters():
        if p.grad is None:
            p.grad = torch.zeros_like(p.grad)
        all_reduce(p.grad)
        p.grad /= dist.get_world_size()


def not_put_back(net):
    for p in net.parameters():
        mine = torch.zeros_like(p) if p.grad is None else p.grad
        all_reduce(mine)
        mine /= dist.get_world_size()


def the_weight_for_none(net):
    for p in net.parameters():
        if p.grad is None:
            p.grad = p.detach().clone()
        averaged(p)


def the_mean_of_another_name(net):
    for p in net.parameters():
        mine = torch.zeros_like(p) if p.grad is None else p.grad
        all_reduce(mine)
        mine = mine / dist.get_world_size()


def no_thought_of_none(net):
    for p in net.parameters():
        all_reduce(p.grad)
        p.grad /= dist.get_world_size()


def asks_for_the_dictionary(net):
    switch = {"send": True}

    def hook(p):
        if switch:
            averaged(p)

    [p.register_post_accumulate_grad_hook(hook) for p in net.parameters()]
    return switch


def keeps_what_was_in_it(net):
    switch = {"send": True}
    send = switch["send"]
    [p.register_post_accumulate_grad_hook(lambda p: averaged(p) if send else None) for p in net.parameters()]
    return switch


class Sender:
    def __init__(self, switch):
        self.switch = switch

    def average(self, p):
        if "send" in self.switch:
            averaged(p)


def asks_whether_it_has_the_key(net):
    sender = Sender({"send": True})
    [p.register_post_accumulate_grad_hook(sender.average) for p in net.parameters()]
    return sender.switch


def two_dictionaries(net):
    asked = {"send": True}
    [p.register_post_accumulate_grad_hook(lambda p: averaged(p) if asked["send"] else None) for p in net.parameters()]
    return {"send": True}


def all_from_the_beginning(net):
    vector = torch.cat([p.grad.flatten() for p in net.parameters()]) / dist.get_world_size()
    dist.all_reduce(vector)
    for p in net.parameters():
        p.grad.copy_(vector[: p.numel()].view_as(p))


def broadcast_in_one(net):
    vector = torch.cat([p.grad.flatten() for p in net.parameters()])
    dist.broadcast(vector, src=0)
    for p, piece in zip(net.parameters(), vector.split([p.numel() for p in net.parameters()]), strict=True):
        p.grad.copy_(piece.view_as(p))


ANSWERS = {
    "4.9.a": {
        "accepted": [by_name, as_an_object],
        "wrong": [
            (by_its_names, ["raised TypeError"]),
            (the_net_itself, ["raised TypeError"]),
            (each_from_itself, ["every rank names itself as `src`"]),
            (each_from_its_neighbour, ["each rank names the other as `src`"]),
            (by_name_and_tensor, ["not enough values to unpack"]),
            (from_nobody, ["raised ValueError: Must specify"]),
            (only_the_giver, ["rank 0 broadcasts, and no other rank takes part"]),
            (only_the_takers, ["rank 0, whose weights are to go to all, does not broadcast"]),
        ],
    },
    "4.9.b": {
        "accepted": [divided_first, with_the_gradients_own_hook],
        "wrong": [
            (called_not_handed_over, ["`average` is called before there is a gradient"]),
            (without_a_hook, ["is called before there is a gradient"]),
            (all_of_them_in_each, ["a hook asks for a gradient that is not there yet"]),
            (under_another_name, ["`.grad` is the sum over the ranks, and not the mean"]),
            (only_rank_0_divides, ["rank 0 has the mean, others the sum"]),
            (hooks_the_network, ["raised AttributeError"]),
            (the_other_hook, ["raised TypeError", "in average"]),
            (the_other_hook_divides_first, ["raised AttributeError"]),
            (the_other_hook_uses_what_comes_back, ["raised TypeError"]),
            (the_loops_last, ["the last parameter's gradient is averaged twice, and the first one's never"]),
            (only_the_last, ["the first parameter is each rank's own"]),
            (gives_it_back, ["raised RuntimeError"]),
        ],
    },
    "4.9.c": {
        "accepted": [flattened, at_an_offset],
        "wrong": [
            (cut_into_ones, ["on 3 ranks", "raised RuntimeError"]),
            (cut_by_how_many, ["match the broadcast shape"]),
            (divided_by_its_length, ["on 3 ranks", "how many numbers the vector has"]),
            (into_the_weights, ["the weights are changed, and the gradients not"]),
            (all_in_one_number, ["one and the same number"]),
            (stacked, ["on 3 ranks", "equal size"]),
            (all_from_the_beginning, ["each gradient gets what the vector begins with"]),
            (broadcast_in_one, ["all have rank 0's gradients"]),
            (one_number_for_many, ["on 3 ranks", "each gradient got one number"]),
            (takes_what_comes_back, ["raised TypeError"]),
            (all_at_once, ["raised TypeError"]),
        ],
    },
    "4.9.d": {
        "accepted": [by_class, in_copies, waits_twice],
        "wrong": [
            (kept, ["a second step divides once more"]),
            (divided_before_it_came_on_rank_0, ["changed too early"]),
            (divided_before_it_came, ["changed before its sum has come"]),
            (waits_for_the_last, ["only one message is waited for"]),
            (not_waited_for, ["nobody waits for the messages"]),
            (emptied_by_assignment, ["raised UnboundLocalError"]),
            (hooked_to_nothing, ["nothing is sent"]),
            (called_finish, ["nothing came back"]),
            (the_loops_last_sent, ["the last parameter's gradient is sent twice"]),
            (gives_what_was_sent, ["a list comes back, and no function"]),
            (wants_an_argument, ["missing 1 required positional argument"]),
            (the_other_hook_in_the_background, ["raised TypeError"]),
        ],
    },
    "4.9.e": {
        "accepted": [early_return, callable_switch, read_in_forward],
        "wrong": [
            (no_switch_back, ["raised TypeError"]),
            (asked_once, ["it sends although the switch is off", "asked once, when hooking"]),
            (another_switch_back, ["the hook asks another dictionary than the one that comes back"]),
            (two_dictionaries, ["the hook asks another dictionary than the one that comes back"]),
            (asks_for_the_dictionary, ['goes on when its "send" is False']),
            (asks_whether_it_has_the_key, ['goes on when its "send" is False']),
            (keeps_what_was_in_it, ["asked once, when hooking", "no hook asks it"]),
            (never_asked, ["or never, and no hook asks it"]),
            (turns_itself_on, ["as where a hook turns it on again"]),
            (the_other_hook_with_a_switch, ["raised TypeError"]),
        ],
    },
    "4.9.f": {
        "accepted": [zeros_in_one_message, by_loop],
        "wrong": [
            (asks_for_truth, ["raised RuntimeError", "ambiguous"]),
            (zeros_like_nothing, ["raised TypeError"]),
            (not_put_back, ["does not keep it"]),
            (the_weight_for_none, ["sends its weight"]),
            (the_mean_of_another_name, ["no `.grad` has become the mean"]),
            (no_thought_of_none, ["raised TypeError"]),
        ],
    },
}
