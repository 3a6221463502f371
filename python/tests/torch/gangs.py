"""Gangs of gloo ranks in processes of this machine."""

from __future__ import annotations

import multiprocessing
import os
import traceback
from multiprocessing.connection import wait
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

MINUTES = 300.0


def gang(ranks: int, function: Callable[..., Any], *arguments: object) -> list[Any]:
    """Calls a function in processes that are ranks of one group, and returns its results by rank."""
    # A process that has imported everything is forked: starts take no time.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["rloom.torch.rank", "transformers.models.qwen2.modeling_qwen2"])
    with TemporaryDirectory() as folder:
        store = f"file://{folder}/store"
        ends, processes = [], []
        for rank in range(ranks):
            end, other = context.Pipe()
            given = (rank, ranks, store, other, function, arguments)
            processes.append(context.Process(target=_rank, args=given, daemon=True))
            processes[-1].start()
            other.close()
            ends.append(end)
        results: dict[int, Any] = {}
        while len(results) < ranks:
            ready = wait([end for rank, end in enumerate(ends) if rank not in results], MINUTES)
            assert ready, f"of {ranks} ranks only {sorted(results)} answered"
            for rank in [rank for rank, end in enumerate(ends) if end in ready]:
                results[rank], error = ends[rank].recv()
                if error:
                    for process in processes:
                        process.kill()
                    raise AssertionError(f"rank {rank}: {error}")
        for process in processes:
            process.join(MINUTES)
    return [results[rank] for rank in range(ranks)]


def _rank(
    rank: int, ranks: int, store: str, end: Connection, function: Callable[..., Any], arguments: Any
) -> None:
    torch.set_num_threads(1)
    try:
        join(rank, ranks, store)
        end.send((function(*arguments), ""))
        dist.destroy_process_group()
    except BaseException:
        end.send((None, traceback.format_exc()))


def join(rank: int, ranks: int, store: str) -> None:
    """Makes this process a rank."""
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(ranks))
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=ranks)


def alone(folder: Path) -> None:
    """Makes this process the only rank of a group."""
    join(0, 1, f"file://{folder / 'store'}")
