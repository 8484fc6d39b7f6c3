"""Command line -> its exit code; the whole process group is killed when whoever started it disappears.

A script of its own, started by path: standard input is a pipe whose other end only the starter holds, so its end of
file means that the starter is gone, however it died. (The kernel's parent-death signal would fire when the starting
thread ends.)
"""

import os
import signal
import subprocess
import sys
import threading


def main() -> None:
    """Command line of this process -> exit code of the command it holds."""
    # A handler, not SIG_IGN: the command must inherit the default.
    signal.signal(signal.SIGTERM, lambda *_: None)
    process = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
    threading.Thread(target=kill_group_at_end_of_input, daemon=True).start()
    code = process.wait()
    os._exit(code if code >= 0 else 128 - code)


def kill_group_at_end_of_input() -> None:
    """Standard input -> SIGKILL to this group, the guard included, once it ends."""
    while os.read(0, 1024):
        pass
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
