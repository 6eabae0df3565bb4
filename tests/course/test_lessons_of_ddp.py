"""What some lessons of part 4, 6.1 and 7.3 say below a slider, run once: a page launches what its reader asks for."""

import ast
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
import torch
import torch.distributed as dist

from ddplab.launcher import launch
from ddplab.run import RankError

PART = Path(__file__).parents[2] / "lessons" / "4_ddp"


def functions(lesson: str) -> dict[str, Any]:
    """All that a lesson's cells import and define; of a turn, our way."""
    space: dict[str, Any] = {"__name__": "__main__"}  # so that its functions travel to the ranks
    for cell in nbformat.read(PART / lesson, as_version=4).cells:
        if cell.cell_type == "code" and "your-turn" not in cell.metadata.get("tags", ()):
            tree = ast.parse(cell.source)
            defines = ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef
            tree.body = [statement for statement in tree.body if isinstance(statement, defines)]
            exec(compile(tree, lesson, "exec"), space)
    return space


def test_gloo_adds_what_has_as_many_numbers_and_detail_refuses_other_shapes(monkeypatch):
    def add_up():
        x = torch.tensor([[11, 12, 13], [21, 22, 23]]) if dist.get_rank() == 0 else torch.ones(3, 2, dtype=torch.int64)
        dist.all_reduce(x)
        return x.flatten().tolist()

    assert launch(add_up, device="cpu", quiet=True).results == 2 * [[12, 13, 14, 22, 23, 24]]
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "DETAIL")
    with pytest.raises(RankError, match="do not match, torch found"):
        launch(add_up, device="cpu", quiet=True)


def test_who_uses_which_head_decides_what_a_backward_leaves():
    space = functions("4.2_inside_ddp.ipynb")
    space["names"] = ("body.weight", "dogs.bias")
    held = space["held_after"]
    assert held([["cats"]] * 2, find_unused_parameters=True)["dogs.bias"] == [None, None]
    searched = held([["cats"], ["dogs"]], find_unused_parameters=True)
    assert searched["dogs.bias"] == [0.5, 0.5]
    assert searched == held([["cats"], ["dogs"]], static_graph=True)
    with pytest.raises(RankError, match=r"rank 0 waits in .* for rank 1, which never came"):
        launch(space["use"], [["cats dogs"], ["cats"]], quiet=True, timeout=8)
    with pytest.raises(RankError, match="Expected to have finished reduction in the prior iteration"):
        launch(space["use"], [["cats dogs", "cats", "cats"]], static_graph=True, nproc_per_node=1, quiet=True)


def test_ddp_that_searches_keeps_the_buckets_of_the_wrap():
    options = {"bucket_cap_mb": 0.01, "find_unused_parameters": True, "quiet": True}
    first, second = launch(functions("4.2_inside_ddp.ipynb")["backwards"], **options).results[0]
    assert first == second and first[:2] == ["3.bias", 256]  # the first leaves early, both times


def test_averaged_memories_are_no_cure_for_a_dark_camera_and_mixed_cameras_are():
    space = functions("4.5_batchnorm_buffers_and_mixed_precision.ipynb")

    def read(dark, **options):
        known = launch(space["two_cameras"], dark, **options, quiet=True).results[0][1]
        return known.float().mean(1).tolist()

    bright, dark = read(0.25, mend=space["average_statistics"])
    assert bright > 0.9 and dark > 0.5
    assert read(0.1, mend=space["average_statistics"])[1] < 0.2
    assert min(read(0.5, mend=space["average_statistics"])) > 0.95
    assert min(read(0.1, mixed=True)) > 0.75
    assert min(read(0.25, mixed=True, flash="rank 0", take=space["scaled_step"])) > 0.9
    ranks = launch(space["two_cameras"], 0.25, mend=space["left_alone"], quiet=True).results
    assert min(ranks[rank][1][rank].float().mean() for rank in (0, 1)) > 0.9, "each knows its own camera"


def test_two_scales_carry_six_images_through_16_bits():
    through = functions("4.5_batchnorm_buffers_and_mixed_precision.ipynb")["through_16_bits"]
    said = {8**n: through(8**n)[0] for n in range(7)}
    assert [scale for scale, words in said.items() if words.endswith("✓ all six come through")] == [512, 4096]
    assert "0 of 6 become infinite, 1 are lost" in said[64] and "1 of 6 become infinite, 0 are lost" in said[8**5]


