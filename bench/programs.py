"""The programs of each workload, and the comparisons that are drawn from them."""

from dataclasses import dataclass, field
from pathlib import Path

from peers.workloads import SHAPES

DTYPES = ("f32", "bf16")
PEERS = Path(__file__).resolve().parent / "peers"


def is_own(name: str) -> bool:
    """Returns whether a program is RLoom, or a PyTorch rank of RLoom."""
    return name.startswith(("RLoom", "torch rank"))


@dataclass(frozen=True)
class Program:
    """One program on one workload; a round runs it once, in its own process."""

    workload: str
    name: str
    #: Environment whose Python runs it; None for RLoom.
    environment: str | None
    #: Script and options, or RLoom's options; placeholders such as `{shape_s}` are replaced.
    command: list = field(hash=False)
    #: Seconds after which the process is killed.
    timeout: int = 300
    #: Also run with `--quick`.
    quick: bool = True

    @property
    def dtype(self) -> str:
        """Returns the format of its matrix products, which is part of its name."""
        return next(dtype for dtype in DTYPES if dtype in self.name)

    @property
    def is_peer(self) -> bool:
        return not is_own(self.name)

    @property
    def can_limit_isa(self) -> bool:
        """Returns whether the program can be limited to an instruction set."""
        return self.environment is None or self.is_peer and self.environment in ("torch", "vllm")


def own(workload: str, kind: str, shape: str, rounds: int, timeout: int = 300, threads: bool = False) -> list:
    """RLoom in f32 and bf16, and with `threads` also on a single thread."""
    found = []
    for count, suffix in [("{threads}", "")] + ([("1", ", one thread")] if threads else []):
        for compute in ("f32", "bf16"):
            options = [kind, "--shape", shape, "--dtype", compute, "--threads", count, "--rounds", str(rounds), "--json"]
            found.append(Program(workload, f"RLoom {compute}{suffix}", None, options, timeout))
    return found


def peer(workload: str, name: str, environment: str, script: str, *options: str, **more) -> list:
    """Another program in f32 and bf16."""
    return [
        Program(workload, f"{name} {label}", environment, [PEERS / script, "--dtype", compute, *options], **more)
        for compute, label in (("f32", "f32"), ("bf16", "bf16"))
    ]


def layers(shape: str) -> str:
    """Returns the linear layers of a shape as `m,n,k`, m being the tokens of a training step."""
    s = SHAPES[shape]
    tokens, kv = s.train[0] * s.train[1], s.hidden * s.kv_heads // s.heads
    sizes = [(s.hidden + 2 * kv, s.hidden), (s.hidden, s.hidden), (2 * s.ffn, s.hidden), (s.hidden, s.ffn)]
    return " ".join(f"{tokens},{n},{k}" for n, k in sizes)


def steps(count: int, warm: int) -> list:
    return ["--steps", str(count), "--warm", str(warm)]


def run_with(rollout: str) -> list:
    """Returns the options of a run whose samples come from this engine."""
    return ["--rloom", "{rloom}", "--rollout", rollout, "--vllm", "{vllm}"]


def on_rows(workload: str, method: str) -> list:
    """RLoom and TRL on rows: supervised fine-tuning or preferences."""
    given = ["--method", method, *steps(6, 2)]
    return [
        *peer(workload, "RLoom", "torch", "rloom_rows.py", "--rloom", "{rloom}", *given),
        *peer(workload, "TRL", "torch", "trl_rows.py", *given),
    ]


