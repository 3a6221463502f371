"""Stand-in of vLLM's sleep for processors, where its workers ignore it: memory that sleeps has no contents any more.

Everything around the workers is vLLM's own. Events are appended to the file that `RLOOM_TEST_EVENTS` names.
"""

import os
from pathlib import Path

import torch
from rloom_vllm import Extension as Extension
from vllm.v1.worker.cpu_worker import CPUWorker


def note(event: str) -> None:
    with Path(os.environ["RLOOM_TEST_EVENTS"]).open("a") as file:
        file.write(event + "\n")


@torch.no_grad()
def sleep(worker: CPUWorker, level: int = 1) -> None:
    for parameter in worker.model_runner.model.parameters():
        parameter.fill_(float("nan"))
    for cache in worker.model_runner.kv_caches:
        # Finite: unused slots of a block are read and masked.
        cache.fill_(1e4)
    note(f"sleep {level}")


def wake_up(worker: CPUWorker, tags: list[str] | None = None) -> None:
    note(f"wake {' '.join(tags or ['everything'])}")


CPUWorker.sleep = sleep
CPUWorker.wake_up = wake_up
