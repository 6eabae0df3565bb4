"""Your turn: what counts as blank, what is drawn, and what is said to an answer that nobody expected."""

import importlib
import time

import cloudpickle
import pytest
import torch
import torch.distributed as dist

from ddplab import checks
from ddplab.checks import judge, turns
from ddplab.checks.turns import says_nothing, turn
from ddplab.hardware import device


@pytest.fixture
def made(monkeypatch):
    """Register a turn that ends with the test: each rank is to hold everybody's mean, and 7."""
    monkeypatch.setattr(checks, "EXERCISES", dict(checks.EXERCISES))
    monkeypatch.setattr(turns, "TURNS", dict(turns.TURNS))
    cloudpickle.register_pickle_by_value(importlib.import_module(__name__))

    def register(right=mean, ranks=(2,), given=lambda rank, size: (torch.tensor([float(rank), 7.0]),), **options):
        mistakes = [(total, "every rank holds the sum", "What makes a mean of a sum?"),
                    (turns.waiting(lambda x: only_rank_0(x)), "rank 0 waits for the others",
                     "A collective needs all.")]  # fmt: skip
        options = {"otherwise": "", **options}
        turn("9.9.a", "A mean", right, given, mistakes, ranks=ranks, heads=("mean", "seven"), **options)
        return lambda answer: judge("9.9.a", answer)

    return register


def total(x):
    dist.all_reduce(x[:1])


def mean(x):
    total(x)
    x[0] /= dist.get_world_size()


def only_rank_0(x):
    if dist.get_rank() == 0:
        total(x)


def eight(x):
    mean(x)
    x[1] = 8


def other_place(x):
    raise KeyError("weight")


# What the holes of the lessons look like


def blank(x):
    # your turn: 1 line. Make it a mean
    ...


def blank_before_a_return(x):
    y = x + 1
    # your turn: 1 line. Make it a mean
    ...
    return y


def blank_after_a_docstring(x):
    """Make it a mean."""
    ...


def blank_inside_a_text():
    return """
    # your turn: 1 line of a file
    ...
    """


def on_one_line(x): ...


class WithABlankMethod:
    def __init__(self):
        self.n = 1

    def step(self, x):
        # your turn: 1 line
        ...


def written_above(x):
    mean(x)
    ...


def written_below(x):
    # your turn: 1 line. Make it a mean
    ...
    mean(x)


def an_ellipsis_for_an_index(x):
    return x[..., 0]


def written(x):
    mean(x)


BLANK = [blank, blank_before_a_return, blank_after_a_docstring, blank_inside_a_text, on_one_line, WithABlankMethod]


@pytest.mark.parametrize("answer", BLANK, ids=lambda it: it.__name__)
def test_an_untouched_hole_is_blank(answer):
    assert says_nothing(answer)


@pytest.mark.parametrize("answer", [written, written_above, written_below, an_ellipsis_for_an_index, len])
def test_a_written_line_is_an_answer_wherever_the_ellipsis_was_left(answer):
    assert not says_nothing(answer)


def test_a_blank_draws_what_is_wanted(made):
    verdict = made()(blank)
    assert verdict.state == checks.BLANK
    assert str(verdict.picture).splitlines() == [
        "  wanted",
        "            mean  seven",
        "    rank 0  0.5   7",
        "    rank 1  0.5   7",
    ]


def test_what_was_left_stands_beside_what_is_wanted_and_each_wrong_cell_is_marked(made):
    verdict = made()(total)
    assert (verdict.message, verdict.hint) == ("every rank holds the sum", "What makes a mean of a sum?")
    assert str(verdict.picture).splitlines()[4:] == [
        "  yours",
        "            mean  seven",
        "    rank 0  ✗ 1   7",
        "    rank 1  ✗ 1   7",
    ]
    assert verdict.picture._repr_html_().count("<b style=") == 2 and "✗ 1</b>" in verdict.picture._repr_html_()


