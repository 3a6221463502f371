//! Weights that change under a lane, one step at a time: the model records which weights gave what it read.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rloom_core::{Purpose, RandomKey};
use rloom_model::{KvCache, Model, RowRequest, StepRow};
use rloom_ops::{Ctx, HeadOutput, KV_BLOCK};
use tokio::sync::oneshot;

use super::Lane;
use super::bench::{Answer, config, label};
use crate::rollout::batch::Limits;
use crate::rollout::decoder::{DecodeError, Decoder, answer_by};
use crate::rollout::weights::LoadedWeights;
use rloom_engine::{GenerateRequest, OnUpdate, SamplingSettings, Speculation};

const VOCABULARY: usize = 32;

/// Knows sequences by the first token of their context, which is their own.
struct Witness {
    ctx: Ctx,
    version: u64,
    /// The token in each slot, and the version that put it there.
    cells: Vec<(u32, u64)>,
    /// For each sequence, the versions behind all that its logits have been computed from.
    seen: BTreeMap<u32, BTreeSet<u64>>,
}

impl Decoder for Witness {
    fn fresh(&self) -> Self {
        Self {
            ctx: self.ctx.clone(),
            version: 0,
            cells: vec![(0, 0); self.cells.len()],
            seen: self.seen.clone(),
        }
    }

    fn ctx(&self) -> &Ctx {
        &self.ctx
    }

    fn vocabulary(&self) -> usize {
        VOCABULARY
    }

    fn load(&mut self, weights: Option<&LoadedWeights>) {
        self.version = weights.map_or(0, |weights| weights.label.version.0);
    }

    fn copy_out(&self, _: &[u32]) -> Option<KvCache> {
        None
    }

    fn copy_in(&mut self, _: &KvCache, _: &[u32]) {}

    fn copy_block(&mut self, from: u32, to: u32) {
        let from = from as usize * KV_BLOCK;
        self.cells.copy_within(from..from + KV_BLOCK, to as usize * KV_BLOCK);
    }

    fn step(
        &mut self,
        rows: &[StepRow<'_>],
        wanted: &[RowRequest],
        answers: &mut HeadOutput,
    ) -> Result<(), DecodeError> {
        let slot = |row: &StepRow<'_>, p: usize| row.blocks[p / KV_BLOCK] as usize * KV_BLOCK + p % KV_BLOCK;
        for row in rows {
            self.cells[slot(row, row.position as usize)] = (row.token, self.version);
        }
        answer_by(answers, wanted, VOCABULARY, |row, _| {
            let row = &rows[row];
            let name = self.cells[slot(row, 0)].0;
            let versions = (0..=row.position as usize).map(|p| self.cells[slot(row, p)].1);
            self.seen.entry(name).or_default().extend(versions);
            Ok(())
        })
    }
}

struct Bench {
    bench: super::bench::Bench<Witness>,
    model: Arc<Model>,
}

impl Bench {
    /// A lane with version 1 loaded.
    fn new(blocks: usize) -> Self {
        let witness = Witness {
            ctx: Ctx::serial(),
            version: 0,
            cells: vec![(0, 0); blocks * KV_BLOCK],
            seen: BTreeMap::new(),
        };
        let limits = Limits { max_batch: 8, prefill_chunk: 64, blocks, speculation: Speculation::Off };
        let bench = super::bench::Bench::new(vec![witness], limits);
        let bench = Self { bench, model: Arc::new(Model::init(&config(VOCABULARY, 64), 1)) };
        drop(bench.load(1, OnUpdate::Finish));
        bench
    }

    fn submit(&self, prompt: &[u32], group: Option<u64>, max_new_tokens: usize) -> Answer {
        let key = RandomKey::new(0, 0, Purpose::Rollout, u64::from(prompt[0]));
        let sampling = SamplingSettings { max_new_tokens, ..SamplingSettings::default() };
        self.bench.submit(GenerateRequest { group, ..GenerateRequest::new(key, prompt, sampling) })
    }

    fn load(&self, version: u64, on_update: OnUpdate) -> oneshot::Receiver<()> {
        let weights = LoadedWeights { label: label(version), model: Arc::clone(&self.model) };
        self.bench.load(Some(&weights), on_update).remove(0)
    }

    fn lane(&mut self) -> &mut Lane<Witness> {
        &mut self.bench.lanes[0]
    }

    fn step(&mut self) {
        assert!(self.bench.step(0), "there is work");
    }

    fn steps_until(&mut self, answer: &mut Answer) -> Vec<u64> {
        for _ in 0..1000 {
            if let Ok(generation) = answer.try_recv() {
                return generation.unwrap().versions.iter().map(|span| span.version.0).collect();
            }
            self.step();
        }
        panic!("no answer within a thousand steps");
    }

