"""Every test starts with nothing and must leave nothing: no process, no folder."""

import atexit
import os
import shutil
import tempfile

# A folder of this test process alone, so that what other test processes are doing is not mistaken for a leftover.
_folder = tempfile.mkdtemp(prefix="t-")
os.environ["TMPDIR"] = tempfile.tempdir = _folder
atexit.register(shutil.rmtree, _folder, ignore_errors=True)  # before multiprocessing's own, so it runs after it

import pytest  # noqa: E402
import torch  # noqa: E402
from leftovers import ranks_alive, run_folders, there_before, until  # noqa: E402

# The look-ups that torch does for 127.0.0.1 go to the name server; where that does not answer, one second is enough.
os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")


@pytest.hookimpl(optionalhook=True)  # pytest-xdist's
def pytest_xdist_make_scheduler(config, log):
    """Say what has to stay together on one worker: a notebook's cells share a kernel, a file's tests their fixtures.

    Only the two longest files are dealt out test by test.
    """
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            dealt_out = "test_checks.py" in nodeid or "::test_run_all[" in nodeid
            return nodeid if dealt_out else super()._split_scope(nodeid)

    return Scheduling(config, log)


def pytest_collection_modifyitems(items):
    if torch.cuda.device_count() == 0:
        for item in items:
            if "gpu" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="needs a GPU; this machine has none"))


def _switches() -> dict[str, str]:
    """Return ddplab's own variables and a rank's: what would make the next test on this worker another one."""
    ours = {name: value for name, value in os.environ.items() if name.startswith(("DDPLAB_", "RANK", "WORLD_SIZE"))}
    return {name: value for name, value in ours.items() if name != "DDPLAB_SOCKET_DIR"}  # set once, when imported


@pytest.fixture(autouse=True)
def nothing_left_behind():
    there_before.clear()
    there_before.update(process.pid for process in ranks_alive())
    folders, switches = run_folders(), _switches()
    shared_memory = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
    yield
    assert until(lambda: not ranks_alive()), f"processes left behind: {[p.cmdline() for p in ranks_alive()]}"
    assert set(run_folders()) <= set(folders), f"folders left behind: {set(run_folders()) - set(folders)}"
    assert _switches() == switches, "the next test on this worker would find another environment"
    if shared_memory:
        mine = [name for name in set(os.listdir("/dev/shm")) - shared_memory if str(os.getpid()) in name]
        assert mine == []
    there_before.clear()
