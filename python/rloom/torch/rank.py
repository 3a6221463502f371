"""The protocol of a rank: one frame asks for a job; frames of progress and one with the result answer it."""

from __future__ import annotations

import json
import os
import threading
import traceback
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from rloom._native import NativeError
from rloom.torch import files
from rloom.torch.batch import Batch
from rloom.torch.comparison import Comparison
from rloom.torch.engine import Engine, Progress, free_device, open_engine
from rloom.torch.errors import NotFiniteError, RankError
from rloom.torch.loss import Coefficients, KnownLoss, Loss, NativeLoss
from rloom.torch.sending import WeightSender
from rloom.torch.settings import Settings
from rloom.torch.world import World, rendezvous

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch._C._distributed_c10d import TCPStore

    from rloom._native import Connection

#: Longest wait for the next job. The controller's death ends the process at once by another way.
IDLE_SECONDS = 1e8
SEND_SECONDS = 600.0
#: Interval of the reports of jobs that do not count micro-batches.
WATCH_SECONDS = 1.0
TYPES = {
    "U8": torch.uint8,
    "I32": torch.int32,
    "U32": torch.uint32,
    "I64": torch.int64,
    "F32": torch.float32,
    "F64": torch.float64,
}

Arrays = dict[str, torch.Tensor]
Reply = tuple[dict[str, Any], Arrays]


