//! CPU kernels, their dispatch, buffers and memory mapping.
//!
//! Every operation is a free function over [`Buf`]s and takes a [`Ctx`]. All matrices are row-major. The letters in
//! names and docs are the shapes:
//!
//! | letter | meaning | letter | meaning |
//! | --- | --- | --- | --- |
//! | `t` | packed tokens (rows) | `v` | vocabulary |
//! | `r` | rows of a decode step | `h` | query heads |
//! | `d` | hidden size | `g` | key/value heads |
//! | `n`, `k` | out and in features of a linear layer | `e` | size of a head |
//! | `f` | size of the feed-forward layer | | |
//!
//! # One definition of every sum
//!
//! The same inputs give the same bits on every instruction set (but for bf16 products by tiles), for any number of
//! threads, and for a row alone as for a row among many. That holds because the order of each sum is part of the
//! operation's definition:
//!
//! * A sum of products (linear layers, attention, weight gradients) is one chain of fused multiply-adds per output
//!   element, in ascending index of the reduced dimension. It starts from zero, or from what the output holds where
//!   the operation accumulates. Blocking stores the chain's value and takes it up again, which changes nothing.
//! * Products of bf16 matrices, in f32 arithmetic, are one chain over ascending pairs of indices, the odd index of a pair
//!   first, as the processors' dot-product instruction has it; numbers below the smallest normal one are zero. (A sum
//!   within 2⁻¹⁵⁰ of that number may be zero by the instruction and the number itself elsewhere.) Where
//!   they are computed by tiles ([`Isa::Amx`]), the sum is instead over blocks of 32 indices, each of them two chains,
//!   of the even and of the odd indices. [`Ctx::products`] says which. Attention's products go by pairs everywhere.
//! * A reduction of a row (norms, softmax) runs in 16 lanes, lane `l` over the elements whose index is `l` modulo
//!   16, then in one fixed tree over the lanes.
//! * A log-sum-exp over the vocabulary works on blocks of a fixed number of columns, joined in ascending order.
//! * A sum over tokens ascends. Threads share out output elements, never a sum.
//!
//! # Panics
//!
//! A shape that does not fit its buffer is a mistake in the calling code: operations check the lengths of their
//! arguments and panic with the name of the argument. User input is checked before it comes here.

mod activation;
mod adamw;
mod attention;
mod buf;
mod cache;
pub mod ceiling;
mod convert;
mod ctx;
mod disjoint;
mod draw;
mod element;
mod embedding;
mod error;
mod gemm;
mod gemm_ahead;
mod gemm_amx;
mod gemm_copy;
mod gemm_kernel;
mod gemm_tile;
mod head;
mod head_draw;
mod isa;
mod lanes;
mod linear;
mod linear_heads;
mod linear_swiglu;
mod logsumexp;
mod mapped;
mod norm;
mod numbers;
mod pack;
mod parallel;
mod partition;
mod reduce;
mod rope;
mod simd;
#[cfg(target_arch = "aarch64")]
mod simd_neon;
#[cfg(target_arch = "x86_64")]
mod simd_x86;

pub use adamw::{AdamW, adamw};
pub use attention::{AttentionShape, CachedRow, Segments, attention, attention_backward, attention_cached};
pub use buf::Buf;
pub use cache::{KV_BLOCK, KvLayer, kv_copy_block, kv_copy_from, kv_write};
pub use convert::{
    bf16_bytes_from_f32, f16_bytes_from_f32, f32_bytes_from_f32, f32_from_bf16_bytes, f32_from_f16_bytes,
    f32_from_f32_bytes,
};
pub use ctx::Ctx;
pub use draw::{Draw, Pick, RowDraw};
pub use element::Element;
pub use embedding::{embedding, embedding_backward, gather_rows, scatter_rows};
pub use error::OpsError;
pub use half::bf16 as Bf16;
pub use head::{HeadScores, head_backward, head_forward, head_logits};
pub use head_draw::{HeadAnswer, HeadAsk, HeadOutput, head_draw};
pub use isa::Isa;
pub use linear::{bias_backward, linear, linear_backward_input, linear_backward_weight, linear_residual};
pub use linear_heads::{HeadNorms, Heads, Turn, heads_backward, heads_norm, linear_heads};
pub use linear_swiglu::{linear_backward_swiglu, linear_swiglu};
pub use logsumexp::{RowScores, row_scores};
pub use mapped::MappedFile;
pub use norm::{Norm, rms_norm, rms_norm_backward};
pub use pack::{Packed, pack, repack};
pub use reduce::{all_finite, scale, sum_squares};
pub use rope::{RopeTable, rope, rope_backward};
