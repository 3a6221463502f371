//! Real models under random interleavings of requests, updates, aborts, failures and steps: every log-probability is
//! bitwise that of a full forward pass with the weights of the version named by its span.

use std::sync::{Arc, LazyLock};

use proptest::prelude::*;
use rloom_core::{Purpose, RandomKey, StopReason};
use rloom_model::{Family, Model, ModelConfig, NewModel, PackedTokens, ScoreRows};
use rloom_ops::Ctx;

use super::harness::{Answer, Harness, label};
use crate::rollout::batch::{Limits, blocks_for};
use crate::rollout::decoder::ModelDecoder;
use crate::rollout::weights::LoadedWeights;
use rloom_engine::{
    Abort, GenerateRequest, Generation, OnUpdate, RolloutError, SamplingSettings, Speculation, WorkerFailure,
    inverse_temperature,
};

const VOCABULARY: usize = 19;
const VERSIONS: u64 = 6;
/// Tokens of the longest sequence.
const LONGEST: usize = 40 + 50;

fn config() -> ModelConfig {
    let new = NewModel {
        family: Family::Qwen3,
        layers: 2,
        hidden_size: 12,
        heads: 2,
        kv_heads: Some(1),
        head_dim: Some(6),
        intermediate_size: 20,
        max_positions: 160,
        rope_theta: 10_000.0,
        rms_norm_eps: 1e-6,
        tie_embeddings: true,
        initializer_range: 0.4,
    };
    new.config(VOCABULARY).unwrap()
}

/// One model per version.
static MODELS: LazyLock<Vec<Arc<Model>>> =
    LazyLock::new(|| (0..VERSIONS).map(|seed| Arc::new(Model::init(&config(), seed))).collect());

fn weights(version: u64) -> LoadedWeights {
    LoadedWeights { label: label(version), model: Arc::clone(&MODELS[version as usize]) }
}

#[derive(Debug, Clone, Copy)]
enum Action {
    Submit {
        group: Option<u64>,
        length: usize,
        max_new_tokens: usize,
        min_new_tokens: usize,
        priority: u64,
    },
    /// The next turn of a finished request: its sequence and tokens of a tool.
    Turn {
        of: usize,
        tool: usize,
        max_new_tokens: usize,
    },
    Steps {
        lane: usize,
        steps: usize,
    },
    /// Weights newer by this number of versions; 0 loads the same again.
    Load {
        newer: u64,
        on_update: OnUpdate,
    },
    Release,
    Abort(Abort),
    /// The caller of a request drops it.
    Cancel {
        request: usize,
    },
    /// A lane fails.
    Fail {
        lane: usize,
    },
}

fn actions(on_update: &'static [OnUpdate]) -> impl Strategy<Value = Vec<Action>> {
    let submit = (proptest::option::of(0..3u64), 1..40usize, 1..50usize, 0..20usize, 0..3u64).prop_map(
        |(group, length, max_new_tokens, min, priority)| Action::Submit {
            // All requests of a group have the same prompt.
            length: group.map_or(length, |g| [5, 16, 33][g as usize]),
            group,
            max_new_tokens,
            min_new_tokens: min.min(max_new_tokens),
            priority,
        },
    );
    let abort = prop_oneof![
        Just(Abort::All),
        (0..3u64).prop_map(Abort::Group),
        (0..8u64).prop_map(|ticket| Abort::Request(key(ticket))),
    ];
    let one = prop_oneof![
        6 => submit,
        5 => (0..8usize, 1..24usize, 1..30usize)
            .prop_map(|(of, tool, max_new_tokens)| Action::Turn { of, tool, max_new_tokens }),
        8 => (0..2usize, 1..12usize).prop_map(|(lane, steps)| Action::Steps { lane, steps }),
        3 => (0..3u64, proptest::sample::select(on_update))
            .prop_map(|(newer, on_update)| Action::Load { newer, on_update }),
        1 => Just(Action::Release),
        1 => abort.prop_map(Action::Abort),
        1 => (0..8usize).prop_map(|request| Action::Cancel { request }),
        1 => (0..2usize).prop_map(|lane| Action::Fail { lane }),
    ];
    proptest::collection::vec(one, 1..40)
}

fn key(ticket: u64) -> RandomKey {
    RandomKey::new(5, 0, Purpose::Rollout, ticket)
}

/// A request that is resubmitted with the tokens it has whenever it is interrupted.
struct Caller {
    request: GenerateRequest,
    answer: Answer,
    so_far: Option<Generation>,
    is_over: bool,
    left: bool,
}

struct World {
    harness: Harness<ModelDecoder>,
    callers: Vec<Caller>,
    version: u64,
    has_weights: bool,
    /// Only the tokens before the first update of a part are exact.
    keeps: bool,
}

