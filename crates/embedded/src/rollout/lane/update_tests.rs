//! Weight updates of a lane, one step at a time. The decoder records the versions behind the keys and values it reads.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rloom_core::{PolicyId, Purpose, RandomKey};
use rloom_model::Model;
use tokio::sync::oneshot;

use super::Lane;
use super::harness::{Answer, config, label};
use crate::rollout::batch::Limits;
use crate::rollout::slot_decoder::{Recorder, SlotDecoder};
use crate::rollout::weights::LoadedWeights;
use rloom_engine::{
    GenerateRequest, InvalidReason, OnUpdate, PolicyLabel, RolloutError, SamplingSettings, Speculation,
};

const VOCABULARY: usize = 32;

/// Identifies sequences by the first token of their context.
struct VersionRecorder {
    version: u64,
    /// For each sequence, the versions of all keys and values that its logits were computed from.
    seen: BTreeMap<u32, BTreeSet<u64>>,
}

impl Recorder for VersionRecorder {
    /// A token and the version that computed it.
    type Record = (u32, u64);
    const VOCABULARY: usize = VOCABULARY;

    fn fresh(&self) -> Self {
        Self { version: 0, seen: self.seen.clone() }
    }

    fn load(&mut self, weights: Option<&LoadedWeights>) {
        self.version = weights.map_or(0, |weights| weights.label.version.0);
    }

    fn record(&self, token: u32) -> (u32, u64) {
        (token, self.version)
    }

    fn logits_after(&mut self, context: &[(u32, u64)], _: &mut [f32]) {
        self.seen.entry(context[0].0).or_default().extend(context.iter().map(|&(_, version)| version));
    }
}

struct Harness {
    harness: super::harness::Harness<SlotDecoder<VersionRecorder>>,
    model: Arc<Model>,
}

impl Harness {
    /// A lane with version 1 loaded.
    fn new(blocks: usize) -> Self {
        let recorder = VersionRecorder { version: 0, seen: BTreeMap::new() };
        let limits = Limits { max_batch: 8, prefill_chunk: 64, blocks, speculation: Speculation::Off };
        let harness = super::harness::Harness::new(vec![SlotDecoder::new(blocks, recorder)], limits);
        let harness = Self { harness, model: Arc::new(Model::init(&config(VOCABULARY, 64), 1)) };
        drop(harness.load(1, OnUpdate::Finish));
        harness
    }

    fn submit(&self, prompt: &[u32], group: Option<u64>, max_new_tokens: usize) -> Answer {
        let key = RandomKey::new(0, 0, Purpose::Rollout, u64::from(prompt[0]));
        let sampling = SamplingSettings { max_new_tokens, ..SamplingSettings::default() };
        self.harness.submit(GenerateRequest { group, ..GenerateRequest::new(key, prompt, sampling) })
    }

    fn load(&self, version: u64, on_update: OnUpdate) -> oneshot::Receiver<()> {
        let weights = LoadedWeights { label: label(version), model: Arc::clone(&self.model) };
        self.harness.load(Some(&weights), on_update).remove(0)
    }

    fn lane(&mut self) -> &mut Lane<SlotDecoder<VersionRecorder>> {
        &mut self.harness.lanes[0]
    }

    fn step(&mut self) {
        assert!(self.harness.step(0), "there is work");
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
        self.lane()
            .decoder
            .recorder
            .seen
            .get(&name)
            .map(|seen| seen.iter().copied().collect())
            .unwrap_or_default()
    }
}

#[test]
fn sequences_that_wait_for_blocks_start_with_the_new_weights() {
    // Two blocks each, and one reserved per running sequence: the third could start once the second has ended.
    let mut harness = Harness::new(7);
    let prompt = |name: u32| (0..20).map(|i| if i == 0 { name } else { 9 }).collect::<Vec<u32>>();
    let mut long = harness.submit(&prompt(1), None, 25);
    let mut short = harness.submit(&prompt(2), None, 3);
    let mut third = harness.submit(&prompt(3), None, 5);
    harness.step();
    let mut done = harness.load(2, OnUpdate::Finish);
    assert_eq!((harness.lane().batch.running(), harness.lane().batch.waiting()), (2, 1));
    assert_eq!(harness.steps_until(&mut short), [1]);
    harness.step();
    harness.step();
    assert_eq!((harness.lane().batch.running(), harness.lane().batch.waiting()), (1, 1));
    assert!(done.try_recv().is_err(), "the old weights are in use");
    assert_eq!(harness.steps_until(&mut long), [1]);
    assert_eq!(harness.steps_until(&mut third), [2]);
    assert!(done.try_recv().is_ok());
    assert_eq!([1, 2, 3].map(|name| harness.versions_behind(name)), [[1], [1], [2]]);
}

