"""The launcher against a real Ray: placement, deaths, and what is left at the end."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from launching import SECONDS, TOKEN, Controller, gone

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.ray


@pytest.fixture(scope="session")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program that stands in for the binary."""
    program = tmp_path_factory.mktemp("stand_in") / "rloom"
    source = Path(__file__).with_name("stand_in.py").read_text()
    program.write_text(f"#!{sys.executable}\n{source}")
    program.chmod(0o755)
    return program


@pytest.fixture
def new_cluster() -> Iterator[Any]:
    """A cluster with a head without resources and two nodes, which the test may change."""
    yield from _cluster()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A cluster with a head without resources and two nodes, which tests leave as they are."""
    yield from _cluster()


def _cluster() -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    try:
        for _ in range(2):
            cluster.add_node(num_cpus=2, num_gpus=1)
        cluster.wait_for_nodes()
        yield cluster
    finally:
        cluster.shutdown()


@pytest.fixture
def launch(stand_in: Path) -> Iterator[Any]:
    """Starts launchers, and kills those that are left."""
    started = []

    def start(*arguments: str, **options: str) -> Controller:
        started.append(Controller(stand_in, *arguments, **options))
        return started[-1]

    yield start
    for controller in started:
        controller.process.kill()
        controller.process.wait(SECONDS)


@pytest.mark.parametrize(
    ("placement", "nodes"), [("pack", 1), ("spread", 2), ("strict_pack", 1), ("strict_spread", 2)]
)
def test_places_daemons_by_the_strategy(launch: Any, cluster: Any, placement: str, nodes: int) -> None:
    controller = launch("--nodes", "2", "--placement", placement, "--address", cluster.address)
    started = sorted((controller.accept() for _ in range(2)), key=lambda daemon: daemon["index"])
    placed = [controller.event("placed") for _ in range(2)]
    assert [daemon["index"] for daemon in started] == [0, 1]
    assert {daemon["token"] for daemon in started} == {TOKEN}
    assert {daemon["gpus"] for daemon in started} == {""}
    # The controller listens on all interfaces; daemons get the address of one.
    assert "0.0.0.0" not in {daemon["controller"] for daemon in started}
    assert sorted(event["index"] for event in placed) == [0, 1]
    assert len({event["node"] for event in placed}) == nodes
    # Closed standard input ends everything.
    assert controller.end() == 0
    assert all(gone(daemon["pid"]) and gone(daemon["worker"]) for daemon in started)


def test_gives_daemons_the_gpus_of_their_bundle(launch: Any, cluster: Any) -> None:
    controller = launch("--nodes", "2", "--gpus-per-node", "1", "--address", cluster.address)
    assert [controller.accept()["gpus"] for _ in range(2)] == ["0", "0"]


def test_gives_further_nodes_cores_alone(launch: Any, cluster: Any) -> None:
    further = ["--cpu-nodes", "1", "--cpus-per-cpu-node", "2"]
    controller = launch("--nodes", "1", "--gpus-per-node", "1", *further, "--address", cluster.address)
    started = {daemon["index"]: daemon["gpus"] for daemon in (controller.accept() for _ in range(2))}
    assert started == {0: "0", 1: ""}


def test_reports_the_need_of_further_nodes(launch: Any, cluster: Any) -> None:
    further = ["--cpu-nodes", "2", "--cpus-per-cpu-node", "9", "--timeout", "8"]
    controller = launch("--nodes", "1", "--gpus-per-node", "1", *further, "--address", cluster.address)
    assert controller.event("pending")["needed"] == "1 x {CPU: 1, GPU: 1} + 2 x {CPU: 9}"
    assert "1 x {CPU: 1, GPU: 1} + 2 x {CPU: 9}" in controller.event("failed")["reason"]
    assert controller.process.wait(60) == 1


def test_keeps_the_token_out_of_logs_and_command_lines(launch: Any, cluster: Any) -> None:
    controller = launch("--nodes", "1", "--address", cluster.address)
    daemon = controller.accept()
    logs = [path for path in Path(cluster.head_node.get_session_dir_path()).rglob("*") if path.is_file()]
    assert any("worker" in path.name for path in logs)
    assert [path for path in logs if TOKEN.encode() in path.read_bytes()] == []
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            assert TOKEN.encode() not in line.read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
    assert daemon["token"] == TOKEN


def test_reports_need_and_offer_until_the_time_is_over(launch: Any, cluster: Any) -> None:
    controller = launch(
        "--nodes", "2", "--gpus-per-node", "2", "--timeout", "8", "--address", cluster.address
    )
    pending = controller.event("pending")
    assert pending["needed"] == "2 x {CPU: 1, GPU: 2}"
    assert "CPU 2/2, GPU 1/1; " in pending["offered"]
    failed = controller.event("failed")
    assert "did not place 2 x {CPU: 1, GPU: 2} (pack) within 8 s; it offers node " in failed["reason"]
    assert controller.process.wait(60) == 1


def test_gives_up_on_a_daemon_that_always_fails(launch: Any, cluster: Any) -> None:
    controller = launch("--nodes", "1", "--address", cluster.address, controller="refused:1")
    failed = controller.event("failed", skip=("placed", "restarted"))
    assert "the daemon of node 0 ended 5 times in a minute" in failed["reason"]
    assert "exit status 1\nrefused: another build" in failed["reason"]
    assert controller.process.wait(60) == 1


def test_starts_killed_daemons_and_workers_again(launch: Any, cluster: Any) -> None:
    controller = launch("--nodes", "1", "--address", cluster.address)
    first = controller.accept()
    controller.event("placed")
    os.kill(first["pid"], signal.SIGKILL)
    killed = time.monotonic()
    second = controller.accept()
    print(f"killed daemon: another after {time.monotonic() - killed:.1f} s")
    restarted = controller.event("restarted")
    assert restarted["restarts"] == 1
    assert "signal SIGKILL" in restarted["reason"]
    controller.event("placed")

    os.kill(second["worker"], signal.SIGKILL)
    killed = time.monotonic()
    third = controller.accept()
    print(f"killed worker: another daemon after {time.monotonic() - killed:.1f} s")
    assert gone(second["pid"])  # although its connection is open
    assert controller.event("restarted")["restarts"] == 2
    assert third["worker"] != second["worker"]


def test_ends_with_its_process(launch: Any, cluster: Any) -> None:
    controller = launch("--nodes", "2", "--address", cluster.address)
    started = [controller.accept() for _ in range(2)]
    controller.process.kill()
    assert all(gone(daemon["pid"]) and gone(daemon["worker"]) for daemon in started)


def test_daemons_end_with_their_process_without_help_of_ray(stand_in: Path) -> None:
    program = f"""
