"""Reading logs: whose words they are, who failed first, and that no input brings `why` down."""

import io
import os
import subprocess
import sys
import tracemalloc
from types import SimpleNamespace

import pytest

import ddplab
from ddplab import launch
from ddplab.errors import find, say
from ddplab.errors.book import entries
from ddplab.errors.command import main
from ddplab.pointer import POINTER

UNUSED = "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one."
CLOSED = "RuntimeError: [../gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:13469"
TABLE = """Root Cause (first observed failure):
[0]:
  time      : 2026-01-01_10:00:00
  rank      : 3 (local_rank: 1)
  exitcode  : {} (pid: 30450)
"""


def asked(text, encoding="utf-8"):
    return find.answer(io.BytesIO(text.encode(encoding)))


def log(*lines, before="[rank{}]: "):
    """A log of several ranks: (rank, words) each."""
    trace = "Traceback (most recent call last):"
    return "\n".join(before.format(rank) + line for rank, words in lines for line in (trace, *words.split("\n"))) + "\n"


@pytest.mark.parametrize(
    "before",
    ["[rank{}]: ", "[default{}]:", "[{}]: ", "[{}]:[rank{}]: ", "{}: ", "[1,{}]<stderr>:", "> [rank{}]: "],
)
def test_the_rank_that_raised_leads_and_those_that_lost_it_follow(before):
    before = before.replace("{}", "{0}")
    answer = asked(log((0, CLOSED), (1, UNUSED), (2, CLOSED), before=before))
    assert (answer.entry.name, answer.sure, answer.first) == ("ddp-unused-parameters", True, 1)
    assert set(answer.followed) == {0, 2}
    words = say.text(answer)
    assert "rank 1 failed first" in words and "rank 0 only followed" in words and "lesson 4.2" in words


@pytest.mark.parametrize(
    "dressed",
    [
        lambda text: text.replace("\n", "\r\n"),
        lambda text: f"\x1b[31m{text.replace('finished', chr(27) + '[1mfinished' + chr(27) + '[0m')}",
        lambda text: text.replace("prior iteration", "prior\niteration"),
        lambda text: text.replace("prior iteration", "prior itera\ntion"),
        lambda text: "Epoch 1:  3%|▎ |\r" + text,
        lambda text: text.replace("before starting", "bef"),
        lambda text: "2026-01-01 10:00:00,123 - mmdet - ERROR - " + text,
    ],
)
def test_ends_of_lines_colours_wraps_bars_and_cuts_do_not_hide_it(dressed):
    assert asked(dressed(UNUSED + "\n")).entry.name == "ddp-unused-parameters"


def test_what_powershell_writes_is_read():
    assert asked(UNUSED, "utf-16").entry.name == "ddp-unused-parameters"


def test_an_unknown_error_is_said_to_be_unknown_and_placed_where_torch_raises_it():
    own = say.text(asked(log((1, "ValueError: could not convert string to float: 'n/a'"), (0, CLOSED))))
    assert say.UNKNOWN in own and "rank 1 failed first" in own and "rank 0 only followed" in own
    theirs = say.text(
        asked("ValueError: batch_sampler option is mutually exclusive with batch_size, shuffle, sampler, and drop_last")
    )
    assert say.UNKNOWN in theirs and "torch/utils/data/dataloader.py, line " in " ".join(theirs.split())
    ours = say.text(asked("TypeError: log(step=…) is a number, the position on the axis of the curves, not 'a'"))
    assert "ddplab/worker.py, line " in ours


HALF_A_PAGE = [(name, part) for name, entry in entries().items() for says in entry.says for part in says if says[1:]]
NAMES = ("StopIteration", "MyProblem: broken", "cv2.error: a picture", "IndexError: list index out of range")
UNKNOWN = [*NAMES, "subprocess.CalledProcessError: Command 'ls' returned non-zero exit status 2."]


