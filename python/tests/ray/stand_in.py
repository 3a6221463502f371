"""Stands in for `rloom node`: connects to the controller, sends what it was started with, ends with the connection."""

from __future__ import annotations

import json
import os
import socket
import sys

if sys.argv[1] != "node":
    sys.exit("unknown command")
options = dict(zip(sys.argv[2::2], sys.argv[3::2], strict=True))
if options["--controller"] == "refused:1":
    sys.exit("refused: another build")
host, _, port = options["--controller"].rpartition(":")
with socket.create_connection((host, int(port))) as connection:
    started = {
        "controller": host,
        "index": int(options["--index"]),
        "pid": os.getpid(),
        "worker": os.getppid(),
        "token": os.environ["RLOOM_TOKEN"],
        "gpus": os.environ["CUDA_VISIBLE_DEVICES"],
    }
    connection.sendall((json.dumps(started) + "\n").encode())
    connection.recv(1)
