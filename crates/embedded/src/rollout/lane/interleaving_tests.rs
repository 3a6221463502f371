//! Real models under random interleavings of requests, updates, aborts, failures and steps: every log-probability is,
//! bit for bit, that of a full forward pass with the weights of the version that its span names.

use std::sync::{Arc, LazyLock};

use proptest::prelude::*;
use rloom_core::{Purpose, RandomKey, StopReason};
use rloom_model::{Family, Model, ModelConfig, NewModel, PackedTokens, ScoreRows};
use rloom_ops::Ctx;

use super::bench::{Answer, Bench, label};
use crate::rollout::batch::{Limits, blocks_for};
use crate::rollout::decoder::ModelDecoder;
use crate::rollout::weights::LoadedWeights;
use rloom_engine::{
    Abort, GenerateRequest, Generation, OnUpdate, RolloutError, SamplingSettings, Speculation, WorkerFailure,
    inverse_temperature,
};

const VOCABULARY: usize = 19;
const VERSIONS: u64 = 6;

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
enum Move {
    Submit {
        group: Option<u64>,
        length: usize,
        max_new_tokens: usize,
        min_new_tokens: usize,
        priority: u64,
    },
    Steps {
        lane: usize,
        steps: usize,
    },
    /// Weights so many versions newer; 0 brings the same again.
    Load {
        newer: u64,
        on_update: OnUpdate,
    },
    Release,
    Abort(Abort),
    /// The caller of a request goes away.
    Leave {
        request: usize,
    },
    /// A lane's decoder fails.
    Fail {
        lane: usize,
    },
}