def test_a_run_of_all_three_pieces_is_one_devices():
    converted = functions("4.4_what_ddp_leaves_to_you.ipynb")["converted"]
    none = {"order": "each its own", "clipping": "before the mean", "loss": "each rank's mean"}
    yours = dict.fromkeys(none, "yours")

    def losses(size, **pieces):
        each, used, _ = zip(*launch(converted, **pieces, nproc_per_node=size, quiet=True).results, strict=True)
        assert size != 2 or len(set().union(*used)) == (1280 if pieces["order"] == "yours" else 1042)
        return torch.tensor(each, dtype=torch.float64).sum(0)

    one = losses(1, **yours)
    mixed = none | {"loss": "yours"}, none | {"clipping": "yours"}, yours | {"loss": none["loss"]}
    apart = [(losses(2, **pieces) - one).abs().max() for pieces in (yours, none, *mixed)]
    assert apart[0] < 1e-9 and 0.1 < apart[1] < apart[2] and apart[3] + 0.02 < apart[4], "a right piece can look wrong"
    assert (losses(4, **yours) - one).abs().max() < 1e-9


def test_two_ways_to_be_careful_with_dice_are_worse():
    space = functions("4.7_uneven_shares_and_workers.ipynb")
    space.update(drawn={}, everybody=[""] * 4)
    assert space["rolled"]("a generator in the data set")[0].startswith("2 different")
    assert space["rolled"]("worker_init_fn=np.random.seed")[0].startswith("4 different")


def test_a_stream_that_is_shared_out_freezes_without_join_and_ends_with_it():
    mended = functions("4.7_uneven_shares_and_workers.ipynb")["mended"]
    words = mended(5, stream="yours", loop="without Join", dice="one seed")[0]
    assert "freezes: rank 0 waits in backward for rank 1, which never came\n5 samples are served 5 times" in words
    words = mended(5, stream="yours", loop="yours", dice="yours")[0]
    assert "3 of 3 are yours: the run ends, with the same weight" in words
    assert "served 5 times; crops that came up before: 0" in words


@pytest.mark.parametrize("samples, set_epoch, unknown", [(43, "each epoch", []), (40, "never", []), (44, "never", [])])
def test_what_is_served_is_known(samples, set_epoch, unknown):
    memorise = functions("4.6_sharding_the_data.ipynb")["memorise"]
    _, right = launch(memorise, samples, set_epoch, nproc_per_node=4, quiet=True).results[0]
    assert torch.nonzero(~right).flatten().tolist() == unknown


def test_four_ranks_with_32_images_are_one_device_with_128():
    space = functions("4.1_distributed_data_parallel.ipynb")
    gap = space["gap"]
    assert gap([48, 16], loss_of=space["yours"]) < 1e-14, "a sum mends an uneven split"
    assert gap([32] * 4) < 1e-14


def test_a_saboteur_of_a_step_is_noticed_or_not_as_the_lesson_says(capsys):
    space = functions("4.1_distributed_data_parallel.ipynb")
    space["unnoticed"] = {}
    source = next(
        cell.source
        for cell in nbformat.read(PART / "4.1_distributed_data_parallel.ipynb", as_version=4).cells
        if cell.source.endswith("sabotage(step)")
    )

    def said(old="", new=""):
        assert old in source
        exec(source.replace(old, new, 1), space)
        return capsys.readouterr().out

    assert said() == "✗ off by rounding only\n"
    assert said("labels[mine])", "labels[mine]) * 0.8") == "✗ off by 20%: not enough\n"
    ways = {
        "seed=0": ("seed=rank", "50.4%"),
        "rank=rank": ("rank=0", "61.6%"),
        "labels[mine])": ("labels[:32])", "112.3%"),
        "labels[mine]": ("labels[mine], reduction='sum'", "3,100.0%"),
    }
    for old, (new, off) in ways.items():
        out = said(old, new)
        assert out.startswith(f"✓ off by {off}, and nobody notices.")
        assert ("✓✓" in out) == (new in ("seed=rank", "rank=0")), "what the loss curve tells, too"
    assert said("loss.backward()", "(loss / size).backward()").startswith("✓ off by 50.0%")
    assert len(space["unnoticed"]) == 5
    assert said("model = DDP(net)", "model = net") == "✗ somebody notices: the ranks hold different gradients\n"
    assert said("loss.backward()", "loss.backward() if rank == 0 else None").startswith("✗ somebody notices: rank ")


