"""The room: who has said yes is shown, by the system's word for whose file it is; what is hostile does no harm."""

import json
import os
import re
import stat
import tempfile
from pathlib import Path

import pytest

from ddplab import __main__ as cli
from ddplab import checks, preflight, room, sharing
from ddplab.course.faults import build

ROOT = Path(__file__).parent.parent


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A room, and a home without a yes."""
    room.make_room(tmp_path / "room")
    monkeypatch.setenv("DDPLAB_ROOM", str(tmp_path / "room"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    return tmp_path / "room"


def rows(folder, now):
    return [list(row) for row in room.exercise_rows(room.read_room(folder)[0], now)]


def test_nothing_is_shown_without_a_yes_and_nothing_stays_after_a_no(folder, capsys):
    checks.check("1.1.1", ...)
    assert not any(folder.iterdir())
    assert cli.main(["join", "  ana  maria "]) == 0
    (mine,) = folder.iterdir()
    assert stat.S_IMODE(mine.stat().st_mode) == 0o644 and stat.S_IMODE(folder.stat().st_mode) == 0o1733
    checks.check("1.1.1", ...)
    learners, ignored = room.read_room(folder)
    assert [learner.name for learner in learners] == ["ana maria"] and not ignored
    assert learners[0].exercises["1.1.1"]["state"] == checks.BLANK
    assert cli.main(["leave"]) == 0 and not any(folder.iterdir())
    checks.check("1.1.1", ...)
    assert not any(folder.iterdir())
    capsys.readouterr()


def test_a_yes_to_one_room_is_none_to_another(folder, tmp_path, monkeypatch):
    mine = sharing.join_room("ana")
    before = mine.read_bytes()
    room.make_room(tmp_path / "other")
    monkeypatch.setenv("DDPLAB_ROOM", str(tmp_path / "other"))
    sharing.share_verdict("1.1.1", "correct")
    assert mine.read_bytes() == before and not any((tmp_path / "other").iterdir())
    monkeypatch.delenv("DDPLAB_ROOM")
    assert cli.main(["join", "ana"]) == 1


def test_who_has_passed_who_is_stuck_and_the_board(folder):
    sharing.join_room("ana")
    for state in ["not filled in yet", *["not yet"] * 3]:
        sharing.share_verdict("4.1.2", state)
    for state in ["not yet", "correct", "not yet"]:  # what was correct stays so
        sharing.share_verdict("3.1.10", state)
    sharing.share_verdict("3.1.2", "not filled in yet")
    now = room.read_room(folder)[0][0].exercises["4.1.2"]["since"] + 120
    who = room.read_room(folder)[0][0].who
    assert rows(folder, now) == [
        ["3.1.2", "0 of 1", "0", "nobody"],
        ["3.1.10", "1 of 1", "1", "nobody"],
        ["4.1.2", "0 of 1", "1", f"{who}: 3 tries, 2 min"],
    ]
    sharing.share_incident(7, 120, 0, False, opened=True)
    sharing.share_incident(7, 96, 3.25, True)
    sharing.share_incident(7, 120, 0, False, opened=True)  # again, knowing the answer: the first end stays
    (line,) = room.board_rows(room.read_room(folder)[0])
    assert line == ["7", who, "✓ closed", "96", "3.2", "1"]
    page = room.page(folder, now)
    assert "<h1>" in page and 'scope="row"' in page and 'aria-label="Pager incidents"' in page


def test_what_is_hostile_is_escaped_bounded_or_ignored(folder, tmp_path, capsys):
    mine = sharing.join_room("<script>alert(1)</script>\x1b[2J")
    sharing.share_verdict("<img>", "correct")
    sharing.share_verdict("1.1.1", "correct")
    uid = os.getuid()
    (folder / f"{uid}-deep.json").write_text("[" * 60_000)
    (folder / f"{uid}-list.json").write_text("[1]")
    (folder / f"{uid}-nan.json").write_text('{"name": "n", "exercises": {"1.1.1": null}, "incidents": {}}')
    endless = '{"name": "n", "exercises": {"1.1.1": {"state": "", "tries": 1e999, "since": 0}}, "incidents": {}}'
    (folder / f"{uid}-endless.json").write_text(endless)
    with open(folder / f"{uid}-large.json", "wb") as file:
        file.truncate(2**30)
    os.mkfifo(folder / f"{uid}-pipe.json")
    os.symlink(tmp_path / "secret", folder / f"{uid}-link.json")
    os.link(mine, folder / f"{uid}-twice.json")
    (folder / f"{uid}-twice.json").unlink()
    (folder / f"{uid + 1}-posing.json").write_text(mine.read_text())
    (folder / "<b>odd\x1b.json").write_text("{}")
    learners, ignored = room.read_room(folder)
    assert len(learners) == 1 and list(learners[0].exercises) == ["1.1.1"] and len(ignored) == 9
    assert any("another account" in line for line in ignored) and any("over 65536" in line for line in ignored)
    page = room.page(folder)
    assert "<script>" not in page and "<b>odd" not in page and "\x1b" not in page + room.text(folder)
    (folder / f"{uid}-again.json").write_text(mine.read_text())  # two files of one account, with one name
    assert len(room.read_room(folder)[0]) == 2
    assert room.serve(tmp_path, None) == 1 and "is no room" in capsys.readouterr().out


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to be somebody else")
def test_another_account_sees_and_takes_nobodys_file(monkeypatch):
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        Path(place).chmod(0o755)
        folder = Path(place, "room")
        room.make_room(folder)
        monkeypatch.setenv("DDPLAB_ROOM", str(folder))
        monkeypatch.setenv("XDG_CONFIG_HOME", place + "/home")
        mine = sharing.join_room("ana")
        child = os.fork()
        if child == 0:  # another learner
            done = 1
            try:
                os.setgroups([])
                os.setgid(54321)
                os.setuid(54321)
                for forbidden in (lambda: os.listdir(folder), mine.unlink, lambda: mine.write_text("x")):
                    try:
                        forbidden()
                        os._exit(2)
                    except PermissionError:
                        pass
                (folder / "54321-own.json").write_text('{"name": "bo", "exercises": {}, "incidents": {}}')
                done = 0
            finally:
                os._exit(done)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert [learner.who for learner in room.read_room(folder)[0]] == ["ana (root)", "bo (54321)"]


def test_a_workshops_needs_are_held_against_the_machine(monkeypatch, tmp_path):
    def states(look, learners):
        return [finding.state for finding in look(learners)]

    assert states(preflight.enough_memory, 1) == ["fine"] and states(preflight.enough_memory, 10**6) == ["problem"]
    assert states(preflight.temporary_folder, 10**7) == ["problem"]
    assert states(preflight.ports_at_once, 2) == ["fine"]
    monkeypatch.setenv("JUPYTERHUB_API_URL", "http://127.0.0.1:1/hub/api")
    assert states(preflight.hub, 1) == ["problem"]
    monkeypatch.setenv("DDPLAB_LEASES", str(tmp_path))
    monkeypatch.setenv("DDPLAB_ROOM", str(tmp_path / "none"))
    assert states(preflight.shared_folders, 1) == ["problem", "problem"]
    tmp_path.chmod(0o1777)
    assert states(preflight.shared_folders, 1) == ["fine", "problem"]


def test_the_page_is_the_instructors_own_file(folder, tmp_path, monkeypatch, capsys):
    def end(seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr(room.time, "sleep", end)
    out = tmp_path / "room.html"
    assert room.serve(folder, out) == 0
    assert stat.S_IMODE(out.stat().st_mode) == 0o600 and "http-equiv" in out.read_text()
    assert str(folder) in capsys.readouterr().out


def test_the_guides_half_day_is_the_courses_and_its_minutes_add_up():
    guide = ROOT / "workshop" / "GUIDE.md"
    for link in re.findall(r"\]\(([^)#]+)\)", guide.read_text()):
        assert (guide.parent / link).exists(), link
    part, end = re.search(r"<!-- half a day -->\n(.*?)<!-- end: (\d:\d\d) -->", guide.read_text(), re.DOTALL).groups()
    now = 0
    for at, minutes, stop in re.findall(r"\| (\d:\d\d) \| (\d+) \| (.*) \|", part):
        assert at == f"{now // 60}:{now % 60:02}"
        if path := re.search(r"\((.*\.ipynb)\)", stop):
            lesson = json.loads((guide.parent / path[1]).read_text())
            assert lesson["metadata"]["ddplab"]["minutes"] == int(minutes), stop
        now += int(minutes)
    assert end == f"{now // 60}:{now % 60:02}"
    way = re.search(r"\*\*In half a day.*", (ROOT / "README.md").read_text())[0]
    assert re.findall(r"/(\d\.\d)_", part) == re.findall(r"\[(\d\.\d)\]", way)


def test_the_guides_two_days_leave_time_in_each_sitting_and_hold_eight_hours_of_lessons():
    """What stands behind a semicolon is for those who are quick, or one of two."""
    guide = (ROOT / "workshop" / "GUIDE.md").read_text()
    table = re.search(r"<!-- two days -->\n(.*?)<!-- end of two days -->", guide, re.DOTALL)[1]

    def minutes(number):
        lesson = next((ROOT / "lessons").glob(f"*/{number}_*.ipynb"))
        return json.loads(lesson.read_text())["metadata"]["ddplab"]["minutes"]

    cells = [cell for line in table.splitlines() if "90 minutes" in line for cell in line.split("|")[2:4]]
    sittings = [sum(minutes(it) for it in re.findall(r"\d\.\d", cell.split(";")[0])) for cell in cells]
    assert len(sittings) == 8 and max(sittings) <= 75, sittings
    assert minutes("7.3") == minutes("8.1") and 7.5 <= (sum(sittings) + minutes("7.3")) / 60 <= 8.5


def test_the_guides_incidents_for_a_room_hide_what_the_lesson_has_not_mended():
    lesson = next((ROOT / "lessons").glob("*/6.5_*.ipynb")).read_text()
    met = {build(int(seed)).fault.name for seed in re.findall(r"incident\((\d+)\)", lesson)}
    said = re.search(r"from (\d+) to (\d+) nobody has met them", (ROOT / "workshop" / "GUIDE.md").read_text())
    assert met and not met & {build(seed).fault.name for seed in range(int(said[1]), int(said[2]) + 1)}