@pytest.mark.parametrize("words", UNKNOWN)
def test_what_ends_a_traceback_is_never_lost_behind_its_followers(words):
    answer = asked(log((0, CLOSED), (1, f'  File "/me/train.py", line 7, in step\n    go()\n{words}')))
    assert (answer.entry, answer.first, answer.event.text) == (None, 1, words)
    assert answer.event.place == "train.py, line 7, in step" and set(answer.followed) == {0}


def test_a_coloured_name_is_an_exceptions_too():
    answer = asked(log((0, CLOSED), (1, "\x1b[1;35mKeyError\x1b[0m: \x1b[35m'otter'\x1b[0m")))
    assert (answer.entry, answer.first, answer.event.text) == (None, 1, "KeyError: 'otter'")


@pytest.mark.parametrize(("name", "part"), HALF_A_PAGE)
def test_half_of_a_pages_words_do_not_hide_an_exception(name, part):
    answer = asked(log((0, CLOSED), (1, f"RuntimeError: {part.replace('…', ' ')}")))
    assert part == "Broken pipe" or (answer.first == 1 and 0 in answer.followed), name  # which is a follower's own


def test_the_root_ranks_own_error_leads_though_another_ranks_has_a_page():
    memory = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB."
    text = log((3, "json.decoder.JSONDecodeError: Expecting value"), (1, memory))
    assert asked(text).entry.name == "cuda-out-of-memory"
    answer = asked(text + TABLE.format(1))
    assert (answer.first, answer.entry) == (3, None) and "JSONDecodeError" in answer.event.text
    assert [also.entry.name for also in answer.also] == ["cuda-out-of-memory"]


def test_tracebacks_that_alternate_line_by_line_are_read_apart():
    mine, closed = (f'  File "a.py", line 3, in f\n    go()\n{words}' for words in ("mylib.Unlucky: no luck", CLOSED))
    apart = log((0, mine)), log((1, closed))
    text = "\n".join(line for pair in zip(*(one.splitlines() for one in apart), strict=True) for line in pair)
    answer = asked(text)
    assert (answer.first, answer.event.text, set(answer.followed)) == (0, "mylib.Unlucky: no luck", {1})


GROUP = """  + Exception Group Traceback (most recent call last):
  |   File "a.py", line 3, in <module>
  | ExceptionGroup: two things (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "a.py", line 8, in f
    | mylib.Unlucky: no luck
    +------------------------------------
"""
SPAWN = """Traceback (most recent call last):
  File "spawn.py", line 118, in join
    raise Exception(msg)
Exception: \n
-- Process 1 terminated with the following error:
Traceback (most recent call last):
  File "a.py", line 5, in f
mylib.Unlucky: no luck
"""


@pytest.mark.parametrize("text", [GROUP, SPAWN], ids=["a group", "torch 1.4's spawn"])
def test_an_exception_that_only_carries_another_gives_way_to_it(text):
    assert asked(text).event.text == "mylib.Unlucky: no luck"


def test_an_exit_status_that_no_exception_has_is_said():
    assert "`sys.exit(3)`" in say.text(asked(TABLE.format(3))) and "sys.exit" not in say.text(asked(TABLE.format(1)))


def test_a_message_of_two_lines_in_an_f_string_is_found_in_torch():
    answer = asked("RuntimeError: Cannot writeback when the parameter shape changes\nExpects (8,) but got (4,)")
    assert answer.entry is None and "_flat_param.py" in say.text(answer)


WATCHDOG = "[Rank {0}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType={1}, NumelIn=8) ran for"


def test_ranks_that_wait_in_different_calls_do_not_say_the_same():
    calls = ("ALLREDUCE", "ALLREDUCE", "BROADCAST")
    apart = say.text(asked("\n".join(WATCHDOG.format(rank, call) for rank, call in enumerate(calls))))
    assert "ranks 0 and 1 in ALLREDUCE, call 7; rank 2 in BROADCAST, call 7" in " ".join(apart.split())
    alike = say.text(asked("\n".join(WATCHDOG.format(rank, "ALLREDUCE") for rank in range(3))))
    assert "ranks 0, 1 and 2 say the same" in alike


