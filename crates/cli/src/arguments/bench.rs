//! Arguments of `rloom bench`, and formats of numbers.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use rloom_engine::RolloutQuantization;
use rloom_model::{Dtype, MomentFormat, NumericPath};
use rloom_ops::Isa;

/// Workload of `bench`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Workload {
    /// Individual matrix products and attention of the shape.
    Kernels,
    /// Training step: forward, cross-entropy, backward, AdamW.
    Train,
    /// Greedy generation of a batch of prompts.
    Decode,
    /// GRPO step: rollout, random rewards, one optimiser step, publishing the weights.
    Grpo,
}

impl Workload {
    /// Name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Kernels => "kernels",
            Self::Train => "train",
            Self::Decode => "decode",
            Self::Grpo => "grpo",
        }
    }
}

/// An instruction set of this processor.
fn isa(name: &str) -> Result<Isa, String> {
    let all = Isa::available();
    all.iter().copied().find(|isa| isa.name() == name).ok_or_else(|| {
        let names: Vec<&str> = all.iter().map(|isa| isa.name()).collect();
        format!("this processor has {}", names.join(", "))
    })
}

/// An order of bf16 products.
fn numeric_path(name: &str) -> Result<NumericPath, String> {
    [NumericPath::Widened, NumericPath::DotPairs, NumericPath::Tiles]
        .into_iter()
        .find(|path| path.name() == name)
        .ok_or_else(|| "the orders are widened, dot_pairs and tiles".to_owned())
}

/// Sequences of a training step and the tokens of each.
fn batch(text: &str) -> Result<(usize, usize), String> {
    let numbers = text.split_once('x').and_then(|(sequences, tokens)| {
        let count = |text: &str| text.trim().parse().ok().filter(|count: &u32| *count > 0);
        Some((count(sequences)? as usize, count(tokens)? as usize))
    });
    numbers
        .filter(|&(_, tokens)| tokens > 1)
        .ok_or_else(|| "write the number of sequences and their tokens, at least 2, as in 1x32768".to_owned())
}

/// A group of programs that share a Python environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Peer {
    /// PyTorch, transformers and TRL.
    #[value(alias = "pytorch")]
    Torch,
    /// vLLM's CPU build.
    Vllm,
    /// llama.cpp.
    #[value(alias = "llama.cpp")]
    Llama,
}

impl Peer {
    /// Name of its environment.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Torch => "torch",
            Self::Vllm => "vllm",
            Self::Llama => "llama",
        }
    }
}

/// Format of matrix products.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    // No doc comments: with help for its values, clap prints every option on two lines.
    F32,
    Bf16,
}

impl From<Format> for Dtype {
    fn from(format: Format) -> Self {
        match format {
            Format::F32 => Self::F32,
            Format::Bf16 => Self::Bf16,
        }
    }
}

#[derive(Debug, Args)]
#[command(after_help = "\
Shapes:
  S       4 layers of 256, 8 heads, 4 key-value heads, FFN 704, vocabulary 512; trains on
          32 x 128 tokens, generates 64 x 64 after prompts of 16, GRPO 16 prompts x 8 samples x 64
  M       24 layers of 896, 14 heads, 2 key-value heads, FFN 4864, vocabulary 32,000; trains on
          2 x 128 tokens, generates 8 x 16 after prompts of 16, GRPO 2 prompts x 8 samples x 16
  FOLDER  the shape in its config.json, with random weights and the batches of S, or those of M
          if the weights exceed 256 MiB in f32

Examples:
  rloom bench
  rloom bench train decode --dtype bf16
  rloom bench decode --shape path/to/model --threads 1 --json
  rloom bench decode --shape M --quantize int8
  rloom bench grpo --shape path/to/model --dtype bf16 --lora 16 --grpo-batch 4x8x64x128
  rloom bench decode --dtype bf16 --isa avx2 --numeric-path dot_pairs
  rloom bench train --batch 1x32768 --activation-checkpointing block
  rloom bench train --threads 1,2,4
  rloom bench decode --compare --peers vllm,llama --dtype f32

--compare runs every program in its own process, on the same cores, in turns. It creates the Python
environments of the others once, in rloom/bench of the user's caches, with packages from PyPI:
torch (6.3 GB), vllm (6.7 GB) and llama (0.2 GB). PyTorch in bf16 is very slow on processors without
bf16 instructions; --dtype f32 leaves it out.

Several --threads measure each workload with each number in turns: speed-up and efficiency, next to
the limit that arithmetic and memory bandwidth, measured with as many threads, set.

