//! Buffers that are lent and come back, so that the activations of one micro-batch take the memory of the last.
//!
//! Every buffer has room for as many rows as the largest batch so far: a batch of a shape that was there before, or of
//! fewer rows, allocates nothing. Room that is not used costs addresses and no memory.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rloom_ops::{Buf, Element};

/// Buffers that nobody uses at the moment.
#[derive(Debug, Default)]
pub(crate) struct Workspace {
    idle: Mutex<Idle>,
}

#[derive(Debug, Default)]
struct Idle {
    /// Rows that each buffer has room for.
    rows: usize,
    /// Bytes of a row, and the memory: what was `f32` once may be `bf16` next time.
    buffers: Vec<(usize, Buf)>,
}

impl Workspace {
    /// A buffer `[rows, width]` with unspecified content; it comes back when it is dropped.
    pub(crate) fn lend<E: Element>(self: &Arc<Self>, rows: usize, width: usize) -> Lent<E> {
        let bytes_per_row = width * size_of::<E>();
        let (stored, room) = self.pick(bytes_per_row, rows);
        let mut buf = match stored {
            Some(buf) => buf.into_format(),
            None => Buf::zeros(room * width),
        };
        buf.resize(rows * width);
        Lent { buf, bytes_per_row, rows: room, home: Arc::clone(self) }
    }

    /// An idle buffer, if there is one, and the rows that it has room for or must get room for.
    fn pick(&self, bytes_per_row: usize, rows: usize) -> (Option<Buf>, usize) {
        let mut idle = self.idle();
        if rows > idle.rows {
            idle.rows = rows;
            idle.buffers.clear();
        }
        let room = idle.rows;
        let found = idle.buffers.iter().rposition(|(bytes, _)| *bytes == bytes_per_row);
        (found.map(|index| idle.buffers.swap_remove(index).1), room)
    }

    fn idle(&self) -> MutexGuard<'_, Idle> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives idle memory back to the system.
    pub(crate) fn clear(&self) {
        let mut idle = self.idle();
        idle.rows = 0;
        idle.buffers.clear();
    }

    /// Rows that there is room for, and the bytes of a row of each idle buffer, ascending.
    #[cfg(test)]
    pub(crate) fn holds(&self) -> (usize, Vec<usize>) {
        let idle = self.idle();
        let mut bytes: Vec<usize> = idle.buffers.iter().map(|(bytes, _)| *bytes).collect();
        bytes.sort_unstable();
        (idle.rows, bytes)
    }
}

/// A borrowed buffer.
#[derive(Debug)]
pub(crate) struct Lent<E: Element = f32> {
    buf: Buf<E>,
    bytes_per_row: usize,
    rows: usize,
    home: Arc<Workspace>,
}

impl<E: Element> Deref for Lent<E> {
    type Target = Buf<E>;

    fn deref(&self) -> &Buf<E> {
        &self.buf
    }
}

impl<E: Element> DerefMut for Lent<E> {
    fn deref_mut(&mut self) -> &mut Buf<E> {
        &mut self.buf
    }
}

impl<E: Element> Drop for Lent<E> {
    fn drop(&mut self) {
        let buf = std::mem::take(&mut self.buf).into_format();
        let mut idle = self.home.idle();
        // A larger batch came in the meantime, or the memory was given back: it would never be lent again.
        if self.rows == idle.rows {
            idle.buffers.push((self.bytes_per_row, buf));
        }
    }
}

#[cfg(test)]
mod tests {
    use rloom_ops::{Bf16, Ctx};

    use super::*;
    use crate::{Compute, Gradients, Model, NewModel, PackedTokens, Recompute, ScoreGrads, ScoreRows};

    #[test]
    fn what_comes_back_is_lent_again() {
        let workspace = Arc::new(Workspace::default());
        let first = workspace.lend::<f32>(100, 8);
        let at = first.as_slice().as_ptr().cast::<u8>();
        let second = workspace.lend::<f32>(50, 3);
        assert_eq!((first.len(), second.len()), (800, 150));
        drop(first);
        drop(second);
        let again = workspace.lend::<Bf16>(70, 16);
        assert_eq!((again.len(), again.as_slice().as_ptr().cast()), (70 * 16, at));
        let full = workspace.lend::<f32>(100, 3);
        assert_eq!(full.len(), 300);
        drop((again, full));
        assert_eq!(workspace.holds(), (100, vec![12, 32]));
    }

    #[test]
    fn more_rows_replace_all_buffers() {
        let workspace = Arc::new(Workspace::default());
        let out = workspace.lend::<f32>(10, 4);
        drop(workspace.lend::<f32>(10, 5));
        let larger = workspace.lend::<f32>(20, 4);
        drop(out);
        assert_eq!(workspace.holds(), (20, vec![]), "what is too small goes");
        drop(larger);
        drop(workspace.lend::<f32>(3, 4));
        assert_eq!(workspace.holds(), (20, vec![16]));
        workspace.clear();
        assert_eq!(workspace.holds(), (0, vec![]));
    }
    /// The memory of a whole training step serves the next one, in either format, and a smaller one; recomputation takes
    /// less.
    #[test]
    fn a_second_step_allocates_nothing() {
        let new: NewModel = serde_json::from_value(serde_json::json!({
            "family": "qwen3", "layers": 3, "hidden_size": 32, "heads": 4, "kv_heads": 2, "intermediate_size": 48,
            "max_positions": 64,
        }))
        .unwrap();
        let config = new.config(50).unwrap();
        for compute in [Compute::F32, Compute::Bf16] {
            let mut before = usize::MAX;
            for recompute in [Recompute::None, Recompute::Attention, Recompute::Block] {
                let model = Model::init(&config, 1).with_compute(compute);
                step(&model, 60, recompute);
                let first = model.workspace().holds();
                assert_eq!(first.0, 60);
                for tokens in [60, 60, 31] {
                    step(&model, tokens, recompute);
                    assert_eq!(model.workspace().holds(), first, "{compute:?} {recompute:?} {tokens}");
                }
                let bytes = first.1.iter().sum::<usize>();
                assert!(
                    bytes < before,
                    "{compute:?} {recompute:?}: {bytes} bytes per token, {before} before"
                );
                before = bytes;
                // The plan counts what is held, but for the few numbers per token that norms and heads keep.
                let planned = model.config().training_bytes_per_token(recompute) as usize;
                assert!((0.75..1.3).contains(&(bytes as f64 / planned as f64)), "{bytes} against {planned}");
            }
        }
    }

    fn step(model: &Model, tokens: usize, recompute: Recompute) {
        let (ctx, ids) = (Ctx::serial(), vec![3; tokens]);
        let batch = PackedTokens { tokens: &ids, seq_starts: &[0, tokens / 2, tokens], parents: &[] };
        let rows = ScoreRows { rows: &[1, 5], inv_temperature: &[1.0; 2] };
        let by = ScoreGrads { d_logprob: &[1.0; 2], d_entropy: &[0.5; 2], d_value: &[] };
        let forward = model.forward(&ctx, &batch, &rows, recompute).unwrap();
        model.backward(&ctx, forward, &by, &mut Gradients::zeros(model)).unwrap();
    }
}