def test_an_error_that_the_watchdog_only_hands_on_is_no_timeout():
    watchdog = "[Rank 3] NCCL watchdog thread terminated with exception:"
    answer = asked(f"[rank3]: {watchdog} CUDA error: an illegal memory access was encountered")
    assert (answer.entry.name, answer.first) == ("cuda-error-other", 3)


def test_followers_alone_are_no_answer():
    answer = asked(log((0, CLOSED)))
    assert answer.entry.name == "peer-gone" and not answer.sure
    assert "Only the followers' words" in say.text(answer)


def test_the_agents_table_tells_who_was_first_and_what_killed_it():
    answer = asked("torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n" + TABLE.format(-9))
    assert (answer.entry.name, answer.first) == ("killed-sigkill", 3)
    assert asked("E torch ChildFailedError:\n" + TABLE.format(1)).entry.name == "child-failed"


BARE = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\nFailures:\n  {}\n" + TABLE.format(1)


@pytest.mark.parametrize(
    ("text", "first", "words"),
    [
        (log((0, CLOSED)) + BARE.format("<NO_OTHER_FAILURES>").replace(": 3", ": 0"), 0, "no other rank of this"),
        ("config: no such dataset\n" + log((0, CLOSED)) + BARE, 0, "torchrun saw rank 3 fail first"),
        ("config: no such dataset\n" + log((0, CLOSED)) + BARE, 0, "by no rank by name: config: no such dataset"),
        (BARE, 3, "rank 3 failed first, as its launcher saw it"),
    ],
)
def test_where_only_followers_speak_the_launcher_and_lines_of_no_rank_are_heard(text, first, words):
    answer = asked(text)
    assert answer.first == first and not answer.sure and words in " ".join(say.text(answer).split())


def test_a_run_that_ended_well_has_no_error():
    note = "Setting OMP_NUM_THREADS environment variable for each process to be 1 in default\nepoch 1\n"
    assert "No error is in these 2 lines" in say.text(asked(note))


def test_a_line_is_quoted_where_it_matters_and_counted_once():
    answer = asked("x " * 1000 + UNUSED + " x" * 3_000_000)
    assert (answer.entry.name, answer.lines) == ("ddp-unused-parameters", 1)
    assert "finished reduction" in answer.event.text
    assert asked(f"{'x ' * 200_000}\n{UNUSED}\n{'y' * 3_000_000}\r\nend").event.line == 2


def test_a_vain_wait_gives_way_to_the_error_that_made_it_wait():
    waited = "RuntimeError: [..unbound_buffer.cc:78] Timed out waiting 1000ms for recv operation to complete"
    assert asked(log((0, waited), (1, UNUSED))).entry.name == "ddp-unused-parameters"
    assert asked(log((0, waited), (1, "KeyError: 'label'"))).entry is None


@pytest.mark.parametrize(
    "data",
    [b"", b"\n\n", os.urandom(300_000), b"\0" * 3_000_000, b"x" * 5_000_000, b"\xff\xfe\x00", b"\x1b[" * 9999],
    ids=["empty", "blank", "random", "zeros", "one line", "half a mark", "escapes"],
)
def test_bad_input_gets_a_sentence(data):
    answer = find.answer(io.BytesIO(data))
    assert answer.entry is None and answer.symptom is None
    assert say.text(answer).startswith(("There was nothing", "This is no text", say.UNKNOWN, say.NOTHING))


def test_a_log_in_another_language_gets_a_sentence():
    assert say.NOTHING in say.text(asked("训练失败:无法连接\nFehler: Verbindung verloren\n" * 50))


