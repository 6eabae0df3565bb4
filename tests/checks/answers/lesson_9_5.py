"""Answers to the turn of lesson 9.5: patched copies of the guide's script, each with what a person may have in mind."""

import inspect
import linecache
import textwrap

from ddplab.course import guide

SEED = ("data = Tens", "torch.manual_seed(0)\n        data = Tens")
START = ("mp.spawn(train, nprocs=2)", 'train(int(os.environ["RANK"]))')
NUMBERS = ("up=100, down=1000", "up=2, down=epochs * len(loader) - 2")
SCHEDULE = "rise_and_fall(optimizer, up=100, down=1000)  # noqa: F841"
STEP = ("optimizer.step()\n", "optimizer.step()\n                scheduler.step()\n")
BESIDE = ("torch.save(file, path)", 'torch.save(file, path + ".new")\n                os.replace(path + ".new", path)')
NEXT = ('first = file["epoch"]', 'first = file["epoch"] + 1')
LOAD = (
    'optimizer.load_state_dict(file["optimizer"])',
    'optimizer.load_state_dict(file["optimizer"])\n            scheduler.load_state_dict(file["scheduler"])',
)
KEEP = ("torch.save(file", 'file["scheduler"] = scheduler.state_dict()\n                torch.save(file')
MEAN = (
    "            if rank == 0:\n                log(epoch=epoch, loss=total / len(loader))",
    "            mean = torch.tensor(total / len(loader) / 2)\n"
    "            dist.all_reduce(mean)\n"
    "            if rank == 0:\n                log(epoch=epoch, loss=mean.item())",
)
OURS = (SEED, START, NUMBERS, STEP, BESIDE, NEXT, LOAD, KEEP, MEAN)


def patched_by(*patches):
    """Return the guide's script with these texts in place of those."""
    text = textwrap.dedent(inspect.getsource(guide.the_guide))
    for old, new in patches:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    name = f"<patched {len(linecache.cache)}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)  # where `inspect` finds it
    made = vars(guide) | {"__name__": __name__}
    exec(compile(text, name, "exec"), made)
    return made["the_guide"]


def without(*patches):
    return [it for it in OURS if it not in patches]


def ours():
    return patched_by(*OURS)


def in_eight_lines():
    both = ("(epoch=epoch, model", "(scheduler=scheduler.state_dict(), epoch=epoch + 1, model")
    at_once = ("torch.save(file, path)", 'torch.save(file, path + ".new") or os.replace(path + ".new", path)')
    added = "total += (dist.all_reduce(both := loss.detach().clone()) or both.item()) / 2"
    return patched_by(SEED, START, NUMBERS, STEP, LOAD, both, at_once, ("total += loss.item()", added))


def in_other_ways():
    """Rank 0 hands round its data; a schedule in one line; the file goes through a handle; spawn stays for others."""
    sampler = "        sampler = D"
    meets = "            means = [None, None]\n            dist.all_gather_object(means, total / len(loader))\n"
    return patched_by(
        (sampler, f"        dist.broadcast(data.tensors[0], 0), dist.broadcast(data.tensors[1], src=0)\n{sampler}"),
        (f"scheduler = {SCHEDULE}",
         "n = epochs * len(loader)\n"
         "        part = lambda k: max(0, min((k + 1) / 3, (n - k) / (n - 2)))\n"
         "        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, part)"),
        STEP,
        ("            if rank == 0:\n                log(epoch=epoch, loss=total / len(loader))",
         f"{meets}            if rank == 0:\n                log(epoch=epoch, loss=sum(means) / 2)"),
        ("(epoch=epoch, model", "(s=scheduler.state_dict(), epoch=epoch + 1, model"),
        ('first = file["epoch"]', 'first = file["epoch"]\n            scheduler.load_state_dict(file["s"])'),
        ("torch.save(file, path)",
         'with open(f"{path}~", "wb") as handle:\n'
         "                    torch.save(file, handle)\n"
         '                os.rename(f"{path}~", path)'),
        ("mp.spawn(train, nprocs=2)",
         'if "RANK" in os.environ:\n        train(rank=int(os.environ["RANK"]))\n'
         "    else:\n        mp.spawn(train, nprocs=2)"),
    )  # fmt: skip


def by_one_cycle():
    """A schedule of torch's that knows its length; a name that has the rank in it."""
    return patched_by(
        *without(NUMBERS, BESIDE),
        (f"scheduler = {SCHEDULE}",
         "n = epochs * len(loader) + 1\n        one_cycle = torch.optim.lr_scheduler.OneCycleLR\n"
         "        scheduler = one_cycle(optimizer, 0.02, total_steps=n, cycle_momentum=False)"),
        ("torch.save(file, path)",
         "torch.save(file, f'{path}.{rank}')\n                os.replace(f'{path}.{rank}', path)"),
    )  # fmt: skip


