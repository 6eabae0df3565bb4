"""Meetings of two played servers, as lesson 5.2 lets one turn them: by real agents of torchrun."""

import matplotlib
import pytest

from ddplab.course import meetings
from ddplab.course.holding import Board
from ddplab.course.meetings import Met, knock, met_at, play_meeting, plugs, what_is_left
from ddplab.course.played_servers import free_port, servers

matplotlib.use("Agg")
PRINTS = 'import os\nprint(os.environ["SERVER"], "has node rank", os.environ["GROUP_RANK"] + ", learning rate {}")'
REMARK = "\ntorchrun remarks: node_rank is only used for static rdzv_backend. It will be ignored for rdzv_backend=c10d."


@pytest.mark.parametrize(
    ("kind", "store", "first", "zero", "numbers"),
    [
        ("c10d", 0, 1, 1, "node rank 0 is server1's, node rank 1 is server2's"),
        ("c10d", 1, 0, 1, "node rank 0 is server1's, node rank 1 is server2's"),
        ("static", 1, 0, 1, "node rank 0 is server2's, node rank 1 is server1's"),
    ],
)
def test_the_names_decide_in_a_c10d_meeting_and_what_is_told_in_a_static_one(kind, store, first, zero, numbers):
    both, port, lines = servers(), free_port(), {}
    for number, server in enumerate(both):
        (server.disk / "job.py").write_text(PRINTS.format(0.1 + 0.4 * number))
        c10d = f"--rdzv-backend c10d --rdzv-endpoint {both[store]}:{port} --rdzv-id 7"
        static = f"--master-addr {both[zero]} --master-port {port}"
        options = c10d if kind == "c10d" else static
        lines[server] = f"torchrun --nnodes 2 {options} --node-rank {int(number != zero)} job.py"
    words, figure = play_meeting(lines, both[first], both[store])
    assert words == numbers + REMARK * (kind == "c10d")
    said = [text.get_text() for text in figure.axes[0].texts]
    given = int(words.startswith("node rank 0 is server1"))
    assert f"agent: told {int(zero != 1)}, given node rank {given} of 2" in said
    assert f"rank {given}: learning rate 0.5" in said
    assert both[0].diary[-1]["said"] == both[1].diary[-1]["said"] == "ended"


def test_a_static_meeting_in_which_nobody_is_told_a_number_fails_and_ends_both():
    both, port = servers(), free_port()
    line = f"torchrun --nnodes 2 --master-addr {both[1]} --master-port {port} job.py"
    words, figure = play_meeting(dict.fromkeys(both, line), both[1], both[1])
    assert words.startswith("no meeting: server1's agent says") and "EADDRINUSE" in words and figure is None
    assert words.endswith("these two servers share one machine's ports.")


def test_who_knocks_where_nobody_is_awake_is_told_so(capsys):
    server1, server2 = servers()
    knock(server1, asleep=server2)
    assert "The client socket has timed out after 3000ms" in capsys.readouterr().out


def test_the_job_outlives_rank_0_and_not_the_store():
    """What lesson 5.2 says: who pulls server1's plug, which is rank 0's, and server2's, which is the store's."""
    board = plugs()  # with nobody to press, it is server1's
    names = [server.name for server in board.servers]
    assert names == ["server1", "server2"] and not any(server.busy for server in board.servers)
    met = next(frame for frame in board.frames if all(it["ranks"] for it in frame["servers"]))
    assert [it["agent"] for it in met["servers"]] == ["node 0 of 2", "node 1 of 2"], "though server2 was told 0"
    assert [it["store"] for it in met["servers"]] == [False, True]
    said = str(board)
    assert "server1 is gone" in said and "server2's agent finds its rank dead, and starts anew" in said
    assert "The meeting gives server2 node rank 0 of 1; it starts rank 0" in said
    assert "server1's plug is pulled" in said and "The rank of server2 prints: RuntimeError: " in said
    assert said.endswith("✓ server2 has come to the end alone, as rank 0 of 1.")

    other = Board(board.servers, buttons=["pull server1's plug", "pull server2's plug"])
    other.asked.append("pull server2's plug")
    meetings._pull(other)
    assert "server2's plug is pulled" in str(other) and str(other).endswith("✗ server1 has ended too.")
    assert "The agent of server1 prints: RendezvousConnectionError: The connection to the C10d store" in str(other)


def test_a_box_says_who_came_first_and_who_holds_the_store():
    axis = met_at([Met("server1", False, "0", 1, "a"), Met("server2", True, "nothing", 0, "b")], "server1").axes[0]
    texts = [text.get_text() for text in axis.texts]
    assert texts[:5] == ["server1", "came first", "agent: told 0, given node rank 1 of 2", "■", "rank 1: a"]
    assert texts[5:] == ["server2", "⌂ store", "agent: told nothing, given node rank 0 of 2", "●", "rank 0: b"]


def test_what_is_left_of_a_night_is_the_report_and_the_files_of_all_disks(capsys):
    server1, server2 = servers()
    for server, rank, error in [(server1, 3, "OSError: full"), (server2, 0, "RuntimeError: closed")]:
        report = (
            f"Root Cause (first observed failure):\n[0]:\n  host : a\n  rank : {rank}\n  traceback : …\n  {error}\n"
        )
        (server.disk / "screen").write_text(f"…\n  rank : 9\n{report}")
    for server, rank in [(server1, 2), (server1, 3), (server2, 0)]:
        folder = server.disk / f"logs/night_x/attempt_0/{rank % 2}"
        folder.mkdir(parents=True)
        (folder / "stdout.log").write_text(f"I am RANK {rank}\n")
    (server1.disk / "logs/night_x/attempt_0/1/error.json").write_text("{}")
    what_is_left(server1, server2)
    shown = capsys.readouterr().out
    assert shown.startswith(
        "server1's screen:\nRoot Cause (first observed failure):\n  rank : 3\n  OSError: full\nserver2"
    )
    assert "  rank : 0\n  RuntimeError: closed\n" in shown and "host" not in shown
    assert (
        "server1 …/attempt_0/1 says: I am RANK 3; beside it: error.json\nserver2 …/attempt_0/0 says: I am RANK 0\n"
        in shown
    )