import sys, time, types
from unittest import mock
sys.modules["ray"] = mock.MagicMock(get_gpu_ids=list)
from rloom.ray import Daemon
daemon = Daemon(["--controller", "127.0.0.1:{{}}", "--index", "0"], {str(stand_in)!r}, "token")
daemon.start()
time.sleep(1000)
"""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(SECONDS)
        code = program.format(listener.getsockname()[1])
        with subprocess.Popen([sys.executable, "-c", code]) as worker:
            connection, _ = listener.accept()
            with connection:
                pid = json.loads(connection.makefile().readline())["pid"]
                worker.kill()
                assert gone(pid)


def test_moves_daemons_of_a_lost_node_to_its_replacement(launch: Any, new_cluster: Any) -> None:
    controller = launch("--nodes", "2", "--placement", "strict_spread", "--address", new_cluster.address)
    started = {daemon["index"]: daemon for daemon in (controller.accept() for _ in range(2))}
    placed = {event["index"]: event["node"] for event in (controller.event("placed") for _ in range(2))}
    lost = next(node for node in new_cluster.worker_nodes if node.node_id == placed[1])
    began = time.monotonic()
    new_cluster.remove_node(lost, allow_graceful=False)
    assert gone(started[1]["pid"])
    replacement = new_cluster.add_node(num_cpus=2)
    added = time.monotonic() - began
    assert controller.accept()["index"] == 1
    print(
        f"lost node: replacement added after {added:.1f} s, its daemon after {time.monotonic() - began:.1f} s"
    )
    assert controller.event("restarted")["index"] == 1
    event = controller.event("placed")
    assert (event["index"], event["node"]) == (1, replacement.node_id)


def test_ends_by_name_when_the_head_is_lost(launch: Any, new_cluster: Any) -> None:
    controller = launch(
        "--nodes", "1", "--address", new_cluster.address, RAY_gcs_rpc_server_reconnect_timeout_s="20"
    )
    daemon = controller.accept()
    controller.event("placed")
    new_cluster.head_node.kill_gcs_server()
    assert "Ray's head is lost" in controller.event("failed", skip=("pending", "restarted"))["reason"]
    assert controller.process.wait(60) == 1
    new_cluster.shutdown()
    assert gone(daemon["pid"])


def test_starts_a_cluster_of_its_own(launch: Any) -> None:
    controller = launch("--nodes", "1", "--address", "local")
    daemon = controller.accept()
    # Ray, and what other users run on it, does not inherit the token.
    assert TOKEN.encode() not in Path(f"/proc/{daemon['worker']}/environ").read_bytes()
    assert controller.end() == 0
    assert gone(daemon["pid"])


def test_finds_no_cluster(launch: Any) -> None:
    controller = launch("--nodes", "1", "--address", "127.0.0.1:1", "--timeout", "15")
    assert "127.0.0.1:1" in controller.event("failed")["reason"]
    assert controller.process.wait(60) == 1