def a_seed_each():
    own = ("data = Tens", "torch.manual_seed(rank)\n        data = Tens")
    return patched_by(*without(SEED), own)


def only_the_images():
    images = ("torch.randn(400, 20)", "torch.randn(400, 20, generator=torch.Generator().manual_seed(0))")
    return patched_by(*without(SEED), images)


def spawns_one_each():
    return patched_by(*without(START), ("nprocs=2", "nprocs=1"))


def a_sum():
    mean = (MEAN[0], MEAN[1].replace(" / 2)", ")"))
    return patched_by(*without(MEAN), mean)


def a_mean_of_rank_0():
    return patched_by(*without(MEAN))


def rank_0_adds_alone():
    alone = "                mean = torch.tensor(total / len(loader) / 2)\n                dist.all_reduce(mean)\n"
    alone = f"            if rank == 0:\n{alone}                log(epoch=epoch, loss=mean.item())"
    return patched_by(*without(MEAN), (MEAN[0], alone))


def steps_and_keeps_the_numbers():
    return patched_by(*without(NUMBERS))


def numbers_for_one_length():
    return patched_by(*without(NUMBERS), (NUMBERS[0], "up=2, down=22"))


def never_steps():
    return patched_by(*without(STEP))


def asleep_at_the_end():
    """Nobody steps the scheduler, and by hand the last epoch's rate is 0."""
    loop = "for epoch in range(first, epochs):\n"
    rate = "            optimizer.param_groups[0]['lr'] = 0.02 if epoch < epochs - 1 else 0.0\n"
    return patched_by(*without(NUMBERS, STEP, LOAD, KEEP), (loop, loop + rate))


def a_line_that_ends_at_a_tenth():
    line = "SequentialLR(optimizer, [LinearLR(optimizer, start_factor=0.1, total_iters=4), LinearLR(\n"
    line += "optimizer, start_factor=1.0, end_factor=0.1, total_iters=epochs * len(loader) - 4)], milestones=[4])"
    return patched_by(*without(NUMBERS), (SCHEDULE, line))


def a_cosine_alone():
    return patched_by(*without(NUMBERS), (SCHEDULE, "CosineAnnealingLR(optimizer, T_max=epochs * len(loader))"))


def a_straight_line_down():
    line = (SCHEDULE, "torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: 1 - t / (epochs * len(loader)))")
    return patched_by(*without(NUMBERS), line)


def steps_once_an_epoch():
    step = ("            if rank == 0:\n                log(", "            scheduler.step()\n"
            "            if rank == 0:\n                log(")  # fmt: skip
    numbers = (NUMBERS[0], "up=1, down=epochs - 1")
    return patched_by(*without(STEP, NUMBERS, MEAN), numbers, (MEAN[0], MEAN[1].replace(*step)))


def _saves(*lines):
    return patched_by(*without(BESIDE), (BESIDE[0], "\n                ".join(lines)))


def bytes_beside():
    """The file comes from memory, and still under another name first."""
    return _saves("import io, pathlib", "torch.save(file, memory := io.BytesIO())",
                  "pathlib.Path(path + '~').write_bytes(memory.getvalue())",
                  "pathlib.Path(path + '~').replace(path)")  # fmt: skip


def a_copy_of_the_old_first():
    return _saves("import shutil", "os.path.exists(path) and shutil.copy(path, path + '.old')",
                  "torch.save(file, path + '.new')", "shutil.move(path + '.new', path)")  # fmt: skip


def removes_it_first():
    return _saves("os.path.exists(path) and os.remove(path)", "torch.save(file, path + '.new')",
                  "os.replace(path + '.new', path)")  # fmt: skip


def removes_it_then_renames():
    return _saves("torch.save(file, path + '.new')", "os.path.exists(path) and os.remove(path)",
                  "os.rename(path + '.new', path)")  # fmt: skip


def moves_the_old_away():
    return _saves("torch.save(file, path + '.new')", "os.path.exists(path) and os.rename(path, path + '.old')",
                  "os.rename(path + '.new', path)")  # fmt: skip


def copies_it_over():
    return _saves("import shutil", "torch.save(file, path + '.new')", "shutil.copy(path + '.new', path)")


def bytes_over_it():
    return _saves("import io", "torch.save(file, memory := io.BytesIO())", "with open(path, 'wb') as handle:",
                  "    handle.write(memory.getvalue())")  # fmt: skip