impl World {
    fn new(blocks: usize, max_batch: usize, prefill_chunk: usize, keeps: bool) -> Self {
        let decoders = (0..2).map(|_| ModelDecoder::new(Ctx::serial(), config(), blocks, true)).collect();
        let harness = Harness::new(
            decoders,
            Limits { max_batch, prefill_chunk, blocks, speculation: Speculation::Off },
        );
        Self { harness, callers: Vec::new(), version: 0, has_weights: false, keeps }
    }

    /// The same with lanes that draft as much as possible.
    fn drafting(mut self, drafts: bool) -> Self {
        if drafts {
            self.harness.lanes.iter_mut().for_each(|lane| lane.batch.draft_always());
        }
        self
    }

    fn submit(&mut self, request: GenerateRequest) {
        let answer = self.harness.submit(request.clone());
        self.callers.push(Caller { request, answer, so_far: None, is_over: false, left: false });
    }

    fn load(&mut self, newer: u64, on_update: OnUpdate) {
        self.version = (self.version + newer).min(VERSIONS - 1);
        self.has_weights = true;
        drop(self.harness.load(Some(&weights(self.version)), on_update));
    }

    fn play(&mut self, action: Action) {
        match action {
            Action::Submit { group, length, max_new_tokens, min_new_tokens, priority } => {
                let ticket = self.callers.len() as u64;
                let prompt: Vec<u32> = (0..length).map(|i| ((i * i + length) % VOCABULARY) as u32).collect();
                let temperature = [1.0, 0.6, 0.0, 1.4][ticket as usize % 4];
                let sampling = SamplingSettings {
                    temperature,
                    max_new_tokens,
                    min_new_tokens,
                    ..SamplingSettings::default()
                };
                self.submit(GenerateRequest {
                    group,
                    priority,
                    stop_tokens: Arc::from([2]),
                    ..GenerateRequest::new(key(ticket), prompt, sampling)
                });
            }
            Action::Turn { of, tool, max_new_tokens } => self.next_turn(of, tool, max_new_tokens),
            Action::Steps { lane, steps } => {
                for _ in 0..steps {
                    self.harness.step(lane);
                }
            }
            Action::Load { newer, on_update } => self.load(newer, on_update),
            Action::Release => {
                self.has_weights = false;
                drop(self.harness.load(None, OnUpdate::Finish));
            }
            Action::Abort(which) => drop(self.harness.abort(which)),
            Action::Cancel { request } => {
                if let Some(caller) = self.callers.get_mut(request).filter(|c| !c.is_over) {
                    caller.answer.close();
                    (caller.left, caller.is_over) = (true, true);
                }
            }
            Action::Fail { lane } => self.harness.lanes[lane].restart(&WorkerFailure::Unknown),
        }
        self.collect_answers();
    }

    /// Submits the next turn of a finished request, if it fits.
    fn next_turn(&mut self, of: usize, tool: usize, max_new_tokens: usize) {
        let ticket = self.callers.len() as u64;
        let Some(caller) = self.callers.get(of).filter(|caller| caller.is_over && !caller.left) else {
            return;
        };
        let Some(completion) = &caller.so_far else { return };
        let tool = (0..tool).map(|i| (i % VOCABULARY) as u32);
        let prompt: Vec<u32> =
            caller.request.prompt.iter().chain(&completion.tokens).copied().chain(tool).collect();
        if prompt.len() + max_new_tokens > LONGEST {
            return;
        }
        let sampling =
            SamplingSettings { max_new_tokens, min_new_tokens: 0, ..caller.request.sampling.clone() };
        self.submit(GenerateRequest {
            stop_tokens: Arc::from([2]),
            ..GenerateRequest::new(key(ticket), prompt, sampling)
        });
    }

    /// Takes the available answers, checks them and resubmits interrupted requests.
    fn collect_answers(&mut self) {
        for caller in self.callers.iter_mut().filter(|c| !c.is_over) {
            let Ok(answer) = caller.answer.try_recv() else { continue };
            match answer {
                Ok(part) => {
                    check(&caller.request, &part, self.keeps);
                    caller.is_over = part.stop != StopReason::Aborted;
                    caller.request.prefix.extend(&part.tokens);
                    caller.so_far = Some(match caller.so_far.take() {
                        None => part,
                        Some(so_far) => so_far.then(part),
                    });
                }
                Err(error) => {
                    assert!(
                        error.is_retryable() && matches!(error, RolloutError::WorkerRestarted { .. }),
                        "{error}"
                    );
                }
            }
            if !caller.is_over {
                caller.answer = self.harness.submit(caller.request.clone());
            }
        }
    }

    /// Runs until all requests are answered.
    fn finish(&mut self) {
        if !self.has_weights {
            self.load(0, OnUpdate::Finish);
        }
        for _ in 0..100_000 {
            let worked = [0, 1].map(|lane| self.harness.step(lane));
            self.collect_answers();
            if worked == [false, false] && self.callers.iter().all(|c| c.is_over) {
                return;
            }
        }
        panic!("no progress");
    }