fn moves(on_update: &'static [OnUpdate]) -> impl Strategy<Value = Vec<Move>> {
    let submit = (proptest::option::of(0..3u64), 1..40usize, 1..50usize, 0..20usize, 0..3u64).prop_map(
        |(group, length, max_new_tokens, min, priority)| Move::Submit {
            // A group's prompt is one.
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
        8 => (0..2usize, 1..12usize).prop_map(|(lane, steps)| Move::Steps { lane, steps }),
        3 => (0..3u64, proptest::sample::select(on_update))
            .prop_map(|(newer, on_update)| Move::Load { newer, on_update }),
        1 => Just(Move::Release),
        1 => abort.prop_map(Move::Abort),
        1 => (0..8usize).prop_map(|request| Move::Leave { request }),
        1 => (0..2usize).prop_map(|lane| Move::Fail { lane }),
    ];
    proptest::collection::vec(one, 1..40)
}

fn key(ticket: u64) -> RandomKey {
    RandomKey::new(5, 0, Purpose::Rollout, ticket)
}

/// A request that is made again, with what it has, whenever it is cut off.
struct Caller {
    request: GenerateRequest,
    answer: Answer,
    so_far: Option<Generation>,
    is_over: bool,
    left: bool,
}

struct World {
    bench: Bench<ModelDecoder>,
    callers: Vec<Caller>,
    version: u64,
    has_weights: bool,
    /// Whether every part is exact, or only what came before weights were changed under it.
    keeps: bool,
}

impl World {
    fn new(blocks: usize, max_batch: usize, prefill_chunk: usize, keeps: bool) -> Self {
        let decoders = (0..2).map(|_| ModelDecoder::new(Ctx::serial(), config(), blocks, true)).collect();
        let bench =
            Bench::new(decoders, Limits { max_batch, prefill_chunk, blocks, speculation: Speculation::Off });
        Self { bench, callers: Vec::new(), version: 0, has_weights: false, keeps }
    }

    /// The same, whose lanes draft what they can.
    fn drafting(mut self, drafts: bool) -> Self {
        if drafts {
            self.bench.lanes.iter_mut().for_each(|lane| lane.batch.draft_always());
        }
        self
    }

    fn submit(&mut self, request: GenerateRequest) {
        let answer = self.bench.submit(request.clone());
        self.callers.push(Caller { request, answer, so_far: None, is_over: false, left: false });
    }

    fn load(&mut self, newer: u64, on_update: OnUpdate) {
        self.version = (self.version + newer).min(VERSIONS - 1);
        self.has_weights = true;
        drop(self.bench.load(Some(&weights(self.version)), on_update));
    }

    fn play(&mut self, one: Move) {
        match one {
            Move::Submit { group, length, max_new_tokens, min_new_tokens, priority } => {
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
            Move::Steps { lane, steps } => {
                for _ in 0..steps {
                    self.bench.step(lane);
                }
            }
            Move::Load { newer, on_update } => self.load(newer, on_update),
            Move::Release => {
                self.has_weights = false;
                drop(self.bench.load(None, OnUpdate::Finish));
            }
            Move::Abort(which) => drop(self.bench.abort(which)),
            Move::Leave { request } => {
                if let Some(caller) = self.callers.get_mut(request).filter(|c| !c.is_over) {
                    caller.answer.close();
                    (caller.left, caller.is_over) = (true, true);
                }
            }
            Move::Fail { lane } => self.bench.lanes[lane].restart(&WorkerFailure::Unknown),
        }
        self.listen();
    }

    /// Takes the answers there are, checks each, and asks again for what was cut off.
    fn listen(&mut self) {
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
                caller.answer = self.bench.submit(caller.request.clone());
            }
        }
    }

    /// Lets everything come to its end.
    fn finish(&mut self) {
        if !self.has_weights {
            self.load(0, OnUpdate::Finish);
        }
        for _ in 0..100_000 {
            let worked = [0, 1].map(|lane| self.bench.step(lane));
            self.listen();
            if worked == [false, false] && self.callers.iter().all(|c| c.is_over) {
                return;
            }
        }
        panic!("no end");
    }

    fn check_books(&self) {
        let dispatcher = self.bench.shared.dispatcher();
        assert!(dispatcher.is_idle(), "{dispatcher:?}");
        for lane in &self.bench.lanes {
            assert!(lane.batch.is_empty() && lane.batch.used_blocks() == 0, "blocks were lost");
            assert_eq!(lane.loaded(), Some(label(self.version)));
        }
    }

    fn run(&mut self, moves: Vec<Move>) {
        for one in moves {
            self.play(one);
        }
        self.finish();
        self.check_books();
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

/// Spans tile the tokens and never go back; each log-probability is that of its version's weights. With `keeps`, only
/// the first span's are.
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

/// Blocks for the longest request and some more, so that sequences are put back.
fn blocks() -> impl Strategy<Value = usize> {
    let longest = blocks_for(40 + 50);
    longest..longest + 12
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn every_log_probability_is_that_of_the_version_it_names(
        moves in moves(&[OnUpdate::Finish, OnUpdate::Recompute, OnUpdate::Abort]),
        blocks in blocks(), max_batch in 1..6usize, chunk in 1..40usize, drafts in proptest::bool::ANY,
    ) {
        World::new(blocks, max_batch, chunk, false).drafting(drafts).run(moves);
    }

    /// A part that began with some weights has no keys of older ones, until newer ones come in its middle.
    #[test]
    fn with_keep_what_begins_with_some_weights_is_exact_until_the_next(
        moves in moves(&[OnUpdate::Keep, OnUpdate::Keep, OnUpdate::Finish, OnUpdate::Abort]),
        blocks in blocks(), max_batch in 1..6usize, chunk in 1..40usize, drafts in proptest::bool::ANY,
    ) {
        World::new(blocks, max_batch, chunk, true).drafting(drafts).run(moves);
    }

    /// Neither priorities nor aborts, failures or steps leave a trace in a completion while the weights stay.
    #[test]
    fn while_weights_stay_a_completion_is_the_request_s_alone(
        moves in moves(&[OnUpdate::Recompute]),
        blocks in blocks(), max_batch in 1..6usize, chunk in 1..40usize, drafts in proptest::bool::ANY,
    ) {
        let mut world = World::new(blocks, max_batch, chunk, false).drafting(drafts);
        let still = moves.into_iter().filter(|m| !matches!(m, Move::Load { .. }));
        world.run([Move::Load { newer: 0, on_update: OnUpdate::Finish }].into_iter().chain(still).collect());
        for caller in world.callers.iter().filter(|c| !c.left) {
            let mut alone = World::new(40, 1, 64, false);
            let request = GenerateRequest { prefix: Vec::new(), group: None, ..caller.request.clone() };
            alone.submit(request);
            alone.finish();
            assert_eq!(caller.so_far, alone.callers[0].so_far);
        }
    }
}
