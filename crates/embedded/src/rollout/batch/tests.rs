//! The batch with a decoder whose logits are a function of the tokens in the row's blocks: a wrong block anywhere becomes a
//! wrong token.

use std::sync::Arc;

use proptest::prelude::*;
use rloom_core::{PolicyId, PolicyVersion, Purpose, RandomKey, StopReason};
use tokio::sync::oneshot;

use super::{Batch, Limits, blocks_for};
use crate::rollout::sampling::{SampleScratch, Sampler};
use crate::rollout::sequence::{Rank, Sequence};
use crate::rollout::slot_decoder::{Recorder, SlotDecoder};
use rloom_engine::{
    Abort, GenerateRequest, Generation, PolicyLabel, RolloutError, SamplingSettings, Speculation,
};

mod reuse;

const LABEL: PolicyLabel = PolicyLabel { policy: PolicyId::MAIN, version: PolicyVersion(3), digest: 0 };
const VOCABULARY: usize = 7;
const STOP: u32 = 6;

/// Pseudo-random logits that depend on every token of the context and on its order.
fn logits_after(context: &[u32]) -> Vec<f32> {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for &token in context {
        hash = (hash ^ u64::from(token + 1)).wrapping_mul(0x100_0000_01b3).rotate_left(23);
    }
    (0..VOCABULARY as u64)
        .map(|v| {
            let mixed = (hash ^ v.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xff51_afd7_ed55_8ccd);
            let z = (mixed >> 40) as f32 / (1 << 24) as f32;
            if v == u64::from(STOP) { z * 3.0 - 2.5 } else { z * 3.0 }
        })
        .collect()
}

/// The same with a strong preference for the token four positions earlier.
fn logits_in_a_loop(context: &[u32]) -> Vec<f32> {
    let mut logits = logits_after(context);
    if let Some(&again) = context.len().checked_sub(4).and_then(|i| context.get(i)) {
        logits[again as usize] += 7.0;
    }
    logits
}

type Rule = fn(&[u32]) -> Vec<f32>;

/// Computes logits by a rule and counts the rows of each step.
struct RuleRecorder {
    /// Logits after a context.
    rule: Rule,
    steps: Vec<usize>,
}

impl Recorder for RuleRecorder {
    type Record = u32;
    const VOCABULARY: usize = VOCABULARY;

    fn fresh(&self) -> Self {
        Self { rule: self.rule, steps: Vec::new() }
    }

    fn begin_step(&mut self, rows: usize) {
        self.steps.push(rows);
    }

    fn record(&self, token: u32) -> u32 {
        token
    }

    fn logits_after(&mut self, context: &[u32], logits: &mut [f32]) {
        logits.copy_from_slice(&(self.rule)(context));
    }
}

fn request(prompt: &[u32], group: Option<u64>, sample: u32, max_new_tokens: usize) -> GenerateRequest {
    let key = RandomKey { sample, ..RandomKey::new(1, 0, Purpose::Rollout, group.unwrap_or(99)) };
    let sampling = SamplingSettings { max_new_tokens, ..SamplingSettings::default() };
    GenerateRequest { group, stop_tokens: Arc::from([STOP]), ..GenerateRequest::new(key, prompt, sampling) }
}

/// Completion of a request, token by token, without cache or batch.
fn alone(request: &GenerateRequest) -> (Vec<u32>, Vec<f32>, StopReason) {
    alone_by(logits_after, request)
}

fn alone_by(rule: Rule, request: &GenerateRequest) -> (Vec<u32>, Vec<f32>, StopReason) {
    let sampler = Sampler::new(&request.sampling);
    let stream = request.key.stream();
    let mut context = [&request.prompt[..], &request.prefix[..]].concat();
    let (mut tokens, mut logprobs) = (Vec::new(), Vec::new());
    loop {
        let uniform = stream.uniform(context.len() as u64);
        let chosen = context.len() - request.prompt.len();
        let forbidden: &[u32] =
            if chosen < request.sampling.min_new_tokens { &request.stop_tokens } else { &[] };
        let pick = sampler.pick(&rule(&context), forbidden, uniform, &mut SampleScratch::default()).unwrap();
        context.push(pick.token);
        tokens.push(pick.token);
        logprobs.push(pick.logprob);
        if request.stop_tokens.contains(&pick.token) {
            return (tokens, logprobs, StopReason::StopToken);
        }
        if context.len() - request.prompt.len() == request.sampling.max_new_tokens {
            return (tokens, logprobs, StopReason::Length);
        }
    }
}

