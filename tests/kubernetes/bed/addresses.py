"""Addresses for pods: each has its own, so that many of them can listen on the same port of one machine."""

import itertools
import re
import socket
import threading

PORT = 18476
"""Held on one address for as long as the bed lives, which tells other beds on this machine that its network is taken."""


class Addresses:
    """A network 127.N.0.0/16 of this machine, all of which can be listened on, and who has which address in it.

    A name of a headless Service, `{hostname}.{subdomain}`, keeps its address while its pods come and go within one restart of the JobSet.
    So it can be told to a process before the pod that it names exists, and nothing needs to resolve names.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._given: dict[tuple[str, ...], str] = {}
        self._numbers = itertools.count(1)
        for network in range(1, 255):
            claim = socket.socket()
            try:
                claim.bind((f"127.{network}.255.254", PORT))
            except OSError:
                claim.close()
                continue
            self._network, self._claim = network, claim
            return
        raise RuntimeError("254 beds run on this machine")

    def release(self) -> None:
        self._claim.close()

    def of(self, *key: str) -> str:
        """Return the address that belongs to a key, the same each time."""
        with self._lock:
            if key not in self._given:
                number = next(self._numbers)
                self._given[key] = f"127.{self._network}.{number // 250 % 255}.{number % 250 + 1}"
            return self._given[key]

    def resolve(self, text: str, subdomain: str, namespace: str, generation: str) -> str:
        """Replace the names of a Service's pods in a text by their addresses."""
        name = rf"\b([a-z0-9-]+)\.{re.escape(subdomain)}(?:\.{re.escape(namespace)}(?:\.svc(?:\.cluster\.local)?)?)?(?![\w.-])"
        return re.sub(name, lambda match: self.of(namespace, subdomain, match[1], generation), text)
