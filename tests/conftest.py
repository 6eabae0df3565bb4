"""Every test starts with nothing and must leave nothing: no process, no folder."""

import atexit
import gc
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from multiprocessing.process import BaseProcess

# A folder of this test process alone, so that what other test processes are doing is not mistaken for a leftover.
_folder = tempfile.mkdtemp(prefix="t-")
os.environ["TMPDIR"] = tempfile.tempdir = _folder
atexit.register(shutil.rmtree, _folder, ignore_errors=True)  # before multiprocessing's own, so it runs after it

gc.disable()  # until all tests are collected: to look for garbage in what that makes is a quarter of its time

# Set before torch is imported: OpenMP threads that spin while they wait slow small models twentyfold on two cores.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# The look-ups that torch does for 127.0.0.1 go to the name server; where that does not answer, one second is enough.
os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")
# For ddplab: who deals out the tests launches nothing, nor does every worker; the first launch starts the forkserver.
os.environ["PYTEST_CURRENT_TEST"] = "none yet"

import nbval.kernel  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402
import used_ranks  # noqa: E402
import warm_kernels  # noqa: E402
from jupyter_client.manager import KernelManager  # noqa: E402
from jupyter_client.provisioning import local_provisioner  # noqa: E402
from leftovers import ranks_alive, run_folders, there_before, until  # noqa: E402

del os.environ["PYTEST_CURRENT_TEST"]


@pytest.hookimpl(optionalhook=True)  # pytest-xdist's
def pytest_xdist_make_scheduler(config, log):
    """Say what has to stay together on one worker: a notebook's cells share a kernel, a file's tests their fixtures.

    Only the longest file is dealt out in pieces: the answers to one exercise stay together.
    """
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            exercise = re.search(r"test_checks\.py::.*\[(\d\.\d\.\w+)", nodeid)
            return exercise[1] if exercise else super()._split_scope(nodeid)

    return Scheduling(config, log)


# These take longest, so they come first: one of them left to the end would run alone.
LONGEST = ("test_nights.py", "test_slurm.py", "test_checks.py", "test_browser.py", "test_agents.py", "test_rehearse.py")
EXECUTING = ("test_tools.py", "test_new.py")
# Whose agents and ranks may be forks of a process that has imported torch already: they test what is done with them.
# How they start is tested elsewhere, and by those marked `fresh`.
WARM = (
    "test_agents.py",
    "test_bare.py",
    "test_stage.py",
    "test_digits_job.py",
    "test_lease.py",
    "test_train_script.py",
    "test_two_hosts.py",
    "test_security.py",
    "test_rehearse.py",
    "test_virtual_ranks.py",
)
USES_RANKS_AGAIN = ("test_checks.py", "test_used_ranks.py")


def _manager(**options) -> KernelManager:
    """Manage a kernel that is met in files: a port, once chosen, is anybody's until the kernel has taken it."""
    return KernelManager(transport="ipc", ip=f"{tempfile.mkdtemp(prefix='kernel-')}/socket", **options)


def pytest_addoption(parser):
    parser.addoption("--stress", action="store_true", help="repeat as often as stress= says what is marked `times`")
    parser.addoption("--quick", action="store_true", help="skip what starts a process, at the moment when it would")


@pytest.fixture
def times(request) -> range:
    """How often a test repeats what fails once in a while: its marker `times` says how often, and under --stress."""
    marker = request.node.get_closest_marker("times")
    return range(marker.kwargs["stress"] if request.config.getoption("--stress") else marker.args[0])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Give nbval's notebooks, and those that tests of tools execute, warm kernels, where torch can be forked.

    Under --quick, skip a test at the moment when it starts a process: no list of quick tests that goes stale.
    """
    with pytest.MonkeyPatch.context() as patch:
        executes = item.path.suffix == ".ipynb" or item.path.name in EXECUTING or item.get_closest_marker("warm")
        if executes and sys.platform == "linux" and not item.config.getoption("--quick"):
            patch.setattr(local_provisioner, "launch_kernel", warm_kernels.launch_kernel)
            patch.setattr(nbval.kernel, "KernelManager", _manager)
            warm_kernels.spare()  # which the test then has not left behind
        warm = item.path.name in WARM and not item.get_closest_marker("fresh")
        if warm and sys.platform == "linux" and not item.config.getoption("--quick"):
            warm_kernels.spare()
            patch.setattr(subprocess.Popen, "_execute_child", warm_kernels.from_spare(warm_kernels.spare()))
        if item.path.name not in USES_RANKS_AGAIN:
            used_ranks.end()  # the next test counts ranks, their folders and who listens
        if item.config.getoption("--quick"):
            patch.setattr(subprocess.Popen, "__init__", lambda *_, **__: pytest.skip("starts a process"))
            patch.setattr(BaseProcess, "start", lambda *_, **__: pytest.skip("starts a process"))
        return (yield)


def pytest_collection_modifyitems(items):
    twice = [name for name, count in Counter(item.nodeid for item in items).items() if count > 1]
    assert not twice, f"pytest-xdist would run one of those with the same name: {twice}"
    items.sort(key=lambda item: LONGEST.index(item.path.name) if item.path.name in LONGEST else len(LONGEST))
    if torch.cuda.device_count() == 0:
        for item in items:
            if "gpu" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="needs a GPU; this machine has none"))


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    yield
    gc.freeze()  # five thousand tests are never garbage: without them a collection takes a tenth of the time
    gc.enable()


def pytest_report_header():
    if "DDPLAB_REHEARSAL" in os.environ:
        return "rehearsed on virtual GPUs: nothing here runs on a GPU"


def pytest_terminal_summary(terminalreporter):
    if "DDPLAB_REHEARSAL" in os.environ:
        terminalreporter.write_line("rehearsed on virtual GPUs: nothing here ran on a GPU")


def _switches() -> dict[str, str]:
    """Return ddplab's own variables and a rank's: what would make the next test on this worker another one."""
    ours = {name: value for name, value in os.environ.items() if name.startswith(("DDPLAB_", "RANK", "WORLD_SIZE"))}
    once = ("DDPLAB_SOCKET_DIR", "DDPLAB_KERNEL")  # set when imported
    return {name: value for name, value in ours.items() if name not in once}


@pytest.fixture(autouse=True)
def nothing_left_behind(request):
    if request.config.getoption("--quick"):
        yield  # what is cut short cannot tidy up
        return
    there_before.clear()
    there_before.update(process.pid for process in ranks_alive())
    folders, switches = set(run_folders()), _switches()
    shared_memory = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
    yield
    assert until(lambda: not ranks_alive()), f"processes left behind: {[p.cmdline() for p in ranks_alive()]}"
    # torch makes a file for a moment when a spare is forked ahead, which may be while the next test runs
    ours = folders | used_ranks.folders()
    assert until(lambda: set(run_folders()) <= ours), f"left behind: {set(run_folders()) - ours}"
    assert _switches() == switches, "the next test on this worker would find another environment"
    if shared_memory:
        mine = [name for name in set(os.listdir("/dev/shm")) - shared_memory if str(os.getpid()) in name]
        assert mine == []
    there_before.clear()
