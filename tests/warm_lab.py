"""JupyterLab, but that its kernels have imported torch already: see warm_kernels.py."""

import sys

import warm_kernels
from jupyter_client.provisioning import local_provisioner
from jupyterlab.labapp import main

if sys.platform == "linux":
    local_provisioner.launch_kernel = warm_kernels.launch_kernel
    warm_kernels.spare()
main()