def test_an_unexpected_answer_is_told_by_its_first_wrong_cell(made):
    verdict = made(otherwise="Look at the second number.")(eight)
    assert verdict.message == "rank 0: seven is 8, and should be 7" and verdict.hint == "Look at the second number."


def test_an_unexpected_answer_is_told_how_its_numbers_relate_to_those_wanted(made):
    def mirrored(x):
        mean(x)
        x.neg_()

    told = made()(mirrored).message
    assert told == "rank 0: mean is -0.5, and should be 0.5: every number is minus what is wanted"


def test_an_answer_that_returns_nothing_at_times_is_told_so(made):
    cases = {str(n): lambda n=n: (n,) for n in (1, 2)}
    asked = made(right=lambda n: n, ranks=(), given=cases, look=lambda it, *_: it)
    verdict = asked(lambda n: n if n == 1 else None)
    assert verdict.message.startswith("2: mean is None") and "on each way" in verdict.hint
    verdict = asked(lambda n: None)
    assert "on each way" not in verdict.hint


def test_a_number_is_told_by_the_argument_that_it_is_off_by(made):
    cases = {f"{size} by {ranks}": lambda size=size, ranks=ranks: (size, ranks) for size, ranks in ((12, 4), (30, 3))}
    asked = made(right=lambda size, ranks: size / ranks, ranks=(), given=cases, look=lambda it, *_: it)
    told = {
        asked(lambda size, ranks: size / ranks / ranks).message.split(": ", 2)[2]: "divided once more",
        asked(lambda size, ranks: size / 4).message.split(": ", 2)[2]: "one row alone is off",
        asked(lambda size, ranks: ranks / size).message.split(": ", 2)[2]: "swapped",
    }
    assert told == {
        "each wrong number is what is wanted, divided by `ranks`": "divided once more",
        "only “12 by 4” is right": "one row alone is off",
        "it is what is right with `size` and `ranks` swapped": "swapped",
    }


def test_what_stands_under_no_head_of_its_own_is_numbered_within_the_one_before_it(made):
    asked = made(right=lambda x: [1, 7, 8], ranks=(), given={"one": lambda: (1,)}, look=lambda it, *_: it)
    assert asked(lambda x: [1, 7, 9]).message == "one: number 2 of seven is 9, and should be 8"
    assert asked(lambda x: [2, 7, 8]).message == "one: mean is 2, and should be 1"


def test_further_words_that_are_wrong_are_told_too(made):
    asked = made(right=lambda x: ["there", "ends well"], ranks=(), given={"one": lambda: (1,)}, look=lambda it, *_: it)
    told = asked(lambda x: ["elsewhere", "fails: KeyError"]).message
    assert told == 'one: mean is elsewhere, and should be there; seven: "fails: KeyError"'


def test_an_answer_that_changes_nothing_is_told_so(made):
    def pointless(x):
        x + 1

    assert made()(pointless).message == "everything is as it was"


def test_what_is_said_in_words_stands_in_quotation_marks(made):
    asked = made(right=lambda x: "as on all", ranks=(), given={"one": lambda: (1,)})
    assert asked(lambda x: "on rank 0").message == 'one: mean is "on rank 0", and should be "as on all"'


def test_an_error_that_any_lesson_may_meet_has_a_hint(made):
    def divided(x):
        x[0] = dist.all_reduce(x) / 2

    verdict = made(otherwise="Look again.")(divided)
    assert "NoneType" in verdict.message and "all_reduce" in verdict.hint


