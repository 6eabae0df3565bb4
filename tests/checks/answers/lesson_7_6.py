"""Answers to the turns of lesson 7.6: other right ones, and mistakes that people make."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks


def normalised(matrix, row):
    column = F.normalize(matrix @ row, dim=0)
    return column, column @ matrix


def by_einsum(matrix, row):
    column = torch.einsum("ij,j->i", matrix, row)
    column /= column.square().sum().sqrt()
    return [column, torch.einsum("ij,i->j", matrix, column)]


def without_transposing(matrix, row):
    column = matrix @ row
    column = column / column.norm()
    return column, matrix @ column


def kept_a_matrix(matrix, row):
    column = (matrix * row).sum(dim=1, keepdim=True)
    column = column / column.norm()
    return column, matrix.T @ column


def of_two_dimensions(matrix, row):
    column = matrix @ row.reshape(-1, 1)
    column = column / column.norm()
    return column, column.T @ matrix


def only_the_row_is_a_matrix(matrix, row):
    column = matrix @ row
    column = column / column.norm()
    return column, column[None, :] @ matrix


def multiplied_by_place(matrix, row):
    column = matrix * row / (matrix * row).norm()
    return column, matrix.T @ column


def in_the_gradient(gradient, lost, squeeze):
    gradient += lost
    sent = squeeze(gradient)
    gradient -= sent
    return sent, gradient


def one_at_a_time(gradient, lost, squeeze):
    whole = lost.clone()
    whole += gradient
    going = squeeze(whole)
    return [going, whole.sub(going)]


def in_place(gradient, lost, squeeze):
    lost += gradient
    sent = squeeze(lost)
    lost -= sent
    return sent, lost


def rounded_again(state, bucket):
    numbers = bucket.buffer().to(torch.bfloat16)
    future = dist.all_reduce(numbers, async_op=True).get_future()
    return future.then(lambda done: done.value()[0] / dist.get_world_size())


def as_torch_has_it(state, bucket):
    return default_hooks.bf16_compress_hook(state, bucket)


def waited_for(state, bucket):
    numbers = bucket.buffer().bfloat16() / dist.get_world_size()
    dist.all_reduce(numbers)
    future = torch.futures.Future()
    future.set_result(numbers.float())
    return future


def asks_and_waits(state, bucket):
    numbers = bucket.buffer().bfloat16() / dist.get_world_size()
    work = dist.all_reduce(numbers, async_op=True)
    work.wait()
    return work.get_future().then(lambda done: done.value()[0].float())


def waits_for_the_future(state, bucket):
    future = dist.all_reduce(bucket.buffer().bfloat16() / dist.get_world_size(), async_op=True).get_future()
    numbers = future.wait()[0].float()
    return future.then(lambda done: numbers)


def waits_for_what_has_come(state, bucket):
    future = dist.all_reduce(bucket.buffer().bfloat16() / dist.get_world_size(), async_op=True).get_future()
    return future.then(lambda done: done.wait()[0].float())


def returns_a_tensor(state, bucket):
    numbers = bucket.buffer().bfloat16() / dist.get_world_size()
    dist.all_reduce(numbers)
    return numbers.float()


def returns_a_list(state, bucket):
    numbers = bucket.buffer().bfloat16() / dist.get_world_size()
    return dist.all_reduce(numbers, async_op=True).get_future().then(lambda done: done.value())


def divides_the_list(state, bucket):
    future = dist.all_reduce(bucket.buffer().bfloat16(), async_op=True).get_future()
    return future.then(lambda done: done.value() / dist.get_world_size())


def the_messages_own(state, bucket):
    return dist.all_reduce(bucket.buffer().bfloat16(), async_op=True).get_future()


def by_avg(state, bucket):
    work = dist.all_reduce(bucket.buffer().bfloat16(), dist.ReduceOp.AVG, async_op=True)
    return work.get_future().then(lambda done: done.value()[0].float())


ANSWERS = {
    "7.6.a": {
        "accepted": [rounded_again, as_torch_has_it, by_avg, waits_for_what_has_come],
        "wrong": [
            (returns_a_tensor, ["wants a future", "Tensor"]),
            (waited_for, ["the hook waits for its message"]),
            (asks_and_waits, ["waits for its message"]),
            (waits_for_the_future, ["waits for its message"]),
            (the_messages_own, ["wants a future of a tensor", "list"]),
            (divides_the_list, ["met RuntimeError: TypeError: unsupported operand"]),  # without torch's wrapping
            (returns_a_list, ["wants a future of a tensor", "list"]),
        ],
    },
    "7.6.b": {
        "accepted": [normalised, by_einsum],
        "wrong": [
            (without_transposing, ["2 rows of 3 raised"]),
            (kept_a_matrix, ["matrices of one column"]),
            (of_two_dimensions, ["a matrix of one column and one of one row"]),
            (only_the_row_is_a_matrix, ['"shape (1, 2)"']),
            (multiplied_by_place, ["no column, but a matrix"]),
        ],
    },
    "7.6.c": {"accepted": [one_at_a_time, in_place, in_the_gradient]},
}