struct Fixture {
    batch: Batch,
    decoder: SlotDecoder<RuleRecorder>,
    arrivals: u64,
}

type Answer = oneshot::Receiver<Result<Generation, RolloutError>>;

impl Fixture {
    fn new(blocks: usize, max_batch: usize, prefill_chunk: usize) -> Self {
        Self::by(logits_after, blocks, max_batch, prefill_chunk)
    }

    fn by(rule: Rule, blocks: usize, max_batch: usize, prefill_chunk: usize) -> Self {
        let limits = Limits { max_batch, prefill_chunk, blocks, speculation: Speculation::Off };
        let decoder = SlotDecoder::new(blocks, RuleRecorder { rule, steps: Vec::new() });
        Self { batch: Batch::new(0, limits, 1), decoder, arrivals: 0 }
    }

    fn submit(&mut self, request: GenerateRequest) -> Answer {
        let (reply, answer) = oneshot::channel();
        let mut sequence = Sequence::new(request, None, reply);
        self.arrivals += 1;
        sequence.rank.arrival = self.arrivals;
        self.batch.insert(sequence);
        answer
    }

    fn step(&mut self) {
        self.batch.admit_ready(&mut self.decoder, false);
        self.batch.step(&mut self.decoder, LABEL).unwrap();
    }

    fn run(&mut self) {
        for _ in 0..20_000 {
            if self.batch.is_empty() {
                assert_eq!(self.batch.used_blocks(), 0, "blocks were lost");
                return;
            }
            self.step();
        }
        panic!("the batch makes no progress");
    }
}

fn check(request: &GenerateRequest, answer: &mut Answer) {
    check_by(logits_after, request, answer);
}

fn check_by(rule: Rule, request: &GenerateRequest, answer: &mut Answer) {
    let generation = answer.try_recv().expect("it was answered").expect("it succeeded");
    let (tokens, logprobs, stop) = alone_by(rule, request);
    assert_eq!((generation.tokens, generation.logprobs, generation.stop), (tokens, logprobs, stop));
}

#[test]
fn a_groups_prompt_is_computed_once() {
    let prompt: Vec<u32> = (0..37).map(|i| i % 5).collect();
    let mut fixture = Fixture::new(100, 16, 8);
    let requests: Vec<_> = (0..6).map(|sample| request(&prompt, Some(4), sample, 3)).collect();
    let mut answers: Vec<_> = requests.iter().map(|r| fixture.submit(r.clone())).collect();
    fixture.run();
    let mut decoded = 0;
    for (request, answer) in requests.iter().zip(&mut answers) {
        decoded += alone(request).0.len() - 1;
        check(request, answer);
    }
    let statistics = fixture.batch.statistics();
    // The others compute the prompt's last token, to sample the next one.
    assert_eq!(statistics.computed_tokens as usize, 37 + 5 + decoded);
    assert_eq!(statistics.reused_tokens, 5 * 36);
    // Prefill in chunks of at most eight.
    assert_eq!(fixture.decoder.recorder.steps[..5], [8, 8, 8, 8, 5]);
}

#[test]
fn the_last_rank_is_preempted_and_the_first_never() {
    // Each may need 3 of the 5 blocks.
    let mut fixture = Fixture::new(5, 4, 64);
    let requests: Vec<_> = (0..2)
        .map(|sample| GenerateRequest { stop_tokens: Arc::from([]), ..request(&[1, 2, 3], None, sample, 44) })
        .collect();
    let mut answers: Vec<_> = requests.iter().map(|r| fixture.submit(r.clone())).collect();
    while fixture.batch.statistics().preempted == 0 {
        fixture.step();
    }
    assert_eq!(fixture.batch.running.len(), 1);
    assert_eq!(fixture.batch.running[0].rank.arrival, 1);
    fixture.run();
    for (request, answer) in requests.iter().zip(&mut answers) {
        let generation = answer.try_recv().unwrap().unwrap();
        let free = GenerateRequest { stop_tokens: Arc::from([]), ..request.clone() };
        let mut roomy = Fixture::new(100, 1, 1);
        let mut expected = roomy.submit(free);
        roomy.run();
        assert_eq!(generation, expected.try_recv().unwrap().unwrap());
    }
}

