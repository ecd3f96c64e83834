"""One of two processes of two devices: `gang_program.py PROCESS COORDINATOR` does everything that a gang can do and prints what it saw."""

import json
import os
import signal
import sys
import threading
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from marin_core import distributed
from marin_core.distributed import PeerLostError

TENTH = float(np.nextafter(0.1, 1))


def agreement() -> dict[str, Any]:
    own = distributed.process_index()
    spoken: list[Any] = [TENTH, 7, True, "a/b"] if own == 0 else [0.0, 0, False, ""]
    seen = {
        "count": distributed.process_count(),
        "devices": jax.device_count(),
        "local_devices": jax.local_device_count(),
        "nowhere": distributed.anywhere(False),
        "elsewhere": distributed.anywhere(own == 1),
        "nowhere_again": distributed.anywhere(False),
        "from_lead": [distributed.from_lead(value) for value in spoken],
        "from_each": distributed.from_each(own * TENTH),
    }
    for step in range(20):
        distributed.anywhere(step % 2 == own)
    distributed.barrier("all read", 60)
    left = distributed._client().key_value_dir_get("marin/")
    distributed.barrier("counted", 60)
    return {**seen, "keys_left": len(left)}


def sigterm_arrives() -> bool:
    arrived = threading.Event()
    signal.signal(signal.SIGTERM, lambda signum, frame: arrived.set())
    os.kill(os.getpid(), signal.SIGTERM)
    return arrived.wait(10)


def late_peer() -> str:
    """Process 1 doesn't come to the barrier."""
    answer = ""
    if distributed.is_lead():
        try:
            distributed.barrier("evaluation", 0.2)
        except PeerLostError as error:
            answer = error.message
    distributed.barrier("evaluation is over", 60)
    return answer


def dead_peer() -> dict[str, Any]:
    """Process 1 is killed while process 0 waits for it in a collective."""
    multihost_utils.process_allgather(np.int32(0))
    if not distributed.is_lead():
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        for _ in range(1000):
            multihost_utils.process_allgather(np.int32(0))
    except Exception as error:
        wrapped = ValueError("the save failed")
        wrapped.__cause__ = error
        return {"collective": str(error), "known": distributed.peer_lost(error), "known_wrapped": distributed.peer_lost(wrapped)}
    return {}


def main() -> None:
    process, coordinator = int(sys.argv[1]), sys.argv[2]
    distributed.start(coordinator, 2, process, startup_seconds=60, barrier_seconds=60)
    seen = {**agreement(), "sigterm": sigterm_arrives(), "late": late_peer()}
    print(json.dumps(seen), flush=True)
    print(json.dumps(dead_peer()), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