#[test]
fn a_kept_prompt_is_not_for_sequences_that_start_later() {
    let mut harness = Harness::new(50);
    let prompt: Vec<u32> = (0..20).map(|i| i + 3).collect();
    let mut old = harness.submit(&prompt, Some(1), 10);
    harness.step();
    harness.step();
    drop(harness.load(2, OnUpdate::Keep));
    let mut mixed = old;
    harness.step();
    assert_eq!(harness.versions_behind(3), [1, 2], "it continues with the old keys and values");
    harness.lane().decoder.recorder.seen.clear();
    // Its group's prompt was computed by the old weights.
    let mut late = harness.submit(&prompt, Some(1), 1);
    assert_eq!(harness.steps_until(&mut late), [2]);
    assert_eq!(harness.lane().batch.statistics().reused_tokens, 0);
    assert_eq!(harness.steps_until(&mut mixed), [1, 2]);
    old = harness.submit(&prompt, Some(1), 3);
    assert_eq!(harness.steps_until(&mut old), [2]);
}

/// The next turn takes keys and values of one version alone, whatever happens to the sequences in flight.
#[test]
fn the_next_turn_reuses_nothing_of_other_weights() {
    for on_update in [OnUpdate::Finish, OnUpdate::Recompute, OnUpdate::Keep, OnUpdate::Abort] {
        let mut harness = Harness::new(50);
        let first: Vec<u32> = (0..40).map(|i| i + 3).collect();
        let mut answer = harness.submit(&first, None, 10);
        let mut other = harness.submit(&[31; 20], None, 30);
        assert_eq!(harness.steps_until(&mut answer), [1]);
        drop(harness.load(2, on_update));
        let turn = [&first[..], &[5; 20]].concat();
        harness.lane().decoder.recorder.seen.clear();
        let mut next = harness.submit(&turn, None, 4);
        assert_eq!(harness.steps_until(&mut next), [2], "{on_update:?}");
        assert_eq!(harness.versions_behind(3), [2], "{on_update:?}");
        while other.try_recv().is_err() {
            harness.step();
        }
        // Of the sequence in flight, the new version alone may leave anything to others.
        harness.lane().decoder.recorder.seen.clear();
        let before = harness.lane().batch.statistics().reused_tokens;
        let mut again = harness.submit(&[[31; 20].as_slice(), &[1; 20]].concat(), None, 2);
        assert_eq!(harness.steps_until(&mut again), [2]);
        assert_eq!(harness.versions_behind(31), [2], "{on_update:?}");
        let reused = harness.lane().batch.statistics().reused_tokens - before;
        assert_eq!(reused, if on_update == OnUpdate::Recompute { 20 } else { 0 }, "{on_update:?}");
        // A load of the same version keeps nothing either, a release drops all.
        drop(harness.harness.load(None, OnUpdate::Finish));
        drop(harness.load(2, OnUpdate::Finish));
        let before = harness.lane().batch.statistics().reused_tokens;
        let mut last = harness.submit(&turn, None, 2);
        assert_eq!(harness.steps_until(&mut last), [2]);
        assert_eq!(harness.lane().batch.statistics().reused_tokens, before);
    }
}

#[test]
fn recomputed_sequences_share_the_prompt_again() {
    let mut harness = Harness::new(50);
    let prompt: Vec<u32> = (0..20).map(|i| i + 3).collect();
    let mut answers: Vec<_> = (0..3).map(|_| harness.submit(&prompt, Some(1), 10)).collect();
    harness.step();
    harness.step();
    harness.lane().decoder.recorder.seen.clear();
    drop(harness.load(2, OnUpdate::Recompute));
    for answer in &mut answers {
        assert_eq!(harness.steps_until(answer), [1, 2]);
    }
    assert_eq!(harness.versions_behind(3), [2]);
    assert_eq!(harness.lane().batch.statistics().reused_tokens, 2 * 19 + 2 * 20);
}

