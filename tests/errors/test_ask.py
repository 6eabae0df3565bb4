"""A question in a few words gets a guess, and says so; what other programs say is not answered as if a rank had."""

import io

import pytest

from ddplab.errors import find, say


def asked(text):
    return find.answer(io.BytesIO(text.encode()))


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("nccl timeout", "nccl-watchdog-timeout"),
        ("find unused parameters", "ddp-unused-parameters"),
        ("exitcode -9", "killed-sigkill"),
        ("torchrun port in use", "port-in-use"),
        ("cuda oom", "cuda-out-of-memory"),
        ("training gets stuck after first epoch on 4 gpus", "hangs-at-end"),
        ("the ranks deadlock", "hangs-in-the-middle"),
        ("pip install torch hangs", None),
        ("$ docker run hangs", None),
        ("my program does not work", None),
        ("how do I cook rice", None),
        ("login failed: wrong password", None),
        ("tokenizers: the process just got forked, disabling parallelism to avoid deadlocks. " * 2, None),
    ],
)
def test_a_few_words_lead_to_the_nearest_page_as_a_guess(words, name):
    answer = asked(words)
    found = answer.entry or answer.symptom
    assert (found.name if found else None) == name and not answer.sure
    assert ("A guess by your few words" in say.text(answer)) == bool(found)


@pytest.mark.parametrize(
    ("log", "name"),
    [
        ("java.lang.OutOfMemoryError: Java heap space", None),
        (
            "requests.ConnectionError: ('Connection aborted.', ConnectionResetError(104, 'Connection reset by peer'))",
            None,
        ),
        (
            '  File "/usr/lib/python3.11/http/server.py", line 425, in handle\nBrokenPipeError: [Errno 32] Broken pipe',
            None,
        ),
        ("RuntimeError: ProcessGroupNCCL does not support gather", None),
        ("aiohttp.ClientConnectorError: Cannot connect to host a.org [Too many open files]", "too-many-open-files"),
        ("Error: listen EADDRINUSE: address already in use :::3000", "port-in-use"),
        ("Segmentation fault (core dumped)\nmake: *** [Makefile:3: all] Error 139", "killed-sigsegv"),
        (
            "srun: error: gpu-07: task 3: Exited with exit code 1\nslurmstepd: error: *** STEP 1.0 ON n CANCELLED AT 9",
            "child-failed",
        ),
    ],
)
def test_what_any_program_says_is_never_answered_surely(log, name):
    answer = asked(log)
    assert (answer.entry.name if answer.entry else None) == name and not answer.sure and not answer.symptom


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("RuntimeError: torch: [WinError 10048] Only one usage of each socket address is permitted", "port-in-use"),
        ("OSError: [WinError 1455] The paging file is too small for this operation to complete", "cpu-out-of-memory"),
        ("Exception: Current loss scale already at minimum - cannot decrease scale anymore.", "loss-scale-minimum"),
        ("AssertionError: Check batch related parameters. train_batch_size is not equal", "deepspeed-batch-sizes"),
        (
            "FileNotFoundError: [Errno 2] No such file or directory: './o/tmp-checkpoint-500' -> './o/checkpoint-500'",
            "checkpoint-renamed-twice",
        ),
        ("Cannot apply desired operation due to shape mismatches. All shapes across", "collectives-mismatch"),
        ("ProcessGroupGloo::allgather: invalid tensor size at index 0 (expected (3), got (4))", "collectives-mismatch"),
        ("AttributeError: 'RandomSampler' object has no attribute 'set_epoch'", "no-set-epoch"),
    ],
)
def test_the_words_of_libraries_lead_to_their_page(words, name):
    assert asked(words).entry.name == name


@pytest.mark.parametrize("words", ["RuntimeError: Address already in use", "Segmentation fault (core dumped)"])
def test_beside_a_word_of_torch_it_is(words):
    assert not asked(words).sure
    assert asked(f"init_process_group of torch.distributed\n{words}").sure


@pytest.mark.parametrize("before", ["", "RuntimeError: ", "File x, line 2\nRuntimeError: "])
@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("Watchdog caught collective operation time", "nccl-watchdog-timeout"),
        ("Expected to have finished reduction in the prior iter", "ddp-unused-parameters"),
    ],
)
def test_a_message_that_was_cut_off_is_known_by_its_beginning(before, words, name):
    answer = asked(before + words)
    assert name in [event.entry.name for event in [answer.event, *answer.also] if event.entry] and not answer.sure


def test_one_line_is_not_its_own_neighbour():
    assert not asked("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB").also


def test_the_task_that_srun_names_is_the_one_that_failed():
    assert asked("srun: error: gpu-07: task 3: Exited with exit code 1").first == 3
