"""What lesson 5.3 lets one move: a first script that survives a calm night alone, and five mornings to be caused."""

import re
from pathlib import Path

from ddplab.course.batch_mornings import LATER, SCRIPTS, hunting, mornings, two_scripts, what_can_go
from ddplab.course.played_servers import NIGHTS

TRAIN = str(Path(__file__).parents[2] / "lessons/5_torchrun/train.sbatch")
CALM, PREEMPTED, FAILS, SLOW = NIGHTS
CPUS = '--cpus-per-task="$SLURM_CPUS_PER_TASK"'
TRAP = "trap 'scontrol requeue \"$SLURM_JOB_ID\"' USR1"


def ended(told):
    """The state of a job after a night, and the epochs in its log."""
    return re.search(r"^state  (\w+)", told, re.M)[1], " and ".join(re.findall(r"^epochs (.*)", told, re.M))


def test_the_first_script_survives_a_calm_night_alone_with_a_cpu_a_node():
    told = {night: two_scripts(TRAIN)(SCRIPTS[0], night) for night in NIGHTS}
    assert [ended(it)[0] for it in told.values()] == ["COMPLETED", "FAILED", "TIMEOUT", "TIMEOUT"]
    assert "on 2 nodes, each with 1 CPU and the ranks ■■■■" in told[CALM]
    assert len(LATER) == 9 and all(it in Path(TRAIN).read_text() for it in LATER)
    assert ended(two_scripts(TRAIN)(SCRIPTS[1], PREEMPTED))[0] == "COMPLETED"


def test_each_of_the_lessons_five_mornings_lacked_what_the_lesson_says_and_is_ticked_when_caused():
    play = hunting(TRAIN)
    tries = [
        (1, PREEMPTED, "#SBATCH --open-mode=append", ("COMPLETED", "41 to 89")),
        (2, FAILS, "--kill-on-bad-exit=1", ("COMPLETED", "0 to 25 and 26 to 89")),
        (3, SLOW, "#SBATCH --signal=B:USR1@120", ("TIMEOUT", "0 to 60")),
        (3, SLOW, " &", ("TIMEOUT", "0 to 60")),
        (3, SLOW, TRAP, ("FAILED", "0 to 60")),
        (3, SLOW, "#SBATCH --requeue", ("FAILED", "0 to 60")),
        (4, CALM, CPUS, ("COMPLETED", "0 to 89")),
        (5, PREEMPTED, "sleep 90;", ("FAILED", "0 to 40")),
        (5, PREEMPTED, " &", ("FAILED", "0 to 40")),
        (None, PREEMPTED, "#SBATCH --requeue", ("PREEMPTED", "0 to 40")),
    ]
    assert play(CALM, "nothing").endswith("so far:  ☐ 1  ☐ 2  ☐ 3  ☐ 4  ☐ 5")
    for number, night, without, end in tries:
        told = play(night, without)
        assert without in what_can_go(TRAIN) and ended(told) == end
        assert mornings(told) == ({number} if number else set())
        assert not number or told.endswith("  ".join(f"{'✓' if it <= number else '☐'} {it}" for it in range(1, 6)))
