"""The port is taken before anything slow begins: who can't have it finds out at once."""

from __future__ import annotations

import errno
import socket

from pellucid.server.options import ServerOptions

BACKLOG = 2048


class ListenError(RuntimeError):
    """The address can't be listened on; str() says why and what to do."""


def bind(options: ServerOptions) -> socket.socket:
    """A listening socket. Raises ListenError."""
    host, port = options.host, options.port
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError) as error:
        raise ListenError(f"host={host!r} is no address of this machine: {error}") from error
    family, kind, protocol, _, address = found[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise ListenError(_why(error, host, port)) from error
    sock.setblocking(False)
    return sock


def url_of(sock: socket.socket) -> str:
    """What to type to reach it from this machine."""
    host, port = sock.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1" if host == "0.0.0.0" else "::1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _why(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"port {port} on {host} is taken, perhaps by another server; stop that one, or give --port another number"
        )
    if error.errno == errno.EACCES:
        return f"port {port} needs privileges that this process lacks; give --port a number from 1024 up"
    return f"can't listen on {host}:{port}: {error.strerror or error}"
