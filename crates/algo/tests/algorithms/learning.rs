//! Each method learns on a tabular softmax policy; with the advantage's sign flipped it does not.

use rloom_algo::{
    Algorithm, AlgorithmSettings, EpisodeRewards, GlobalCounts, GroupRewards, KlSettings, LossBatch,
    LossMetrics, Method, TokenScores, advantages, policy_loss,
};
use rloom_core::{Purpose, RandomKey, Role};

const CONTEXTS: usize = 3;
const ACTIONS: usize = 5;
const LIMIT: usize = 4;

/// Completion length of a context, so that normalisers differ.
fn length(context: usize) -> usize {
    2 + context
}

fn target(context: usize, t: usize) -> usize {
    (2 * context + 3 * t + 1) % ACTIONS
}

/// Logits `[context][position][action]`.
#[derive(Clone)]
struct Policy(Vec<[f64; ACTIONS]>);

impl Policy {
    fn uniform() -> Self {
        Self(vec![[0.0; ACTIONS]; CONTEXTS * LIMIT])
    }

    fn probabilities(&self, context: usize, t: usize) -> [f64; ACTIONS] {
        let logits = self.0[context * LIMIT + t];
        let e = logits.map(f64::exp);
        let sum: f64 = e.iter().sum();
        e.map(|x| x / sum)
    }

    /// Expected share of right actions.
    fn skill(&self) -> f64 {
        let of = |c: usize| {
            (0..length(c)).map(|t| self.probabilities(c, t)[target(c, t)]).sum::<f64>() / length(c) as f64
        };
        (0..CONTEXTS).map(of).sum::<f64>() / CONTEXTS as f64
    }

    fn logprobs(&self, episode: &Played) -> Vec<f32> {
        let p = |(t, &a): (usize, &usize)| self.probabilities(episode.context, t)[a].ln() as f32;
        episode.actions.iter().enumerate().map(p).collect()
    }

    fn entropies(&self, episode: &Played) -> Vec<f32> {
        let h = |t| -self.probabilities(episode.context, t).iter().map(|p| p * p.ln()).sum::<f64>();
        (0..episode.actions.len()).map(|t| h(t) as f32).collect()
    }
}

struct Played {
    context: usize,
    actions: Vec<usize>,
    reward: f64,
    old: Vec<f32>,
    reference: Vec<f32>,
}

fn play(policy: &Policy, reference: &Policy, context: usize, ticket: u64, sample: u32) -> Played {
    let key = RandomKey { sample, ..RandomKey::new(7, 0, Purpose::Algorithm, ticket) };
    let stream = key.stream();
    let actions: Vec<usize> = (0..length(context))
        .map(|t| {
            let mut left = stream.uniform(t as u64);
            let p = policy.probabilities(context, t);
            p.iter()
                .position(|p| {
                    left -= p;
                    left < 0.0
                })
                .unwrap_or(ACTIONS - 1)
        })
        .collect();
    let right = actions.iter().enumerate().filter(|&(t, &a)| a == target(context, t)).count();
    let reward = right as f64 / actions.len() as f64;
    let mut played = Played { context, actions, reward, old: Vec::new(), reference: Vec::new() };
    played.old = policy.logprobs(&played);
    played.reference = reference.logprobs(&played);
    played
}

fn demonstration(context: usize) -> Played {
    let actions = (0..length(context)).map(|t| target(context, t)).collect();
    Played { context, actions, reward: 0.0, old: Vec::new(), reference: Vec::new() }
}

