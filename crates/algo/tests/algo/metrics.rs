//! Metrics of losses, on steps small enough to verify by hand.

use rloom_algo::{
    Aggregation, Algorithm, Cispo, ClipCov, Correction, GlobalCounts, ImportanceWeight, KlCov, KlEstimator,
    Level, LossBatch, LossMetrics, LossTerms, Method, Mismatch, PolicyLoss, PpoClip, RatioTo, Reinforce,
    RejectLevel, Rejection, Surrogate, TokenScores, Topr, ValueLoss, WeightAction, WeightLevel, policy_loss,
};
use rloom_core::metric;

use crate::{
    losses::losses,
    step::{Step, draw},
};

fn token_mean(surrogate: Surrogate) -> PolicyLoss {
    PolicyLoss::new(surrogate, Aggregation::TokenMean)
}

fn clip(clip_low: f64, clip_high: f64, dual_clip: Option<f64>) -> PolicyLoss {
    token_mean(Surrogate::PpoClip(PpoClip { clip_low, clip_high, dual_clip }))
}

/// One sequence whose tokens have the given ratios to a policy of −1.
fn of_ratios(ratios: &[f64], advantage: &[f32]) -> Step {
    let n = ratios.len();
    Step {
        lengths: vec![n],
        completion_limit: n as u64,
        logprob: ratios.iter().map(|r| (r.ln() - 1.0) as f32).collect(),
        entropy: vec![1.0; n],
        advantage: advantage.to_vec(),
        old: vec![-1.0; n],
        behavior: vec![-1.0; n],
        reference: vec![-1.0; n],
        ..Step::default()
    }
}

fn close(got: Option<f64>, wanted: f64) -> bool {
    got.is_some_and(|got| (got - wanted).abs() < 1e-6)
}

#[test]
fn empty_batches_and_rows() {
    for loss in losses() {
        let none = Step { completion_limit: 4, ..Step::default() };
        let grad = none.loss(&loss).unwrap();
        assert!(grad.d_logprob.is_empty() && grad.d_entropy.is_empty() && grad.d_value.is_empty());
        let m = grad.terms.finish(&none.counts()).unwrap();
        assert_eq!(m.named(), [(metric::LOSS, 0.0)]);

        let empty = Step { lengths: vec![0, 0, 0], outcome: vec![1.0; 3], ..none };
        assert_eq!(empty.counts(), GlobalCounts { completion_limit: 4, ..GlobalCounts::default() });
        assert_eq!(empty.loss(&loss).unwrap().terms.loss(), 0.0);

        // Rows without policy tokens change nothing for the others.
        let full = Step {
            lengths: vec![2, 1],
            completion_limit: 4,
            logprob: vec![-1.0, -0.5, -2.0],
            entropy: vec![1.0, 0.5, 0.2],
            value: vec![0.1, 0.2, -0.5],
            advantage: vec![1.0, 1.0, -1.0],
            old: vec![-1.1, -0.4, -2.0],
            behavior: vec![-1.2, -0.4, -2.1],
            reference: vec![-1.0, -0.7, -1.0],
            returns: vec![0.0, 1.0, 0.3],
            old_value: vec![0.0, 0.1, 0.1],
            outcome: vec![1.0, 0.0],
            ..Step::default()
        };
        let outcome = vec![0.3, 1.0, 0.3, 0.3, 0.0, 0.3];
        let holes = Step { lengths: vec![0, 2, 0, 0, 1, 0], outcome, ..full.clone() };
        let (a, b) = (full.loss(&loss).unwrap(), holes.loss(&loss).unwrap());
        assert_eq!(a.d_logprob, b.d_logprob);
        assert_eq!(a.terms.finish(&full.counts()), b.terms.finish(&holes.counts()));

        // If all rows are masked, nothing is trained or measured.
        let masked = Step { masked: vec![true; 6], ..holes };
        let grad = masked.loss(&loss).unwrap();
        let zero = |values: &[f32]| values.iter().all(|v| v.to_bits() == 0);
        assert!(zero(&grad.d_logprob) && zero(&grad.d_entropy) && zero(&grad.d_value));
        let m = grad.terms.finish(&masked.counts()).unwrap();
        assert_eq!((m.named(), m.masked_ratio), (vec![(metric::LOSS, 0.0)], Some(1.0)));
    }
}