#[test]
fn lower_ranks_run_first_and_are_preempted_last() {
    let long = |sample, priority| GenerateRequest {
        stop_tokens: Arc::from([]),
        priority,
        ..request(&[1, 2, 3], None, sample, 44)
    };
    let running = |fixture: &Fixture| fixture.batch.running.iter().map(|s| s.key.sample).collect::<Vec<_>>();
    // With one place they run by priority, then by age.
    let mut fixture = Fixture::new(100, 1, 64);
    let _answers = [(0, 7), (1, 3), (2, 7), (3, 3)].map(|(s, priority)| fixture.submit(long(s, priority)));
    let mut order = Vec::new();
    while !fixture.batch.is_empty() {
        fixture.step();
        order.extend(running(&fixture));
    }
    order.dedup();
    assert_eq!(order, [1, 3, 0, 2]);

    // Room for one whole sequence and a part. A later request with a lower number is not preempted.
    let mut fixture = Fixture::new(5, 4, 64);
    let mut answers = vec![fixture.submit(long(0, 2))];
    fixture.step();
    answers.push(fixture.submit(long(1, 1)));
    fixture.step();
    assert_eq!(running(&fixture), [1, 0], "in order of priority, without preemption for a new sequence");
    while fixture.batch.statistics().preempted == 0 {
        fixture.step();
    }
    assert_eq!(running(&fixture), [1]);
    // A preempted sequence keeps its rank: it precedes later ones with the same number.
    answers.push(fixture.submit(long(2, 2)));
    while running(&fixture) == [1] {
        fixture.step();
    }
    fixture.step();
    assert_eq!(running(&fixture)[0], 0);
    fixture.run();
}

#[test]
fn later_ranks_do_not_block_a_new_sequence() {
    let mut fixture = Fixture::new(5, 2, 64);
    let long = |sample, priority| GenerateRequest { priority, ..request(&[sample; 40], None, sample, 30) };
    let _answers = [(0, 5), (1, 5)].map(|(sample, priority)| fixture.submit(long(sample, priority)));
    fixture.step();
    assert_eq!((fixture.batch.running(), fixture.batch.waiting()), (1, 1), "blocks are short");
    assert!(!fixture.batch.has_room());
    let rank = |priority| Rank { priority, arrival: 3 };
    assert!(fixture.batch.has_place(rank(4)) && !fixture.batch.has_place(rank(5)));
}

#[test]
fn aborted_sequences_return_the_tokens_they_have() {
    let mut fixture = Fixture::new(50, 4, 64);
    let base = GenerateRequest { stop_tokens: Arc::from([]), ..request(&[1, 2], None, 0, 30) };
    let mut kept = fixture.submit(base.clone());
    let aborted = GenerateRequest { key: RandomKey { sample: 1, ..base.key }, ..base.clone() };
    let mut answer = fixture.submit(aborted);
    for _ in 0..5 {
        fixture.step();
    }
    fixture.batch.abort(Abort::Request(RandomKey { sample: 1, ..base.key }));
    let generation = answer.try_recv().unwrap().unwrap();
    assert_eq!((generation.tokens.len(), generation.stop), (5, StopReason::Aborted));
    assert_eq!(generation.versions[0].range, 0..5);
    fixture.run();
    assert_eq!(kept.try_recv().unwrap().unwrap().stop, StopReason::Length);
}

#[test]
fn a_cancelled_request_leaves_its_prompt_to_the_next() {
    let prompt: Vec<u32> = (0..40).map(|i| i % 5).collect();
    let mut fixture = Fixture::new(50, 8, 16);
    let requests: Vec<_> = (0..3).map(|sample| request(&prompt, Some(1), sample, 5)).collect();
    let mut answers: Vec<_> = requests.iter().map(|r| fixture.submit(r.clone())).collect();
    fixture.step();
    drop(answers.remove(0));
    fixture.run();
    for (request, answer) in requests[1..].iter().zip(&mut answers) {
        check(request, answer);
    }
}

