"""Answers to the turns of lesson 7.6: other right ones, and mistakes that people make."""

import torch
import torch.nn.functional as F


def shared_out(compute, exposed, images, portions):
    return compute / images + exposed / portions / images


def in_a_loop(compute, exposed, images, portions):
    seconds = exposed
    for _ in range(portions):
        seconds += compute
    return torch.tensor(seconds / portions / images)


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


def without_parentheses(compute, exposed, images, portions):
    return compute * portions + exposed / images / portions


def computed_once(compute, exposed, images, portions):
    return (exposed + compute) / portions / images


def from_left_to_right(compute, exposed, images, portions):
    return (compute * portions + exposed) / portions * images


ANSWERS = {
    "7.6.a": {
        "accepted": [shared_out, in_a_loop],
        "wrong": [
            (without_parentheses, ["what is exposed is divided, and the arithmetic not"]),
            (computed_once, ["`compute` is counted once, and not for each portion"]),
            (from_left_to_right, ["divided by the portions, and then multiplied by the images"]),
        ],
    },
    "7.6.b": {
        "accepted": [normalised, by_einsum],
        "wrong": [
            (without_transposing, ["2 rows of 3 raised"]),
            (kept_a_matrix, ["matrices of one column"]),
            (multiplied_by_place, ["no column, but a matrix"]),
        ],
    },
    "7.6.c": {"accepted": [one_at_a_time, in_place, in_the_gradient]},
}
