"""`why` is held to what people pasted into public threads: most lead to the right entry, none surely to a wrong one."""

import io
import tomllib
from functools import cache
from pathlib import Path

import pytest

from ddplab.errors import find
from ddplab.errors.book import entries

HERE = Path(__file__).parent
RIGHT = 7 / 8  # of the messages; 70 of 80
CONFIDENT = "and is sure of it"


@cache
def rows(book: str) -> list[dict]:
    return tomllib.loads((HERE / book).read_text(encoding="utf-8"))["thread"]


@cache
def paste(file: str) -> bytes:
    return (HERE / "threads" / file).read_bytes()


def answered(data: bytes) -> tuple[str, bool]:
    """The name of the entry that answers, "unknown" where none does, and whether it is sure."""
    answer = find.answer(io.BytesIO(data))
    return answer.entry.name if answer.entry else "unknown", answer.sure


@pytest.mark.parametrize("book", ["threads.toml", "held_out.toml"])
def test_most_are_right_and_none_is_wrong_with_confidence(book):
    missed = []
    for row in rows(book):
        name, sure = answered(paste(row["file"]))
        if name not in row["expected"]:
            end = f", {CONFIDENT}" if sure else ""
            missed.append(f"{row['file']}: {name}, not {' or '.join(row['expected'])}{end}")
    print(f"{book}: {len(rows(book)) - len(missed)} of {len(rows(book))}", *missed, sep="\n  ")
    assert len(missed) <= (1 - RIGHT) * len(rows(book)), missed
    assert not [miss for miss in missed if miss.endswith(CONFIDENT)]


def coloured(text: str) -> str:
    return "".join(f"\x1b[31m{line}\x1b[0m\n" for line in text.splitlines())


def after_much(text: str) -> str:
    return "".join(f"epoch 0, step {step}, loss 0.69\n" for step in range(500)) + text


def cut_off(text: str) -> str:
    last = text.rstrip().splitlines()[-1]
    return text.rstrip()[: -len(last) // 8] if len(text) > 80 else text


OUTFITS = {
    "Windows line ends": lambda text: text.replace("\r\n", "\n").replace("\n", "\r\n"),
    "colours": coloured,
    "after a long log": after_much,
    "cut off at the end": cut_off,
}


@pytest.mark.parametrize("outfit", OUTFITS)
def test_the_outfit_of_a_message_does_not_matter(outfit):
    other = []
    for row in rows("threads.toml"):
        text = paste(row["file"]).decode()
        plain, _ = answered(text.encode())
        name, sure = answered(OUTFITS[outfit](text).encode())
        if name != plain and (sure or not outfit.startswith("cut")):
            other.append(f"{row['file']}: {name}, while plain it is {plain}")
    assert not other


def test_a_log_of_two_ranks_answers_for_the_one_that_failed():
    own = b"[rank1]: RuntimeError: CUDA error: invalid device ordinal\n"
    follower = b"[rank0]: RuntimeError: [pair.cc:534] Connection closed by peer [127.0.0.1]:38032\n"
    for log in (follower + own, own + follower):
        answer = find.answer(io.BytesIO(log))
        assert (answer.entry.name, answer.first, list(answer.followed)) == ("invalid-device-ordinal", 1, [0])


def test_ranks_that_say_the_same_do_not_follow_and_the_line_of_the_script_is_named():
    trace = """[rank{0}]: Traceback (most recent call last):
[rank{0}]:   File "/home/me/train.py", line 7, in step
[rank{0}]:     net.load_state_dict(saved)
[rank{0}]:   File "/env/lib/python3.11/site-packages/torch/nn/modules/module.py", line 2629, in load_state_dict
[rank{0}]:     raise RuntimeError(
[rank{0}]: RuntimeError: Error(s) in loading state_dict for Linear:
[rank{0}]: 	Unexpected key(s) in state_dict: "module.weight", "module.bias". 
"""
    answer = find.answer(io.BytesIO((trace.format(1) + trace.format(0)).encode()))
    assert (answer.entry.name, answer.alike, answer.followed) == ("module-prefix", [0, 1], {})
    assert answer.event.place == "train.py, line 7, in step"


def test_each_row_names_its_thread_and_entries_that_exist():
    everything = rows("threads.toml") + rows("held_out.toml")
    assert {row["file"] for row in everything} == {path.name for path in (HERE / "threads").iterdir()}
    for row in everything:
        assert row["link"].startswith("https://github.com/") and row["cause"].endswith(".")
        assert set(row["expected"]) <= {"unknown", *entries()}
    assert len({row["link"] for row in everything}) == len(everything)