@pytest.mark.parametrize(
    ("mistake", "hint"),
    [
        (lambda x: x.mean().item().backward(), "`item()`"),
        (lambda x: x.ndim(), "parentheses"),
        (lambda x: x.all_reduce(), "`dist.all_…(t)`"),
        (lambda x: torch.ones(2, device=device), "`device()`"),
        (lambda x: sum(3), "one number"),
        (lambda x: torch.cat(x for _ in range(2)), "in one list"),
        (lambda x: sum(it.nbytes for it in {"one": x}), "`.values()`"),
        (lambda x: x.mean(dim=0, where=x > 0), "no argument of that name"),
        (lambda x: x.sum("rows"), "no such arguments"),
        (lambda x: (x + 1 for _ in range(2)).sum(), "`list(…)`"),
    ],
)  # fmt: skip
def test_an_error_of_pythons_has_a_hint(made, mistake, hint):
    asked = made(ranks=(), given={"one": lambda: (torch.ones(2, requires_grad=True),)}, right=lambda x: 2 * x)
    assert hint in asked(mistake).hint


def test_who_has_done_its_part_waits_for_the_others_and_not_in_a_call_of_ours():
    def told_to_one_only(x):
        if dist.get_rank() == 0:
            dist.send(x, 1)
        else:
            dist.recv(x, 0)

    waits = f"waits in recv from rank 0, line {told_to_one_only.__code__.co_firstlineno + 4}, in told_to_one_only"
    fate = judge("4.8.c", told_to_one_only).picture.yours.fate  # what is wanted there is looked at with a gather
    done = "waits for the others"
    assert fate == {"rank 2": waits, "rank 3": waits, "rank 0": done, "rank 1": done}


def test_where_nobody_expected_it_the_rank_that_is_waited_for_is_told_and_what_it_does(made):
    def both_send(x):
        dist.send(x, 1 - dist.get_rank())

    def one_sends(x):
        if dist.get_rank() == 0:
            dist.send(x, 1)

    def each_names_itself(x):
        dist.broadcast(x, src=dist.get_rank())

    asked, line = made(), both_send.__code__.co_firstlineno + 1
    here = f"line {line}, in both_send"
    assert asked(both_send).message == f"rank 0 waits in send to rank 1, {here}; rank 1 waits in send to rank 0, {here}"
    alone = f"line {line + 4}, in one_sends"
    assert asked(one_sends).message == f"rank 0 waits in send to rank 1, {alone}; rank 1 has ended"
    assert "broadcast from rank 0" in str(told := asked(each_names_itself).picture) and "from rank 1" in str(told)


def test_of_a_line_in_a_helper_it_is_said_whose_it_is(made):
    def helper(x):
        dist.send(x, 1)

    def asks_a_helper(x):
        helper(x) if dist.get_rank() == 0 else None

    assert f"line {helper.__code__.co_firstlineno + 1}, in helper" in made()(asks_a_helper).message


def test_who_sends_without_end_is_not_taken_for_making_progress(made, monkeypatch):
    def without_end(x):
        while True:
            dist.send(x, 1) if dist.get_rank() == 0 else dist.recv(x, 0)

    monkeypatch.setattr(turns, "PATIENCE", 1.0)
    monkeypatch.setattr(checks, "LIMIT", 20.0)
    verdict = made()(without_end)
    assert "had not ended" not in verdict.message and "waits in recv from" not in str(verdict.picture)


def test_a_hook_that_gets_a_gradient_and_misses_it_in_grad_has_a_hint_of_its_own():
    def average(p):
        dist.all_reduce(p.grad)

    def on_gradients(net):
        [p.register_hook(average) for p in net.parameters()]

    def called_at_once(net):
        [p.register_post_accumulate_grad_hook(average(p)) for p in net.parameters()]

    def of_what_comes_back(net):
        [p.register_hook(lambda came: dist.all_reduce(came) / 2) for p in net.parameters()]

    told = [judge("4.9.b", it) for it in (on_gradients, called_at_once, of_what_comes_back)]
    assert all("raised TypeError" in it.message for it in told) and "in average" in told[0].message
    starts = ["`register_hook` calls its function with the gradient", "Gradients come", "`dist.all_reduce` changes"]
    assert all(it.hint.startswith(start) for it, start in zip(told, starts, strict=True)), told


