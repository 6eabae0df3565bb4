"""What every learner's server is set to: on one server, on Kubernetes and on Slurm.

It lies in the environment's etc/jupyter, where Jupyter looks.
"""

import os

c = get_config()  # noqa: F821

# A kernel on TCP ports listens where every user of the machine can knock. Sockets below a private home do not.
c.KernelManager.transport = "ipc"
# The kernel of a closed notebook goes when it has been without work for so long, and its ranks' forkserver with it.
idle = round(60 * float(os.environ.get("DDPLAB_IDLE_MINUTES", "60")))
c.MappingKernelManager.cull_idle_timeout = idle
c.MappingKernelManager.cull_interval = max(5, min(300, idle // 4))
c.MappingKernelManager.cull_connected = False
c.TerminalManager.cull_inactive_timeout = idle
# Not a login shell: that would put the system's PATH in the place of ours, which has the course's Python.
c.ServerApp.terminado_settings = {"shell_command": ["/bin/bash"]}
c.FileContentsManager.delete_to_trash = False  # there is no trash on a server
os.umask(0o077)