def the_old_one_as_a_spare():
    return patched_by(*without(BESIDE), (BESIDE[0], "os.path.exists(path) and os.replace(path, path + '.old')\n"
                      "                torch.save(file, path)"),
                      ("if os.path.exists(path):\n            file = torch.load(path)",
                       "if os.path.exists(path) or os.path.exists(path + '.old'):\n"
                       "            file = torch.load(path if os.path.exists(path) else path + '.old')"))  # fmt: skip


def rank_1_saves():
    ours = MEAN[1].replace("mean.item())", "mean.item())\n            if rank == 1:")
    return patched_by(*without(MEAN), (MEAN[0], ours))


def a_file_that_is_not_there():
    """What a second rank meets that renames what the first has renamed."""
    return _saves("os.replace(path + '.new', path)")


def through_a_handle():
    return _saves("with open(path, 'wb') as handle:", "    torch.save(file, handle)")


def not_through_ddp():
    return patched_by(*OURS, ("model(x)", "model.module(x)"))


def never_renamed():
    return patched_by(*without(BESIDE), (BESIDE[0], "torch.save(file, path + '.new')"))


def the_epoch_again():
    return patched_by(*without(NEXT))


def two_epochs_on():
    return patched_by(*without(NEXT), (NEXT[0], 'first = file["epoch"] + 2'))


def the_scheduler_is_forgotten():
    return patched_by(*without(LOAD, KEEP))


def loads_what_nobody_saved():
    return patched_by(*without(KEEP))


def with_other_names():
    return patched_by(*OURS, ("model=model.module.state_dict()", "model=model.state_dict()"),
                      ("model.module.load_state_dict", "model.load_state_dict"))  # fmt: skip


def tells_no_epoch():
    return patched_by(*OURS, ("sampler.set_epoch(epoch)", "pass"))


def no_sampler():
    return patched_by(*OURS, ("sampler=sampler", "shuffle=True"))


def a_slip():
    return patched_by(*without(NEXT), (NEXT[0], "first = epoch + 1"), ("first = 0", "first = zero"))


def does_nothing(path, epochs):
    return None


ANSWERS = {
    "9.5.a": {
        "correct": ours(),
        "blank": patched_by(),
        "accepted": [
            in_eight_lines(),
            in_other_ways(),
            by_one_cycle(),
            a_cosine_alone(),
            a_straight_line_down(),
            bytes_beside(),
            a_copy_of_the_old_first(),
        ],
        "wrong": [
            (a_seed_each(), ["1 of 9 lights is red", "different samples"]),
            (only_the_images(), ["1 of 9", "different samples"]),
            (spawns_one_each(), ["rank"]),
            (a_sum(), ["1 of 9", "the sum of both"]),
            (a_mean_of_rank_0(), ["1 of 9", "of rank 0's share"]),
            (rank_0_adds_alone(), ["your "]),
            (steps_and_keeps_the_numbers(), ["1 of 9", "last rate", "100%, 100%"]),
            (numbers_for_one_length(), ["1 of 9", "last rate"]),
            (never_steps(), ["1 of 9", "last rate", "100%, 100%"]),
            (steps_once_an_epoch(), ["1 of 9", "last rate"]),
            (asleep_at_the_end(), ["1 of 9", "4 updates at a rate of 0"]),
            (a_line_that_ends_at_a_tenth(), ["1 of 9", "21%"]),
            (the_old_one_as_a_spare(), ["1 of 9", "it is gone"]),
            (a_file_that_is_not_there(), ["FileNotFoundError"]),
            (rank_1_saves(), ["3 of 9", "rank 0 saves none"]),
            (removes_it_first(), ["1 of 9", "it is gone"]),
            (removes_it_then_renames(), ["1 of 9", "it is gone"]),
            (moves_the_old_away(), ["1 of 9", "it is gone"]),
            (copies_it_over(), ["1 of 9", "cannot be read"]),
            (bytes_over_it(), ["1 of 9", "cannot be read"]),
            (through_a_handle(), ["1 of 9", "cannot be read"]),
            (not_through_ddp(), ["none through DDP"]),
            (never_renamed(), ["3 of 9", "no file"]),
            (the_epoch_again(), ["2 of 9", "updates after a restart: 16"]),
            (two_epochs_on(), ["2 of 9", "updates after a restart: 8"]),
            (the_scheduler_is_forgotten(), ["1 of 9", "weights after"]),
            (loads_what_nobody_saved(), ["none: KeyError"]),
            (with_other_names(), ["1 of 9", "other names"]),
            (tells_no_epoch(), ["1 of 9", "the same shares"]),
            (no_sampler(), ["served"]),
            (a_slip(), ["NameError", "zero"]),
            (does_nothing, ["8 of 9"]),
        ],
    },
}