/// Each clip counts the tokens where its constant branch is active, and only there is the gradient zero.
#[test]
fn clips_are_counted() {
    let step = of_ratios(&[0.5, 1.5, 0.5, 1.5, 4.0, 1.0], &[1.0, 1.0, -1.0, -1.0, -1.0, 2.0]);
    let grad = step.loss(&clip(0.2, 0.2, Some(3.0))).unwrap();
    let zero: Vec<bool> = grad.d_logprob.iter().map(|&d| d == 0.0).collect();
    assert_eq!(zero, [false, true, true, false, true, false]);
    let m = grad.terms.finish(&step.counts()).unwrap();
    let sixth = Some(1.0 / 6.0);
    assert_eq!((m.clip_ratio_low, m.clip_ratio_high, m.clip_ratio_dual), (sixth, sixth, sixth));
    assert!(close(m.ratio_min, 0.5) && close(m.ratio_max, 4.0));
    let wanted = (-0.5 - 1.2 + 0.8 + 1.5 + 3.0 - 2.0) / 6.0;
    assert!((m.loss - wanted).abs() < 1e-7);

    // A dual clip below 1 + ε_high only bounds negative advantages.
    let grad = step.loss(&clip(0.2, 1.0, Some(1.1))).unwrap();
    assert!(grad.d_logprob[1] < 0.0 && grad.d_logprob[3] == 0.0, "{:?}", grad.d_logprob);

    let without = step.loss(&clip(0.2, 0.2, None)).unwrap();
    assert!(without.d_logprob[4] > 0.0);
    assert_eq!(without.terms.finish(&step.counts()).unwrap().clip_ratio_dual, None);

    // CISPO's weight reaches its bound for any advantage; TOPR truncates for A < 0.
    let m = step.metrics(&token_mean(Surrogate::Cispo(Cispo { weight_cap: 1.2, weight_floor: 0.8 })));
    assert_eq!((m.clip_ratio_low, m.clip_ratio_high), (Some(2.0 / 6.0), Some(3.0 / 6.0)));
    let m = step.metrics(&token_mean(Surrogate::Topr(Topr { level: Level::Token })));
    assert_eq!((m.clip_ratio_low, m.clip_ratio_high), (None, Some(2.0 / 6.0)));
    let m = step.metrics(&token_mean(Surrogate::Reinforce(Reinforce { level: Level::Token })));
    assert_eq!((m.clip_ratio_low, m.clip_ratio_high), (None, None));

    // Fractions refer to the trained tokens.
    let rows = Step { lengths: vec![2, 4], masked: vec![true, false], ..step };
    let m = rows.metrics(&clip(0.2, 0.2, Some(3.0)));
    assert_eq!((m.clip_ratio_low, m.clip_ratio_high, m.masked_ratio), (Some(0.25), Some(0.0), Some(0.5)));
}

/// Several optimiser steps per batch: the first is unclipped, later ones are not, as the mean shows.
#[test]
fn metrics_over_optimiser_steps() {
    let loss = Algorithm::preset(Method::Grpo).unwrap().loss;
    let first = Step {
        entropy: vec![1.0, 2.0],
        logprob: vec![-1.0, -2.0],
        old: vec![-1.0, -2.0],
        ..of_ratios(&[1.0, 1.0], &[1.0, 1.0])
    };
    let second = Step { logprob: vec![-0.5, -2.0], ..first.clone() };
    let (a, b) = (first.metrics(&loss), second.metrics(&loss));
    assert_eq!((a.clip_ratio_high, b.clip_ratio_high), (Some(0.0), Some(0.5)));
    assert_eq!(b.approx_kl, Some(-0.25));
    let both = LossMetrics::over_steps(&[a, b]).unwrap();
    assert_eq!(both.clip_ratio_high, Some(0.25));
    assert_eq!((both.ratio_min, both.ratio_max), (Some(1.0), b.ratio_max));
    assert_eq!(both.entropy, Some(1.5));
    assert_eq!(LossMetrics::over_steps(&[]), None);
}