#[test]
fn a_resumed_request_shares_its_prompt_too() {
    let prompt: Vec<u32> = (0..20).map(|i| i % 5).collect();
    let mut fixture = Fixture::new(50, 8, 64);
    let mut resumed = request(&prompt, Some(1), 0, 30);
    resumed.prefix = vec![1, 2, 3];
    let other = request(&prompt, Some(1), 1, 5);
    let mut answers = [fixture.submit(resumed.clone()), fixture.submit(other.clone())];
    fixture.run();
    check(&resumed, &mut answers[0]);
    check(&other, &mut answers[1]);
    assert_eq!(fixture.batch.statistics().reused_tokens, 19);
}

#[test]
fn cancelled_requests_are_not_computed() {
    let mut fixture = Fixture::new(50, 8, 64);
    let answer =
        fixture.submit(GenerateRequest { stop_tokens: Arc::from([]), ..request(&[1, 2], None, 0, 500) });
    fixture.step();
    drop(answer);
    fixture.step();
    assert!(fixture.batch.is_empty());
    assert_eq!(fixture.batch.take_departed(), [None]);
    assert_eq!(fixture.batch.statistics().steps, 1);
}

/// A request and then turns of its conversation: each prompt has the previous sequence and what a tool returns.
fn next_turn(request: &GenerateRequest, completion: &[u32], tool: &[u32]) -> GenerateRequest {
    let prompt: Arc<[u32]> = [&request.prompt[..], &request.prefix, completion, tool].concat().into();
    let key = RandomKey { segment: request.key.segment + 1, ..request.key };
    GenerateRequest { prompt, key, prefix: Vec::new(), group: None, ..request.clone() }
}

/// One request of a random schedule.
#[derive(Debug, Clone)]
struct Job {
    group: Option<u64>,
    prompt: usize,
    max_new_tokens: usize,
    min_new_tokens: usize,
    prefix: usize,
    /// Steps before it is submitted.
    delay: usize,
    /// Steps after which it is cancelled.
    patience: Option<usize>,
    priority: u64,
    /// Turns that follow, and tokens between them.
    turns: (usize, usize),
}

fn jobs() -> impl Strategy<Value = Vec<Job>> {
    let job = (
        proptest::option::of(0u64..4),
        1usize..40,
        (1usize..40, 0usize..20),
        0usize..10,
        0usize..30,
        proptest::option::weighted(0.15, 0usize..20),
        0u64..3,
        (0usize..4, 1usize..20),
    );
    let job =
        job.prop_map(|(group, prompt, (max_new_tokens, min), prefix, delay, patience, priority, turns)| {
            Job {
                // Requests of a group have the same prompt, with rare exceptions.
                prompt: group.map_or(prompt, |g| if prompt == 39 { 7 } else { [5, 16, 23, 32][g as usize] }),
                group,
                max_new_tokens,
                min_new_tokens: min.saturating_sub(10),
                prefix,
                delay,
                patience,
                priority,
                turns,
            }
        });
    proptest::collection::vec(job, 1..14)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// For any batch, order, chunk size and number of blocks, and whatever of earlier turns is in the cache, the tokens are
    /// those of the request alone, and no block is lost.
    #[test]
    fn no_schedule_changes_a_token(
        jobs in jobs(), blocks in 3usize..24, max_batch in 1usize..7, chunk in 1usize..24,
        drafts in proptest::bool::ANY, repeats in proptest::bool::ANY,
    ) {
        let rule = if repeats { logits_in_a_loop } else { logits_after };
        let mut fixture = Fixture::by(rule, blocks, max_batch, chunk);
        if drafts {
            fixture.batch.draft_always();
        }
        let mut pending: Vec<(Job, GenerateRequest)> = Vec::new();
        for (sample, job) in jobs.into_iter().enumerate() {
            if blocks_for(job.prompt + job.max_new_tokens - 1) > blocks {
                continue;
            }
            let prompt: Vec<u32> = (0..job.prompt as u32).map(|i| (i * i + job.prompt as u32) % 6).collect();
            let mut request = request(&prompt, job.group, sample as u32, job.max_new_tokens);
            // The prefix is a proper prefix of the request's own completion.
            request.sampling.min_new_tokens = job.min_new_tokens.min(job.max_new_tokens);
            let (tokens, ..) = alone_by(rule, &request);
            request.priority = job.priority;
            request.prefix = tokens[..job.prefix.min(tokens.len() - 1)].to_vec();
            pending.push((job, request));
        }
        let mut answers: Vec<(GenerateRequest, Answer, Option<usize>)> = Vec::new();
        let mut conversations: Vec<(Job, GenerateRequest, Answer)> = Vec::new();
        let mut step = 0;
        while !pending.is_empty() || !conversations.is_empty() || !fixture.batch.is_empty() {
            let (come, later): (Vec<_>, Vec<_>) = pending.into_iter().partition(|(job, _)| job.delay <= step);
            pending = later;
            for (job, request) in come {
                let answer = fixture.submit(request.clone());
                if job.patience.is_none() && job.turns.0 > 0 {
                    conversations.push((job, request, answer));
                } else {
                    answers.push((request, answer, job.patience.map(|p| p + step)));
                }
            }
            for (mut job, request, mut answer) in std::mem::take(&mut conversations) {
                let Ok(generation) = answer.try_recv() else {
                    conversations.push((job, request, answer));
                    continue;
                };
                let generation = generation.unwrap();
                let (tokens, logprobs, _) = alone_by(rule, &request);
                prop_assert_eq!((&generation.tokens, &generation.logprobs), (&tokens, &logprobs));
                let tool: Vec<u32> = (0..job.turns.1 as u32).map(|i| i % 6).collect();
                let next = next_turn(&request, &tokens, &tool);
                job.turns.0 -= 1;
                if job.turns.0 > 0 && blocks_for(next.prompt.len() + job.max_new_tokens - 1) <= blocks {
                    pending.push((Job { delay: step + job.delay / 4, ..job }, next));
                }
            }
            for (.., answer, until) in &mut answers {
                if *until == Some(step) {
                    answer.close();
                }
            }
            fixture.step();
            step += 1;
            prop_assert!(step < 20_000, "no progress");
        }
        fixture.run();
        for (request, answer, until) in &mut answers {
            if until.is_none() {
                check_by(rule, request, answer);
            }
        }
        match fixture.batch.statistics().drafts {
            Some(counted) => prop_assert!(drafts && counted.accepted_tokens <= counted.drafted_tokens),
            None => prop_assert!(!drafts),
        }
    }
}

