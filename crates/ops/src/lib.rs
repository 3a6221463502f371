//! CPU kernels, their dispatch, and buffers.
//!
//! Every operation is a free function over [`Buf`]s and takes a [`Ctx`]. All matrices are row-major. Letters in names
//! and docs denote dimensions:
//!
//! | letter | meaning | letter | meaning |
//! | --- | --- | --- | --- |
//! | `t` | packed tokens (rows) | `v` | vocabulary |
//! | `r` | rows of a decode step | `h` | query heads |
//! | `d` | hidden size | `g` | key/value heads |
//! | `n`, `k` | out and in features of a linear layer | `e` | head size |
//! | `f` | feed-forward size | | |
//!
//! # Summation order
//!
//! The same inputs and the same [`Order`] of bf16 products give the same bits on every instruction set, for any number of
//! threads, and for a row computed alone or among others. This holds because the order of each sum is part of the
//! operation's definition:
//!
//! * A sum of products (linear layers, attention, weight gradients) is one chain of fused multiply-adds per output
//!   element, in ascending index of the reduced dimension. It starts from zero, or from the current output if the
//!   operation accumulates. Blocking stores a partial sum and resumes it later, which changes nothing.
//! * Products of bf16 matrices are summed in f32, in one of three orders ([`Ctx::order`]). [`Order::Widened`] is the sum
//!   of products above over the widened numbers, whose products are exact in f32; an odd last index is followed by a zero.
//!   [`Order::DotPairs`] is one chain over ascending pairs of indices, the odd index of a pair first, as defined by the
//!   processors' dot-product instruction; numbers below the smallest normal one are flushed to zero. (A sum within 2⁻¹⁵⁰
//!   of that number may be zero by the instruction and the number itself elsewhere.) [`Order::Tiles`] runs over blocks of
//!   32 indices, each of them two chains, of the even and of the odd indices; its attention widens.
//! * A product with a weight of 8 bits ([`Packed::quantized`]) is the sum of products above over the numbers of the one factor,
//!   widened to f32, and the integers of the other, multiplied by the scale of the weight's row when it is complete.
//! * A reduction of a row (norms, softmax) runs in 16 lanes, lane `l` over the elements whose index is `l` modulo 16,
//!   then in one fixed tree over the lanes.
//! * A log-sum-exp over the vocabulary works on blocks of a fixed number of columns, joined in ascending order.
//! * A sum over tokens ascends. Threads divide output elements, never a sum.
//!
//! # Panics
//!
//! A shape that does not fit its buffer is a bug in the calling code: operations check the lengths of their arguments
//! and panic with the name of the argument. User input is validated before it reaches this crate.

mod activation;
mod adamw;
mod adamw_int8;
mod attention;
mod buf;
mod cache;
mod caches;
pub mod ceiling;
mod convert;
mod ctx;
mod disjoint;
mod draw;
mod dropout;
mod element;
mod embedding;
mod error;
mod gemm;
mod gemm_amx;
mod gemm_copy;
mod gemm_distance;
mod gemm_kernel;
mod gemm_left;
mod gemm_prefetch;
mod gemm_tile;
mod gemm_widened;
mod head;
mod head_divergence;
mod head_draw;
mod head_scores;
mod int8;
mod int8_product;
mod isa;
mod lanes;
mod linear;
mod linear_heads;
mod linear_swiglu;
mod logsumexp;
mod low_rank;
mod matrix;
mod memory;
mod norm;
mod numbers;
mod pack;
mod partition;
mod reduce;
mod rope;
mod simd;
#[cfg(target_arch = "x86_64")]
mod simd_avx2;
#[cfg(target_arch = "aarch64")]
mod simd_neon;
#[cfg(target_arch = "x86_64")]
mod simd_x86;
mod simulation;
mod team;

pub use adamw::{AdamW, adamw};
pub use adamw_int8::{Int8Moments, MOMENT_BLOCK, adamw_int8};
pub use attention::{AttentionShape, CachedRow, Segments, attention, attention_backward, attention_cached};
pub use buf::{Buf, mapped_bytes};
pub use cache::{KV_BLOCK, KvLayer, kv_copy_block, kv_copy_from, kv_write};
pub use caches::shared_cache_bytes;
pub use convert::{
    append_bf16_bytes, append_f32_bytes, f32_from_bf16_bytes, f32_from_f16_bytes, f32_from_f32_bytes,
};
pub use ctx::Ctx;
pub use draw::{Draw, Pick, RowDraw};
pub use dropout::Dropout;
pub use element::Element;
pub use embedding::{add_rows, embedding, embedding_backward, gather_rows, scatter_rows};
pub use error::OpsError;
pub use half::bf16 as Bf16;
pub use head::{
    HeadLowRank, HeadScores, head_backward, head_candidates, head_candidates_backward, head_forward,
    head_logits,
};
pub use head_divergence::{
    Divergence, DivergenceScores, HeadRows, head_divergence, head_divergence_backward,
};
pub use head_draw::{HeadOutput, HeadRequest, HeadResult, head_draw};
pub use isa::{Isa, Order};
pub use linear::{bias_backward, linear, linear_backward_input, linear_backward_weight, linear_residual};
pub use linear_heads::{HeadNorms, Heads, Rotation, heads_backward, heads_norm, linear_heads};
pub use linear_swiglu::{linear_backward_swiglu, linear_swiglu};
pub use logsumexp::{RowScores, row_scores};
pub use low_rank::{
    Columns, LowRank, LowRankInput, Weight, WeightRows, low_rank_backward_b, low_rank_backward_u,
    low_rank_backward_x,
};
pub use matrix::{Matrix, is_bf16, round_to_bf16};
pub use memory::{ScratchBytes, ScratchShape};
pub use norm::{Norm, rms_norm, rms_norm_backward};
pub use pack::{Packed, pack, packed_bytes, repack, unpack};
pub use reduce::{all_finite, scale, sum_squares, zero};
pub use rope::{RopeTable, rope, rope_backward};
pub use simulation::Simulated;