/// The mean of equal steps is the step, in every field.
#[test]
fn the_mean_of_equal_steps_is_the_step() {
    let m = LossMetrics {
        loss: 1.0,
        surrogate: 2.0,
        kl_loss: 3.0,
        entropy_loss: 4.0,
        entropy: Some(5.0),
        approx_kl: Some(6.0),
        kl: Some(7.0),
        clip_ratio_low: Some(8.0),
        clip_ratio_high: Some(9.0),
        clip_ratio_dual: Some(10.0),
        cov_picked_ratio: Some(11.0),
        ratio_min: Some(12.0),
        ratio_max: Some(13.0),
        mismatch_kl: Some(14.0),
        mismatch_max_abs: Some(15.0),
        correction_weight_mean: Some(16.0),
        correction_ess: Some(17.0),
        correction_masked_ratio: Some(18.0),
        correction_rejected_ratio: Some(19.0),
        value_loss: Some(20.0),
        value_clip_ratio: Some(21.0),
        explained_variance: Some(22.0),
        masked_ratio: Some(23.0),
        reward_chosen: Some(24.0),
        reward_rejected: Some(25.0),
        reward_margin: Some(26.0),
        reward_accuracy: Some(27.0),
        reward_anchor: Some(28.0),
        logprob_chosen: Some(29.0),
        logprob_rejected: Some(30.0),
        accuracy: Some(31.0),
        margin: Some(32.0),
        min_reward: Some(33.0),
        mean_reward: Some(34.0),
        max_reward: Some(35.0),
        teacher_divergence: Some(36.0),
    };
    assert_eq!(
        LossMetrics::over_steps(&[
            m,
            m,
            LossMetrics {
                loss: 1.0,
                surrogate: 2.0,
                kl_loss: 3.0,
                entropy_loss: 4.0,
                ..LossMetrics::default()
            }
        ]),
        Some(m)
    );
    let named = m.named();
    let values: Vec<f64> = named.iter().map(|(_, value)| *value).collect();
    assert_eq!(values.len(), 32);
    for (name, value) in [
        (metric::COV_PICKED_RATIO, 11.0),
        (metric::CORRECTION_WEIGHT_MEAN, 16.0),
        (metric::CORRECTION_ESS, 17.0),
        (metric::CORRECTION_MASKED_RATIO, 18.0),
        (metric::CORRECTION_REJECTED_RATIO, 19.0),
        (metric::REWARDS_CHOSEN, 24.0),
        (metric::REWARDS_REJECTED, 25.0),
        (metric::REWARDS_MARGINS, 26.0),
        (metric::REWARDS_ACCURACIES, 27.0),
        (metric::REWARDS_ANCHOR, 28.0),
        (metric::LOGPS_CHOSEN, 29.0),
        (metric::LOGPS_REJECTED, 30.0),
        (metric::ACCURACY, 31.0),
        (metric::MARGIN, 32.0),
        (metric::MIN_REWARD, 33.0),
        (metric::MEAN_REWARD, 34.0),
        (metric::MAX_REWARD, 35.0),
        (metric::TEACHER_DIVERGENCE, 36.0),
        (metric::VALUE_LOSS, 20.0),
        (metric::VALUE_CLIP_RATIO, 21.0),
        (metric::VALUE_EXPLAINED_VARIANCE, 22.0),
    ] {
        assert!(named.contains(&(name, value)), "{name}");
    }
}

