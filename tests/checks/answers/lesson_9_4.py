"""Answers to the turn of lesson 9.4; most of its mistakes are rows in ddplab/checks/lesson_9_4.py."""


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


def the_rows_themselves(self, rows):
    self.pages.append(rows)


def a_name_of_its_own(self, rows):
    self.rows = len(rows)


ANSWERS = {
    "9.4.a": {
        "accepted": [by_gpu, one_page_a_row, by_the_rows_place, extended],
        "wrong": [
            (a_new_list, ["each replica notes it for itself"]),
            (a_new_buffer, ["each replica notes it for itself"]),
            (under_one_key, ["the rows of one replica are kept"]),
            (the_rows_themselves, ["only one element"]),
            (a_name_of_its_own, ["your module knows of no row"]),
        ],
    },
}