/// One optimiser step of plain gradient descent on some episodes, `advantage` flat over their tokens.
fn descend(
    policy: &mut Policy,
    algorithm: &Algorithm,
    episodes: &[&Played],
    advantage: Option<&[f32]>,
    rate: f64,
) -> LossMetrics {
    let mut rows = Vec::new();
    let (mut scores, mut old, mut reference) = (TokenScores::default(), Vec::new(), Vec::new());
    for e in episodes {
        let start = scores.logprob.len();
        scores.logprob.extend(policy.logprobs(e));
        scores.entropy.extend(policy.entropies(e));
        old.extend_from_slice(&e.old);
        reference.extend_from_slice(&e.reference);
        rows.push(start..scores.logprob.len());
    }
    let batch = LossBatch {
        rows: &rows,
        advantage,
        old_logprob: advantage.map(|_| &old[..]),
        reference_logprob: algorithm.needs_reference().then_some(&reference[..]),
        ..LossBatch::default()
    };
    let counts = GlobalCounts::of_lengths(rows.iter().map(ExactSizeIterator::len), LIMIT as u64);
    let grad = policy_loss(&algorithm.loss, &batch, &scores, &counts).unwrap();
    let before = policy.clone();
    for (e, row) in episodes.iter().zip(&rows) {
        for (t, &action) in e.actions.iter().enumerate() {
            let p = before.probabilities(e.context, t);
            let entropy = -p.iter().map(|p| p * p.ln()).sum::<f64>();
            let (d_lp, d_h) =
                (f64::from(grad.d_logprob[row.start + t]), f64::from(grad.d_entropy[row.start + t]));
            for (k, logit) in policy.0[e.context * LIMIT + t].iter_mut().enumerate() {
                let of_lp = f64::from(u8::from(k == action)) - p[k];
                let of_entropy = -p[k] * (p[k].ln() + entropy);
                *logit -= rate * (d_lp * of_lp + d_h * of_entropy);
            }
        }
    }
    grad.terms.finish(&counts).unwrap()
}

/// Trains for some batches; `sign` multiplies the advantage (the rate, where there is none).
fn train(algorithm: &Algorithm, sign: f32, batches: u64, rate: f64) -> (Policy, Vec<LossMetrics>) {
    let reference = Policy::uniform();
    let mut policy = reference.clone();
    let mut metrics = Vec::new();
    for batch in 0..batches {
        let Some(spec) = algorithm.advantage else {
            let demonstrations: Vec<Played> = (0..CONTEXTS).map(demonstration).collect();
            let episodes: Vec<&Played> = demonstrations.iter().collect();
            metrics.push(descend(&mut policy, algorithm, &episodes, None, rate * f64::from(sign)));
            continue;
        };
        // 48 episodes whatever the group size.
        let tickets = 48 / u64::from(algorithm.group_size);
        let played: Vec<Vec<Played>> = (0..tickets)
            .map(|g| {
                let ticket = batch * tickets + g;
                let context = ticket as usize % CONTEXTS;
                (0..algorithm.group_size).map(|s| play(&policy, &reference, context, ticket, s)).collect()
            })
            .collect();
        let groups: Vec<GroupRewards<'_>> = played
            .iter()
            .map(|g| GroupRewards {
                episodes: g
                    .iter()
                    .map(|e| EpisodeRewards {
                        role: Role::Train,
                        reward: Some(e.reward),
                        tokens: e.actions.len(),
                        old_logprob: &e.old,
                        reference_logprob: &e.reference,
                    })
                    .collect(),
            })
            .collect();
        let advantage = advantages(&spec, &groups).unwrap();
        for _ in 0..algorithm.epochs {
            let size = played.len().div_ceil(algorithm.minibatches as usize);
            for (groups, weights) in played.chunks(size).zip(advantage.episodes.chunks(size)) {
                let episodes: Vec<&Played> = groups.iter().flatten().collect();
                let mut flat = Vec::new();
                for (e, a) in episodes.iter().zip(weights.iter().flatten()) {
                    a.extend_into(0..e.actions.len(), &mut flat);
                }
                for a in &mut flat {
                    *a *= sign;
                }
                metrics.push(descend(&mut policy, algorithm, &episodes, Some(&flat), rate));
            }
        }
    }
    (policy, metrics)
}

fn with(method: Method, settings: AlgorithmSettings) -> Algorithm {
    Algorithm::resolve(method, &settings).unwrap()
}