/// The mismatch is only measured and reported for the log-probabilities that the caller selects.
#[test]
fn mismatch() {
    let rows = [0..1, 1..2];
    let scores = TokenScores { logprob: vec![-1.0, -1.0], entropy: vec![0.5; 2], ..TokenScores::default() };
    let counts = GlobalCounts::of_lengths([1, 1], 2);
    let loss = token_mean(Surrogate::Reinforce(Reinforce { level: Level::Token }));
    let measured = |mismatch| {
        let batch = LossBatch {
            rows: &rows,
            advantage: Some(&[1.0, 1.0]),
            old_logprob: Some(&[-1.25, -1.0]),
            behavior_logprob: Some(&[-1.5, -1.0]),
            mismatch,
            ..LossBatch::default()
        };
        policy_loss(&loss, &batch, &scores, &counts).unwrap().terms.finish(&counts).unwrap()
    };
    assert_eq!(measured(Mismatch::Unmeasured).mismatch_max_abs, None);
    assert_eq!(measured(Mismatch::Scores).mismatch_max_abs, Some(0.5));
    let old = measured(Mismatch::Old);
    assert_eq!(old.mismatch_max_abs, Some(0.25));
    // KL(sampler ‖ trainer) by k3: exp(d) − d − 1 with d = trainer − sampler.
    assert!((old.mismatch_kl.unwrap() - (0.25f64.exp() - 1.25) / 2.0).abs() < 1e-12);
    let names: Vec<&str> = old.named().iter().map(|(n, _)| *n).collect();
    assert!(names.contains(&metric::MISMATCH_KL) && names.contains(&metric::APPROX_KL));
    assert!(!names.contains(&metric::KL) && !names.contains(&metric::CLIP_RATIO_LOW));
}

/// Ratio and approximate KL refer to the denominator of the loss's ratio.
#[test]
fn ratios_are_those_of_the_loss() {
    let step = Step { behavior: vec![-2.0; 2], ..of_ratios(&[1.0, 1.0], &[1.0, 1.0]) };
    let to_sampler = PolicyLoss { ratio_to: RatioTo::Behavior, ..clip(0.2, 0.2, None) };
    let topr = token_mean(Surrogate::Topr(Topr { level: Level::Token }));
    for (loss, ratio, kl) in
        [(clip(0.2, 0.2, None), 1.0, 0.0), (to_sampler, 1f64.exp(), -1.0), (topr, 1f64.exp(), -1.0)]
    {
        let m = step.metrics(&loss);
        assert!(close(m.ratio_min, ratio) && close(m.ratio_max, ratio) && close(m.approx_kl, kl), "{loss:?}");
    }
}

fn weigh(action: WeightAction, low: f64, high: f64) -> Correction {
    let weight = ImportanceWeight { level: WeightLevel::Token, action, low, high };
    Correction { weight: Some(weight), rejection: None }
}

