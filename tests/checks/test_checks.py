"""Exercise checks: the four states, what counts as blank, and every registered check against its answers."""

import ast
import functools
import importlib
import inspect
import json
import random
import re
import signal
import time
from pathlib import Path

import cloudpickle
import numpy
import pytest
import torch
import used_ranks

from ddplab import checks, launch, log
from ddplab.checks import CannotCheck, NotFilledIn, NotYet, check, exercise, judge
from ddplab.checks.common import ASKED, on_ranks
from ddplab.checks.turns import TURNS

LESSONS = sorted(path.stem for path in Path(checks.__file__).parent.glob("lesson_*.py"))
for name in LESSONS:
    importlib.import_module(f"ddplab.checks.{name}")
REGISTERED = sorted(checks.EXERCISES)
MISTAKES = [pytest.param(id, row, id=f"{id}-{row[1][:40]}") for id in sorted(TURNS) for row in TURNS[id].mistakes]
NUMBERS = [pytest.param(id, it, id=f"{id}-{it.name}") for id in sorted(ASKED) for it in ASKED[id]]
ANSWERS_FILES = sorted(Path(__file__).parent.glob("answers/lesson_*.py"))


def on_used_ranks_first(test):
    """Run a test of answers on ranks that are used again; where it fails there, on fresh ones, and that counts."""

    @functools.wraps(test)
    def run(request, **given):
        if not (request.config.getoption("--stress") or request.config.getoption("--quick")):
            try:
                with used_ranks.used():
                    return test(**given)
            except (AssertionError, pytest.fail.Exception):
                used_ranks.end()
                for it in TURNS.values():
                    it.known.cache_clear()
        test(**given)

    signature = inspect.signature(test)
    request = inspect.Parameter("request", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    run.__signature__ = signature.replace(parameters=[request, *signature.parameters.values()])
    return run


def answers_to(id):
    name = f"answers.lesson_{'_'.join(id.split('.')[:2])}"
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError:
        pytest.fail(f"exercise {id} has no answers: write tests/checks/{name.replace('.', '/')}.py")
    cloudpickle.register_pickle_by_value(module)  # as for a function defined in a cell
    if id not in module.ANSWERS:
        pytest.fail(f"exercise {id} has no entry in tests/checks/{name.replace('.', '/')}.py")
    ours = {"correct": TURNS[id].right, "blank": unwritten_turn} if id in TURNS else {}
    return ours | module.ANSWERS[id]


def verdict_on(id, answer):
    return judge(id, *answer) if isinstance(answer, tuple) else judge(id, answer)


def name_of(answer):
    code = getattr(answer, "__code__", None)
    return f"{getattr(answer, '__name__', answer)!r}" + (f" of line {code.co_firstlineno}" if code else "")


def unwritten(*_):
    raise NotImplementedError("your code here")


def unwritten_turn(*_): ...


def blank_of(entry):
    """An entry's blank answer. Where it does not say: a function without its lines, or `...` for each value."""
    cloudpickle.register_pickle_by_value(importlib.import_module(__name__))
    right = entry["correct"]
    default = unwritten if inspect.isfunction(right) else (...,) * len(right) if isinstance(right, tuple) else ...
    return entry.get("blank", default)


@pytest.mark.parametrize("id", REGISTERED)
def test_every_exercise_has_its_answers_and_three_mistakes(id):
    """The mistakes of the numbers that an exercise asks for count: each of them is judged below."""
    entry = answers_to(id)
    assert {"correct"} <= entry.keys() <= {"correct", "accepted", "blank", "also blank", "wrong"}
    wrong = entry.get("wrong", [])
    rows = sum(len(it.mistakes) for it in ASKED.get(id, []))
    if id[-1].isalpha():
        rows = len(TURNS[id].mistakes) if id in TURNS else 0
        assert len(entry.get("accepted", [])) >= 2, f"your turn {id} has fewer than two other right answers"
    assert len(wrong) + rows >= (5 if id[-1].isalpha() else 3), f"exercise {id} has too few wrong answers"
    for _, words in wrong:
        assert words, f"exercise {id}: name the words that the message must contain"


@pytest.mark.parametrize("id", REGISTERED)
@on_used_ranks_first
def test_right_answers_are_correct_and_blanks_are_blank(id):
    """`accepted` and `also blank` hold what is judged as `correct` and `blank` are; an entry may lack both.

    A turn's blank, and our way beside it, are judged where they stand: in the lesson.
    """
    entry = answers_to(id)
    correct, blank = ([], []) if id in TURNS else ([entry["correct"]], [blank_of(entry)])
    for answer in [*correct, *entry.get("accepted", [])]:
        verdict = verdict_on(id, answer)
        assert verdict.state in (checks.CORRECT, checks.CANNOT_CHECK), f"{name_of(answer)}: {verdict}"
    for answer in [*blank, *entry.get("also blank", [])]:
        verdict = verdict_on(id, answer)
        assert verdict.state == checks.BLANK, f"{name_of(answer)}: {verdict}"


@pytest.mark.parametrize("id", REGISTERED)
@on_used_ranks_first
def test_each_mistake_is_named(id):
    for answer, words in answers_to(id).get("wrong", []):
        verdict = verdict_on(id, answer)
        if verdict.state == checks.CANNOT_CHECK:
            continue
        assert verdict.state == checks.NOT_YET, str(verdict)
        missing = [word for word in words if word not in verdict.message]
        assert not missing, f"{name_of(answer)}: {missing} not in: {verdict.message}"


@pytest.mark.parametrize(("id", "asked"), NUMBERS)
def test_each_row_of_a_numbers_mistakes_is_told(id, asked):
    """All answers are right but this one. A row that another one, or the right answer, stands before would not be."""
    right, names = answers_to(id)["correct"], list(inspect.signature(checks.EXERCISES[id].judge).parameters)

    def told(value):
        return verdict_on(id, tuple(value if name == asked.name else it for name, it in zip(names, right, strict=True)))

    taken = {asked.wanted, *(wrong for wrong, _, _ in asked.mistakes)}
    unexpected = next(n for n in range(1, 100) if all(abs(n - other) > 0.5 for other in taken))
    for value, what, hint in [*asked.mistakes, (unexpected, "that is not it", asked.otherwise)]:
        verdict = told(value)
        assert verdict.state == checks.NOT_YET, f"{value} is told as: {verdict}"
        assert verdict.message.startswith(f"`{asked.name}` is ") and verdict.message.endswith(f": {what}"), verdict
        assert verdict.hint == hint, verdict
    assert re.search(f"`{asked.name}`.* not a (whole )?number", told("lost").message)
    assert told(...).state == checks.BLANK


@pytest.mark.parametrize(("id", "row"), MISTAKES)
@on_used_ranks_first
def test_each_row_of_a_turns_mistakes_is_told(id, row):
    """A row that another one stands before, or the right answer, would not be. Each function is run once."""
    wrong, what, hint = row
    with pytest.raises(NotYet) as told:
        TURNS[id].judged(functools.partial(TURNS[id].known, wrong))
    assert str(told.value).endswith(what) and told.value.hint == hint
    if hasattr(wrong, "waits"):
        assert any(it.startswith("waits") for it in told.value.picture.yours.fate.values()), f"{what}: nobody waits"


@pytest.mark.parametrize("path", ANSWERS_FILES, ids=lambda path: path.stem)
def test_no_sample_is_left_unjudged(path):
    """A definition that no key of ANSWERS reaches is an answer that nobody judges."""
    defined = definitions(path)
    reached, ahead = set(), ["ANSWERS"]
    while ahead:
        name = ahead.pop()
        if name in defined and name not in reached:
            reached.add(name)
            ahead += [part.id for node in defined[name] for part in ast.walk(node) if is_name(part, ast.Load)]
    left = [f"{name} (line {defined[name][0].lineno})" for name in defined if name not in reached]
    assert not left, f"{path.name} defines what no key of ANSWERS reaches: {', '.join(left)}"


def definitions(path):
    """What a file defines at its top, each name with the statements that define it."""
    defined = {}
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            defined.setdefault(node.name, []).append(node)
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for part in (part for target in targets for part in ast.walk(target)):
                if is_name(part, ast.Store):
                    defined.setdefault(part.id, []).append(node)
    return defined


def is_name(node, context):
    return isinstance(node, ast.Name) and isinstance(node.ctx, context)


def test_no_answer_is_left_without_its_exercise():
    for path in ANSWERS_FILES:
        extra = importlib.import_module(f"answers.{path.stem}").ANSWERS.keys() - set(REGISTERED)
        assert not extra, f"{path.name} answers exercises that do not exist: {sorted(extra)}"


@pytest.mark.parametrize("id", REGISTERED)
def test_ids_belong_to_their_lesson_and_titles_stand_alone(id):
    found = checks.EXERCISES[id]
    assert found.judge.__module__ == f"ddplab.checks.lesson_{'_'.join(id.split('.')[:2])}"
    assert found.title and found.title[-1] not in ".!"


# The machinery, with exercises of its own.


@pytest.fixture
def made(monkeypatch):
    """Register exercises that end with the test."""
    monkeypatch.setattr(checks, "EXERCISES", dict(checks.EXERCISES))

    def register(function, **options):
        exercise("9.9.1", "A test", **options)(function)
        return lambda *answers, **named: judge("9.9.1", *answers, **named)

    return register


def test_the_four_states_print_one_stable_block_each(made, capsys):
    def judged(answer):
        if answer == "wrong":
            raise NotYet("2 and 2 is not 5", hint="Count again.")
        if answer == "far":
            raise CannotCheck("there is no GPU here")
        print("not shown")

    made(judged)
    for answer in ("right", "wrong", "far", ...):
        assert check("9.9.1", answer) is None
    assert capsys.readouterr().out == (
        "exercise 9.9.1, A test: correct\n"
        "exercise 9.9.1, A test: not yet: 2 and 2 is not 5\n"
        "  hint: Count again.\n"
        "exercise 9.9.1, A test: cannot check here: there is no GPU here\n"
        "exercise 9.9.1, A test: not filled in yet\n"
    )


def unfinished():
    raise NotImplementedError("your code here")


@pytest.mark.parametrize("answer", [..., [1, ...], {"a": ...}, (1, [...])], ids=repr)
def test_an_ellipsis_anywhere_is_blank(made, answer):
    assert made(lambda answer: None)(answer).state == checks.BLANK


def test_none_is_blank_only_where_the_exercise_says_so(made):
    assert made(lambda answer: None)(None).state == checks.CORRECT
    assert made(lambda answer: None, none_is_blank=True)(None).state == checks.BLANK


def test_unfinished_code_is_blank_in_the_kernel_and_in_a_rank(made):
    assert made(lambda answer: answer())(unfinished).state == checks.BLANK
    in_a_rank = made(lambda answer: launch(answer, quiet=True))
    cloudpickle.register_pickle_by_value(importlib.import_module(__name__))
    assert in_a_rank(unfinished).state == checks.BLANK
    assert made(lambda answer: (_ for _ in ()).throw(NotFilledIn))(1).state == checks.BLANK


def test_torchs_own_not_implemented_is_a_mistake(made):
    verdict = made(lambda model: model(torch.zeros(1)))(torch.nn.Module())
    assert verdict.state == checks.NOT_YET and "missing the required" in verdict.message


def test_a_lazy_answer_may_not_exist_yet(made):
    ask = made(lambda answer: None, lazy=True)
    assert ask(lambda: not_there).state == checks.BLANK  # noqa: F821
    assert ask(lambda: 3).state == checks.CORRECT
    assert ask(lambda: ...).state == checks.BLANK


def test_a_misspelt_name_inside_an_answer_is_a_mistake(made):
    verdict = made(lambda answer: answer())(lambda: not_there)  # noqa: F821
    assert verdict.state == checks.NOT_YET and "NameError: name 'not_there' is not defined" in verdict.message


def test_an_exception_is_told_with_its_place(made):
    def learner():
        return 1 / 0

    verdict = made(lambda answer: answer())(learner)
    line = learner.__code__.co_firstlineno + 1
    assert (
        verdict.message
        == f"your code raised ZeroDivisionError: division by zero (line {line}, in learner: `return 1 / 0`)"
    )


def test_an_exception_in_a_rank_is_told_with_its_rank_and_place(made):
    cloudpickle.register_pickle_by_value(importlib.import_module(__name__))

    def learner():
        import torch.distributed as dist

        return 1 / (1 - dist.get_rank())

    verdict = made(lambda answer: launch(answer, quiet=True))(learner)
    line = learner.__code__.co_firstlineno + 3
    expected = f"your code, on rank 1, raised ZeroDivisionError: division by zero (line {line}, in learner)"
    assert verdict.message == expected


def test_a_hang_is_told(made):
    def learner():
        import torch.distributed as dist

        if dist.get_rank() == 0:
            dist.barrier()
        else:
            import time

            time.sleep(60)

    verdict = made(lambda answer: on_ranks(answer, size=2, waiting="All ranks come.", patience=2))(learner)
    assert verdict.state == checks.NOT_YET and "your ranks never finished" in verdict.message
    assert "hint: All ranks come." in str(verdict)


def test_a_check_that_stumbles_itself_does_not_blame_the_learners_code(made):
    judged = eval(compile("lambda answer: answer + 1", checks.__file__, "eval"))  # as if written in ddplab.checks
    verdict = made(judged)("three")
    assert verdict.state == checks.NOT_YET and "could not use your answer, it met TypeError" in verdict.message


def test_sys_exit_is_told(made):
    assert "sys.exit(3)" in made(lambda answer: answer())(lambda: exit(3)).message


def test_an_interrupt_passes(made):
    def judged(answer):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        made(judged)(1)


@pytest.mark.parametrize("interrupt", [signal.default_int_handler, signal.SIG_IGN], ids=["heard", "ignored"])
@pytest.mark.parametrize("on", ["the notebook", "ranks"])
def test_an_answer_that_does_not_end_is_stopped_and_told(made, monkeypatch, request, on, interrupt):
    before = signal.signal(signal.SIGINT, interrupt)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))

    def endless():
        while True:
            time.sleep(0.1)
            if on == "ranks":
                log(busy=1)  # which counts as progress, so that launch's own limit does not apply

    monkeypatch.setattr(checks, "LIMIT", 2.0)
    verdict = made(lambda answer: launch(answer, nproc_per_node=2) if on == "ranks" else answer())(endless)
    assert verdict.message == "your code had not ended after 2 seconds, and was stopped"
    assert signal.getsignal(signal.SIGALRM) == signal.SIG_DFL