def test_ddp_saves_hardly_anything_or_nearly_all_of_a_step():
    space = functions("4.3_dataparallel_beside_ddp.ipynb")
    space["lasts"], space["star_and_ring"] = {}, lambda *_: None  # 75 drawings would take their time
    lasts = space["lasts"]
    for gpus in range(2, 17):
        for backward in (5, 10, 20, 50, 100):
            space["roads"](gpus, backward)
    saved = {setting: 1 - ddp / through_0 for setting, (through_0, ddp) in lasts.items()}
    assert [setting for setting, share in saved.items() if share < 0.1] == [(2, 100)]
    assert [f"{ms:.1f}" for ms in lasts[2, 100] + lasts[16, 5]] == ["110.2", "101.3", "158.3", "10.8"]
    assert saved[16, 5] > 0.9


@pytest.mark.times(2, stress=5)
def test_what_carries_it_and_what_breaks_it(times):
    space = functions("4.9_puzzles_from_a_start_to_ddp.ipynb")
    losses, told = {}, {}
    space["beside"] = lambda torchs, mine, *_: losses.update(it=(torchs, mine[0]))
    assert all("agree" in space["race"](carried_by=letter)[0] for letter in "fbcde"[: len(times)])
    assert "agree" in space["race"](1.0, divided="no")[0]
    alone = {"start": "each its own"}, {"hooked": "the last only"}, {"divided": "no"}
    three, off = alone[0] | alone[1] | alone[2], []
    for broken in (*alone, three):
        told[len(told)] = space["race"](**broken)[0]
        off.append(max(abs(one - other) for one, other in zip(*losses["it"], strict=True)))
    assert all("part at step 1\n" in words for words in told.values())
    assert "6.98 apart at first, 6.98 at last" in told[0] and "0.00 apart at first, 0.68 at last" in told[1]
    assert "7.43 at last" in told[3] and off[1] < off[3] < off[0] / 2
    sealed = (1, alone[0]), (2, alone[1]), (3, alone[2]), (4, three)
    for seed, broken in sealed[: len(times)]:  # how they are told apart
        words = space["race"](seed=seed, **broken)[0]
        first, last = (float(it) for it in re.findall(r"(\d\.\d\d)\d* (?:apart )?at", words))
        assert (first > 0) == ("start" in broken), words
        assert (last > first + 0.005) == ("hooked" in broken), words


def test_the_forums_eight_gpus_are_over_many_connections_and_each_with_its_batch_two_to_three_times_as_fast():
    space = functions("../7_scale/7.3_measuring_scaling.ipynb")
    there, space["found"], space["promised"] = "✓ half as fast as one!", {}, []
    connections = ("10 Gb Ethernet", "25 Gb Ethernet", "100 Gb Ethernet", "host memory", "PCIe 4")
    assert space["a_step"](100, 10, "PCIe 4", "shared").endswith("as one, over  ☐  ☐  ☐    over 6 times: ☐")
    for ms, connection in zip((50, 20, 5, 10, 2), connections, strict=True):
        for not_divided in (0, 5, 10, 20):
            shared, kept = (space["a_step"](ms, not_divided, connection, it) for it in ("shared", "kept by each rank"))
            assert there in shared and there not in kept
            assert 2 < float(re.search(r"^ +8 +[\d.]+ +([\d.]+)", kept, re.MULTILINE)[1]) < 3
            assert shared.count("\n") == kept.count("\n"), "the page stays as high as it is"
    assert there not in space["a_step"](2, 0, "NVLink 3", "shared") and tuple(space["found"]) == connections
    assert not space["promised"] and "over 6 times: ☐" in space["a_step"](200, 5, "NVLink 3", "shared")
    assert "over 6 times: ☐" in space["a_step"](200, 0, "100 Gb Ethernet", "shared")
    assert space["a_step"](200, 0, "PCIe 4", "shared").endswith("over 6 times: ✓")