def test_an_error_of_torch_distributed_is_told_with_what_it_got(made):
    def of_a_number(x):
        dist.all_reduce(1.0)

    assert "of type torch.Tensor but got <class 'float'> instead." in made()(of_a_number).message


def test_an_error_that_was_caught_elsewhere_is_told_in_its_own_words(made):
    def in_a_thread(x):
        raise OSError("Caught OSError in replica 0 on device 0.\nOriginal Traceback (most recent call last):\n"
                       "  File \"notebook\", line 7, in forward\nOSError: width\n")  # fmt: skip

    asked = made(right=lambda x: 2 * x, ranks=(), given={"one": lambda: (1,)})
    assert asked(in_a_thread).message.startswith("one raised OSError: width (line 7, in forward)")


def test_a_rank_that_waits_is_drawn_with_the_line_where_it_waits(made):
    verdict = made()(only_rank_0)
    line = total.__code__.co_firstlineno + 1
    assert verdict.message == "rank 0 waits for the others"
    assert verdict.picture.yours.fate == {"rank 0": f"waits in all_reduce, line {line}, in total"}
    assert f"… waits in all_reduce, line {line}, in total" in str(verdict.picture)


def test_what_was_raised_is_drawn_and_its_hint_is_found(made):
    verdict = made(hints={"weight": "There is no such name."})(other_place)
    line = other_place.__code__.co_firstlineno + 1
    assert verdict.message == f"rank 0 raised KeyError: 'weight' (line {line}, in other_place)"
    assert verdict.hint == "There is no such name."


def test_what_was_raised_stands_whole_below_the_table_and_its_row_says_the_kind(made):
    def long_winded(x):
        raise ValueError("a & b, " + 30 * "and so on " + "to the end\nof the <second> line")

    picture = made()(long_winded).picture
    assert "✗ raised ValueError" in str(picture) and "to the end" in " ".join(str(picture).split())
    page = picture._repr_html_()
    assert "✗ raised ValueError</b>" in page and page.count("to the end\nof the &lt;second&gt; line</div>") == 1


def test_the_number_of_ranks_is_said_where_there_are_several(made):
    def halved(x):
        total(x)
        x[0] /= 2

    told = made(ranks=(2, 3))(halved)
    assert told.message == "on 3 ranks, rank 0: mean is 1.5, and should be 1; on 2 ranks it was right"
    assert made(ranks=(2, 3))(mean).state == checks.CORRECT


def test_where_our_own_way_does_not_work_nobody_is_blamed(made):
    verdict = made(right=other_place)(mean)
    assert verdict.state == checks.CANNOT_CHECK and "our own way" in verdict.message and "KeyError" in verdict.message


def test_who_is_slow_and_waits_for_nobody_gets_more_time(made, monkeypatch):
    def slow(x):
        time.sleep(1.5)
        mean(x)

    monkeypatch.setattr(turns, "PATIENCE", 0.5)
    assert made()(slow).state == checks.CORRECT


def test_who_is_slow_while_others_wait_for_him_gets_more_time(made, monkeypatch):
    def slow_on_one(x):
        time.sleep(1.4 * dist.get_rank())  # longer than the patience, far within five times it
        mean(x)

    monkeypatch.setattr(turns, "PATIENCE", 1.0)
    assert made()(slow_on_one).state == checks.CORRECT


def test_a_function_of_the_notebook_is_tried_on_each_case(made):
    asked = made(right=lambda x: 2 * x, ranks=(), given={"one": lambda: (1,), "two": lambda: (2,)})
    assert asked(lambda x: x + x).state == checks.CORRECT
    assert asked(lambda x: x + 1).message == "two: mean is 3, and should be 4: only one is right"


def ours(source):
    """A function that counts as ours, as if it were written in ddplab.checks."""
    return eval(compile(source, checks.__file__, "eval"))


