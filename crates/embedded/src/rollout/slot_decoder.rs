//! A decoder for tests that stores a record of each token where a model stores its keys and values, so that a wrong block
//! anywhere becomes a wrong context.

use rloom_model::{KvCache, RowRequest, StepRow};
use rloom_ops::{Ctx, HeadOutput, KV_BLOCK};

use super::decoder::{DecodeError, Decoder, answer_by};
use super::weights::LoadedWeights;

/// Behaviour of a [`SlotDecoder`].
pub(crate) trait Recorder: Send {
    /// Record of a token.
    type Record: Copy + Send;
    /// Length of a row of logits.
    const VOCABULARY: usize;

    /// A recorder like this one in its initial state.
    fn fresh(&self) -> Self;

    /// Receives the weights of the next steps.
    fn load(&mut self, _weights: Option<&LoadedWeights>) {}

    /// Receives the number of rows of a step.
    fn begin_step(&mut self, _rows: usize) {}

    /// The record of a token that is computed now.
    fn record(&self, token: u32) -> Self::Record;

    /// Overwrites zeros with the logits after a context.
    fn logits_after(&mut self, context: &[Self::Record], logits: &mut [f32]);
}

/// A decoder with a record per slot.
pub(crate) struct SlotDecoder<R: Recorder> {
    ctx: Ctx,
    /// The record in each slot that was written.
    slots: Vec<Option<R::Record>>,
    pub(crate) recorder: R,
}

impl<R: Recorder> SlotDecoder<R> {
    pub(crate) fn new(blocks: usize, recorder: R) -> Self {
        Self { ctx: Ctx::serial(), slots: vec![None; blocks * KV_BLOCK], recorder }
    }
}

fn slot(blocks: &[u32], position: usize) -> usize {
    blocks[position / KV_BLOCK] as usize * KV_BLOCK + position % KV_BLOCK
}

impl<R: Recorder> Decoder for SlotDecoder<R> {
    fn fresh(&self) -> Self {
        Self::new(self.slots.len() / KV_BLOCK, self.recorder.fresh())
    }

    fn ctx(&self) -> &Ctx {
        &self.ctx
    }

    fn vocabulary(&self) -> usize {
        R::VOCABULARY
    }

    fn load(&mut self, weights: Option<&LoadedWeights>) {
        self.recorder.load(weights);
    }

    fn copy_out(&self, _: &[u32]) -> Option<KvCache> {
        None
    }

    fn copy_in(&mut self, _: &KvCache, _: &[u32]) {}

    fn copy_block(&mut self, from: u32, to: u32) {
        let from = from as usize * KV_BLOCK;
        self.slots.copy_within(from..from + KV_BLOCK, to as usize * KV_BLOCK);
    }

    fn step(
        &mut self,
        rows: &[StepRow<'_>],
        wanted: &[RowRequest],
        answers: &mut HeadOutput,
    ) -> Result<(), DecodeError> {
        self.recorder.begin_step(rows.len());
        let mut written = Vec::new();
        for row in rows {
            let slot = slot(row.blocks, row.position as usize);
            assert!(!written.contains(&slot), "two rows of one step write the same slot");
            written.push(slot);
            self.slots[slot] = Some(self.recorder.record(row.token));
        }
        answer_by(answers, wanted, R::VOCABULARY, |row, logits| {
            let row = &rows[row];
            let context: Option<Vec<R::Record>> =
                (0..=row.position as usize).map(|p| self.slots[slot(row.blocks, p)]).collect();
            let context = context.ok_or(DecodeError::Injected("a slot was read before it was written"))?;
            self.recorder.logits_after(&context, logits);
            Ok(())
        })
    }
}