#[test]
fn a_newer_load_supersedes_a_pending_one() {
    let mut harness = Harness::new(50);
    let mut running = harness.submit(&[1, 2], None, 10);
    harness.step();
    let mut done = [harness.load(2, OnUpdate::Finish), harness.load(3, OnUpdate::Finish)];
    assert_eq!(harness.steps_until(&mut running), [1]);
    let mut next = harness.submit(&[5, 2], None, 10);
    assert_eq!(harness.steps_until(&mut next), [3]);
    assert!(done.iter_mut().all(|done| done.try_recv().is_ok()), "both complete");
}

#[test]
fn sequences_without_a_token_restart_with_the_new_weights() {
    // A step computes 64 tokens of the prompt: its first part is computed by the old weights.
    let mut harness = Harness::new(50);
    let mut leader = harness.submit(&[5; 100], Some(1), 10);
    let mut follower = harness.submit(&[5; 100], Some(1), 10);
    harness.step();
    drop(harness.load(2, OnUpdate::Keep));
    assert_eq!(harness.steps_until(&mut leader), [2]);
    assert_eq!(harness.steps_until(&mut follower), [2]);
    assert_eq!(harness.versions_behind(5), [2]);
    assert_eq!(harness.lane().batch.statistics().reused_tokens, 99);
}

#[test]
fn loading_the_same_version_again_changes_nothing() {
    for on_update in [OnUpdate::Keep, OnUpdate::Recompute, OnUpdate::Finish] {
        let mut harness = Harness::new(50);
        let mut running = harness.submit(&[1, 2], None, 10);
        harness.step();
        let mut done = harness.load(1, on_update);
        assert_eq!(harness.steps_until(&mut running), [1], "one span");
        assert!(!harness.harness.step(0));
        assert!(done.try_recv().is_ok());
    }
}

#[test]
fn a_load_supersedes_a_pending_release() {
    let mut harness = Harness::new(50);
    let mut running = harness.submit(&[1, 2], None, 10);
    harness.step();
    let mut released = harness.harness.load(None, OnUpdate::Finish).remove(0);
    let mut next = harness.submit(&[5, 2], None, 10);
    harness.step();
    assert!(released.try_recv().is_err());
    let mut done = harness.load(2, OnUpdate::Recompute);
    assert_eq!(harness.steps_until(&mut running), [1, 2]);
    assert_eq!(harness.steps_until(&mut next), [2]);
    assert!(released.try_recv().is_ok() && done.try_recv().is_ok());
}

/// Running sequences cannot continue with another policy: they finish first, whatever the load specifies.
#[test]
fn sequences_finish_before_another_policy_is_loaded() {
    for on_update in [OnUpdate::Recompute, OnUpdate::Keep, OnUpdate::Finish] {
        // Blocks for one of the two.
        let mut harness = Harness::new(2);
        let mut running = harness.submit(&[1, 2], None, 10);
        let mut waiting = harness.submit(&[5, 2], None, 10);
        harness.step();
        assert_eq!((harness.lane().batch.running(), harness.lane().batch.waiting()), (1, 1));
        let other = LoadedWeights {
            label: PolicyLabel { policy: PolicyId(1), ..label(7) },
            model: Arc::clone(&harness.model),
        };
        let mut released = harness.harness.load(None, OnUpdate::Finish).remove(0);
        let mut loaded = harness.harness.load(Some(&other), on_update).remove(0);
        assert_eq!(harness.steps_until(&mut running), [1], "{on_update:?}");
        assert!(!harness.harness.step(0));
        let error = waiting.try_recv().unwrap().unwrap_err();
        let RolloutError::InvalidRequest { reason, .. } = error else { panic!("{error}") };
        assert!(matches!(reason, InvalidReason::UnknownPolicy { .. }), "{reason}");
        assert!(released.try_recv().is_ok() && loaded.try_recv().is_ok());
        assert_eq!(harness.lane().loaded(), Some(other.label));
    }
}