class Endless(io.RawIOBase):
    """A stream of so many quarters of a megabyte, made while it is read."""

    def __init__(self, quarters):
        line = b"[rank1]: step 12 loss 0.5 Error: rate 0.1 Connection closed by peer\n"
        self.left, self.block = quarters, (line * 5000)[: 1 << 18]

    def read(self, n=-1):
        self.left -= 1
        return self.block if self.left > 0 else (b"\n" + UNUSED.encode() if self.left == 0 else b"")


def test_memory_stays_flat_however_long_the_log():
    peaks = []
    for quarters in (4, 8):
        tracemalloc.start()
        assert find.answer(Endless(quarters)).entry.name == "ddp-unused-parameters"
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] * 1.2


def test_in_the_terminal_it_imports_no_torch(tmp_path):
    code = "import runpy, sys; sys.argv = ['-m', 'why', 'x']; sys.orig_argv = ['python', '-m', 'ddplab', 'why', 'x']\n"
    code += "try: runpy.run_module('ddplab', run_name='__main__', alter_sys=False)\n"
    code += (
        "except SystemExit as end: print(end.code, sorted({m.split('.')[0] for m in sys.modules} & {'torch', 'numpy'}))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.stdout.splitlines()[-1] == "1 []", ended.stderr
    piped = subprocess.run(
        [sys.executable, "-m", "ddplab", "why"], input=log((1, UNUSED)), capture_output=True, text=True
    )
    assert "rank 1 failed first" in piped.stdout and piped.returncode == 0 and not piped.stderr


def test_a_narrow_pipe_no_input_and_a_full_disk_get_no_traceback():
    def run(after, **environment):
        command = f"{sys.executable} -m ddplab why {after}"
        env = {**os.environ, **environment}
        return subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=env)

    narrow = run("'ValueError: 错误'", PYTHONIOENCODING="cp1252")
    assert "ValueError: ??" in narrow.stdout and not narrow.stderr
    assert "usage:" in run("<&-").stdout
    if os.path.exists("/dev/full"):
        full = run("port-in-use > /dev/full")
        assert full.returncode == 2 and full.stderr == "the answer could not be written: No space left on device\n"


def test_a_file_a_name_and_a_symptom_are_taken_too(tmp_path, capsys):
    (tmp_path / "log.txt").write_text(log((1, UNUSED)))
    assert main([str(tmp_path / "log.txt")]) == 0 and "rank 1 failed first" in capsys.readouterr().out
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "stderr.log").write_text(UNUSED)  # as torchrun --log-dir names a rank's file
    assert main([str(tmp_path / "log.txt"), str(tmp_path / "1" / "stderr.log")]) == 0
    assert "rank 1 failed first" in capsys.readouterr().out
    assert main(["port-in-use"]) == 0 and "--standalone" in capsys.readouterr().out
    assert main(["it", "hangs", "at", "the", "end"]) == 0 and "It hangs at the end" in (said := capsys.readouterr().out)
    assert "1. It hangs" not in said
    assert main(["--help"]) == 0
    assert main(["The client socket has timed out after 6000ms while trying to connect to (node1, 29500). " * 9]) == 0
    for path, said in (
        (str(tmp_path), "Is a directory"),
        ("mistyped.log", "No such file"),
        ("not here.log", "No such file"),
    ):
        assert main([path]) == 2 and said in capsys.readouterr().err


def fails_on_rank_1():
    import torch.distributed as dist

    print("as rank", dist.get_rank())
    if dist.get_rank() == 1:
        dist.init_process_group("gloo")
    dist.barrier()