/// Weights 0.25, 1, 3 and 4 of a token each.
#[test]
fn corrections_are_measured() {
    let ratios = [0.25f64, 1.0, 3.0, 4.0];
    let step = Step {
        behavior: ratios.iter().map(|r| (-1.0 - r.ln()) as f32).collect(),
        ..of_ratios(&[1.0; 4], &[1.0; 4])
    };
    let plain = clip(0.2, 0.2, None);
    let of = |correction| step.metrics(&PolicyLoss { correction, ..plain });
    let share = |w: [f64; 4]| {
        let (sum, squares) = (w.iter().sum::<f64>(), w.iter().map(|w| w * w).sum::<f64>());
        (sum / 4.0, sum * sum / (4.0 * squares))
    };
    let matches = |m: &LossMetrics, w| {
        let (mean, ess) = share(w);
        close(m.correction_weight_mean, mean) && close(m.correction_ess, ess)
    };
    let clamp = of(weigh(WeightAction::Clamp, 0.5, 2.0));
    assert!(matches(&clamp, [0.5, 1.0, 2.0, 2.0]), "{clamp:?}");
    assert_eq!((clamp.correction_masked_ratio, clamp.correction_rejected_ratio), (None, None));

    let mask = of(weigh(WeightAction::Mask, 0.5, 3.5));
    assert!(matches(&mask, [0.0, 1.0, 3.0, 0.0]), "{mask:?}");
    assert_eq!((mask.correction_masked_ratio, mask.correction_rejected_ratio), (Some(0.5), None));

    // k1 = beh − old: 1.4, 0, −1.1, −1.4. A token may be out of both bounds.
    let rejection = Some(Rejection {
        estimator: KlEstimator::K1,
        level: RejectLevel::Token,
        low: -1.2,
        high: f64::INFINITY,
    });
    let both = of(Correction { rejection, ..weigh(WeightAction::Mask, 0.5, 3.5) });
    assert!(matches(&both, [0.0, 1.0, 3.0, 0.0]), "{both:?}");
    assert_eq!((both.correction_masked_ratio, both.correction_rejected_ratio), (Some(0.5), Some(0.25)));
    let alone = of(Correction { weight: None, rejection });
    assert!(matches(&alone, [1.0, 1.0, 1.0, 0.0]), "{alone:?}");
    assert_eq!((alone.correction_masked_ratio, alone.correction_rejected_ratio), (None, Some(0.25)));

    let none = step.metrics(&plain);
    assert_eq!((none.correction_weight_mean, none.correction_ess), (None, None));
    // Fractions exclude masked rows.
    let rows = Step { lengths: vec![1, 3], masked: vec![true, false], ..step };
    let m = rows.metrics(&PolicyLoss { correction: weigh(WeightAction::Mask, 0.5, 3.5), ..plain });
    assert!(
        close(m.correction_weight_mean, 4.0 / 3.0) && close(m.correction_masked_ratio, 1.0 / 3.0),
        "{m:?}"
    );
}

/// A separate critic and a shared backbone have the same metrics; only the loss includes the weight.
#[test]
fn values_are_measured() {
    let step = Step {
        value: vec![1.0, 2.0, 0.5, 0.0],
        old_value: vec![1.0, 1.0, 0.5, 0.0],
        returns: vec![1.0, 0.0, 1.0, 2.0],
        ..of_ratios(&[1.0; 4], &[0.0; 4])
    };
    // The second has moved by 1: clip(2, 1 ± 0.2) = 1.2, whose error is smaller. The others have not moved.
    let spec = ValueLoss { coef: 0.5, clip: Some(0.2) };
    let grad = step.critic(&spec, 0..1).unwrap();
    assert_eq!(grad.d_value, [0.0, 0.25, -0.0625, -0.25]);
    let m = grad.terms.finish(&step.counts()).unwrap();
    let wanted = (0.0 + 4.0 + 0.25 + 4.0) / 8.0;
    assert_eq!((m.value_loss, m.loss, m.value_clip_ratio), (Some(wanted), 0.5 * wanted, Some(0.0)));
    // Returns 1, 0, 1, 2 vary by ½; errors 0, −2, ½, 2 by 8.25/4 − ⅛².
    assert_eq!(m.explained_variance, Some(1.0 - 2.046_875 / 0.5));
    let shared = step.metrics(&PolicyLoss { value: Some(spec), ..clip(0.2, 0.2, None) });
    assert_eq!(
        (shared.value_loss, shared.loss, shared.value_clip_ratio, shared.explained_variance),
        (m.value_loss, m.loss, m.value_clip_ratio, m.explained_variance)
    );

    // Moved past the target: the constant branch is the larger error, and has no gradient.
    let clipped =
        Step { value: vec![0.9, 0.1, 1.0, 2.0], old_value: vec![0.0, 1.0, 1.0, 2.0], ..step.clone() };
    let grad = clipped.critic(&ValueLoss { coef: 1.0, clip: Some(0.2) }, 0..1).unwrap();
    assert_eq!(grad.d_value, [0.0; 4]);
    let m = grad.terms.finish(&step.counts()).unwrap();
    assert_eq!(m.value_clip_ratio, Some(0.5));
    assert!(close(m.value_loss, (0.8f64.powi(2) + 0.8f64.powi(2)) / 8.0), "{m:?}");

    // Without a clip none is reported; equal returns have no explained variance.
    let plain = Step { returns: vec![0.1; 4], old_value: Vec::new(), ..step };
    let grad = plain.critic(&ValueLoss { coef: 1.0, clip: None }, 0..1).unwrap();
    let m = grad.terms.finish(&plain.counts()).unwrap();
    assert_eq!((m.value_clip_ratio, m.explained_variance), (None, None));
    // A perfect critic explains everything.
    let perfect = Step { returns: plain.value.clone(), ..plain };
    let grad = perfect.critic(&ValueLoss { coef: 1.0, clip: None }, 0..1).unwrap();
    assert_eq!(grad.terms.finish(&perfect.counts()).unwrap().explained_variance, Some(1.0));
}

