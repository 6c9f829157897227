"""Interpreters that start as copies of one that has imported torch and SciPy, since importing them takes seconds.

A copy has nothing of `sirc` or of the test that starts it: no module, no setting, no thread.
"""

import multiprocessing
import os
import runpy
import sys
import tempfile
import time
import traceback
from pathlib import Path
from types import SimpleNamespace

from torch import distributed

_METHOD = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
COPIES = multiprocessing.get_context(_METHOD)
# The second takes as long to import as torch, and torchvision and torch.distributed import it; `sirc.fit` the last.
COPIES.set_forkserver_preload(["torch", "torch._dynamo", "torch.distributed.nn", "scipy.optimize"])


class Interpreter:
    """`python` with these words on its command line, started in the current folder."""

    def __init__(self, *words, **variables):
        self._folder = tempfile.TemporaryDirectory()
        self._told = [Path(self._folder.name, name) for name in ("stdout", "stderr")]
        environment = dict(os.environ) | {name: str(value) for name, value in variables.items()}
        arguments = ([str(word) for word in words], os.getcwd(), environment, self._told)
        self.process = COPIES.Process(target=_be, args=arguments)
        self.process.start()

    def first_line(self):
        """What it printed first; nothing if it ends without a word."""
        alive = True
        while alive:
            alive = self.process.is_alive()  # asked before it is read: one that has ended has said all
            if self._told[0].exists() and "\n" in (text := self._told[0].read_text(encoding="utf-8")):
                return text.partition("\n")[0]
            time.sleep(0.01)
        return ""

    def end(self, seconds=600):
        """Wait for its end: its `returncode`, `stdout` and `stderr`."""
        with self._folder:
            self.process.join(seconds)
            self.process.kill()  # unless it has ended by itself
            self.process.join()
            stdout, stderr = (path.read_text(encoding="utf-8") for path in self._told)
        return SimpleNamespace(returncode=self.process.exitcode, stdout=stdout, stderr=stderr)


def python(*words, **variables):
    """Run one to its end."""
    return Interpreter(*words, **variables).end()


def launched(count, *words, **variables):
    """Run several that belong together, as torchrun starts them: a list of their ends."""
    store = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": store.port, "TORCHELASTIC_USE_AGENT_STORE": "True"}
    common |= {"WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, **variables}
    started = [Interpreter(*words, RANK=rank, LOCAL_RANK=rank, **common) for rank in range(count)]
    return [each.end() for each in started]


def _be(words, folder, environment, told):
    for descriptor, path in enumerate(told, start=1):
        file = os.open(path, os.O_WRONLY | os.O_CREAT)
        os.dup2(file, descriptor)
        os.close(file)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    try:
        if words[0] == "-c":
            sys.argv = ["-c", *words[2:]]
            exec(words[1], {"__name__": "__main__"})
        elif words[0] == "-m":
            sys.argv, sys.path = words[1:], [folder, *sys.path]
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv, sys.path = words, [str(Path(words[0]).parent), *sys.path]
            runpy.run_path(words[0], run_name="__main__")
    except Exception:
        traceback.print_exc()
        sys.exit(1)