def test_after_a_failed_launch_why_reads_the_run(monkeypatch):
    monkeypatch.setattr(sys, "last_value", None, raising=False)
    monkeypatch.setattr(sys, "last_exc", None, raising=False)
    assert "nothing" in str(ddplab.why()).lower()
    with pytest.raises(ddplab.RankError) as caught:
        launch(fails_on_rank_1, quiet=True)
    assert caught.value.__notes__ == [POINTER] and POINTER not in str(caught.value)
    assert caught.value._render_traceback_()[-1] == POINTER
    monkeypatch.setattr(sys, "last_value", caught.value, raising=False)
    cell = SimpleNamespace(last_execution_succeeded=False)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: cell))
    told = ddplab.why()
    assert told.entry == "init-twice" and told.answer.first == 1 and not told.note
    cell.last_execution_succeeded = True
    assert "an older error" in str(ddplab.why()) and "an older error" not in str(ddplab.why(caught.value))
    assert "<ol start=" in told._repr_html_() and "<script" not in ddplab.why("<script>Error")._repr_html_()


def test_every_error_of_ours_ends_with_the_pointer(tmp_path):
    from ddplab.metrics import Metrics

    doors = [
        lambda: launch(3),
        lambda: launch(print, nproc_per_node=0),
        lambda: launch(print, device="tpu"),
        lambda: ddplab.torchrun(str(tmp_path / "none.py")),
        lambda: ddplab.log(loss=object()),
        lambda: Metrics().column("loss"),
        lambda: ddplab.predict("?", "one"),
    ]
    for door in doors:
        with pytest.raises((TypeError, ValueError, KeyError, FileNotFoundError)) as caught:
            door()
        assert caught.value.__notes__ == [POINTER]
    with pytest.raises(ZeroDivisionError) as caught:  # the learner's own
        [].sort(key=1 / 0)
    assert not hasattr(caught.value, "__notes__")


OLD_LAUNCHER = """/env/torch/distributed/launch.py:183: FutureWarning: The module torch.distributed.launch is deprecated
change it to read from `os.environ['LOCAL_RANK']` instead. See
"""
OWN = """Traceback (most recent call last):
  File "train.py", line 31, in main
    rate = options["lr"]
KeyError: 'lr'
"""


@pytest.mark.parametrize(
    "log",
    [OLD_LAUNCHER + OWN, OWN + "slurmstepd: error: *** JOB 77 ON n1 CANCELLED AT 2024-05-05T10:00:00 ***\n"],
    ids=["after the old launcher's warning", "before Slurm's word"],
)
def test_what_comes_with_every_run_or_after_the_end_is_not_the_reason(log):
    found = asked(log)
    assert found.event.text == "KeyError: 'lr'" and found.entry is None
    assert not [event for event in found.also if event.entry.name == "env-not-set"]


def test_the_old_launchers_warning_alone_is_a_note():
    assert asked(OLD_LAUNCHER + "epoch 1 loss 0.5\n").entry.level == "note"


def test_whom_the_launcher_names_did_not_follow():
    log = "[rank0]: " + OWN.strip().replace("\n", "\n[rank0]: ")
    launcher = "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: 1) local_rank: 1 (pid: 5)"
    assert not asked(f"{log}\n{launcher}").followed


def test_the_launcher_that_stops_the_others_first_still_names_who_failed():
    api = "torch.distributed.elastic.multiprocessing.api:"
    stopping = "".join(f"WARNING:{api}Sending process {pid} closing signal SIGTERM\n" for pid in (11, 12))
    answer = asked(f"{stopping}ERROR:{api}failed (exitcode: 1) local_rank: 7 (pid: 18) of binary: /env/bin/python\n")
    assert (answer.entry.name, answer.first) == ("child-failed", 7)


@pytest.mark.parametrize("margin", ["E   {}", "**{}**", "ERROR 05-05 10:00:00 [engine.py:31] {}", "trainer-1  | {}"])
def test_the_margins_that_tools_and_forums_put_before_a_line_are_taken_off(margin):
    assert asked(margin.format(UNUSED) + "\n").entry.name == "ddp-unused-parameters"
    own = asked("".join(margin.format(line) + "\n" for line in OWN.splitlines()))
    assert own.event.text.rstrip("*") == "KeyError: 'lr'"
