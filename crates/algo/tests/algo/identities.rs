//! Exact identities: the first step, zero advantages, and losses with equal parts.

use proptest::prelude::*;
use rloom_algo::{
    Aggregation, Cispo, Correction, DppoTv, Gmpo, Gspo, GspoToken, ImportanceWeight, Level, PolicyLoss,
    PpoClip, RatioTo, Reinforce, Surrogate, Topr, WeightAction, WeightLevel,
};

use crate::{
    inert::has_own_terms,
    losses::{CLIP, corrections, is_by_token, kl, losses, surrogates},
    step::{Step, steps},
};

fn reinforce(level: Level, aggregation: Aggregation) -> PolicyLoss {
    PolicyLoss::new(Surrogate::Reinforce(Reinforce { level }), aggregation)
}

/// True if the loss has the plain policy gradient when all policies are equal, with its normaliser.
fn is_policy_gradient(surrogate: Surrogate) -> bool {
    surrogate.has_ratio() && !matches!(surrogate, Surrogate::ClipCov(_))
}

fn all_close(got: &[f32], wanted: &[f32]) -> Result<(), TestCaseError> {
    prop_assert_eq!(got.len(), wanted.len());
    for (g, w) in got.iter().zip(wanted) {
        prop_assert!((g - w).abs() <= 1e-6 * w.abs(), "{} wanted {}", g, w);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Current, proximal, sampling and reference policy are equal: every ratio and weight is 1, every divergence 0,
    /// nothing is clipped, masked or rejected, and a loss with a ratio has the gradient of the plain policy gradient.
    #[test]
    fn first_step(step in steps()) {
        let step = step.first();
        for loss in losses() {
            let grad = step.loss(&loss).unwrap();
            let m = grad.terms.finish(&step.counts()).unwrap();
            let is_measured = m.entropy.is_some();
            prop_assert_eq!((m.ratio_min, m.ratio_max), (is_measured.then_some(1.0), is_measured.then_some(1.0)));
            prop_assert_eq!((m.kl, m.approx_kl), (is_measured.then_some(0.0), is_measured.then_some(0.0)));
            prop_assert_eq!(m.kl_loss, 0.0);
            prop_assert!([m.mismatch_kl, m.mismatch_max_abs].iter().flatten().all(|&x| x == 0.0));
            prop_assert!([m.correction_weight_mean, m.correction_ess].iter().flatten().all(|&x| x == 1.0));
            let shares = [
                m.clip_ratio_low,
                m.clip_ratio_high,
                m.clip_ratio_dual,
                m.correction_masked_ratio,
                m.correction_rejected_ratio,
            ];
            prop_assert!(shares.iter().flatten().all(|&share| share == 0.0), "{:?}: {:?}", loss, m);
            // ρk has the gradient k' if k = 0.
            if loss.kl.is_some_and(|kl| kl.ratio) {
                let without = step.loss(&PolicyLoss { kl: None, ..loss }).unwrap();
                prop_assert_eq!(&grad.d_logprob, &without.d_logprob);
            }
            if is_policy_gradient(loss.surrogate) {
                let plain = |mode| step.loss(&reinforce(Level::Token, mode)).unwrap().d_logprob;
                if loss.surrogate.is_per_sequence() {
                    // A sequence's term is the mean or the sum over its tokens.
                    let mean = all_close(&grad.d_logprob, &plain(Aggregation::SequenceMean));
                    let sum = all_close(&grad.d_logprob, &plain(Aggregation::SequenceSum));
                    mean.or(sum)?;
                } else {
                    prop_assert_eq!(&grad.d_logprob, &plain(loss.aggregation), "{:?}", loss);
                }
            }
        }
    }

    /// A completion as one action is the sum over its tokens, averaged over sequences.
    #[test]
    fn sequence_level_is_the_sum_over_tokens(step in steps()) {
        let sequence = step.loss(&reinforce(Level::Sequence, Aggregation::TokenMean)).unwrap();
        let token = step.loss(&reinforce(Level::Token, Aggregation::SequenceSum)).unwrap();
        prop_assert_eq!(&sequence.d_logprob, &token.d_logprob);
        prop_assert!((sequence.terms.loss() - token.terms.loss()).abs() < 1e-9);
    }

    /// For equal lengths at the limit, three aggregations are equal.
    #[test]
    fn equal_lengths(step in steps(), length in 1usize..4) {
        let tokens = step.logprob.len() / length * length;
        let step = Step {
            lengths: vec![length; tokens / length],
            completion_limit: length as u64,
            logprob: step.logprob[..tokens].to_vec(),
            entropy: step.entropy[..tokens].to_vec(),
            advantage: step.advantage[..tokens].to_vec(),
            ..Step::default()
        };
        let mode = |a| step.loss(&reinforce(Level::Token, a)).unwrap().d_logprob;
        let wanted = mode(Aggregation::TokenMean);
        prop_assert_eq!(&mode(Aggregation::SequenceMean), &wanted);
        prop_assert_eq!(&mode(Aggregation::ConstantLength), &wanted);
    }

    /// A zero advantage has a zero coefficient, with a positive sign. (Penalties need no advantage.)
    #[test]
    fn zero_advantage_is_silent(step in steps()) {
        let step = Step { advantage: vec![0.0; step.logprob.len()], ..step };
        let is_silent = |l: &PolicyLoss| {
            l.surrogate.reads_advantage() && l.kl.is_none() && !has_own_terms(l.surrogate)
        };
        for loss in losses().into_iter().filter(is_silent) {
            let grad = step.loss(&loss).unwrap();
            prop_assert!(grad.d_logprob.iter().all(|d| d.to_bits() == 0), "{:?}", loss);
            let m = grad.terms.finish(&step.counts()).unwrap();
            prop_assert_eq!(m.surrogate, 0.0);
            // The weight at its bound does not depend on the advantage.
            if !matches!(loss.surrogate, Surrogate::Cispo(_)) {
                let clipped = [m.clip_ratio_low, m.clip_ratio_high, m.clip_ratio_dual];
                prop_assert!(clipped.iter().flatten().all(|&share| share == 0.0), "{:?}", loss);
            }
        }
    }

    /// A masked row has no coefficients and does not affect those of others; it still counts.
    #[test]
    fn masked_rows(step in steps(), mask in prop::collection::vec(any::<bool>(), 9)) {
        let step = Step { interpolation: Vec::new(), ..step };
        let open = Step { masked: Vec::new(), ..step.clone() };
        let step = Step { masked: mask[..step.lengths.len()].to_vec(), ..step };
        let rows = step.rows(0..step.lengths.len());
        // The selected tokens depend on the rows that are not masked.
        for loss in losses().into_iter().filter(|l| l.scope() != rloom_algo::Scope::Step) {
            let (grad, full) = (step.loss(&loss).unwrap(), open.loss(&loss).unwrap());
            let all: [(&[f32], &[f32]); 3] = [
                (&grad.d_logprob, &full.d_logprob),
                (&grad.d_entropy, &full.d_entropy),
                (&grad.d_value, &full.d_value),
            ];
            for (got, without) in all {
                for (row, &is_masked) in rows.iter().zip(&step.masked) {
                    let zeros = vec![0.0; row.len()];
                    prop_assert_eq!(&got[row.clone()], if is_masked { &zeros } else { &without[row.clone()] });
                }
            }
            prop_assert_eq!(grad.terms.tokens(), full.terms.tokens());
        }
        let trained = |t: usize| rows.iter().zip(&step.masked).any(|(r, m)| !m && r.contains(&t));
        let m = step.metrics(&losses()[0]);
        let entropies: Vec<f64> =
            (0..step.entropy.len()).filter(|&t| trained(t)).map(|t| f64::from(step.entropy[t])).collect();
        let mean = entropies.iter().sum::<f64>() / entropies.len() as f64;
        prop_assert!(m.entropy.is_none_or(|e| (e - mean).abs() < 1e-9));
        prop_assert_eq!(m.entropy.is_none(), entropies.is_empty());
        // The mismatch is measured on every token.
        prop_assert_eq!(m.mismatch_kl, open.metrics(&losses()[0]).mismatch_kl);
    }

    /// Losses that are equal for equal parts.
    #[test]
    fn equal_losses(step in steps()) {
        let step = Step { interpolation: Vec::new(), ..step };
        let of = |step: &Step, surrogate| step.loss(&PolicyLoss::new(surrogate, Aggregation::SequenceMean)).unwrap();
        let plain = of(&step, Surrogate::Reinforce(Reinforce { level: Level::Token })).d_logprob;
        let ones = Cispo { weight_cap: 1.0, weight_floor: 1.0 };
        prop_assert_eq!(&of(&step, Surrogate::Cispo(ones)).d_logprob, &plain);

        // Without dropped tokens, DPPO equals CISPO's weight relative to the sampler.
        let open = DppoTv { divergence_limit: 2.0, weight_cap: 1.5 };
        let to_sampler = PolicyLoss {
            ratio_to: RatioTo::Behavior,
            ..PolicyLoss::new(Surrogate::Cispo(Cispo { weight_cap: 1.5, weight_floor: 0.0 }), Aggregation::SequenceMean)
        };
        prop_assert_eq!(&of(&step, Surrogate::DppoTv(open)).d_logprob, &step.loss(&to_sampler).unwrap().d_logprob);

        // The ratio to the sampler equals the ratio to a proximal policy equal to the sampler.
        let sampler = Step { old: step.behavior.clone(), ..step.clone() };
        for surrogate in surrogates().into_iter().filter(Surrogate::reads_old) {
            let to_sampler = PolicyLoss {
                ratio_to: RatioTo::Behavior,
                ..PolicyLoss::new(surrogate, Aggregation::SequenceMean)
            };
            prop_assert_eq!(&step.loss(&to_sampler).unwrap().d_logprob, &of(&sampler, surrogate).d_logprob);
        }

        // TOPR trains on successes without a weight.
        let good = Step { advantage: step.advantage.iter().map(|a| a.abs()).collect(), ..step.clone() };
        let topr = of(&good, Surrogate::Topr(Topr { level: Level::Sequence })).d_logprob;
        prop_assert_eq!(&topr, &of(&good, Surrogate::Reinforce(Reinforce { level: Level::Token })).d_logprob);

        // GSPO-token equals GSPO for one advantage per sequence.
        let token = Surrogate::GspoToken(GspoToken { clip_low: 0.1, clip_high: 0.15 });
        let sequence = Surrogate::Gspo(Gspo { clip_low: 0.1, clip_high: 0.15 });
        all_close(&of(&step, token).d_logprob, &of(&step, sequence).d_logprob)?;
    }

    /// For sequences of one token, sequence-level and token-level quantities are equal.
    #[test]
    fn one_token_rows(step in steps()) {
        let n = step.logprob.len();
        let step = Step {
            lengths: vec![1; n],
            masked: Vec::new(),
            outcome: vec![0.5; n],
            interpolation: Vec::new(),
            ..step
        };
        let of = |surrogate, mode| step.loss(&PolicyLoss::new(surrogate, mode)).unwrap();
        let ppo = of(Surrogate::PpoClip(CLIP), Aggregation::TokenMean);
        let (clip_low, clip_high) = (CLIP.clip_low, CLIP.clip_high);
        let by_token = Surrogate::GspoToken(GspoToken { clip_low, clip_high });
        for surrogate in [by_token, Surrogate::Gspo(Gspo { clip_low, clip_high })] {
            let gspo = of(surrogate, Aggregation::SequenceMean);
            prop_assert_eq!(&gspo.d_logprob, &ppo.d_logprob);
        }
        // GMPO's bounds are of log-ratios.
        let in_logs = Gmpo { clip_low: -(1.0 - clip_low).ln(), clip_high: (1.0 + clip_high).ln() };
        all_close(&of(Surrogate::Gmpo(in_logs), Aggregation::TokenMean).d_logprob, &ppo.d_logprob)?;
        let topr = |level| of(Surrogate::Topr(Topr { level }), Aggregation::TokenMean).d_logprob;
        prop_assert_eq!(topr(Level::Token), topr(Level::Sequence));
        let weighed = |level| {
            let weight = ImportanceWeight { level, action: WeightAction::Mask, low: 0.7, high: 1.4 };
            let correction = Correction { weight: Some(weight), rejection: None };
            let loss = PolicyLoss::new(Surrogate::PpoClip(CLIP), Aggregation::TokenMean);
            step.loss(&PolicyLoss { correction, ..loss }).unwrap().d_logprob
        };
        prop_assert_eq!(weighed(WeightLevel::Token), weighed(WeightLevel::Sequence));
        prop_assert_eq!(weighed(WeightLevel::Token), weighed(WeightLevel::Geometric));
    }

    /// α = 0 is the sampler; α = 1 the current policy, with ratio 1 and the full weight.
    #[test]
    fn ends_of_the_interpolation(step in steps()) {
        let n = step.logprob.len();
        let none = rloom_algo::Mismatch::Unmeasured;
        let at = |alpha: f32| Step { interpolation: vec![alpha; n], old: Vec::new(), mismatch: none, ..step.clone() };
        let sampler =
            Step { interpolation: Vec::new(), old: step.behavior.clone(), mismatch: none, ..step.clone() };
        let current =
            Step { interpolation: Vec::new(), old: step.logprob.clone(), mismatch: none, ..step.clone() };
        let losses = losses();
        for loss in losses.iter().filter(|l| l.surrogate.reads_old()) {
            prop_assert_eq!(&at(0.0).loss(loss).unwrap().d_logprob, &sampler.loss(loss).unwrap().d_logprob);
        }
        for surrogate in surrogates().into_iter().filter(|s| s.reads_old() && !s.is_per_sequence()) {
            let fits = |c: &&Correction| !is_by_token(c);
            let correction = *corrections().iter().find(fits).unwrap();
            let loss = PolicyLoss { correction, ..PolicyLoss::new(surrogate, Aggregation::TokenMean) };
            let (a, b) = (at(1.0).loss(&loss).unwrap(), current.loss(&loss).unwrap());
            all_close(&a.d_logprob, &b.d_logprob)?;
            let ratio = at(1.0).metrics(&loss).ratio_max;
            prop_assert!(ratio.is_none_or(|r| (r - 1.0).abs() < 1e-12));
        }
    }

    /// Off-policy, k3 and k3+ multiplied by the ratio have the same gradient ρ(lp − ref).
    #[test]
    fn k3_times_the_ratio(step in steps()) {
        let step = Step { interpolation: Vec::new(), advantage: vec![0.0; step.logprob.len()], ..step };
        let of = |estimator| {
            let clip = PpoClip { dual_clip: None, ..CLIP };
            let loss = PolicyLoss::new(Surrogate::PpoClip(clip), Aggregation::TokenMean);
            step.loss(&PolicyLoss { kl: Some(kl(estimator, true)), ..loss }).unwrap()
        };
        let (k3, plus) = (of(rloom_algo::KlEstimator::K3), of(rloom_algo::KlEstimator::K3Plus));
        for (a, b) in k3.d_logprob.iter().zip(&plus.d_logprob) {
            prop_assert!((a - b).abs() <= 1e-6 * b.abs() + 1e-12, "{} {}", a, b);
        }
        prop_assert_eq!(k3.terms.loss(), plus.terms.loss());
    }
}
