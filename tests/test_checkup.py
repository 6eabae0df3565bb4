"""Each thing that `doctor()` can find, provoked; and that it finds nothing wrong where nothing is."""

import shutil
import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

import ddplab
from ddplab import checkup as doctor
from ddplab import doctor as look_at_it
from ddplab import launch
from ddplab.run import RankError

GIB = 2**30


@pytest.fixture
def machine(monkeypatch):
    """Make this machine look like another: so many GPUs in it, so many that torch sees, and what nvidia-smi says."""

    def make(there=0, seen=0, cuda=None, header="", kinds=(), **columns):
        row = {"name": "Tesla T4", "index": "0", "memory.used": "10", "memory.total": "15360", "compute_cap": "7.5"}
        row |= {"compute_mode": "Default"} | columns
        pids = row.pop("pids", [])

        def answer(*command):
            if not there:
                return None
            if command == ("nvidia-smi",):
                return header
            what, _, asked = command[1].partition("=")
            if what == "--query-compute-apps":
                return "\n".join(pids)
            return "\n".join(", ".join(row[name] for name in asked.split(",")) for _ in range(there))

        monkeypatch.setattr(doctor, "_output_of", answer)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: seen)
        monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: list(kinds))
        monkeypatch.setattr(torch.version, "cuda", cuda)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    return make


def only(findings):
    (finding,) = findings
    return finding


def problem(findings, *words, state="problem"):
    finding = only([f for f in findings if f.state != "fine"])
    assert finding.state == state and finding.todo
    for word in words:
        assert word in f"{finding.found} {finding.todo}", f"{word!r} is not in: {finding}"


def test_a_machine_without_gpus_is_fine(machine):
    machine()
    assert only(doctor.gpus()).state == "fine"
    for look in (doctor.visible_devices, doctor.driver, doctor.nccl, doctor.peer_access, doctor.others_on_the_gpus):
        assert list(look()) == []


def test_gpus_that_torch_sees(machine):
    machine(there=2, seen=2, cuda="12.8")
    assert "torch sees 2 (Tesla T4)" in only(doctor.gpus()).found
    assert list(doctor.visible_devices()) == []


def test_a_torch_without_cuda(machine):
    machine(there=2, header="| CUDA Version: 12.4 |")
    problem(doctor.gpus(), "2 in this machine", "without CUDA", "pytorch.org")
    assert list(doctor.driver()) == []  # there is no CUDA of torch's to compare with


def test_gpus_that_torch_cannot_use(machine):
    machine(there=1, cuda="12.8")
    problem(doctor.gpus(), "none of which torch can use", "torch.cuda.init()")


def test_a_cuda_torch_without_a_driver(machine):
    machine(cuda="12.8")
    problem(doctor.gpus(), "built for CUDA 12.8", "nvidia-smi", state="note")
    assert list(doctor.driver()) == []


@pytest.mark.parametrize("value, seen, state", [("", 0, "problem"), ("1", 1, "note")])
def test_hidden_gpus(machine, monkeypatch, value, seen, state):
    machine(there=2, seen=seen, cuda="12.8")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    problem(doctor.visible_devices(), f"CUDA_VISIBLE_DEVICES={value!r} leaves {seen} of 2", state=state)


def test_a_driver_that_is_too_old(machine):
    machine(there=1, cuda="12.8", header="| Driver Version: 470.1  CUDA Version: 11.4 |")
    problem(doctor.driver(), "up to 11.4", "built for 12.8", "Update the driver")


def test_a_driver_of_the_same_major_version_will_do(machine):
    machine(there=1, cuda="12.8", header="| CUDA Version: 12.4 |", kinds=["sm_70", "sm_80", "compute_80"])
    assert only(doctor.driver()).state == "fine"


@pytest.mark.parametrize("capability", ["7.0", "10.0"])
def test_a_gpu_for_which_torch_has_no_code(machine, capability):
    machine(there=2, seen=2, kinds=["sm_75", "sm_80", "sm_90a"], compute_cap=capability)
    problem(doctor.driver(), "no code for Tesla T4", capability)


@pytest.mark.parametrize("kinds", [["sm_80"], ["sm_70", "compute_75"]])
def test_code_for_an_older_relative_or_ptx_will_do(machine, kinds):
    machine(there=1, seen=1, kinds=kinds, compute_cap="8.6")
    assert list(doctor.driver()) == []


def test_no_nccl(machine, monkeypatch):
    machine(there=2, seen=2, cuda="12.8")
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: False)
    problem(doctor.nccl(), "no nccl", "gloo")


def test_one_gpu_and_nccl(machine, monkeypatch):
    machine(there=1, seen=1, cuda="12.8")
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "nccl", SimpleNamespace(version=lambda: (2, 27, 5)), raising=False)
    problem(doctor.nccl(), "two ranks on one GPU", 'device="cuda"', state="note")


@pytest.mark.parametrize("direct", [True, False])
def test_peer_access(machine, monkeypatch, direct):
    machine(there=2, seen=2, cuda="12.8")
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda a, b: direct)
    if direct:
        assert only(doctor.peer_access()).state == "fine"
    else:
        problem(doctor.peer_access(), "cuda:0 → cuda:1, cuda:1 → cuda:0", "NCCL_P2P_DISABLE=1", state="note")


def test_an_exclusive_gpu(machine):
    machine(there=1, seen=1, compute_mode="Exclusive_Process")
    problem(doctor.others_on_the_gpus(), "Exclusive_Process", "nvidia-smi -i 0 -c DEFAULT")


