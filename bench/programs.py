"""Which programs do which work, and what RLoom must reach against them."""

from dataclasses import dataclass, field
from pathlib import Path

from peers.works import SHAPES

PEERS = Path(__file__).resolve().parent / "peers"


@dataclass(frozen=True)
class Program:
    """One program on one work; a round runs it once, as a process of its own."""

    work: str
    name: str
    #: The environment whose Python runs it; none for RLoom.
    environment: str | None
    #: Script and options, or RLoom's options; `{shape_s}` and the like are put in.
    command: list = field(hash=False)
    #: Seconds after which the process is killed.
    deadline: int = 300
    #: Whether `--quick` runs it too.
    quick: bool = True


def own(work: str, kind: str, shape: str, rounds: int, deadline: int = 300, threads: bool = False) -> list:
    """RLoom in both formats, and on one thread where that is asked for."""
    found = []
    for count, suffix in [("{threads}", "")] + ([("1", ", one thread")] if threads else []):
        for compute in ("f32", "bf16"):
            options = [kind, "--shape", shape, "--compute", compute, "--threads", count, "--rounds", str(rounds), "--json"]
            found.append(Program(work, f"RLoom {compute}{suffix}", None, options, deadline))
    return found


def peer(work: str, name: str, environment: str, script: str, *options: str, **more) -> list:
    """A peer in both formats."""
    return [
        Program(work, f"{name} {label}", environment, [PEERS / script, "--compute", compute, *options], **more)
        for compute, label in (("f32", "f32"), ("bf16", "bf16"))
    ]


def layers(shape: str) -> str:
    """The linear layers of a shape as `m,n,k`, with the tokens of a training step."""
    s = SHAPES[shape]
    tokens, kv = s.train[0] * s.train[1], s.hidden * s.kv_heads // s.heads
    sizes = [(s.hidden + 2 * kv, s.hidden), (s.hidden, s.hidden), (2 * s.ffn, s.hidden), (s.hidden, s.ffn)]
    return " ".join(f"{tokens},{n},{k}" for n, k in sizes)


def steps(count: int, warm: int) -> list:
    return ["--steps", str(count), "--warm", str(warm)]


PROGRAMS = [
    *own("train S", "train", "S", 8, threads=True),
    *peer("train S", "PyTorch eager", "torch", "torch_train.py", *steps(6, 2)),
    *peer("train S", "PyTorch compiled", "torch", "torch_train.py", "--compile", "yes", *steps(6, 2), deadline=600, quick=False),
    *own("decode S", "decode", "S", 8, threads=True),
    *peer("decode S", "transformers.generate", "torch", "transformers_decode.py", *steps(4, 2)),
    *peer("decode S", "vLLM", "vllm", "vllm_decode.py", "--folder", "{shape_s}", "--eager", "yes", *steps(4, 2)),
    *peer("decode S", "vLLM compiled", "vllm", "vllm_decode.py", "--folder", "{shape_s}", *steps(4, 2), deadline=600, quick=False),
    Program("decode S", "llama.cpp f32", "llama", [PEERS / "llama_decode.py", "--file", "{gguf_f32}", *steps(4, 2)]),
    Program("decode S", "llama.cpp bf16", "llama", [PEERS / "llama_decode.py", "--file", "{gguf_bf16}", *steps(4, 2)]),
    *own("GRPO step S", "grpo", "S", 4),
    *peer("GRPO step S", "TRL", "torch", "trl_grpo.py", *steps(3, 1)),
    *own("train M", "train", "M", 3, deadline=600),
    *peer("train M", "PyTorch eager", "torch", "torch_train.py", "--shape", "M", *steps(3, 1), deadline=600),
    *own("decode M", "decode", "M", 3),
    *peer("decode M", "transformers.generate", "torch", "transformers_decode.py", "--shape", "M", *steps(3, 1)),
    Program(
        "GEMMs of train M",
        "RLoom bf16",
        None,
        ["kernels", "--shape", "M", "--compute", "bf16", "--threads", "{threads}", "--rounds", "5", "--json"],
    ),
    Program(
        "GEMMs of train M",
        "PyTorch bf16",
        "torch",
        [PEERS / "torch_gemm.py", "--compute", "bf16", "--layers", layers("M"), "--steps", "5"],
    ),
]
WORKS = list(dict.fromkeys(program.work for program in PROGRAMS))


@dataclass(frozen=True)
class Demand:
    """A line of the table of what must be reached."""

    #: speed, threads, memory, bandwidth or products: how it is computed (table.py).
    kind: str
    work: str
    against: str
    bound: float
    #: Beginnings of the names of the peers that count; the best of them is taken.
    peers: tuple = ()


DEMANDS = [
    Demand("speed", "train S", "PyTorch eager, better of f32 and bf16 autocast", 2.5, ("PyTorch eager",)),
    Demand("speed", "decode S", "transformers.generate, better of f32 and bf16", 6, ("transformers.generate",)),
    Demand("speed", "decode S", "vLLM CPU, best of f32 and bf16", 10, ("vLLM",)),
    Demand("speed", "GRPO step S", "TRL GRPOTrainer, better of f32 and bf16 autocast", 6, ("TRL",)),
    Demand("speed", "train M", "PyTorch eager bf16 autocast", 1.5, ("PyTorch eager bf16",)),
    Demand("bandwidth", "decode M", "measured read bandwidth", 0.8),
    Demand("products", "GEMMs of train M", "better of a tile loop out of registers and PyTorch bf16", 0.6),
    Demand("memory", "train S", "PyTorch above import, at most", 0.5, ("PyTorch eager",)),
    Demand("threads", "train S", "one thread", 1.6),
    Demand("threads", "decode S", "one thread", 1.6),
]