/// Covariances by hand: A = (1, 1, −1, −1) and old = (−1, −2, −3, −6) with means 0 and −3 give 2, 1, 0 and 3.
fn covariant() -> Step {
    Step {
        lengths: vec![2, 2],
        old: vec![-1.0, -2.0, -3.0, -6.0],
        logprob: vec![-1.0, -2.0, -3.0, -6.0],
        ..of_ratios(&[1.0; 4], &[1.0, 1.0, -1.0, -1.0])
    }
}

fn picked(step: &Step, surrogate: Surrogate, draw: &dyn Fn(u64) -> u64) -> Vec<usize> {
    let loss = token_mean(surrogate);
    let whole = 0..step.lengths.len();
    let grad = step.parts(&loss, &[whole], draw).unwrap().remove(0);
    let share = grad.terms.finish(&step.counts()).unwrap().cov_picked_ratio.unwrap();
    let plain = step.loss(&clip(0.2, 0.2, None)).unwrap().d_logprob;
    let differ: Vec<usize> =
        (0..plain.len()).filter(|&t| plain[t].to_bits() != grad.d_logprob[t].to_bits()).collect();
    assert_eq!(share, differ.len() as f64 / plain.len() as f64);
    differ
}

#[test]
fn kl_cov_picks_the_largest() {
    let cov = |share| Surrogate::KlCov(KlCov { cov_share: share, cov_coef: 1.0 });
    // Slightly off-policy, so that the penalty is not 0.
    let step = Step { logprob: vec![-1.1, -1.9, -3.1, -5.9], ..covariant() };
    assert_eq!(picked(&step, cov(0.25), &draw), [3]);
    assert_eq!(picked(&step, cov(0.5), &draw), [0, 3]);
    assert_eq!(picked(&step, cov(0.99), &draw), [0, 1, 3]);
    assert_eq!(picked(&step, cov(1e-9), &draw), [3], "at least one");
    // Of equal covariances the first token is selected: c = 1, 1, 1, 1.
    let ties =
        Step { old: vec![-1.0, -1.0, -3.0, -3.0], logprob: vec![-1.1, -1.1, -3.1, -3.1], ..covariant() };
    assert_eq!(picked(&ties, cov(0.5), &draw), [0, 1]);
    // Masked rows are excluded: without them c = (0, 0), and the first is selected.
    let masked = Step { masked: vec![false, true], ..step.clone() };
    let loss = token_mean(cov(0.5));
    let grad = masked.loss(&loss).unwrap();
    assert_eq!(grad.d_logprob[2..], [0.0, 0.0]);
    assert_eq!(grad.terms.finish(&masked.counts()).unwrap().cov_picked_ratio, Some(0.5));
    // The penalty has no derivative where the policy has not changed.
    let still = covariant();
    assert_eq!(
        still.loss(&token_mean(cov(0.99))).unwrap().d_logprob,
        still.loss(&clip(0.2, 0.2, None)).unwrap().d_logprob
    );
    // Elsewhere it is the sign of the change: −ρA + sign, over four tokens.
    let d = step.loss(&token_mean(cov(0.25))).unwrap().d_logprob;
    assert!((f64::from(d[3]) - (0.1f64.exp() + 1.0) / 4.0).abs() < 1e-6, "{d:?}");
    let down = Step { logprob: vec![-1.1, -1.9, -3.1, -6.1], ..step };
    let d = down.loss(&token_mean(cov(0.25))).unwrap().d_logprob;
    assert!((f64::from(d[3]) - ((-0.1f64).exp() - 1.0) / 4.0).abs() < 1e-6, "{d:?}");
}

