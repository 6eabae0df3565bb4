"""Answers to the turn of lesson 9.4; most of its mistakes are rows in ddplab/checks/lesson_9_4.py."""

import threading


def by_gpu(self, rows):
    self.seen[rows.device] = len(rows)


def one_page_a_row(self, rows):
    self.pages += [1] * len(rows)


def by_the_rows_place(self, rows):
    self.seen[rows.get_device()] = rows.shape[0]


def extended(self, rows):
    self.pages.extend([len(rows)])


def a_new_list(self, rows):
    self.pages = [*self.pages, len(rows)]


def a_new_buffer(self, rows):
    self.buffer = self.buffer + len(rows)


def under_one_key(self, rows):
    self.seen["rows"] = len(rows)


def read_then_written(self, rows):
    self.seen["n"] = self.seen.get("n", 0) + len(rows)


def looked_up_then_written(self, rows):
    if "n" not in self.seen:
        self.seen["n"] = 0
    self.seen["n"] += len(rows)


def all_pages_anew(self, rows):
    self.pages[:] = [*self.pages, len(rows)]


def read_of_its_own(self, rows):
    self.seen[rows.device] = self.seen.get(rows.device, 0) + len(rows)


ONE_AT_A_TIME = threading.Lock()


def under_a_lock(self, rows):
    with ONE_AT_A_TIME:
        self.seen["n"] = self.seen.get("n", 0) + len(rows)


def the_rows_themselves(self, rows):
    self.pages.append(rows)


def a_name_of_its_own(self, rows):
    self.rows = len(rows)


def under_the_next_number(self, rows):
    self.seen[len(self.seen)] = len(rows)


ANSWERS = {
    "9.4.a": {
        "accepted": [by_gpu, one_page_a_row, by_the_rows_place, extended, read_of_its_own, under_a_lock],
        "wrong": [
            (a_new_list, ["each replica notes it for itself"]),
            (a_new_buffer, ["each replica notes it for itself"]),
            (under_one_key, ["the rows of one replica are kept"]),
            (read_then_written, ["the rows of one replica are kept"]),
            (under_the_next_number, ["the rows of one replica are kept"]),
            (looked_up_then_written, ["the rows of one replica are kept"]),
            (all_pages_anew, ["the rows of one replica are kept"]),
            (the_rows_themselves, ["only one element"]),
            (a_name_of_its_own, ["your module knows of no row"]),
        ],
    },
}
