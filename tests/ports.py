"""Ports that nobody listens on, and that no outgoing connection takes before a server does."""

import random
import socket

# Below the range from which systems choose the ports of outgoing connections.
_FIRST, _LAST = 15_000, 32_000


def free_port() -> int:
    while True:
        port = random.SystemRandom().randrange(_FIRST, _LAST)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