GFLOP/s count a multiply-add as 2 operations and include linear layers and unmasked attention: once
for the forward pass, twice for the backward pass, without recomputation, also for an adapter. The limits of the machine
are measured first, with the same number of threads.")]
pub(crate) struct Bench {
    /// Workloads to measure [default: all].
    #[arg(value_name = "WORKLOAD", value_enum)]
    pub(crate) workloads: Vec<Workload>,
    /// Model shape: S, M, or a model folder.
    #[arg(long, value_name = "S|M|FOLDER", default_value = "S")]
    pub(crate) shape: String,
    /// Format of matrix products [default: f32; with --compare both].
    #[arg(long, value_enum, value_name = "DTYPE")]
    pub(crate) dtype: Option<Format>,
    /// Instruction set, as listed by `rloom doctor` [default: the fastest].
    #[arg(long, value_name = "ISA", value_parser = isa)]
    pub(crate) isa: Option<Isa>,
    /// Order of bf16 products: widened, dot_pairs or tiles [default: that of the instruction set].
    #[arg(long, value_name = "PATH", value_parser = numeric_path)]
    pub(crate) numeric_path: Option<NumericPath>,
    /// Train a LoRA adapter of this rank on all linear layers instead of the weights.
    #[arg(long, value_name = "RANK", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) lora: Option<u16>,
    /// Format of the optimizer's moments.
    #[arg(long, value_enum, value_name = "FORMAT", default_value = "f32")]
    pub(crate) moments: Moments,
    /// Format of the weights that `decode` reads [default: that of the products].
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub(crate) quantize: Option<Quantize>,
    /// Batch of `grpo`: prompts, samples of each, tokens of a prompt and of a completion.
    #[arg(long, value_name = "PxSxNxN", value_parser = grpo_batch)]
    pub(crate) grpo_batch: Option<GrpoSize>,
    /// Batch of `train`: sequences and tokens of each, as in 1x32768 [default: those of the shape].
    #[arg(long, value_name = "SEQUENCESxTOKENS", value_parser = batch)]
    pub(crate) batch: Option<(usize, usize)>,
    /// Activations that `train` and `grpo` recompute instead of keeping them.
    #[arg(long, value_enum, value_name = "WHICH", default_value = "none")]
    pub(crate) activation_checkpointing: Checkpointing,
    /// Number of compute threads, 0 for one per core; several (1,2,4) measure how the speed scales.
    #[arg(long, value_name = "N,…", default_value = "0", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(..=1024))]
    pub(crate) threads: Vec<u16>,
    /// Measurements per workload after warm-up; the median is reported. With --compare processes per program.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) rounds: u16,
    /// Compare with other programs on this machine: PyTorch, transformers, TRL, vLLM and llama.cpp.
    #[arg(long, conflicts_with_all = ["isa", "numeric_path", "lora", "moments", "quantize", "grpo_batch", "batch", "activation_checkpointing"])]
    pub(crate) compare: bool,
    /// Programs to compare with: torch (with transformers and TRL), vllm, llama [default: all].
    #[arg(
        long,
        value_enum,
        value_name = "PEER,…",
        value_delimiter = ',',
        hide_possible_values = true,
        requires = "compare"
    )]
    pub(crate) peers: Vec<Peer>,
    /// Python interpreter of the comparison, 3.10 or newer [default: the first on the PATH].
    #[arg(long, value_name = "INTERPRETER", requires = "compare")]
    pub(crate) python: Option<PathBuf>,
}

/// Format of the weights that completions are sampled from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Quantize {
    // No doc comments: with help for its values, clap prints every option on two lines.
    Int8,
}

impl From<Quantize> for RolloutQuantization {
    fn from(format: Quantize) -> Self {
        match format {
            Quantize::Int8 => Self::Int8,
        }
    }
}

/// Activations that are recomputed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Checkpointing {
    // No doc comments: with help for its values, clap prints every option on two lines.
    None,
    Attention,
    Block,
}

impl From<Checkpointing> for rloom_model::ActivationCheckpointing {
    fn from(which: Checkpointing) -> Self {
        match which {
            Checkpointing::None => Self::None,
            Checkpointing::Attention => Self::Attention,
            Checkpointing::Block => Self::Block,
        }
    }
}

impl From<Checkpointing> for rloom_engine::ActivationCheckpointing {
    fn from(which: Checkpointing) -> Self {
        match which {
            Checkpointing::None => Self::None,
            Checkpointing::Attention => Self::Attention,
            Checkpointing::Block => Self::Block,
        }
    }
}

/// Prompts, samples of each, tokens of a prompt and of a completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GrpoSize(pub(crate) [usize; 4]);

/// Four numbers, such as `4x8x64x128`.
fn grpo_batch(text: &str) -> Result<GrpoSize, String> {
    let numbers: Option<Vec<usize>> = text.split('x').map(|number| number.parse().ok()).collect();
    let batch: Option<[usize; 4]> = numbers.and_then(|numbers| numbers.try_into().ok());
    batch
        .filter(|batch| batch.iter().all(|number| (1..=65536).contains(number)) && batch[1] > 1)
        .map(GrpoSize)
        .ok_or_else(|| {
            "four numbers from 1 to 65536 such as 4x8x64x128, with at least two samples".to_owned()
        })
}

/// Format of an optimizer's moments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Moments {
    // No doc comments: with help for its values, clap prints every option on two lines.
    F32,
    Int8,
}

impl From<Moments> for MomentFormat {
    fn from(moments: Moments) -> Self {
        match moments {
            Moments::F32 => Self::F32,
            Moments::Int8 => Self::Int8,
        }
    }
}
