//! A pool of buffers, so that the activations of one micro-batch reuse the memory of the previous one.
//!
//! Every buffer has capacity for the rows of the largest recent batch: a batch of the same shape, or with fewer rows,
//! allocates nothing. Unused capacity takes address space but no memory. Once no batch has needed half of it for a
//! while, it shrinks, so that one long sequence does not hold its memory to the end of the run.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rloom_ops::{Buf, Element};

/// Buffers taken between two checks of the capacity: those of a few micro-batches of a model with tens of layers, more of
/// a smaller one. New memory after each check would still take a small fraction of the time of the computation.
const CHECK_EVERY: usize = 4096;

/// Pool of idle buffers.
#[derive(Debug, Default)]
pub(crate) struct BufPool {
    idle: Mutex<Idle>,
}

#[derive(Debug, Default)]
struct Idle {
    /// Capacity of each buffer, in rows.
    rows: usize,
    /// Bytes per row, and the memory, which `f32` and `bf16` buffers share.
    buffers: Vec<(usize, Buf)>,
    /// Buffers taken since the last check of the capacity.
    taken: usize,
    /// Most rows among them.
    needed: usize,
}

impl Idle {
    fn set_rows(&mut self, rows: usize) {
        self.rows = rows;
        self.buffers.clear();
    }

    /// Adjusts the capacity to a buffer that is taken.
    fn adjust(&mut self, rows: usize) {
        self.taken += 1;
        self.needed = self.needed.max(rows);
        if rows > self.rows {
            self.set_rows(rows);
        }
        if self.taken == CHECK_EVERY {
            if self.needed <= self.rows / 2 {
                self.set_rows(self.needed);
            }
            (self.taken, self.needed) = (0, 0);
        }
    }
}

impl BufPool {
    /// Takes a buffer `[rows, width]` with unspecified content; dropping it returns it to the pool.
    pub(crate) fn take<E: Element>(self: &Arc<Self>, rows: usize, width: usize) -> PooledBuf<E> {
        let bytes_per_row = width * size_of::<E>();
        let (stored, capacity) = self.take_idle(bytes_per_row, rows);
        let mut buf = match stored {
            Some(buf) => buf.into_format(),
            None => Buf::zeros(capacity * width),
        };
        buf.resize(rows * width);
        PooledBuf { buf, bytes_per_row, rows: capacity, pool: Arc::clone(self) }
    }

    /// An idle buffer, if there is one, and its required capacity in rows.
    fn take_idle(&self, bytes_per_row: usize, rows: usize) -> (Option<Buf>, usize) {
        let mut idle = self.idle();
        idle.adjust(rows);
        let capacity = idle.rows;
        let found = idle.buffers.iter().rposition(|(bytes, _)| *bytes == bytes_per_row);
        (found.map(|index| idle.buffers.swap_remove(index).1), capacity)
    }

    fn idle(&self) -> MutexGuard<'_, Idle> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Size of the idle buffers, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        let idle = self.idle();
        idle.buffers.iter().map(|(bytes, _)| idle.rows * bytes).sum()
    }

    /// Capacity in rows, and the bytes per row of each idle buffer, ascending.
    #[cfg(test)]
    pub(crate) fn capacity(&self) -> (usize, Vec<usize>) {
        let idle = self.idle();
        let mut bytes: Vec<usize> = idle.buffers.iter().map(|(bytes, _)| *bytes).collect();
        bytes.sort_unstable();
        (idle.rows, bytes)
    }
}

/// A buffer that returns to its pool when dropped.
#[derive(Debug)]
pub(crate) struct PooledBuf<E: Element = f32> {
    buf: Buf<E>,
    bytes_per_row: usize,
    rows: usize,
    pool: Arc<BufPool>,
}

impl<E: Element> Deref for PooledBuf<E> {
    type Target = Buf<E>;

    fn deref(&self) -> &Buf<E> {
        &self.buf
    }
}

impl<E: Element> DerefMut for PooledBuf<E> {
    fn deref_mut(&mut self) -> &mut Buf<E> {
        &mut self.buf
    }
}

impl<E: Element> Drop for PooledBuf<E> {
    fn drop(&mut self) {
        let buf = std::mem::take(&mut self.buf).into_format();
        let mut idle = self.pool.idle();
        // If the capacity has changed in the meantime, the buffer has the wrong size.
        if self.rows == idle.rows {
            idle.buffers.push((self.bytes_per_row, buf));
        }
    }
}

#[cfg(test)]
mod tests {
    use rloom_ops::{Bf16, Ctx};

