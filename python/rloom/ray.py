"""Starts a node daemon on each node of a Ray cluster: `python -m rloom.ray`, started by `rloom train`.

Ray reserves the nodes and replaces lost ones; it carries neither data nor control. Events are JSON lines on standard
output. The launcher and its daemons end when standard input closes.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import ctypes
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from typing import Any

#: Seconds between two reports of a placement that is pending.
REPORT_SECONDS = 5.0
#: A daemon that ends this often within `FAILURE_SECONDS` ends the run.
FAILURES = 5
FAILURE_SECONDS = 60.0
#: Seconds without Ray's head that end the run, by name: Ray would end this process later, by its own variable.
HEAD_SECONDS = 0.75 * float(os.environ.get("RAY_gcs_rpc_server_reconnect_timeout_s", "60"))  # noqa: SIM112
#: Seconds for removing the placement group at the end. Ray removes what is left when this process ends.
CLEANUP_SECONDS = 10.0
PR_SET_PDEATHSIG = 1


class LaunchError(Exception):
    """A failure that ends the launcher, with its reason."""


class Daemon:
    """The actor of one bundle, whose process runs one daemon.

    Its methods run in the main thread of the process, so that the daemon, which is sent SIGKILL when the thread that
    started it ends, ends with the process. Ray's own threads serve Ray meanwhile.
    """

    def __init__(self, arguments: list[str], program: str | None, token: str) -> None:
        self.arguments = arguments
        self.program = program
        self.token = token
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> tuple[str, str]:
        """Starts the daemon unless it runs. Returns id and address of the node."""
        import ray

        if self.process is None:
            program = self.program
            if program is None:
                from rloom import _binary

                program = str(_binary.path())
            # Ray leaves all GPUs visible to an actor without any.
            gpus = ",".join(str(gpu) for gpu in ray.get_gpu_ids())
            libc = ctypes.CDLL(None)
            self.process = subprocess.Popen(
                [program, "node", *self.arguments],
                env={**os.environ, "RLOOM_TOKEN": self.token, "CUDA_VISIBLE_DEVICES": gpus},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                preexec_fn=lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL),
                text=True,
                errors="replace",
            )
        return ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address()

    def wait(self) -> str:
        """Waits for the end of the daemon. Returns its status and the end of its output."""
        process, self.process = self.process, None
        if process is None:
            return "the worker process of Ray was restarted"
        tail: collections.deque[str] = collections.deque(maxlen=10)

        def read(output: Any) -> None:
            for line in output:
                tail.append(line.rstrip())
                print(line, end="", file=sys.stderr, flush=True)  # to Ray's log of this process

        reader = threading.Thread(target=read, args=(process.stdout,), daemon=True)
        reader.start()
        try:
            status = process.wait()
        finally:
            process.kill()
        reader.join(timeout=1)  # A process that the daemon left behind may hold the pipe.
        ended = f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
        return "\n".join([f"the daemon ended: {ended}", *tail])


class Launcher:
    """One placement group and its actors. Calls of Ray may block, so that they are made in threads of their own."""

    def __init__(self, options: argparse.Namespace, token: str, events: Any) -> None:
        self.options = options
        self.token = token
        self.events = events
        #: The reason for which the launcher ends; None for the end of standard input.
        self.outcome: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        nodes = [(options.cpus_per_node, options.gpus_per_node)] * options.nodes
        nodes += [(options.cpus_per_cpu_node, 0.0)] * options.cpu_nodes
        #: Cores and GPUs of each daemon, by its number.
        self.bundles = [
            {name: number for name, number in (("CPU", cpus), ("GPU", gpus)) if number}
            for cpus, gpus in nodes
        ]
        self.group: Any = None
        #: When Ray's head has answered last.
        self.answered = time.monotonic()

    def emit(self, event: str, **fields: Any) -> None:
        """Writes one event."""
        with contextlib.suppress(OSError):  # The controller is gone, which closes standard input as well.
            os.write(self.events, (json.dumps({"event": event, **fields}) + "\n").encode())

    def run(self) -> str | None:
        """Launches the daemons and keeps them running. Returns the reason of a failure."""
        self.spawn(self.await_end)
        self.spawn(self.launch)
        while True:
            with contextlib.suppress(queue.Empty):
                return self.outcome.get(timeout=1)
            silent = time.monotonic() - self.answered
            if self.group is None and silent > self.options.timeout:
                return f"no connection to Ray ({self.options.address}) within {silent:.0f} s"
            if self.group is not None and silent > HEAD_SECONDS:
                return f"Ray's head is lost: no answer for {silent:.0f} s"

    def spawn(self, target: Any, *arguments: Any) -> None:
        """Runs a function in a thread whose failure ends the launcher."""

        def run() -> None:
            try:
                target(*arguments)
            except LaunchError as error:
                self.outcome.put(str(error))
            except BaseException as error:
                self.outcome.put(f"{type(error).__name__}: {error}")

        threading.Thread(target=run, daemon=True).start()

    def await_end(self) -> None:
        """Waits until standard input closes."""
        while os.read(0, 4096):
            pass
        self.outcome.put(None)

    def launch(self) -> None:
        """Connects to Ray, starts the actors, watches Ray's head.

        A cluster that Ray starts for this process ends with the thread that started it: this one.
        """
        import ray
        from ray.util.placement_group import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        options = self.options
        ray.init(address=options.address, configure_logging=False)
        self.answered = time.monotonic()
        host, _, port = options.controller.rpartition(":")
        if host in ("0.0.0.0", "[::]"):  # all interfaces: Ray knows which one the nodes reach
            host = ray.util.get_node_ip_address()
        self.group = placement_group(self.bundles, strategy=options.placement.upper())
        self.await_group()
        for index, bundle in enumerate(self.bundles):
            cpus, gpus = bundle.get("CPU", 0.0), bundle.get("GPU", 0.0)
            remote = ray.remote(max_restarts=-1, num_cpus=cpus, num_gpus=gpus)
            strategy = PlacementGroupSchedulingStrategy(self.group, placement_group_bundle_index=index)
            arguments = ["--controller", f"{host}:{port}", "--index", str(index)]
            actor = remote(Daemon).options(scheduling_strategy=strategy)
            self.spawn(self.keep, index, actor.remote(arguments, options.program, self.token))
        while ray.nodes():  # blocks while the head is gone
            self.answered = time.monotonic()
            time.sleep(1)

    def await_group(self) -> None:
        """Waits for the placement group and reports what is missing."""
        began = time.monotonic()
        while not self.group.wait(timeout_seconds=REPORT_SECONDS):
            seconds = time.monotonic() - began
            needed, offered = need(self.bundles), offer()
            self.answered = time.monotonic()
            if seconds > self.options.timeout:
                how = f"{needed} ({self.options.placement}) within {self.options.timeout:g} s"
                raise LaunchError(f"Ray did not place {how}; it offers {offered}")
            self.emit("pending", seconds=round(seconds, 1), needed=needed, offered=offered)

    def keep(self, index: int, actor: Any) -> None:
        """Starts the daemon of a bundle whenever it is not running."""
        import ray

        ended: collections.deque[float] = collections.deque(maxlen=FAILURES)
        restarts, reason = 0, ""
        while True:
            node, address = self.await_actor(index, actor.start.options(max_task_retries=-1).remote())
            if restarts:
                self.emit("restarted", index=index, restarts=restarts, reason=reason)
            self.emit("placed", index=index, node=node, address=address)
            try:
                reason = ray.get(actor.wait.remote())
            except ray.exceptions.RayActorError as error:
                reason = str(error)
            restarts += 1
            ended.append(time.monotonic())
            if len(ended) == FAILURES and ended[-1] - ended[0] < FAILURE_SECONDS:
                raise LaunchError(f"the daemon of node {index} ended {FAILURES} times in a minute: {reason}")
            time.sleep(1)

    def await_actor(self, index: int, call: Any) -> tuple[str, str]:
        """Waits for an actor that Ray may have to start on another node."""
        import ray

        began = time.monotonic()
        while True:
            with contextlib.suppress(ray.exceptions.GetTimeoutError):
                node, address = ray.get(call, timeout=REPORT_SECONDS)
                return node, address
            seconds = round(time.monotonic() - began, 1)
            self.emit(
                "pending", index=index, seconds=seconds, needed=need([self.bundles[index]]), offered=offer()
            )

    def clean(self) -> None:
        """Removes the placement group, which ends the actors, and disconnects."""
        import ray
        from ray.util.placement_group import remove_placement_group

        if self.group is not None:
            remove_placement_group(self.group)
        ray.shutdown()


def need(bundles: list[dict[str, float]]) -> str:
    """Bundles, for people: `2 x {CPU: 8, GPU: 1} + 1 x {CPU: 4}`."""
    texts = ["{" + ", ".join(f"{name}: {number:g}" for name, number in own.items()) + "}" for own in bundles]
    return " + ".join(f"{count} x {text}" for text, count in collections.Counter(texts).items())


def offer() -> str:
    """Free and total resources of each node, for people."""
    import ray
    from ray._private.state import available_resources_per_node

    free = available_resources_per_node()
    nodes = []
    for node in ray.nodes():
        if node["Alive"]:
            own, total = free.get(node["NodeID"], {}), node["Resources"]
            parts = [
                f"{name} {own.get(name, 0):g}/{total[name]:g}" for name in ("CPU", "GPU") if name in total
            ]
            nodes.append(f"node {node['NodeManagerHostname']}: {', '.join(parts) or 'none'}")
    return "; ".join(nodes) or "no nodes"


def main() -> int:
    """Runs the launcher until standard input closes or it fails."""
    parser = argparse.ArgumentParser(prog="python -m rloom.ray", description=__doc__)
    parser.add_argument("--controller", required=True, metavar="HOST:PORT")
    parser.add_argument("--nodes", required=True, type=int)
    parser.add_argument(
        "--placement", default="pack", choices=["pack", "spread", "strict_pack", "strict_spread"]
    )
    parser.add_argument("--address", default="auto", metavar="auto|local|HOST:PORT")
    parser.add_argument("--cpus-per-node", type=float, default=1.0)
    parser.add_argument("--gpus-per-node", type=float, default=0.0)
    parser.add_argument("--cpu-nodes", default=0, type=int, help="further nodes, which have no GPUs")
    parser.add_argument("--cpus-per-cpu-node", type=float, default=1.0)
    parser.add_argument("--timeout", type=float, default=600.0, metavar="SECONDS")
    parser.add_argument(
        "--program", help="the rloom binary on the nodes [default: that of the package there]"
    )
    options = parser.parse_args()
    # Processes that Ray starts from here must not inherit the token.
    token = os.environ.pop("RLOOM_TOKEN", None)
    if not token:
        parser.error("the environment variable RLOOM_TOKEN is not set")
    events = os.dup(1)
    os.dup2(2, 1)  # What Ray prints goes to standard error.
    launcher = Launcher(options, token, events)
    failure = launcher.run()
    if failure is not None:
        launcher.emit("failed", reason=failure)
    cleaning = threading.Thread(target=launcher.clean, daemon=True)
    cleaning.start()
    cleaning.join(CLEANUP_SECONDS)
    os._exit(0 if failure is None else 1)  # Threads may be in calls of Ray that do not return.


if __name__ == "__main__":
    sys.exit(main())
