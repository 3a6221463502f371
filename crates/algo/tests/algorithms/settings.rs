//! Presets, overrides, and what is refused.

use rloom_algo::{
    Aggregation, AlgoError, Algorithm, AlgorithmSettings, Estimator, KlEstimator, KlLoss, Level, Method,
    PpoClip, Reinforce, Scope, Surrogate,
};

fn resolve(method: Method, json: &str) -> Result<Algorithm, AlgoError> {
    Algorithm::resolve(method, &serde_json::from_str(json).expect("settings"))
}

#[test]
fn presets_are_the_table() {
    let clip = Surrogate::PpoClip(PpoClip { clip_low: 0.2, clip_high: 0.2, dual_clip: None });
    let by_method = |m| Algorithm::preset(m);

    let grpo = by_method(Method::Grpo);
    assert_eq!(grpo.advantage.unwrap().estimator, Estimator::Group { std_epsilon: 1e-4 });
    assert_eq!((grpo.loss.surrogate, grpo.loss.aggregation), (clip, Aggregation::SequenceMean));
    assert_eq!((grpo.loss.kl, grpo.loss.entropy_coef, grpo.needs_reference()), (None, 0.0, false));

    let dr_grpo = by_method(Method::DrGrpo);
    assert_eq!(dr_grpo.advantage.unwrap().estimator, Estimator::GroupMean);
    assert_eq!((dr_grpo.loss.surrogate, dr_grpo.loss.aggregation), (clip, Aggregation::ConstantLength));
    assert!(!dr_grpo.needs_reference() && !dr_grpo.advantage.unwrap().whiten);

    let rloo = by_method(Method::Rloo);
    assert_eq!(rloo.loss.surrogate, Surrogate::Reinforce(Reinforce { level: Level::Sequence }));
    assert_eq!((rloo.advantage.unwrap().kl_coef, rloo.loss.kl), (0.05, None));
    assert!(rloo.needs_reference() && rloo.needs_reference_for_advantages());
    assert_eq!(rloo.scope(), Scope::Sequence);

    let rpp = by_method(Method::ReinforcePp);
    assert_eq!(rpp.advantage.unwrap().estimator, Estimator::ReinforcePp { gamma: 1.0 });
    assert_eq!((rpp.advantage.unwrap().kl_coef, rpp.advantage.unwrap().whiten), (0.01, true));
    assert_eq!((rpp.loss.surrogate, rpp.loss.aggregation), (clip, Aggregation::TokenMean));

    let baseline = by_method(Method::ReinforcePpBaseline);
    assert_eq!(baseline.loss.kl, Some(KlLoss { coef: 1e-4, estimator: KlEstimator::K2 }));
    assert!(baseline.advantage.unwrap().whiten && baseline.needs_reference());
    assert!(!baseline.needs_reference_for_advantages());

    let sft = by_method(Method::Sft);
    assert_eq!(
        (sft.advantage, sft.loss.aggregation, sft.scope()),
        (None, Aggregation::TokenMean, Scope::Token)
    );
    assert!(!sft.needs_rollouts() && !sft.needs_reference() && !sft.needs_old_logprob());
}

/// What a resolved file holds gives the same algorithm again, and nothing in it is unread.
#[test]
fn resolved_settings_resolve_to_themselves() {
    let overrides = [
        "{}",
        r#"{"group_size":16,"epochs":1,"whiten":true}"#,
        r#"{"kl":{"coef":0.0}}"#,
        r#"{"kl":{"coef":0.2,"estimator":"k2"}}"#,
        r#"{"kl":{"coef":0.2,"placement":"reward"}}"#,
        r#"{"advantage":"group_mean","group_size":4}"#,
        r#"{"loss":"ppo_clip","clip_low":0.1,"dual_clip":3,"epochs":4,"minibatches":2}"#,
        r#"{"loss":"reinforce","level":"token","loss_aggregation":"sequence_sum"}"#,
        r#"{"entropy_coef":0.01,"loss_aggregation":"token_mean"}"#,
    ];
    for method in Method::ALL {
        let preset = Algorithm::preset(method);
        assert_eq!(resolve(method, "{}").unwrap(), preset, "{method}");
        for json in overrides {
            let Ok(algorithm) = resolve(method, json) else { continue };
            let written = serde_json::to_string(&algorithm.to_settings()).unwrap();
            assert_eq!(resolve(method, &written).unwrap(), algorithm, "{method} {json} {written}");
        }
    }
}