    use super::*;
    use crate::{
        ActivationCheckpointing, Dtype, Gradients, Model, NewModel, PackedTokens, ScoreGrads, ScoreRows,
    };

    #[test]
    fn returned_buffers_are_reused() {
        let pool = Arc::new(BufPool::default());
        let first = pool.take::<f32>(100, 8);
        let at = first.as_slice().as_ptr().cast::<u8>();
        let second = pool.take::<f32>(50, 3);
        assert_eq!((first.len(), second.len()), (800, 150));
        drop(first);
        drop(second);
        let again = pool.take::<Bf16>(70, 16);
        assert_eq!((again.len(), again.as_slice().as_ptr().cast()), (70 * 16, at));
        let full = pool.take::<f32>(100, 3);
        assert_eq!(full.len(), 300);
        drop((again, full));
        assert_eq!(pool.capacity(), (100, vec![12, 32]));
    }

    #[test]
    fn more_rows_replace_all_buffers() {
        let pool = Arc::new(BufPool::default());
        let out = pool.take::<f32>(10, 4);
        drop(pool.take::<f32>(10, 5));
        let larger = pool.take::<f32>(20, 4);
        drop(out);
        assert_eq!(pool.capacity(), (20, vec![]), "small buffers are freed");
        drop(larger);
        drop(pool.take::<f32>(3, 4));
        assert_eq!(pool.capacity(), (20, vec![16]));
    }

    /// A long sequence among short ones: its memory is freed after some of them.
    #[test]
    fn capacity_that_is_not_needed_is_freed() {
        let pool = Arc::new(BufPool::default());
        let bytes = |pool: &BufPool| {
            let (rows, widths) = pool.capacity();
            rows * widths.iter().sum::<usize>()
        };
        let batch = |rows: usize| drop((pool.take::<f32>(rows, 8), pool.take::<f32>(rows / 10, 8)));
        batch(1000);
        assert_eq!(bytes(&pool), 64_000);
        for _ in 0..CHECK_EVERY {
            batch(100);
        }
        assert_eq!(bytes(&pool), 6400);
        // Batches of more than half the rows keep it.
        batch(190);
        for _ in 0..2 * CHECK_EVERY {
            batch(100);
        }
        assert_eq!(pool.capacity().0, 190);
        let held = pool.take::<f32>(1000, 8);
        for _ in 0..CHECK_EVERY {
            batch(100);
        }
        drop(held);
        assert_eq!(bytes(&pool), 6400, "a buffer returned later is freed");
    }

    /// The memory of a training step serves the next one, in either dtype, and a smaller one; activation checkpointing
    /// takes less.
    #[test]
    fn a_second_step_allocates_nothing() {
        let new: NewModel = serde_json::from_value(serde_json::json!({
            "family": "qwen3", "layers": 3, "hidden_size": 32, "heads": 4, "kv_heads": 2, "intermediate_size": 48,
            "max_positions": 64,
        }))
        .unwrap();
        let config = new.config(50).unwrap();
        for dtype in [Dtype::F32, Dtype::Bf16] {
            let mut before = usize::MAX;
            for checkpointing in [
                ActivationCheckpointing::None,
                ActivationCheckpointing::Attention,
                ActivationCheckpointing::Block,
            ] {
                let model = Model::init(&config, 1).with_dtype(dtype);
                step(&model, 60, checkpointing);
                let first = model.buf_pool().capacity();
                assert_eq!(first.0, 60);
                for tokens in [60, 60, 31] {
                    step(&model, tokens, checkpointing);
                    assert_eq!(model.buf_pool().capacity(), first, "{dtype:?} {checkpointing:?} {tokens}");
                }
                let bytes = first.1.iter().sum::<usize>();
                assert!(
                    bytes < before,
                    "{dtype:?} {checkpointing:?}: {bytes} bytes per token, {before} before"
                );
                before = bytes;
            }
        }
    }

    fn step(model: &Model, tokens: usize, checkpointing: ActivationCheckpointing) {
        let (ctx, ids) = (Ctx::serial(), vec![3; tokens]);
        let batch = PackedTokens { tokens: &ids, seq_starts: &[0, tokens / 2, tokens], parents: &[] };
        let rows = ScoreRows { rows: &[1, 5], inv_temperature: &[1.0; 2] };
        let by = ScoreGrads { d_logprob: &[1.0; 2], d_entropy: &[0.5; 2], ..ScoreGrads::default() };
        let forward = model.forward(&ctx, &batch, &rows, checkpointing).unwrap();
        model.backward(&ctx, forward, &by, &mut Gradients::zeros(model)).unwrap();
    }
}