def test_memory_that_others_hold(machine):
    machine(there=1, seen=1, **{"memory.used": "10240"})
    problem(doctor.others_on_the_gpus(), "10.0 of 15 GiB of GPU 0", state="note")


def test_processes_of_others(machine):
    machine(there=1, seen=1, pids=["11", "4242"])
    problem(doctor.others_on_the_gpus(), "2 on the GPUs: 11, 4242", state="note")


@pytest.mark.parametrize("total, free, word", [(GIB / 16, GIB / 16, "--shm-size=8g"), (8 * GIB, GIB / 8, "ls -l")])
def test_little_shared_memory(monkeypatch, total, free, word):
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(total=total, free=free))
    problem(doctor.shared_memory(), word)


def test_a_taken_port(monkeypatch):
    with socket.socket() as door:
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            door.bind(("127.0.0.1", 29500))
            door.listen()
        except OSError:
            pass  # somebody else has taken it, which is as good
        problem(doctor.ports(), "29500", "localhost:0", state="note")


def test_no_port_at_all(monkeypatch):
    def refuse(*_):
        raise OSError("Cannot assign requested address")

    monkeypatch.setattr(socket, "socket", type("Door", (socket.socket,), {"bind": refuse}))
    problem(doctor.ports(), "no port can be opened on 127.0.0.1", "lo")


def test_a_hostname_that_does_not_resolve(monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "no-such-host.invalid")
    problem(doctor.names(), "'no-such-host.invalid' cannot be looked up", "/etc/hosts", "GLOO_SOCKET_IFNAME")


def test_a_hostname_that_leads_elsewhere(monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "192.0.2.7")
    problem(doctor.names(), "192.0.2.7, which is not this machine", "/etc/hosts")


def test_a_slow_name_server(monkeypatch):
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: [(0, 0, 0, "", ("127.0.0.1", 0))])
    monkeypatch.setattr(socket, "getnameinfo", lambda *_: None)
    ticks = iter([0.0, 5.0])
    monkeypatch.setattr(doctor, "time", SimpleNamespace(monotonic=lambda: next(ticks)))
    problem(doctor.names(), "took 5.0 s", "RES_OPTIONS", state="note")


@pytest.mark.parametrize("cores, quota, found", [(1, "", "1 for 2 ranks"), (64, "150000 100000", "1.5 for 2 ranks")])
def test_few_cores(monkeypatch, cores, quota, found):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(doctor, "cpu_cores", lambda: cores)
    monkeypatch.setattr(doctor, "_first_line", lambda path: quota)
    problem(doctor.cores(), found, state="note")


@pytest.mark.parametrize("quota", ["", "max 100000", "800000 100000"])
def test_enough_cores(monkeypatch, quota):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(doctor, "cpu_cores", lambda: 4)
    monkeypatch.setattr(doctor, "_first_line", lambda path: quota)
    assert only(doctor.cores()).found == "4 for 2 ranks"


def test_little_memory_in_a_container(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    told = {"memory.max": str(2 * GIB), "memory.current": str(GIB)}
    monkeypatch.setattr(doctor, "_first_line", lambda path: told[path.rpartition("/")[2]])
    problem(doctor.memory(), "1.0 GiB free for 2 ranks", "killed", state="note")


def test_variables_of_another_job(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    assert list(doctor.environment()) == []
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("MASTER_PORT", "29500")
    problem(doctor.environment(), "RANK, MASTER_PORT set here", "unset RANK MASTER_PORT")


def test_a_launch_that_works_and_one_that_does_not(monkeypatch):
    assert only(doctor.trial()).state == "fine"

    def fails(*_, **__):
        raise RuntimeError("no forks left\nand more")

    monkeypatch.setattr(doctor, "launch", fails)
    problem(doctor.trial(), "no forks left", "Lesson 6.1")


def test_a_rank_that_fails_is_told_in_one_line(monkeypatch):
    def bad():
        raise ValueError("broken here")

    monkeypatch.setattr(doctor, "_add", bad)
    with pytest.raises(RankError):
        launch(bad, quiet=True)
    problem(doctor.trial(), "broken here")


def test_a_look_that_fails_is_a_finding_too(monkeypatch):
    def peer_access():
        raise PermissionError("not allowed")

    monkeypatch.setattr(doctor, "LOOKS", (peer_access,))
    finding = only(look_at_it())
    assert (finding.about, finding.state) == ("peer_access", "note") and "not allowed" in finding.found


def test_what_it_shows_has_a_word_a_symbol_and_something_to_do(monkeypatch):
    def ports():
        yield doctor.Finding("ports", "problem", "no <port>", "Open one.")

    monkeypatch.setattr(doctor, "LOOKS", (ports,))
    report = look_at_it()
    assert str(report) == "✗ problem ports: no <port>\n          → Open one."
    assert "✗ problem</strong>" in report._repr_html_() and "no &lt;port&gt;" in report._repr_html_()


def test_a_command_that_is_missing_or_fails_says_nothing():
    assert doctor._output_of("no-such-command") is None
    assert doctor._output_of(sys.executable, "-c", "raise SystemExit(3)") is None
    assert doctor._output_of(sys.executable, "-c", "print(1)") == "1\n"


def test_the_command_prints_the_findings_and_exits_with_1_on_a_problem():
    import os

    environ = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    command = [sys.executable, "-m", "ddplab", "doctor"]
    done = subprocess.run(command, env={**environ, "WORLD_SIZE": "8"}, capture_output=True, text=True)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "✗ problem environment: WORLD_SIZE set here" in done.stdout
    assert "CPU cores: " in done.stdout


def test_it_is_a_public_name():
    assert ddplab.doctor is look_at_it and "doctor" in ddplab.__all__