#[test]
fn clip_cov_draws_among_those_between() {
    let cov = |cov_share, cov_low, cov_high| {
        Surrogate::ClipCov(ClipCov { cov_share, cov_low, cov_high, ..ClipCov::default() })
    };
    let step = covariant();
    // Bounds are open: c = 2, 1, 0, 3.
    assert_eq!(picked(&step, cov(0.99, 1.0, 3.0), &draw), [0]);
    assert_eq!(picked(&step, cov(0.99, 0.5, 2.5), &draw), [0, 1]);
    assert_eq!(picked(&step, cov(0.99, 3.5, 9.0), &draw), [0usize; 0], "none may be drawn");
    // The smallest numbers are selected, by position in the whole step.
    assert_eq!(picked(&step, cov(0.25, 0.5, 9.0), &|place| place), [0]);
    assert_eq!(picked(&step, cov(0.25, 0.5, 9.0), &|place| 10 - place), [3]);
    assert_eq!(picked(&step, cov(0.5, 0.5, 9.0), &|place| 10 - place), [1, 3]);
    assert_eq!(picked(&step, cov(1e-9, 0.5, 9.0), &|place| 10 - place), [3], "at least one");
    let loss = token_mean(cov(0.25, 0.5, 9.0));
    let halves = step.parts(&loss, &[0..1, 1..2], &|place| 10 - place).unwrap();
    assert_eq!((halves[0].d_logprob[0] != 0.0, halves[1].d_logprob[1]), (true, 0.0));
    // A clipped token is not drawn: the last has A < 0 and a ratio of e^−0.5.
    let moved = Step { logprob: vec![-1.0, -2.0, -3.0, -6.5], ..step };
    assert_eq!(picked(&moved, cov(0.25, 2.5, 9.0), &draw), [0usize; 0]);
}

/// Far beyond the clamp everything stays finite, and the ratio has no derivative.
#[test]
fn far_from_every_policy() {
    for (log_ratio, a) in [(80.0f32, 1.0f32), (80.0, -1.0), (-80.0, 1.0), (-80.0, -1.0)] {
        let step = Step {
            lengths: vec![2, 1],
            completion_limit: 4,
            logprob: vec![-90.0; 3],
            entropy: vec![1.0; 3],
            value: vec![0.0; 3],
            advantage: vec![a; 3],
            old: vec![-90.0 - log_ratio; 3],
            behavior: vec![-90.0 - 2.0 * log_ratio; 3],
            reference: vec![-90.0 + log_ratio; 3],
            returns: vec![1.0; 3],
            old_value: vec![0.0; 3],
            outcome: vec![1.0, 0.0],
            ..Step::default()
        };
        for loss in losses() {
            let grad = step.loss(&loss).unwrap();
            assert!(grad.terms.loss().is_finite());
            let m = grad.terms.finish(&step.counts()).unwrap();
            assert!(m.named().iter().all(|(_, value)| value.is_finite()), "{m:?}");
            let clamped = matches!(
                loss.surrogate,
                Surrogate::PpoClip(_) | Surrogate::Gspo(_) | Surrogate::Gmpo(_) | Surrogate::Sapo(_)
            );
            if clamped && loss.kl.is_none() {
                assert!(grad.d_logprob.iter().all(|&d| d == 0.0), "{loss:?}: {:?}", grad.d_logprob);
            }
        }
    }
}

#[test]
fn a_step_without_any_micro_batch_has_no_metrics_but_a_zero_loss() {
    let m = LossTerms::default().finish(&GlobalCounts::default()).unwrap();
    assert_eq!(m.named(), [(metric::LOSS, 0.0)]);
}
