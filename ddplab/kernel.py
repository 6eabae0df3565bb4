"""`python -m ddplab.kernel`: a notebook's kernel whose ranks share what it has imported. `make lab` starts this one.

Torch takes a second and a half of a core to import, torch._dynamo, which any optimizer imports, as long again, and a
kernel and its forkserver need both. When this module is reached, ddplab has been imported: torch and the rest once, and
then, while this process had a single thread, the forkserver was forked off it (see `processes`). A kernel that imports
ddplab only in a cell has threads by then, and its forkserver imports everything again.
"""

from ipykernel.kernelapp import IPKernelApp

from ddplab.agents import load_ipython_extension

if __name__ == "__main__":
    kernel = IPKernelApp.instance()
    kernel.initialize()
    load_ipython_extension(kernel.shell)
    kernel.start()