    fn check_accounting(&self) {
        let dispatcher = self.harness.shared.dispatcher();
        assert!(dispatcher.is_idle(), "{dispatcher:?}");
        for lane in &self.harness.lanes {
            assert!(lane.batch.is_empty() && lane.batch.used_blocks() == 0, "blocks were lost");
            assert_eq!(lane.loaded(), Some(label(self.version)));
        }
    }

    fn run(&mut self, actions: Vec<Action>) {
        for action in actions {
            self.play(action);
        }
        self.finish();
        self.check_accounting();
        for caller in self.callers.iter().filter(|c| !c.left) {
            let whole = caller.so_far.as_ref().expect("it was answered");
            let request = GenerateRequest { prefix: Vec::new(), ..caller.request.clone() };
            check(&request, whole, self.keeps);
            let sampling = &request.sampling;
            assert!((sampling.min_new_tokens..=sampling.max_new_tokens).contains(&whole.tokens.len()));
            let expected = match whole.tokens.last() {
                Some(2) if whole.tokens.len() > sampling.min_new_tokens => StopReason::StopToken,
                _ => StopReason::Length,
            };
            assert_eq!(whole.stop, expected);
        }
    }
}

/// Checks that spans cover the tokens with increasing versions, and that each log-probability is that of its version's
/// weights; with `keeps`, only in the first span.
fn check(request: &GenerateRequest, part: &Generation, keeps: bool) {
    assert_eq!(part.tokens.len(), part.logprobs.len());
    let given = request.prompt.len() + request.prefix.len();
    let tokens = [&request.prompt[..], &request.prefix, &part.tokens].concat();
    let packed = PackedTokens { tokens: &tokens, seq_starts: &[0, tokens.len()], parents: &[] };
    let mut at = 0;
    let mut last = None;
    for (place, span) in part.versions.iter().enumerate() {
        assert_eq!(span.range.start, at, "gaps");
        assert!(span.range.end > at && last < Some(span.version), "{:?}", part.versions);
        (at, last) = (span.range.end, Some(span.version));
        if keeps && place > 0 {
            continue;
        }
        let rows: Vec<u32> = span.range.clone().map(|i| (given + i) as u32).collect();
        let inverse = vec![inverse_temperature(part.temperature); rows.len()];
        let rows = ScoreRows { rows: &rows, inv_temperature: &inverse };
        let model = &MODELS[span.version.0 as usize];
        let scores = model.score(&Ctx::serial(), &packed, &rows).unwrap();
        assert_eq!(scores.logprob, part.logprobs[span.range.clone()], "version {:?}", span.version);
    }
    assert_eq!(at, part.tokens.len());
}

/// Blocks for the longest request and a few more, so that sequences are preempted.
fn blocks() -> impl Strategy<Value = usize> {
    let longest = blocks_for(LONGEST);
    longest..longest + 12
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn every_log_probability_is_that_of_the_version_it_names(
        actions in actions(&[OnUpdate::Finish, OnUpdate::Recompute, OnUpdate::Abort]),
        blocks in blocks(), max_batch in 1..6usize, chunk in 1..40usize, drafts in proptest::bool::ANY,
    ) {
        World::new(blocks, max_batch, chunk, false).drafting(drafts).run(actions);
    }

    /// A part uses only keys of the weights that it started with, until an update.
    #[test]
    fn with_keep_a_part_is_exact_until_the_next_update(
        actions in actions(&[OnUpdate::Keep, OnUpdate::Keep, OnUpdate::Finish, OnUpdate::Abort]),
        blocks in blocks(), max_batch in 1..6usize, chunk in 1..40usize, drafts in proptest::bool::ANY,
    ) {
        World::new(blocks, max_batch, chunk, true).drafting(drafts).run(actions);
    }

    /// Priorities, aborts, failures and scheduling do not affect a completion while the weights stay.
    #[test]
    fn while_weights_stay_a_completion_depends_on_its_request_alone(
        actions in actions(&[OnUpdate::Recompute]),
        blocks in blocks(), max_batch in 1..6usize, chunk in 1..40usize, drafts in proptest::bool::ANY,
    ) {
        let mut world = World::new(blocks, max_batch, chunk, false).drafting(drafts);
        let still = actions.into_iter().filter(|m| !matches!(m, Action::Load { .. }));
        world.run([Action::Load { newer: 0, on_update: OnUpdate::Finish }].into_iter().chain(still).collect());
        for caller in world.callers.iter().filter(|c| !c.left) {
            let mut alone = World::new(40, 1, 64, false);
            let request = GenerateRequest { prefix: Vec::new(), group: None, ..caller.request.clone() };
            alone.submit(request);
            alone.finish();
            assert_eq!(caller.so_far, alone.callers[0].so_far);
        }
    }
}
