"""What a process does first that a front end has started."""

from __future__ import annotations

import contextlib
import ctypes
import signal
import socket
import sys


def become(title: str) -> None:
    """Be found as `title`, leave signals to the front end, and never outlive it."""
    with contextlib.suppress(ImportError):
        import setproctitle

        setproctitle.setproctitle(title)
    # Ctrl-C and a service manager's SIGTERM reach the whole group; the front end drains first and then tells us.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if sys.platform == "linux":
        # Beside end of file on the socket, for a process that is stopped or stuck and reads nothing.
        pr_set_pdeathsig = 1
        ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, signal.SIGKILL)


def inherited_line(fd: int) -> socket.socket:
    """The socket to the front end."""
    sock = socket.socket(fileno=fd)
    sock.set_inheritable(False)  # a compiler that we start must not keep the line open after our death
    return sock
