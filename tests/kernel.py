"""A real IPython kernel for tests, driven as a notebook drives it."""

import contextlib
import os
import queue
import time

from jupyter_client.manager import start_new_kernel


class Kernel:
    def __init__(self, **env: str):
        env = {**{k: v for k, v in os.environ.items() if k != "PYTEST_CURRENT_TEST"}, **env}
        self.manager, self.client = start_new_kernel(kernel_name="python3", env=env, cwd=os.getcwd())

    @property
    def pid(self) -> int:
        return self.manager.provisioner.process.pid

    def begin(self, code: str) -> str:
        return self.client.execute(code)

    def finish(self, message_id: str, timeout: float = 60) -> "Outcome":
        """Collect what a cell shows until the kernel is idle again."""
        outcome = Outcome()
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            try:
                message = self.client.get_iopub_msg(timeout=1)
            except queue.Empty:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind in ("display_data", "update_display_data", "execute_result"):
                outcome.displays.append((kind, content["data"]))
            if message["parent_header"].get("msg_id") != message_id:
                continue
            if kind == "stream":
                outcome.text += content["text"]
            elif kind == "error":
                outcome.error, outcome.message = content["ename"], content["evalue"]
                outcome.traceback = "\n".join(content["traceback"])
            elif kind == "status" and content["execution_state"] == "idle":
                return outcome
        raise TimeoutError(f"the cell did not end within {timeout} s; so far: {outcome.text}")

    def drain(self) -> None:
        """Forget what earlier cells still show."""
        with contextlib.suppress(queue.Empty):
            while True:
                self.client.get_iopub_msg(timeout=0.1)

    def run(self, code: str, timeout: float = 60) -> "Outcome":
        return self.finish(self.begin(code), timeout)

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


class Outcome:
    """What a cell did: its text, displays and error."""

    def __init__(self):
        self.text, self.error, self.message, self.traceback = "", None, "", ""
        self.displays: list[tuple[str, dict]] = []