def test_what_comes_back_and_is_of_no_use_is_told_and_nobody_is_said_to_have_raised(made):
    look, given = ours("lambda it, _: it.bit_count()"), {"one": lambda: (1,)}
    asked = made(right=lambda x: 2 * x, ranks=(), given=given, look=look, hints={"list": "No."})
    verdict = asked(lambda x: [x, x])
    met = "the check met AttributeError: 'list' object has no attribute 'bit_count'"
    assert (verdict.message, verdict.hint) == (f"one returned a list of 2: {met}", "No.")
    assert "✗ returned a list of 2\n" in str(verdict.picture)
    assert asked(lambda x: None).message.startswith("one raised AttributeError: 'None")
    assert asked(lambda x: x.y).message.startswith("one raised AttributeError: 'int'")


def test_what_is_run_after_it_came_back_is_still_whose_it_is(made):
    asked = made(right=lambda x: [2], ranks=(), given={"one": lambda: (1,)}, look=ours("lambda it, _: [*it]"))
    assert asked(lambda x: (x / 0 for _ in "a")).message.startswith("one raised ZeroDivisionError: division by zero (")


def test_what_comes_back_of_a_rank_and_is_of_no_use_is_told(made):
    asked = made(right=lambda x: x[0], look=ours("lambda it, _: it.item()"))
    told = "rank 0 returned a tuple of 2: the check met AttributeError: 'tuple' object has no attribute 'item'"
    assert asked(lambda x: (x, x)).message == told
    assert asked(lambda x: x.y).message.startswith("rank 0 raised AttributeError: 'Tensor'")


def test_a_mistake_in_which_ranks_wait_is_tried_only_for_an_answer_that_waits(made):
    asked = made()
    tried = turns.TURNS["9.9.a"].known.cache_info
    asked(other_place)
    before = tried().misses
    asked(only_rank_0)
    assert (before, tried().misses) == (2, 3)


def test_a_return_is_asked_for_only_where_nothing_came_back(made):
    asked = made(right=lambda x: 2 * x, ranks=(), given={"one": lambda: (1,)}, otherwise="Look again.")
    assert asked(lambda x: None).hint == "Is there a `return`?"
    assert asked(lambda x: x + 3).hint == "Look again."


def test_a_mistake_that_takes_long_is_tried_for_none_that_leaves_other_words(made):
    tried = []
    given = {"a list": lambda: ([1, 2],)}
    rows = [(turns.leaving("'last'", lambda x: tried.append(x) or "last"), "that is the last", "Which one?")]
    turn("9.9.b", "The first", lambda x: "first", given, rows, otherwise="The first of them.")
    assert (judge("9.9.b", lambda x: "none").hint, tried) == ("The first of them.", [])
    last = judge("9.9.b", lambda x: "last")
    assert "that is the last" in last.message and (last.hint, tried) == ("Which one?", [[1, 2]])


@pytest.mark.parametrize(
    ("fate", "told"),
    [
        ("waits in all_reduce, line 3, in total", "; rank 1 has returned without it"),
        ("waits in send to rank 1, line 3, in total", "; rank 1 has ended"),
    ],
)
def test_of_a_rank_that_is_missed_it_is_told_that_it_has_returned(fate, told):
    left = turns.Left({"rank 0": [], "rank 1": [1.0]}, {"rank 0": fate})
    assert turns._partner(left, "rank 0") == told


def test_a_long_cell_that_is_wrong_breaks_into_lines_and_a_short_one_does_not():
    wanted = turns.Left({"incident 4": ["right", "ends as it should"]})
    yours = turns.Left({"incident 4": ["not there", "all ranks ended with other weights than last night; " * 2]})
    page = turns.Beside(wanted, yours, ("the place", "the job then"))._repr_html_()
    assert page.count("white-space:normal") == 1 and "✗ not there</b>" in page