    fn versions_behind(&mut self, name: u32) -> Vec<u64> {
        self.lane().decoder.seen.get(&name).map(|seen| seen.iter().copied().collect()).unwrap_or_default()
    }
}

#[test]
fn what_waits_for_blocks_starts_with_the_new_weights() {
    // Two blocks each, and one for each that runs: the third starts when the second has ended, if it may.
    let mut bench = Bench::new(7);
    let prompt = |name: u32| (0..20).map(|i| if i == 0 { name } else { 9 }).collect::<Vec<u32>>();
    let mut long = bench.submit(&prompt(1), None, 25);
    let mut short = bench.submit(&prompt(2), None, 3);
    let mut third = bench.submit(&prompt(3), None, 5);
    bench.step();
    let mut told = bench.load(2, OnUpdate::Finish);
    assert_eq!((bench.lane().batch.running(), bench.lane().batch.waiting()), (2, 1));
    assert_eq!(bench.steps_until(&mut short), [1]);
    bench.step();
    bench.step();
    assert_eq!((bench.lane().batch.running(), bench.lane().batch.waiting()), (1, 1));
    assert!(told.try_recv().is_err(), "the old weights are in use");
    assert_eq!(bench.steps_until(&mut long), [1]);
    assert_eq!(bench.steps_until(&mut third), [2]);
    assert!(told.try_recv().is_ok());
    assert_eq!([1, 2, 3].map(|name| bench.versions_behind(name)), [[1], [1], [2]]);
}

#[test]
fn a_kept_prompt_is_not_for_sequences_that_start_later() {
    let mut bench = Bench::new(50);
    let prompt: Vec<u32> = (0..20).map(|i| i + 3).collect();
    let mut old = bench.submit(&prompt, Some(1), 10);
    bench.step();
    bench.step();
    drop(bench.load(2, OnUpdate::Keep));
    let mut mixed = old;
    bench.step();
    assert_eq!(bench.versions_behind(3), [1, 2], "it goes on with the old keys and values");
    bench.lane().decoder.seen.clear();
    // Its group's prompt was computed by the old weights.
    let mut late = bench.submit(&prompt, Some(1), 1);
    assert_eq!(bench.steps_until(&mut late), [2]);
    assert_eq!(bench.lane().batch.statistics().shared_tokens, 0);
    assert_eq!(bench.steps_until(&mut mixed), [1, 2]);
    old = bench.submit(&prompt, Some(1), 3);
    assert_eq!(bench.steps_until(&mut old), [2]);
}

#[test]
fn recomputed_sequences_share_the_prompt_anew() {
    let mut bench = Bench::new(50);
    let prompt: Vec<u32> = (0..20).map(|i| i + 3).collect();
    let mut answers: Vec<_> = (0..3).map(|_| bench.submit(&prompt, Some(1), 10)).collect();
    bench.step();
    bench.step();
    bench.lane().decoder.seen.clear();
    drop(bench.load(2, OnUpdate::Recompute));
    for answer in &mut answers {
        assert_eq!(bench.steps_until(answer), [1, 2]);
    }
    assert_eq!(bench.versions_behind(3), [2]);
    assert_eq!(bench.lane().batch.statistics().shared_tokens, 4 * 20, "twice by each of two");
}

#[test]
fn a_newer_load_overtakes_one_that_waits() {
    let mut bench = Bench::new(50);
    let mut running = bench.submit(&[1, 2], None, 10);
    bench.step();
    let mut told = [bench.load(2, OnUpdate::Finish), bench.load(3, OnUpdate::Finish)];
    assert_eq!(bench.steps_until(&mut running), [1]);
    let mut next = bench.submit(&[5, 2], None, 10);
    assert_eq!(bench.steps_until(&mut next), [3]);
    assert!(told.iter_mut().all(|told| told.try_recv().is_ok()), "both are told");
}

#[test]
fn what_has_chosen_nothing_yet_begins_again_with_the_new_weights() {
    // Sixty-four tokens of the prompt are computed in a step: the first of it is of the old weights.
    let mut bench = Bench::new(50);
    let mut leader = bench.submit(&[5; 100], Some(1), 10);
    let mut follower = bench.submit(&[5; 100], Some(1), 10);
    bench.step();
    drop(bench.load(2, OnUpdate::Keep));
    assert_eq!(bench.steps_until(&mut leader), [2]);
    assert_eq!(bench.steps_until(&mut follower), [2]);
    assert_eq!(bench.versions_behind(5), [2]);
    assert_eq!(bench.lane().batch.statistics().shared_tokens, 100);
}

#[test]
fn weights_of_the_same_version_again_change_nothing() {
    for on_update in [OnUpdate::Keep, OnUpdate::Recompute, OnUpdate::Finish] {
        let mut bench = Bench::new(50);
        let mut running = bench.submit(&[1, 2], None, 10);
        bench.step();
        let mut told = bench.load(1, on_update);
        assert_eq!(bench.steps_until(&mut running), [1], "one span");
        assert!(!bench.bench.step(0));
        assert!(told.try_recv().is_ok());
    }
}

#[test]
fn a_load_overtakes_a_release_that_waits() {
    let mut bench = Bench::new(50);
    let mut running = bench.submit(&[1, 2], None, 10);
    bench.step();
    let mut released = bench.bench.load(None, OnUpdate::Finish).remove(0);
    let mut next = bench.submit(&[5, 2], None, 10);
    bench.step();
    assert!(released.try_recv().is_err());
    let mut told = bench.load(2, OnUpdate::Recompute);
    assert_eq!(bench.steps_until(&mut running), [1, 2]);
    assert_eq!(bench.steps_until(&mut next), [2]);
    assert!(released.try_recv().is_ok() && told.try_recv().is_ok());
}
