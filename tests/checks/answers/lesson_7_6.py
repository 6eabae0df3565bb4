"""Answers to the turns of lesson 7.6: other right ones, and mistakes that people make."""

import torch
import torch.nn.functional as F


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


ANSWERS = {
    "7.6.a": {
        "accepted": [normalised, by_einsum],
        "wrong": [
            (without_transposing, ["2 rows of 3 raised"]),
            (kept_a_matrix, ["matrices of one column"]),
            (multiplied_by_place, ["no column, but a matrix"]),
        ],
    },
    "7.6.b": {"accepted": [one_at_a_time, in_place, in_the_gradient]},
}