#: Variables that limit PyTorch and its libraries to an instruction set, by its name in RLoom.
ISA_LIMITS = {
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
    "avx512-bf16": {"ATEN_CPU_CAPABILITY": "avx512", "MKL_ENABLE_INSTRUCTIONS": "AVX512", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"},
}
PROGRAMS = [
    *own("train S", "train", "S", 8, threads=True),
    *peer("train S", "PyTorch eager", "torch", "torch_train.py", *steps(6, 2)),
    *peer("train S", "PyTorch compiled", "torch", "torch_train.py", "--compile", "yes", *steps(6, 2), timeout=600, quick=False),
    *peer("train S", "torch rank", "torch", "torch_rank.py", *steps(6, 2)),
    *own("decode S", "decode", "S", 8, threads=True),
    *peer("decode S", "transformers.generate", "torch", "transformers_decode.py", *steps(4, 2)),
    *peer("decode S", "vLLM", "vllm", "vllm_decode.py", "--folder", "{shape_s}", "--eager", "yes", *steps(4, 2)),
    *peer("decode S", "vLLM compiled", "vllm", "vllm_decode.py", "--folder", "{shape_s}", *steps(4, 2), timeout=600, quick=False),
    Program("decode S", "llama.cpp f32", "llama", [PEERS / "llama_decode.py", "--file", "{gguf_f32}", *steps(4, 2)]),
    Program("decode S", "llama.cpp bf16", "llama", [PEERS / "llama_decode.py", "--file", "{gguf_bf16}", *steps(4, 2)]),
    *own("GRPO step S", "grpo", "S", 4),
    *peer("GRPO step S", "torch rank with RLoom's sampler", "torch", "rloom_grpo.py", *run_with("embedded"), *steps(3, 2)),
    *peer("GRPO step S", "torch rank with vLLM", "torch", "rloom_grpo.py", *run_with("vllm"), *steps(3, 2), quick=False),
    *peer("GRPO step S", "TRL", "torch", "trl_grpo.py", *steps(3, 1)),
    *on_rows("SFT step S", "sft"),
    *on_rows("DPO step S", "dpo"),
    *own("train M", "train", "M", 3, timeout=600),
    *peer("train M", "PyTorch eager", "torch", "torch_train.py", "--shape", "M", *steps(3, 1), timeout=600),
    *peer("train M", "torch rank", "torch", "torch_rank.py", "--shape", "M", *steps(3, 1), timeout=600),
    *own("decode M", "decode", "M", 3),
    *peer("decode M", "transformers.generate", "torch", "transformers_decode.py", "--shape", "M", *steps(3, 1)),
    Program(
        "GEMMs of train M",
        "RLoom bf16",
        None,
        ["kernels", "--shape", "M", "--dtype", "bf16", "--threads", "{threads}", "--rounds", "5", "--json"],
    ),
    Program(
        "GEMMs of train M",
        "PyTorch bf16",
        "torch",
        [PEERS / "torch_gemm.py", "--dtype", "bf16", "--layers", layers("M"), "--steps", "5"],
    ),
]
WORKLOADS = list(dict.fromkeys(program.workload for program in PROGRAMS))


@dataclass(frozen=True)
class Comparison:
    """One row of the comparison table: RLoom against the best of some programs or against a limit of the machine."""

    #: speed, threads, memory, bandwidth or products: how the ratio is computed (table.py).
    kind: str
    workload: str
    against: str
    #: Ratio that development aims for, one for each of PATHS where they differ; only written to targets.md.
    target: float | tuple
    #: Name prefixes of the programs that count; the best of them is used.
    peers: tuple = ()
    #: Name prefix of the programs on RLoom's side; the best of them is used.
    own: str = "RLoom"

    def target_on(self, path: str) -> float:
        """Returns the target on an instruction set; those without one of their own have AVX2's."""
        if not isinstance(self.target, tuple):
            return self.target
        return self.target[PATHS.index(path) if path in PATHS else 0]


#: Instruction sets with targets of their own, as `rloom bench` reports them.
PATHS = ("avx2", "avx512-bf16", "amx")
COMPARISONS = [
    Comparison("speed", "train S", "PyTorch eager, better of f32 and bf16 autocast", (1.5, 2.5, 2.5), ("PyTorch eager",)),
    Comparison("speed", "train S", "PyTorch compiled, better of f32 and bf16 autocast", (1.3, 2.0, 2.0), ("PyTorch compiled",)),
    Comparison("speed", "decode S", "transformers.generate, better of f32 and bf16", (4.2, 7, 8), ("transformers.generate",)),
    Comparison("speed", "decode S", "vLLM CPU, best of f32 and bf16, eager and compiled", (6, 8, 10), ("vLLM",)),
    Comparison("speed", "GRPO step S", "TRL GRPOTrainer, better of f32 and bf16 autocast", (3, 4.5, 6), ("TRL",)),
    # 0.9 × the target of the plain training step.
    Comparison("speed", "SFT step S", "TRL SFTTrainer, better of f32 and bf16 autocast", 2.25, ("TRL",)),
    Comparison("speed", "DPO step S", "TRL DPOTrainer, better of f32 and bf16 autocast", 2.25, ("TRL",)),
    Comparison("speed", "train M", "PyTorch eager, better of f32 and bf16 autocast", (1.2, 1.7, 1.5), ("PyTorch eager",)),
    Comparison("bandwidth", "decode M", "measured read bandwidth of the machine", (0.8, 0.85, 0.85)),
    Comparison("products", "GEMMs of train M", "the faster of PyTorch bf16 and the in-register GEMM ceiling", 0.6),
    Comparison("memory", "train S", "PyTorch eager, memory above the state after import", 0.5, ("PyTorch eager",)),
    Comparison("speed", "train S", "PyTorch eager, better of f32 and bf16 autocast", 0.95, ("PyTorch eager",), "torch rank"),
    Comparison("memory", "train S", "PyTorch eager, memory above the state after import", 1, ("PyTorch eager",), "torch rank"),
    Comparison("speed", "train M", "PyTorch eager, better of f32 and bf16 autocast", 0.95, ("PyTorch eager",), "torch rank"),
    Comparison("memory", "train M", "PyTorch eager, memory above the state after import", 1, ("PyTorch eager",), "torch rank"),
    Comparison("speed", "GRPO step S", "TRL GRPOTrainer, better of f32 and bf16 autocast", 1, ("TRL",), "torch rank with RLoom"),
    Comparison("threads", "train S", "RLoom with one thread", 1.6),
    Comparison("threads", "decode S", "RLoom with one thread", 1.6),
]
