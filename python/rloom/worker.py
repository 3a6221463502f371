"""A rank of a training gang: `python -m rloom.worker ADDRESS RANK RANKS EPOCH`, started by the controller.

The environment holds the run's token (`RLOOM_TOKEN`), the address of rank 0 (`MASTER_ADDR`) and, on several nodes,
the rank's number on its node (`RLOOM_LOCAL_RANK`) and the network interface (`GLOO_SOCKET_IFNAME`, `NCCL_SOCKET_IFNAME`).
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import time

from rloom._native import Connection, NativeError

#: Seconds until the controller has to answer.
CONNECT_SECONDS = 60.0
#: Exit status of a rank whose controller is gone.
ORPHANED = 70
ARGUMENTS = 4


def main(arguments: list[str]) -> int:
    """Serves jobs until the controller ends the gang."""
    if len(arguments) != ARGUMENTS:
        sys.stderr.write(f"{__doc__}\n")
        return 2
    address, (rank, ranks, epoch) = arguments[0], map(int, arguments[1:])
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    connection = Connection.connect(address, "rank", rank, epoch, CONNECT_SECONDS)
    connection.set_progress("import", 0, 0)
    threading.Thread(target=_end_with_the_controller, args=(connection,), daemon=True).start()
    local = os.environ.get("RLOOM_LOCAL_RANK", str(rank))
    os.environ.update(RANK=str(rank), LOCAL_RANK=local, WORLD_SIZE=str(ranks))
    from rloom.torch.rank import Rank  # PyTorch takes seconds: after the beats

    Rank(connection, rank, epoch).serve()
    return 0


def _end_with_the_controller(connection: Connection) -> None:
    """Ends the process, whatever it waits for, once the controller is gone."""
    while True:
        try:
            connection.check()
        except NativeError as error:
            sys.stderr.write(f"the controller is gone: {error}\n")
            sys.stderr.flush()
            os._exit(ORPHANED)
        time.sleep(0.5)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