@pytest.mark.parametrize("how", ["log", "print"])
def test_an_answer_that_writes_without_end_is_stopped_and_told(made, monkeypatch, how):
    def endless():
        while True:
            log(left=1) if how == "log" else print("left")

    monkeypatch.setattr(checks, "WRITTEN", 100_000)
    verdict = made(lambda answer: launch(answer, nproc_per_node=2))(endless)
    assert verdict.message == "your code logs or prints without end: more than 100,000 bytes"


@pytest.mark.parametrize(("answers", "named"), [((), {}), ((1, 2), {}), ((), {"wrong": 1})])
def test_a_call_with_the_wrong_arguments_says_how(made, answers, named):
    verdict = made(lambda first: None)(*answers, **named)
    assert verdict.state == checks.NOT_YET and verdict.hint == 'Call it as check("9.9.1", first).'


@pytest.mark.parametrize("id", ["1.1.77", "9.9.1", "nonsense", 9.2])
def test_an_unknown_id_says_so(id, capsys):
    check(id, 1)
    out = capsys.readouterr().out
    assert out.startswith(f"exercise {id}: no such exercise: ") and "1.1.1" in out


def test_the_random_state_is_left_alone(made):
    def judged(answer):
        torch.manual_seed(3), random.seed(3), numpy.random.seed(3)

    torch.manual_seed(0), random.seed(0), numpy.random.seed(0)
    expected = torch.rand(3).tolist(), random.random(), numpy.random.rand()
    torch.manual_seed(0), random.seed(0), numpy.random.seed(0)
    made(judged)(1)
    assert (torch.rand(3).tolist(), random.random(), numpy.random.rand()) == expected


def test_drawing_what_is_wanted_prints_nothing_and_leaves_the_random_state_alone(made, capsys):
    def blank():
        print("3 virtual GPUs"), torch.manual_seed(3)

    torch.manual_seed(0)
    expected = torch.rand(3).tolist()
    torch.manual_seed(0)
    assert made(lambda answer: None, blank=blank)(...).state == checks.BLANK
    assert torch.rand(3).tolist() == expected and capsys.readouterr().out == ""


def test_the_report_has_one_line_a_check(made, tmp_path, monkeypatch, capsys):
    def judged(answer):
        if not answer:
            raise NotYet("wrong", hint="try")

    made(judged)
    monkeypatch.setenv("DDPLAB_REPORT", str(tmp_path / "report"))
    check("9.9.1", True)
    check("9.9.1", False)
    lines = [json.loads(line) for line in (tmp_path / "report").read_text().splitlines()]
    assert lines == [
        {"id": "9.9.1", "title": "A test", "state": "correct", "message": "", "hint": ""},
        {"id": "9.9.1", "title": "A test", "state": "not yet", "message": "wrong", "hint": "try"},
    ]