#[test]
fn repetitive_text_takes_fewer_steps() {
    let requests: Vec<_> = (0..4)
        .map(|sample| GenerateRequest {
            stop_tokens: Arc::from([]),
            ..request(&[1, 2, 3, 4, 5], (sample < 2).then_some(7), sample, 120)
        })
        .collect();
    let mut steps = Vec::new();
    for drafts in [false, true] {
        let mut fixture = Fixture::by(logits_in_a_loop, 100, 8, 64);
        if drafts {
            fixture.batch.draft_always();
        }
        let mut answers: Vec<_> = requests.iter().map(|r| fixture.submit(r.clone())).collect();
        fixture.run();
        for (request, answer) in requests.iter().zip(&mut answers) {
            check_by(logits_in_a_loop, request, answer);
        }
        let statistics = fixture.batch.statistics();
        assert_eq!(statistics.sampled_tokens, 480);
        let counted = statistics.drafts.unwrap_or_default();
        let (drafted, accepted) = (counted.drafted_tokens, counted.accepted_tokens);
        assert!(!drafts || (drafted > 300 && accepted * 2 > drafted), "{statistics:?}");
        // Every row either gave a token or was a wrong draft, but for those of the prompt, which was computed once.
        let right = statistics.computed_tokens - (drafted - accepted);
        assert_eq!(right, 480 + 4, "{statistics:?}");
        assert_eq!(statistics.reused_tokens, 3 * 4);
        steps.push(statistics.steps);
    }
    assert!(steps[1] * 2 < steps[0], "{steps:?}");
}

/// With blocks for one and a half sequences, drafts use free blocks and cause no preemption.
#[test]
fn drafts_preempt_nothing() {
    let long =
        |sample| GenerateRequest { stop_tokens: Arc::from([]), ..request(&[1, 2, 3], None, sample, 44) };
    let preempted = [false, true].map(|drafts| {
        let mut fixture = Fixture::by(logits_in_a_loop, 6, 4, 64);
        if drafts {
            fixture.batch.draft_always();
        }
        let mut answers: Vec<_> = (0..2).map(|sample| fixture.submit(long(sample))).collect();
        fixture.run();
        for (sample, answer) in answers.iter_mut().enumerate() {
            check_by(logits_in_a_loop, &long(sample as u32), answer);
        }
        fixture.batch.statistics().preempted
    });
    assert_eq!(preempted, [0, 0]);
}
