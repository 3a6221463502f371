"""The extension module. Arrays are little-endian f32 bytes."""

from typing import Literal, final

VERSION: str

class NativeError(Exception):
    """An error of RLoom's Rust code."""

@final
class Connection:
    """One end of an authenticated connection; a thread sends its beats, whatever holds the interpreter's lock."""

    @staticmethod
    def connect(address: str, role: str, index: int, epoch: int, seconds: float) -> Connection:
        """Connects to the controller and proves the token of `RLOOM_TOKEN`."""

    def set_progress(self, phase: str, done: int, total: int) -> None:
        """Sets the phase and the progress that the next beats report."""

    def send(
        self,
        epoch: int,
        job: int,
        message: str,
        tensors: list[tuple[str, str, list[int], bytes]],
        seconds: float,
    ) -> None:
        """Sends a JSON message with tensors, each `(name, type, shape, bytes)`; types are those of safetensors."""

    def receive(self, seconds: float) -> tuple[int, int, str, list[tuple[str, str, list[int], bytearray]]]:
        """Receives `(epoch, job, message, tensors)`; waits for at most `seconds`."""

    def check(self) -> None:
        """Fails if the controller is gone."""

    def close(self) -> None:
        """Closes the connection, and ends a wait in another thread."""

@final
class LossStep:
    """The loss of one optimiser step: objective, counts and the inputs of every micro-batch."""

    @staticmethod
    def from_bytes(data: bytes) -> LossStep:
        """Reads the message that the controller sends."""

    def inert(self, micro_batch: int) -> list[bool]:
        """Marks the sequences whose coefficients are all 0 for any scores: they need no backward pass."""

    def noise(self, sequences: list[tuple[tuple[int, int, int], int]], width: int) -> bytearray | None:
        """Noise on the embeddings of sequences, each its key and its number of tokens: `[tokens, width]`, or none."""

    def divergence(self) -> tuple[Literal["forward_kl", "reverse_kl", "jensen_shannon"], float, float] | None:
        """The divergence from a teacher over the whole vocabulary: its kind, the teacher's weight and the inverse temperature."""

    def evaluate(self, micro_batch: int, scores: dict[str, bytes]) -> LossGrad:
        """Loss and coefficients of one micro-batch from its scores by name; absent ones are empty."""

@final
class LossGrad:
    """Derivatives of a loss by each score, and the sums behind its metrics."""

    @property
    def d_logprob(self) -> bytearray: ...
    @property
    def d_entropy(self) -> bytearray: ...
    @property
    def d_value(self) -> bytearray:
        """Empty without a value head."""

    @property
    def d_last_value(self) -> bytearray:
        """By the value after each sequence's last token; empty but for a reward model."""

    @property
    def d_divergence(self) -> bytearray:
        """By the divergence from a teacher; empty but for a distillation over the whole vocabulary."""

    @property
    def d_candidate_logprob(self) -> bytearray:
        """By the log-probability of each candidate, `[tokens, k]`; empty but for a distillation over some tokens."""

    @property
    def terms(self) -> LossTerms: ...

@final
class LossTerms:
    """Exact sums of a loss over a micro-batch, which the controller merges."""

    def to_bytes(self) -> bytes:
        """The message that the controller reads."""

    @property
    def loss(self) -> float: ...

@final
class WeightDigest:
    """Digest of a policy's parameters: the f32 bytes of its tensors in `digest_order`."""

    def __init__(self) -> None: ...
    def update(self, values: bytes) -> None:
        """Adds values of the next tensor, in one piece or several."""

    @property
    def value(self) -> int:
        """Digest of the values so far."""

def digest_order(names: list[str]) -> list[str]:
    """Hugging Face names of a model's tensors in the order in which they enter a `WeightDigest`."""