class Rank:
    """Serves the jobs of a controller on one rank."""

    def __init__(self, connection: Connection, rank: int, epoch: int) -> None:
        self.connection = connection
        self.rank = rank
        self.epoch = epoch
        self.job = 0
        self.phase = "idle"
        #: Completed micro-batches, in jobs that count them.
        self.done = self.total = 0
        self.store: TCPStore | None = None
        self.world: World | None = None
        self.opened: Engine | None = None
        self.sender: WeightSender | None = None

    def serve(self) -> None:
        """Answers jobs until `shutdown`. An error that leaves the ranks in step is an answer, too."""
        while True:
            self._enter("idle")
            _, self.job, message, tensors = self.connection.receive(IDLE_SECONDS)
            arrays = {name: _tensor(kind, shape, data) for name, kind, shape, data in tensors}
            asked = json.loads(message)
            if asked["job"] == "cancel":
                continue  # of a job that has ended
            if asked["job"] == "shutdown":
                break
            self._enter(asked["job"])
            try:
                with self._watched():
                    reply, results = getattr(self, f"do_{asked['job']}")(asked, arrays)
            except RankError as error:
                reply, results = {"error": self._described(error, error.kind)}, _scores_of(error)
            except BaseException as error:
                # The other ranks may wait for this one: the controller ends the gang.
                self._send({"error": self._described(error, "lost")}, {})
                raise
            self._send(reply, results)
        if self.world is not None:
            self.world.close()

    def do_listen(self, _asked: dict[str, Any], _arrays: Arrays) -> Reply:
        """Opens the store through which the ranks find each other; it is on rank 0."""
        if self.rank == 0 and self.store is None:
            self.store = rendezvous()
        return {"port": self.store.port if self.store else 0}, {}

    def do_open(self, asked: dict[str, Any], _arrays: Arrays) -> Reply:
        """Joins the other ranks and opens the model."""
        settings = Settings.from_json(asked["settings"])
        self.store = self.store or rendezvous(asked["port"])
        self.world = World.join(settings, self.store)
        self.opened = open_engine(settings, self.world)
        device = self.world.device
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
        is_exact = device.type == "cpu" or settings.deterministic
        path = f"{settings.backend}-{torch.__version__}-{name}-{settings.dtype}-{self.world.size}"
        sizes = (settings.sequence_parallel, *settings.parallel.values(), settings.expert_parallel)
        path += "".join(f"-{size}" for size in sizes) if max(sizes) > 1 else ""
        return {
            "numeric_path": f"{path}-{torch.get_num_threads()}-{torch.backends.cpu.get_cpu_capability()}",
            "repeats_bits": is_exact,
            "layout": self.opened.layout,
            "has_gpus": device.type == "cuda",
        }, {}

    def do_score(self, asked: dict[str, Any], arrays: Arrays) -> Reply:
        """Scores this rank's micro-batches."""
        batches = _batches(arrays)
        scores = self._engine.score(
            batches,
            asked["total"],
            which=asked["which"],
            progress=self._progress(asked["total"]),
            is_masked=asked["is_masked"],
        )
        results = {
            f"{i}.{name}": x
            for i, own in zip(sorted(batches), scores, strict=False)  # a rank without a head has none
            for name, x in own._asdict().items()
        }
        return {}, results

    def do_open_teacher(self, asked: dict[str, Any], _arrays: Arrays) -> Reply:
        """Opens the teacher that the policy is compared with."""
        self._engine.open_teacher(asked["folder"], asked["adapter"])
        return {}, {}

    def do_teacher_top(self, asked: dict[str, Any], arrays: Arrays) -> Reply:
        """Finds the teacher's most probable tokens at the scored positions of this rank's micro-batches."""
        batches, total = _batches(arrays), asked["total"]
        search = {name: asked[name] for name in ("k", "temperature")}
        found = self._engine.teacher_top(batches, total, **search, progress=self._progress(total))
        results: Arrays = {}
        for i, (ids, logprob) in zip(sorted(batches), found, strict=True):
            results |= {f"{i}.ids": ids.to(torch.int32), f"{i}.logprob": logprob}
        return {}, results

    def do_accumulate(self, asked: dict[str, Any], arrays: Arrays) -> Reply:
        """Adds the gradient of this rank's micro-batches."""
        batches = _batches(arrays, asked.get("candidate_temperature"))
        loss: Loss
        if "loss" in arrays:
            loss = NativeLoss(arrays["loss"].numpy().tobytes())
        else:
            known = {
                i: Coefficients(arrays[f"{i}.d_logprob"], arrays[f"{i}.d_entropy"], arrays[f"{i}.d_value"])
                for i in batches
            }
            loss = KnownLoss(known, batches)
        trained = self._engine.accumulate(batches, asked["total"], loss, self._progress(asked["total"]))
        reply = {str(t.micro_batch): {"tokens": t.tokens, "skipped": t.skipped} for t in trained}
        terms = {
            f"{t.micro_batch}.terms": torch.frombuffer(bytearray(t.terms), dtype=torch.uint8)
            for t in trained
            if t.terms
        }
        return {"trained": reply}, terms

    def do_clear(self, _asked: dict[str, Any], _arrays: Arrays) -> Reply:
        """Drops the accumulated gradient."""
        self._engine.optimizer.zero()
        return {}, {}

    def do_step(self, asked: dict[str, Any], _arrays: Arrays) -> Reply:
        """Takes an optimizer step."""
        return {"grad_norm": self._engine.step(asked["learning_rate"])}, {}

    def do_digest(self, asked: dict[str, Any], _arrays: Arrays) -> Reply:
        """Computes the digest of the weights, or of the reference's; the one of rank 0 counts."""
        is_reference = asked["which"] == "reference"
        return {"digest": self._parked.reference_digest() if is_reference else self._parked.digest()}, {}

    def do_sync_reference(self, asked: dict[str, Any], _arrays: Arrays) -> Reply:
        """Moves the reference towards the policy."""
        self._engine.sync_reference(asked["mixup"])
        return {}, {}

    def do_release_reference(self, _asked: dict[str, Any], _arrays: Arrays) -> Reply:
        """Frees the reference."""
        self._parked.release_reference()
        return {}, {}

    def do_publish(self, asked: dict[str, Any], _arrays: Arrays) -> Reply:
        """Writes the weights as a model folder, in which an adapter may be merged, or as an adapter."""
        folder, is_exact, merges = Path(asked["folder"]), asked["is_exact"], asked["merges"]
        return {"files": files.write_model(self._parked, folder, is_exact, merges=merges)}, {}

    def do_send(self, asked: dict[str, Any], _arrays: Arrays) -> Reply:
        """Takes part in the transfer of weights to a server."""
        if self.sender is None or self.sender.engine is not self._engine:
            self.sender = WeightSender(self._engine, self._is_cancelled)
        return getattr(self.sender, f"do_{asked['part']}")(asked), {}

    def do_save(self, asked: dict[str, Any], _arrays: Arrays) -> Reply:
        """Writes a checkpoint."""
        return {"files": files.save(self._parked, Path(asked["folder"]))}, {}

    def do_restore(self, asked: dict[str, Any], _arrays: Arrays) -> Reply:
        """Continues from a checkpoint."""
        files.restore(self._engine, Path(asked["folder"]))
        return {}, {}

    def do_park(self, _asked: dict[str, Any], _arrays: Arrays) -> Reply:
        """Frees device memory until the next job."""
        self._parked.park()
        return {}, {}

    def do_trim(self, _asked: dict[str, Any], _arrays: Arrays) -> Reply:
        """Frees device memory that no tensor uses."""
        free_device(self.world.device if self.world is not None else torch.device("cpu"))
        return {}, {}

    def do_gradients(self, _asked: dict[str, Any], _arrays: Arrays) -> Reply:
        """Returns the accumulated gradient, for tests."""
        gradients = self._engine.optimizer.gradients()
        return {}, {name: g.float().cpu() for name, g in gradients.items()} if self.rank == 0 else {}

    @property
    def _engine(self) -> Engine:
        self._parked.resume()
        return self._parked

    @property
    def _parked(self) -> Engine:
        """The engine, whose weights stay in host memory where they are parked: a server may use the device."""
        if self.opened is None:
            raise RankError("the model is not open")
        return self.opened

    def _is_cancelled(self) -> bool:
        """True once the controller has cancelled the job."""
        try:
            _, _, message, _ = self.connection.receive(0.0)
        except NativeError:
            return False
        return bool(json.loads(message)["job"] == "cancel")

    def _progress(self, total: int) -> Progress:
        groups = self.world.groups if self.world is not None else 1
        self._enter(self.phase, 0, total)
        self._send({"progress": 0}, {})

        def report(done: int) -> None:
            # Rank 0 is first to have a micro-batch in each round; all ranks finish a round together.
            completed = min(done * groups, total)
            self._enter(self.phase, completed, total)
            if self.rank == 0:
                self._send({"progress": completed}, {})

        return report

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Reports progress while tensors move or bytes go to or from disks, which calls of libraries do not tell."""
        is_over = threading.Event()

        def watch() -> None:
            last = None
            while not is_over.wait(WATCH_SECONDS):
                advanced = self.world.advanced if self.world is not None else 0
                now = (advanced, _transferred())
                if last is not None and now != last:
                    self._enter(self.phase, self.done if self.total else advanced, self.total)
                    self._send({"progress": 0}, {})
                last = now

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()

    def _enter(self, phase: str, done: int = 0, total: int = 0) -> None:
        """Sets what beats report."""
        self.phase, self.done, self.total = phase, done, total
        self.connection.set_progress(phase, done, total)

    def _send(self, message: dict[str, Any], arrays: Arrays) -> None:
        tensors = [
            (name, _type(x), list(x.shape), x.contiguous().numpy().tobytes()) for name, x in arrays.items()
        ]
        self.connection.send(self.epoch, self.job, json.dumps(message), tensors, SEND_SECONDS)

    def _described(self, error: BaseException, kind: str) -> dict[str, Any]:
        text = "".join(traceback.format_exception(error))
        fields = {k: v for k, v in getattr(error, "fields", {}).items() if k != "scores"}
        where = {"rank": self.rank, "phase": self.phase, "pid": os.getpid()}
        return {
            "kind": kind,
            "message": str(error) or type(error).__name__,
            "traceback": text,
            **where,
            **fields,
        }


def _transferred(counters: Path = Path("/proc/self/io")) -> int:
    """Bytes that this process has read from disks and written to them, on systems that count them."""
    try:
        lines = counters.read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    # `wchar` would count beats, which a rank that hangs sends, too.
    return sum(int(line.split()[1]) for line in lines if line.startswith(("read_bytes:", "write_bytes:")))


def _batches(arrays: Arrays, candidate_temperature: float | None = None) -> dict[int, Batch]:
    """The micro-batches. Candidates are scored at the temperatures of the tokens by default."""
    numbers = sorted(int(name.split(".")[0]) for name in arrays if name.endswith(".tokens"))
    return {
        i: Batch(
            arrays[f"{i}.tokens"].long(),
            tuple(arrays[f"{i}.lengths"].tolist()),
            arrays[f"{i}.rows"].long(),
            arrays[f"{i}.inv_temperature"],
            tuple(tuple(key) for key in arrays[f"{i}.keys"].tolist()) if f"{i}.keys" in arrays else (),
            comparison=_candidates(arrays, i, candidate_temperature),
        )
        for i in numbers
    }


def _candidates(arrays: Arrays, index: int, temperature: float | None) -> Comparison | None:
    ids = arrays.get(f"{index}.candidates")
    if ids is None:
        return None
    inverse = arrays[f"{index}.inv_temperature"]
    if temperature is not None:
        inverse = torch.full_like(inverse, 1 / temperature)
    return Comparison(candidates=ids.long(), inv_temperature=inverse)


def _scores_of(error: RankError) -> Arrays:
    """Scores that a loss refused, so that the controller can name the reason."""
    scores = error.fields.get("scores")
    return {} if scores is None or isinstance(error, NotFiniteError) else dict(scores._asdict())  # type: ignore[attr-defined]


def _tensor(kind: str, shape: list[int], data: bytearray) -> torch.Tensor:
    if not data:
        return torch.empty(shape, dtype=TYPES[kind])
    return torch.frombuffer(data, dtype=TYPES[kind]).view(shape)


def _type(tensor: torch.Tensor) -> str:
    return next(name for name, dtype in TYPES.items() if dtype == tensor.dtype)