fn learns(name: &str, algorithm: &Algorithm, rate: f64) {
    let start = Policy::uniform().skill();
    let end = train(algorithm, 1.0, 60, rate).0.skill();
    let flipped = train(algorithm, -1.0, 60, rate).0.skill();
    assert!(end > 0.8, "{name}: {start} became {end}");
    assert!(flipped < start, "{name}, flipped: {start} became {flipped}");
}

#[test]
fn every_preset_learns_and_flipped_does_not() {
    for method in Method::ALL {
        // Sums over a sequence have larger gradients, advantages that nothing scales have smaller ones.
        let rate = match method {
            Method::Rloo => 6.0,
            Method::DrGrpo => 16.0,
            _ => 8.0,
        };
        learns(method.name(), &Algorithm::preset(method), rate);
    }
}

#[test]
fn every_aggregation_learns() {
    for aggregation in rloom_algo::Aggregation::ALL {
        let settings =
            AlgorithmSettings { loss_aggregation: Some(aggregation), ..AlgorithmSettings::default() };
        learns(aggregation.name(), &with(Method::Grpo, settings), 5.0);
    }
}

#[test]
fn several_steps_per_batch_clip_after_the_first() {
    let settings = AlgorithmSettings {
        epochs: Some(3),
        minibatches: Some(2),
        clip_high: Some(0.28),
        dual_clip: Some(3.0),
        ..AlgorithmSettings::default()
    };
    let algorithm = with(Method::Grpo, settings);
    let (_, metrics) = train(&algorithm, 1.0, 2, 20.0);
    assert_eq!(metrics.len(), 12);
    for batch in metrics.chunks(6) {
        let first = &batch[0];
        assert_eq!(
            (first.clip_ratio_low, first.clip_ratio_high, first.approx_kl),
            (Some(0.0), Some(0.0), Some(0.0))
        );
        assert_eq!((first.ratio_min, first.ratio_max), (Some(1.0), Some(1.0)));
        // The second epoch meets tokens that the first has already pushed.
        let later = LossMetrics::over_steps(&batch[2..]).unwrap();
        assert!(later.clip_ratio_low.unwrap() > 0.0 && later.clip_ratio_high.unwrap() > 0.0, "{later:?}");
        assert!(later.ratio_max.unwrap() > 1.28 && later.ratio_min.unwrap() < 0.8, "{later:?}");
    }
    learns("three epochs, two minibatches", &algorithm, 4.0);
}

/// Each form of the KL holds the policy near its reference, and the entropy bonus keeps it random.
#[test]
fn kl_and_entropy_hold_back() {
    let free = train(&Algorithm::preset(Method::Grpo), 1.0, 40, 5.0).0.skill();
    let with_kl = |json: &str| -> f64 {
        let kl: KlSettings = serde_json::from_str(json).unwrap();
        let settings = AlgorithmSettings { kl: Some(kl), ..AlgorithmSettings::default() };
        let (policy, metrics) = train(&with(Method::Grpo, settings), 1.0, 40, 5.0);
        assert_eq!(metrics[0].kl, Some(0.0), "policy and reference start as one");
        assert!(metrics[39].kl.unwrap() > 0.0);
        policy.skill()
    };
    for json in [
        r#"{"coef":1.0,"estimator":"k2"}"#,
        r#"{"coef":1.0,"estimator":"k3"}"#,
        r#"{"coef":1.0,"placement":"reward"}"#,
    ] {
        let held = with_kl(json);
        assert!(held > 0.25 && held < free - 0.05, "{json}: {held} against {free}");
    }
    let settings = AlgorithmSettings { entropy_coef: Some(1.0), ..AlgorithmSettings::default() };
    let (_, random) = train(&with(Method::Grpo, settings), 1.0, 40, 5.0);
    let (_, plain) = train(&Algorithm::preset(Method::Grpo), 1.0, 40, 5.0);
    assert!(random[39].entropy.unwrap() > plain[39].entropy.unwrap() + 0.2);
}