/// The key that is pointed at, and a part of what is said.
#[test]
fn nonsense_is_refused_with_a_reason() {
    use Method::{Grpo, ReinforcePp, ReinforcePpBaseline, Rloo};
    let cases: &[(Method, &str, &str, &str)] = &[
        (Grpo, r#"{"group_size":1}"#, "group_size", "nobody to compare with"),
        (Grpo, r#"{"group_size":0}"#, "group_size", "too few"),
        (ReinforcePp, r#"{"group_size":0}"#, "group_size", "too few"),
        (Rloo, r#"{"group_size":1}"#, "group_size", "group of one"),
        (ReinforcePp, r#"{"advantage":"group"}"#, "group_size", "nobody to compare with"),
        (
            Grpo,
            r#"{"kl":{"coef":0.1,"estimator":"k1","placement":"loss"}}"#,
            "kl.estimator",
            "zero in expectation",
        ),
        (
            Grpo,
            r#"{"kl":{"coef":0.1,"estimator":"k3","placement":"reward"}}"#,
            "kl.estimator",
            "there it is k1",
        ),
        (Grpo, r#"{"kl":{"coef":-0.1}}"#, "kl.coef", "not 0 or more"),
        (Grpo, r#"{"kl":{"estimator":"k3"}}"#, "kl.estimator", "nothing reads it"),
        (Grpo, r#"{"kl":{"placement":"reward"}}"#, "kl.placement", "nothing reads it"),
        (Grpo, r#"{"dual_clip":1.0}"#, "dual_clip", "not above 1"),
        (Grpo, r#"{"clip_low":1.0}"#, "clip_low", "not between 0 and 1"),
        (Grpo, r#"{"clip_low":0}"#, "clip_low", "not between 0 and 1"),
        (Grpo, r#"{"clip_high":0}"#, "clip_high", "not above 0"),
        (Grpo, r#"{"entropy_coef":-0.1}"#, "entropy_coef", "bonus"),
        (Grpo, r#"{"epochs":0}"#, "epochs", "too few"),
        (Grpo, r#"{"minibatches":0}"#, "minibatches", "too few"),
        (Grpo, r#"{"std_epsilon":-1}"#, "std_epsilon", "not 0 or more"),
        (ReinforcePp, r#"{"gamma":1.5}"#, "gamma", "not between 0 and 1"),
        (ReinforcePpBaseline, r#"{"whiten":false}"#, "whiten", "is \"group_mean\""),
        (Rloo, r#"{"epochs":2}"#, "epochs", "without a ratio"),
        (Rloo, r#"{"minibatches":4}"#, "minibatches", "without a ratio"),
        (Rloo, r#"{"advantage":"reinforce_pp"}"#, "level", "one advantage per episode"),
    ];
    for &(method, json, key, reason) in cases {
        let error = resolve(method, json).expect_err(json);
        assert!(matches!(error, AlgoError::Refused { .. }), "{json}: {error:?}");
        assert_eq!(error.keys(), [key], "{json}");
        let text = error.to_string();
        assert!(text.contains(reason) && text.contains("\nhint: "), "{json}: {text}");
    }
}

#[test]
fn what_nothing_reads_is_an_error() {
    use Method::{Grpo, ReinforcePp, Rloo, Sft};
    let cases: &[(Method, &str, &[&str])] = &[
        (Rloo, r#"{"clip_low":0.1,"clip_high":0.2,"dual_clip":3}"#, &["clip_low", "clip_high", "dual_clip"]),
        (Rloo, r#"{"std_epsilon":1e-6}"#, &["std_epsilon"]),
        (Rloo, r#"{"loss_aggregation":"token_mean"}"#, &["loss_aggregation"]),
        (Grpo, r#"{"gamma":0.9,"level":"token"}"#, &["gamma", "level"]),
        (ReinforcePp, r#"{"std_epsilon":1e-6}"#, &["std_epsilon"]),
        (
            Sft,
            r#"{"group_size":8,"advantage":"rloo","loss":"ppo_clip","epochs":2,"kl":{"coef":0.1}}"#,
            &["group_size", "advantage", "loss", "epochs", "kl"],
        ),
    ];
    for &(method, json, keys) in cases {
        let error = resolve(method, json).expect_err(json);
        assert!(matches!(error, AlgoError::NotRead { .. }), "{json}: {error:?}");
        assert_eq!(error.keys(), keys, "{json}");
    }
    let text = resolve(Rloo, r#"{"clip_low":0.1}"#).unwrap_err().to_string();
    assert_eq!(
        text,
        "not read by method \"rloo\": clip_low (loss = \"reinforce\" has no ratio to clip)\n\
         hint: remove what is not read"
    );
    // They become readable with what reads them.
    assert!(resolve(Rloo, r#"{"loss":"ppo_clip","clip_low":0.1,"epochs":2}"#).is_ok());
    assert!(resolve(Rloo, r#"{"loss_aggregation":"token_mean","entropy_coef":0.01}"#).is_ok());
    assert!(resolve(Sft, r#"{"loss_aggregation":"sequence_mean"}"#).is_ok());
    assert!(serde_json::from_str::<AlgorithmSettings>(r#"{"clip":0.2}"#).is_err());
    assert!(serde_json::from_str::<AlgorithmSettings>(r#"{"kl":{"beta":0.2}}"#).is_err());
}

/// What is not said about the KL follows from what is.
#[test]
fn kl_is_completed() {
    let kl = |m, json: &str| {
        let a = resolve(m, json).expect(json);
        (a.advantage.expect("an advantage").kl_coef, a.loss.kl)
    };
    let loss = |coef, estimator| (0.0, Some(KlLoss { coef, estimator }));
    assert_eq!(kl(Method::Grpo, r#"{"kl":{"coef":0.04}}"#), loss(0.04, KlEstimator::K3));
    assert_eq!(kl(Method::Grpo, r#"{"kl":{"coef":0.04,"estimator":"k2"}}"#), loss(0.04, KlEstimator::K2));
    assert_eq!(kl(Method::Grpo, r#"{"kl":{"coef":0.04,"estimator":"k1"}}"#), (0.04, None));
    assert_eq!(kl(Method::Grpo, r#"{"kl":{"coef":0.04,"placement":"reward"}}"#), (0.04, None));
    assert_eq!(kl(Method::Rloo, r#"{"kl":{"placement":"loss"}}"#), loss(0.05, KlEstimator::K3));
    assert_eq!(kl(Method::Rloo, r#"{"kl":{"coef":0.0}}"#), (0.0, None));
    assert!(!resolve(Method::Rloo, r#"{"kl":{"coef":0}}"#).unwrap().needs_reference());
}
