//! Treatment of samples from older policies, with `max_staleness` above 0.

use miette::Diagnostic;
use proptest::prelude::*;
use rloom_algo::{
    AlgoError, Algorithm, AlgorithmSettings, ImportanceWeight, LossKind, Method, PolicyLoss, Proximal,
    RatioTo, Sampler, Surrogate, WeightAction, WeightLevel,
};
use rloom_core::metric;

use crate::held::is_known;
use crate::inert::has_own_terms;
use crate::step::{Step, steps};

fn resolve(method: Method, json: &str, max_staleness: u64) -> Result<Algorithm, AlgoError> {
    let settings: AlgorithmSettings = serde_json::from_str(json).unwrap();
    Algorithm::resolve(method, &settings, max_staleness)
}

fn default(method: Method) -> Algorithm {
    resolve(method, "{}", 2).unwrap()
}

/// Methods with a policy loss on samples.
fn sampled() -> impl Iterator<Item = Method> {
    Method::ALL.iter().copied().filter(|&m| Algorithm::preset(m).unwrap().advantage.is_some())
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// Every method with every loss, at every staleness, either resolves to an algorithm that its own settings reproduce,
/// or is rejected with a reason. A method without overrides is never rejected.
#[test]
fn every_method_at_every_staleness() {
    let mut resolved = 0;
    for &method in Method::ALL {
        assert_eq!(resolve(method, "{}", 0).unwrap(), Algorithm::preset(method).unwrap());
        let losses = LossKind::ALL.iter().map(|loss| format!(r#"{{"loss":"{}"}}"#, loss.name()));
        for json in std::iter::once("{}".to_owned()).chain(losses) {
            for max_staleness in [0, 1, 4] {
                let algorithm = match resolve(method, &json, max_staleness) {
                    Ok(algorithm) => algorithm,
                    Err(error) => {
                        assert!(json != "{}" && error.help().is_some(), "{method}: {error}");
                        continue;
                    }
                };
                let again = Algorithm::resolve(method, &algorithm.to_settings(), max_staleness);
                assert_eq!(again.unwrap(), algorithm, "{method} {json} {max_staleness}");
                assert_eq!(algorithm.loss.is_stale, max_staleness > 0 && algorithm.advantage.is_some());
                resolved += 1;
            }
        }
    }
    assert!(resolved > 800, "{resolved}");
}

/// Settings with the defaults of an exact sampler are resolved again for an inexact one, as the first settings are.
#[test]
fn settings_for_any_sampler_have_the_defaults_of_each() {
    let mut resolved = 0;
    for &method in Method::ALL {
        let losses = LossKind::ALL.iter().map(|loss| format!(r#"{{"loss":"{}"}}"#, loss.name()));
        let corrections = ["token", "sequence", "none"]
            .map(|level| format!(r#"{{"correction":{{"level":"{level}"}},"entropy_coef":0.01}}"#));
        for json in std::iter::once("{}".to_owned()).chain(losses).chain(corrections) {
            for max_staleness in [0, 2] {
                let Ok(exact) = resolve(method, &json, max_staleness) else { continue };
                let settings = exact.settings_for_any_sampler(max_staleness);
                let again = Algorithm::resolve(method, &exact.to_settings(), max_staleness).unwrap();
                assert_eq!(again.settings_for_any_sampler(max_staleness), settings, "{method} {json}");
                let sampler = Sampler { max_staleness, is_exact: false };
                let first = Algorithm::resolve(method, &serde_json::from_str(&json).unwrap(), sampler);
                let second = Algorithm::resolve(method, &settings, sampler);
                match (first, second) {
                    (Ok(first), second) => {
                        assert_eq!(first, second.unwrap(), "{method} {json} {max_staleness}");
                    }
                    (Err(_), second) => assert!(second.is_err(), "{method} {json} {max_staleness}"),
                }
                resolved += 1;
            }
        }
    }
    assert!(resolved > 500, "{resolved}");
}

/// The defaults of each loss, as on its page.
#[test]
fn defaults_by_loss() {
    let mask = |level| Some(ImportanceWeight { level, action: WeightAction::Mask, low: 0.0, high: 5.0 });
    let clamp = |level| Some(ImportanceWeight { level, action: WeightAction::Clamp, low: 0.0, high: 2.0 });
    for method in sampled() {
        let algorithm = default(method);
        if !is_known(&algorithm.loss.surrogate) {
            continue;
        }
        let (weight, proximal) = match algorithm.loss.surrogate {
            Surrogate::PpoClip(_) | Surrogate::ClipCov(_) | Surrogate::KlCov(_) | Surrogate::Sapo(_) => {
                (mask(WeightLevel::Token), Proximal::Recompute)
            }
            Surrogate::Gspo(_) | Surrogate::GspoToken(_) | Surrogate::Gmpo(_) => {
                (mask(WeightLevel::Geometric), Proximal::Recompute)
            }
            Surrogate::Reinforce(_) if method == Method::Gpg => {
                (clamp(WeightLevel::Token), Proximal::Sampler)
            }
            Surrogate::Reinforce(_) => (clamp(WeightLevel::Sequence), Proximal::Sampler),
            _ => (None, Proximal::Sampler),
        };
        assert_eq!((algorithm.loss.correction.weight, algorithm.proximal), (weight, proximal), "{method}");
        let to_sampler = method == Method::Cispo;
        assert_eq!(algorithm.loss.ratio_to == RatioTo::Behavior, to_sampler, "{method}");
        // Nothing else of the preset changes.
        let preset = Algorithm::preset(method).unwrap();
        let loss = PolicyLoss {
            correction: preset.loss.correction,
            ratio_to: preset.loss.ratio_to,
            is_stale: false,
            ..algorithm.loss
        };
        assert_eq!((loss, algorithm.advantage), (preset.loss, preset.advantage), "{method}");
        assert_eq!((algorithm.filters, algorithm.epochs), (preset.filters, preset.epochs), "{method}");
    }
    assert_eq!(default(Method::Sft).loss, Algorithm::preset(Method::Sft).unwrap().loss);
}

/// A key that is set is kept, and the others follow from it.
#[test]
fn said_keys_hold() {
    use {
        Method::{Cispo, Grpo, Rloo},
        WeightAction::{Clamp, Mask},
        WeightLevel::{Geometric, Sequence, Token},
    };
    let loss = |method, json: &str| resolve(method, json, 2).expect(json).loss;
    let weight = |method, json: &str| loss(method, json).correction.weight;
    let of = |level, action, low, high| Some(ImportanceWeight { level, action, low, high });
    assert_eq!(weight(Grpo, r#"{"correction":{"action":"clamp"}}"#), of(Token, Clamp, 0.0, 2.0));
    assert_eq!(weight(Grpo, r#"{"correction":{"action":"mask"}}"#), of(Token, Mask, 0.0, 5.0));
    assert_eq!(weight(Grpo, r#"{"correction":{"level":"sequence","high":9}}"#), of(Sequence, Mask, 0.0, 9.0));
    assert_eq!(weight(Rloo, r#"{"correction":{"level":"geometric"}}"#), of(Geometric, Clamp, 0.0, 2.0));
    assert_eq!(weight(Rloo, r#"{"loss":{"level":"token"}}"#), of(Token, Clamp, 0.0, 2.0));
    let rejecting = r#"{"correction":{"reject":"k3","reject_high":0.1}}"#;
    assert_eq!(weight(Grpo, rejecting), of(Token, Mask, 0.0, 5.0));
    assert!(loss(Grpo, rejecting).correction.rejection.is_some());
    assert_eq!(weight(Cispo, rejecting), None);
    // With an explicit weight, CISPO's ratio is relative to the proximal policy, as at staleness 0.
    assert_eq!(weight(Cispo, r#"{"correction":{"level":"token"}}"#), of(Token, Mask, 0.0, 5.0));
    for (method, json) in [
        (Grpo, r#"{"ratio_to":"behavior"}"#),
        (Grpo, r#"{"correction":{"level":"none"}}"#),
        (Cispo, r#"{"correction":{"level":"none"}}"#),
        (Rloo, r#"{"correction":{"level":"none"}}"#),
    ] {
        assert_eq!(weight(method, json), None, "{json}");
    }
    // Set at staleness 0, where the default is no correction.
    let none = r#"{"correction":{"level":"none"}}"#;
    assert_eq!(resolve(Grpo, none, 0).unwrap().loss, Algorithm::preset(Grpo).unwrap().loss);
}

#[test]
fn unsound_combinations_are_rejected() {
    use Method::{DppoKl, Grpo, Gspo, Opo, Rloo, Topr};
    let cases: &[(Method, &str, u64, &str, &str)] = &[
        (Grpo, r#"{"proximal":"sampler"}"#, 1, "proximal", "every weight is 1"),
        (
            Grpo,
            r#"{"proximal":"sampler","correction":{"level":"none"}}"#,
            1,
            "proximal",
            "is an older policy than the one",
        ),
        (Grpo, r#"{"proximal":"log_linear"}"#, 0, "proximal", "every sample is the newest"),
        (Grpo, r#"{"proximal":"log_linear","correction":{"level":"token"}}"#, 0, "proximal", "newest"),
        (Grpo, r#"{"proximal":"log_linear","ratio_to":"behavior"}"#, 1, "proximal", "nothing reads"),
        (
            Grpo,
            r#"{"ratio_to":"behavior","correction":{"level":"token"}}"#,
            1,
            "correction.level",
            "the same twice",
        ),
        (Topr, r#"{"correction":{"level":"token"}}"#, 1, "correction.level", "the same twice"),
        (Topr, r#"{"correction":{"level":"none"}}"#, 1, "correction.level", "would not turn off"),
        (DppoKl, r#"{"correction":{"level":"none"}}"#, 0, "correction.level", "would not turn off"),
        (Gspo, r#"{"correction":{"level":"token"}}"#, 1, "correction.level", "one weight"),
        (Rloo, r#"{"correction":{"level":"token"}}"#, 1, "correction.level", "one weight"),
        (Opo, r#"{"epochs":2}"#, 1, "epochs", "without a ratio"),
        (Opo, r#"{"kl":{"coef":0.1,"ratio":true}}"#, 1, "kl.ratio", "no ratio"),
    ];
    for &(method, json, max_staleness, key, reason) in cases {
        let error = resolve(method, json, max_staleness).expect_err(json);
        assert!(matches!(error, AlgoError::Refused { .. }), "{json}: {error:?}");
        assert_eq!(error.keys(), [key], "{json}");
        let text = error.to_string();
        assert!(text.contains(reason) && error.help().is_some(), "{json}: {text}");
    }
    for (method, json, key) in [
        // With one step per batch the trained policy is its own proximal policy.
        (Opo, r#"{"proximal":"recompute"}"#, "proximal"),
        (Grpo, r#"{"correction":{"level":"none","high":3.0}}"#, "correction.high"),
    ] {
        let error = resolve(method, json, 1).expect_err(json);
        assert!(matches!(error, AlgoError::NotRead { .. }), "{json}: {error:?}");
        assert_eq!(error.keys(), [key], "{json}");
    }
}

/// Every method reports the distance of the policy from its samplers, also without a weight.
#[test]
fn staleness_is_always_measured() {
    let names = [metric::CORRECTION_ESS, metric::CORRECTION_WEIGHT_MEAN, metric::CORRECTION_MASKED_RATIO];
    let step = Step {
        lengths: vec![2, 1],
        completion_limit: 4,
        logprob: vec![-1.0, -2.0, -0.5],
        entropy: vec![0.5; 3],
        advantage: vec![1.0, 1.0, -1.0],
        old: vec![-1.0, -2.0, -0.5],
        behavior: vec![-1.0 - 2f32.ln(), -2.0, -0.5],
        reference: vec![-1.0; 3],
        value: vec![0.0; 3],
        returns: vec![1.0; 3],
        old_value: vec![0.0; 3],
        ..Step::default()
    };
    for method in sampled() {
        let all = [
            resolve(method, "{}", 2),
            resolve(method, r#"{"ratio_to":"behavior"}"#, 2),
            resolve(method, r#"{"correction":{"level":"none"}}"#, 2),
        ];
        for algorithm in all.into_iter().flatten() {
            let named = step.metrics(&algorithm.loss).named();
            let has = |name| named.iter().any(|(n, _)| *n == name);
            assert!(names.into_iter().all(has), "{method}: {named:?}");
            assert!(has(metric::APPROX_KL), "{method}");
        }
        let preset = step.metrics(&Algorithm::preset(method).unwrap().loss).named();
        let has = |name| preset.iter().any(|(n, _)| *n == name);
        assert_eq!(names.into_iter().any(has), method == Method::DecoupledPpo, "{method}: {preset:?}");
    }
    // Ratios 2, 1 and 1; TOPR applies 1 to the first two, and the ratio is reported.
    let m = step.metrics(&default(Method::Topr).loss);
    assert!((m.correction_weight_mean.unwrap() - 4.0 / 3.0).abs() < 1e-6);
    assert!((m.correction_ess.unwrap() - 16.0 / 18.0).abs() < 1e-6);
    assert_eq!(m.correction_masked_ratio, Some(0.0));
    // DPPO drops tokens that have changed too far in the advantage's direction.
    let dropped =
        step.metrics(&resolve(Method::DppoTv, r#"{"loss":{"divergence_limit":0.1}}"#, 2).unwrap().loss);
    assert_eq!(dropped.correction_masked_ratio, Some(1.0 / 3.0));
    let masked = step.metrics(&resolve(Method::Grpo, r#"{"correction":{"high":1.5}}"#, 2).unwrap().loss);
    assert_eq!(
        (masked.correction_masked_ratio, masked.correction_weight_mean),
        (Some(1.0 / 3.0), Some(2.0 / 3.0))
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// If every sampler was the proximal policy, corrections for staleness change nothing, bitwise. (Without a
    /// ratio there is one step per batch, so the policy is the proximal one.)
    #[test]
    fn nothing_is_stale(step in steps()) {
        let lately = Step { behavior: step.old.clone(), interpolation: Vec::new(), ..step.clone() };
        let first = step.first();
        for method in sampled() {
            let (plain, stale) = (Algorithm::preset(method).unwrap().loss, default(method).loss);
            let step = if plain.surrogate.has_ratio() { &lately } else { &first };
            let (a, b) = (step.loss(&plain).unwrap(), step.loss(&stale).unwrap());
            prop_assert_eq!(bits(&a.d_logprob), bits(&b.d_logprob), "{}", method);
            prop_assert_eq!(bits(&a.d_entropy), bits(&b.d_entropy), "{}", method);
            prop_assert_eq!(a.terms.loss().to_bits(), b.terms.loss().to_bits(), "{}", method);
        }
    }

    /// The first step of a batch has the policy gradient of the newest policy, from samples of older ones: each token's by
    /// the ratio of the two, once. Sequences are of one token, so that every level is that of the token.
    #[test]
    fn first_steps_are_weighed_once(step in steps(), advantage in prop::sample::select(vec![-0.5f32, 0.5])) {
        let n = step.logprob.len();
        let near = |(&lp, &d): (&f32, &f32)| lp - d.clamp(-0.15, 0.15);
        let behavior: Vec<f32> = step.logprob.iter().zip(&step.reference).map(near).collect();
        let step = Step {
            lengths: vec![1; n],
            completion_limit: 1,
            old: step.logprob.clone(),
            behavior,
            advantage: vec![advantage; n],
            masked: Vec::new(),
            outcome: Vec::new(),
            interpolation: Vec::new(),
            ..step
        };
        let expected: Vec<f64> = (0..n)
            .map(|t| -f64::from(step.logprob[t] - step.behavior[t]).exp() * f64::from(advantage) / n as f64)
            .collect();
        // VESPO reshapes the ratio, and a penalty on the log-ratio needs none.
        for method in sampled().filter(|&m| is_known(&default(m).loss.surrogate)) {
            // TOPR takes good completions without a weight; the KLs of two presets have their own gradient.
            if method == Method::Topr && advantage > 0.0 {
                continue;
            }
            let is_dppo = matches!(method, Method::DppoTv | Method::DppoKl);
            let open = if is_dppo { r#"{"loss":{"divergence_limit":9}}"# } else { "{}" };
            let loss = PolicyLoss { kl: None, ..resolve(method, open, 2).unwrap().loss };
            let got = step.loss(&loss).unwrap().d_logprob;
            for (t, (&g, &w)) in got.iter().zip(&expected).enumerate() {
                let is_tapered = method == Method::Topr && step.logprob[t] > step.behavior[t];
                let w = if is_tapered { -f64::from(advantage) / n as f64 } else { w };
                prop_assert!((f64::from(g) - w).abs() <= 1e-5 * w.abs(), "{}: {} wanted {}", method, g, w);
            }
        }
    }

    /// The weight only applies to the policy term: without an advantage a weight, a mask and no weight are equal.
    #[test]
    fn only_the_policy_term_is_weighed(step in steps()) {
        let step = Step { advantage: vec![0.0; step.logprob.len()], interpolation: Vec::new(), ..step };
        let extra = r#""entropy_coef":0.1,"kl":{"coef":0.3,"estimator":"k3"}"#;
        for method in sampled().filter(|&m| !has_own_terms(default(m).loss.surrogate)) {
            let with = |correction: &str| resolve(method, &format!("{{{extra}{correction}}}"), 2);
            let Ok(off) = with(r#","correction":{"level":"none"}"#) else { continue };
            let off = step.loss(&off.loss).unwrap();
            for on in [with(""), with(r#","correction":{"action":"mask","low":0.99,"high":1.01}"#)] {
                let Ok(on) = on else { continue };
                let on = step.loss(&on.loss).unwrap();
                prop_assert_eq!(bits(&on.d_logprob), bits(&off.d_logprob), "{}", method);
                prop_assert_eq!(bits(&on.d_entropy), bits(&off.d_entropy), "{}", method);
            }
        }
    }
}
