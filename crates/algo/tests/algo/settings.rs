//! Presets, overrides and rejected settings.

use miette::Diagnostic;
use rloom_algo::estimators::{Group, GroupMean, ReinforcePp};
use rloom_algo::{
    Aggregation, AlgoError, Algorithm, AlgorithmSettings, Dft, Estimator, KlEstimator, KlLoss, Level, Method,
    PpoClip, Reinforce, Scope, Surrogate,
};

fn resolve(method: Method, json: &str) -> Result<Algorithm, AlgoError> {
    Algorithm::resolve(method, &serde_json::from_str(json).expect("settings"), 0)
}

#[test]
fn presets_are_the_table() {
    let clip = Surrogate::PpoClip(PpoClip { clip_low: 0.2, clip_high: 0.2, dual_clip: None });
    let by_method = |m| Algorithm::preset(m).unwrap();

    let grpo = by_method(Method::Grpo);
    assert_eq!(grpo.advantage.unwrap().estimator, Estimator::Group(Group { std_epsilon: 1e-4 }));
    assert_eq!((grpo.loss.surrogate, grpo.loss.aggregation), (clip, Aggregation::SequenceMean));
    assert_eq!((grpo.loss.kl, grpo.loss.entropy_coef, grpo.needs_reference()), (None, 0.0, false));

    let dr_grpo = by_method(Method::DrGrpo);
    assert_eq!(dr_grpo.advantage.unwrap().estimator, Estimator::GroupMean(GroupMean {}));
    assert_eq!((dr_grpo.loss.surrogate, dr_grpo.loss.aggregation), (clip, Aggregation::ConstantLength));
    assert!(!dr_grpo.needs_reference() && !dr_grpo.advantage.unwrap().whiten);

    let rloo = by_method(Method::Rloo);
    assert_eq!(rloo.loss.surrogate, Surrogate::Reinforce(Reinforce { level: Level::Sequence }));
    assert_eq!((rloo.advantage.unwrap().kl_coef, rloo.loss.kl), (0.05, None));
    assert!(rloo.needs_reference() && rloo.needs_reference_for_advantages());
    assert_eq!(rloo.scope(), Scope::Sequence);

    let rpp = by_method(Method::ReinforcePp);
    assert_eq!(rpp.advantage.unwrap().estimator, Estimator::ReinforcePp(ReinforcePp { gamma: 1.0 }));
    assert_eq!((rpp.advantage.unwrap().kl_coef, rpp.advantage.unwrap().whiten), (0.01, true));
    assert_eq!((rpp.loss.surrogate, rpp.loss.aggregation), (clip, Aggregation::TokenMean));

    let baseline = by_method(Method::ReinforcePpBaseline);
    assert_eq!(baseline.loss.kl, Some(KlLoss { coef: 1e-4, estimator: KlEstimator::K2, ratio: false }));
    assert!(baseline.advantage.unwrap().whiten && baseline.needs_reference());
    assert!(!baseline.needs_reference_for_advantages());

    let sft = by_method(Method::Sft);
    assert_eq!(
        (sft.advantage, sft.loss.aggregation, sft.scope()),
        (None, Aggregation::TokenMean, Scope::Token)
    );
    assert!(!sft.needs_rollouts() && !sft.needs_reference());

    let dft = by_method(Method::Dft);
    assert_eq!(dft.loss.surrogate, Surrogate::Dft(Dft));
    assert_eq!((dft.advantage, dft.loss.aggregation), (sft.advantage, sft.loss.aggregation));
    assert_eq!((sft.neftune_noise_alpha, dft.neftune_noise_alpha), (None, None));
}

/// Resolved settings resolve to the same algorithm, without keys that have no effect.
#[test]
fn resolved_settings_resolve_to_themselves() {
    let overrides = [
        "{}",
        r#"{"group_size":16,"epochs":1,"whiten":true}"#,
        r#"{"kl":{"coef":0.0}}"#,
        r#"{"kl":{"coef":0.2,"estimator":"k2"}}"#,
        r#"{"kl":{"coef":0.2,"placement":"reward"}}"#,
        r#"{"advantage":"group_mean","group_size":4}"#,
        r#"{"loss":{"kind":"ppo_clip","clip_low":0.1,"dual_clip":3},"epochs":4,"minibatches":2}"#,
        r#"{"loss":{"kind":"reinforce","level":"token"},"loss_aggregation":"sequence_sum"}"#,
        r#"{"entropy_coef":0.01,"loss_aggregation":"token_mean"}"#,
        r#"{"advantage":{"kind":"normalized","mean_from":"batch","std_from":"running"}}"#,
        r#"{"advantage":{"kind":"normalized","mean_from":"group","std_from":"none"}}"#,
        r#"{"advantage":"gae","critic":{"backbone":"shared"}}"#,
        r#"{"advantage":{"kind":"gigpo","divide_by_std":false}}"#,
        r#"{"advantage":{"kind":"max_at_g","divide_by_std":true}}"#,
        r#"{"advantage":{"kind":"raft_pp","keep":"best"}}"#,
        r#"{"loss":"gspo"}"#,
        r#"{"loss":{"kind":"gspo_token","clip_low":0.01}}"#,
        r#"{"loss":"gmpo"}"#,
        r#"{"loss":{"kind":"cispo","weight_floor":0.5},"ratio_to":"behavior"}"#,
        r#"{"loss":"sapo"}"#,
        r#"{"loss":{"kind":"topr","level":"token"}}"#,
        r#"{"loss":"dppo_kl"}"#,
        r#"{"loss":{"kind":"clip_cov","dual_clip":3.0}}"#,
        r#"{"loss":"kl_cov"}"#,
        r#"{"correction":{"level":"geometric","action":"mask"}}"#,
        r#"{"correction":{"reject":"k1","reject_low":-0.1,"reject_high":0.1,"reject_level":"token"}}"#,
        r#"{"proximal":"log_linear","correction":{"level":"token"}}"#,
        r#"{"filter":{"dynamic_sampling":true,"mask_truncated":true,"min_tokens":2,"max_tokens":9}}"#,
        r#"{"overlong":{"factor":0.5,"buffer":3}}"#,
        r#"{"entropy_control":{"target":0.3}}"#,
        r#"{"kl":{"coef":0.1,"estimator":"k3+","ratio":true}}"#,
        r#"{"kl":{"coef":0.1,"placement":"reward","target":0.05}}"#,
    ];
    for &method in Method::ALL {
        let preset = Algorithm::preset(method).unwrap();
        assert_eq!(resolve(method, "{}").unwrap(), preset, "{method}");
        for json in overrides {
            let Ok(algorithm) = resolve(method, json) else { continue };
            let written = serde_json::to_string(&algorithm.to_settings()).unwrap();
            assert_eq!(resolve(method, &written).unwrap(), algorithm, "{method} {json} {written}");
        }
    }
}

/// The key at fault and a part of the message.
#[test]
fn nonsense_is_refused_with_a_reason() {
    use Method::{Grpo, ReinforcePp, ReinforcePpBaseline, Rloo};
    let cases: &[(Method, &str, &str, &str)] = &[
        (Grpo, r#"{"group_size":1}"#, "group_size", "has nothing to compare"),
        (Grpo, r#"{"group_size":0}"#, "group_size", "too few"),
        (ReinforcePp, r#"{"group_size":0}"#, "group_size", "too few"),
        (Rloo, r#"{"group_size":1}"#, "group_size", "a group of 1"),
        (ReinforcePp, r#"{"advantage":"group"}"#, "group_size", "has nothing to compare"),
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
        (Grpo, r#"{"loss":{"dual_clip":1.0}}"#, "loss.dual_clip", "not above 1"),
        (Grpo, r#"{"loss":{"clip_low":1.0}}"#, "loss.clip_low", "not between 0 and 1"),
        (Grpo, r#"{"loss":{"clip_low":0}}"#, "loss.clip_low", "not between 0 and 1"),
        (Grpo, r#"{"loss":{"clip_high":0}}"#, "loss.clip_high", "not above 0"),
        (Grpo, r#"{"entropy_coef":-0.1}"#, "entropy_coef", "bonus"),
        (Grpo, r#"{"epochs":0}"#, "epochs", "too few"),
        (Grpo, r#"{"minibatches":0}"#, "minibatches", "too few"),
        (Grpo, r#"{"advantage":{"std_epsilon":-1}}"#, "advantage.std_epsilon", "not 0 or more"),
        (ReinforcePp, r#"{"advantage":{"gamma":1.5}}"#, "advantage.gamma", "not between 0 and 1"),
        (ReinforcePpBaseline, r#"{"whiten":false}"#, "whiten", "is \"group_mean\""),
        (Rloo, r#"{"epochs":2}"#, "epochs", "without a ratio"),
        (Rloo, r#"{"minibatches":4}"#, "minibatches", "without a ratio"),
        (Rloo, r#"{"advantage":"reinforce_pp"}"#, "loss.level", "one advantage per episode"),
        (Method::Gspo, r#"{"advantage":"gae"}"#, "loss", "one advantage per episode"),
        (Method::Gmpo, r#"{"advantage":"gigpo"}"#, "loss", "one advantage per episode"),
        (Method::Opo, r#"{"epochs":2}"#, "epochs", "without a ratio"),
        (Method::Gpg, r#"{"minibatches":2}"#, "minibatches", "without a ratio"),
        (Method::Remax, r#"{"epochs":3}"#, "epochs", "without a ratio"),
        (Method::MaxAtG, r#"{"group_size":1}"#, "group_size", "has nothing to compare"),
        (Method::Prime, r#"{"group_size":1}"#, "group_size", "has nothing to compare"),
        (Method::Prime, r#"{"advantage":{"beta":0}}"#, "advantage.beta", "not above 0"),
        (Method::Prime, r#"{"kl":{"coef":0.1,"placement":"reward"}}"#, "kl.placement", "no place"),
        (
            Method::RaftPp,
            r#"{"advantage":{"keep":"best"},"group_size":1}"#,
            "group_size",
            "nothing to compare",
        ),
        (
            ReinforcePp,
            r#"{"filter":{"dynamic_sampling":true}}"#,
            "filter.dynamic_sampling",
            "always all equal",
        ),
        (Grpo, r#"{"filter":{"min_tokens":9,"max_tokens":4}}"#, "filter.max_tokens", "no episode"),
        (Method::Dapo, r#"{"filter":{"max_draws":0}}"#, "filter.max_draws", "too few"),
        (Method::Dapo, r#"{"overlong":{"buffer":0}}"#, "overlong.buffer", "too few"),
        (Method::Ppo, r#"{"advantage":{"lambda":1.5}}"#, "advantage.lambda", "not between 0 and 1"),
        (Method::Ppo, r#"{"critic":{"learning_rate_scale":0}}"#, "critic.learning_rate_scale", "not above 0"),
        (Method::Cispo, r#"{"loss":{"weight_floor":6.0}}"#, "loss.weight_floor", "not from 0 to weight_cap"),
        (Method::Sapo, r#"{"loss":{"tau_negative":0}}"#, "loss.tau_negative", "not above 0"),
        (Method::ClipCov, r#"{"loss":{"cov_low":6.0}}"#, "loss.cov_high", "not above cov_low"),
        (Method::KlCov, r#"{"loss":{"cov_share":1.0}}"#, "loss.cov_share", "not between 0 and 1"),
        (Method::DppoTv, r#"{"loss":{"divergence_limit":0}}"#, "loss.divergence_limit", "not above 0"),
        (Grpo, r#"{"correction":{"level":"token"},"proximal":"sampler"}"#, "proximal", "every weight is 1"),
        (Grpo, r#"{"correction":{"level":"token","high":0.5}}"#, "correction.high", "not 1 or more"),
        (Grpo, r#"{"correction":{"level":"token","low":1.5}}"#, "correction.low", "not between 0 and 1"),
        (Grpo, r#"{"correction":{"reject":"k2"}}"#, "correction.reject", "needs a bound"),
        (Grpo, r#"{"correction":{"reject":"k3+","reject_high":1}}"#, "correction.reject", "gradient alone"),
        (
            Grpo,
            r#"{"correction":{"level":"token"},"ratio_to":"behavior"}"#,
            "correction.level",
            "the same twice",
        ),
        (Method::Topr, r#"{"correction":{"level":"sequence"}}"#, "correction.level", "second weight"),
        (Method::Gspo, r#"{"correction":{"level":"token"}}"#, "correction.level", "one weight"),
        (
            Method::Gspo,
            r#"{"correction":{"reject":"k2","reject_level":"token","reject_high":1}}"#,
            "correction.reject_level",
            "can be rejected alone",
        ),
        (Grpo, r#"{"ratio_to":"behavior","proximal":"log_linear"}"#, "proximal", "nothing reads"),
        (Method::Opo, r#"{"kl":{"coef":0.1,"ratio":true}}"#, "kl.ratio", "no ratio"),
        (Grpo, r#"{"entropy_control":{"target":0}}"#, "entropy_control.target", "not above 0"),
        (
            Grpo,
            r#"{"entropy_control":{"target":1,"min":2}}"#,
            "entropy_control.max",
            "not above entropy_control.min",
        ),
    ];
    for &(method, json, key, reason) in cases {
        let error = resolve(method, json).expect_err(json);
        assert!(matches!(error, AlgoError::Refused { .. }), "{json}: {error:?}");
        assert_eq!(error.keys(), [key], "{json}");
        let text = error.to_string();
        assert!(text.contains(reason) && error.help().is_some(), "{json}: {text}");
    }
}

#[test]
fn a_key_without_effect_is_an_error() {
    use Method::{Grpo, ReinforcePp, Rloo, Sft};
    let cases: &[(Method, &str, &[&str])] = &[
        (
            Rloo,
            r#"{"loss":{"clip_low":0.1,"clip_high":0.2,"dual_clip":3}}"#,
            &["loss.clip_low", "loss.clip_high", "loss.dual_clip"],
        ),
        (Rloo, r#"{"advantage":{"std_epsilon":1e-06}}"#, &["advantage.std_epsilon"]),
        (Rloo, r#"{"loss_aggregation":"token_mean"}"#, &["loss_aggregation"]),
        (Grpo, r#"{"advantage":{"gamma":0.9},"loss":{"level":"token"}}"#, &["advantage.gamma", "loss.level"]),
        (Grpo, r#"{"kl":{"estimator":"k3"}}"#, &["kl.estimator"]),
        (Grpo, r#"{"kl":{"placement":"reward"}}"#, &["kl.placement"]),
        (Grpo, r#"{"kl":{"coef":0.1,"target":0.1}}"#, &["kl.target"]),
        (Rloo, r#"{"kl":{"ratio":true}}"#, &["kl.ratio"]),
        (
            Grpo,
            r#"{"advantage":{"mean_from":"batch","step_weight":1.0}}"#,
            &["advantage.mean_from", "advantage.step_weight"],
        ),
        (Grpo, r#"{"advantage":{"beta":1.0},"critic":{"clip":0.1}}"#, &["advantage.beta", "critic.clip"]),
        (
            Grpo,
            r#"{"correction":{"high":2.0,"reject_high":1.0}}"#,
            &["correction.high", "correction.reject_high"],
        ),
        (
            Grpo,
            r#"{"correction":{"reject":"k2","reject_low":-1.0,"reject_high":1.0}}"#,
            &["correction.reject_low"],
        ),
        (
            Grpo,
            r#"{"filter":{"max_draws":3},"overlong":{"buffer":4}}"#,
            &["filter.max_draws", "overlong.buffer"],
        ),
        (Grpo, r#"{"entropy_control":{"step":0.1}}"#, &["entropy_control.step"]),
        (
            Grpo,
            r#"{"loss":{"weight_cap":5.0,"tau_positive":1.0,"cov_share":0.1,"divergence_limit":0.1}}"#,
            &["loss.weight_cap", "loss.tau_positive", "loss.cov_share", "loss.divergence_limit"],
        ),
        (
            Method::Gspo,
            r#"{"loss":{"dual_clip":3.0},"loss_aggregation":"token_mean"}"#,
            &["loss.dual_clip", "loss_aggregation"],
        ),
        (
            Method::Ppo,
            r#"{"filter":{"mask_zero_variance":true},"critic":{"coef":0.1}}"#,
            &["filter.mask_zero_variance", "critic.coef"],
        ),
        (Method::Ppo, r#"{"critic":{"backbone":"shared","warmup_batches":3}}"#, &["critic.warmup_batches"]),
        (Method::Topr, r#"{"ratio_to":"behavior","proximal":"recompute"}"#, &["ratio_to", "proximal"]),
        (Method::Cispo, r#"{"loss":{"clip_low":0.2}}"#, &["loss.clip_low"]),
        (ReinforcePp, r#"{"advantage":{"std_epsilon":1e-06}}"#, &["advantage.std_epsilon"]),
        (
            Sft,
            r#"{"group_size":8,"advantage":"rloo","loss":"ppo_clip","epochs":2,"kl":{"coef":0.1}}"#,
            &["group_size", "advantage", "loss", "epochs", "kl.coef"],
        ),
    ];
    for &(method, json, keys) in cases {
        let error = resolve(method, json).expect_err(json);
        assert!(matches!(error, AlgoError::NotRead { .. }), "{json}: {error:?}");
        assert_eq!(error.keys(), keys, "{json}");
    }
    let error = resolve(Rloo, r#"{"loss":{"clip_low":0.1}}"#).unwrap_err();
    assert_eq!(
        error.to_string(),
        "not read by method \"rloo\": loss.clip_low (not a setting of loss \"reinforce\": level)"
    );
    assert_eq!(error.help().unwrap().to_string(), "remove these keys");
    // They become readable with what reads them.
    assert!(resolve(Rloo, r#"{"loss":{"kind":"ppo_clip","clip_low":0.1},"epochs":2}"#).is_ok());
    assert!(resolve(Rloo, r#"{"loss_aggregation":"token_mean","entropy_coef":0.01}"#).is_ok());
    assert!(resolve(Sft, r#"{"loss_aggregation":"sequence_mean"}"#).is_ok());
    assert!(serde_json::from_str::<AlgorithmSettings>(r#"{"clip":0.2}"#).is_err());
    assert!(serde_json::from_str::<AlgorithmSettings>(r#"{"kl":{"beta":0.2}}"#).is_err());
}

/// Unset keys of the KL follow from those that are set.
#[test]
fn kl_is_completed() {
    let kl = |m, json: &str| {
        let a = resolve(m, json).expect(json);
        (a.advantage.expect("an advantage").kl_coef, a.loss.kl)
    };
    let loss = |coef, estimator| (0.0, Some(KlLoss { coef, estimator, ratio: false }));
    assert_eq!(kl(Method::Grpo, r#"{"kl":{"coef":0.04}}"#), loss(0.04, KlEstimator::K3));
    assert_eq!(kl(Method::Grpo, r#"{"kl":{"coef":0.04,"estimator":"k2"}}"#), loss(0.04, KlEstimator::K2));
    assert_eq!(kl(Method::Grpo, r#"{"kl":{"coef":0.04,"estimator":"k1"}}"#), (0.04, None));
    assert_eq!(kl(Method::Grpo, r#"{"kl":{"coef":0.04,"placement":"reward"}}"#), (0.04, None));
    assert_eq!(kl(Method::Rloo, r#"{"kl":{"placement":"loss"}}"#), loss(0.05, KlEstimator::K3));
    assert_eq!(kl(Method::Rloo, r#"{"kl":{"coef":0.0}}"#), (0.0, None));
    assert!(!resolve(Method::Rloo, r#"{"kl":{"coef":0}}"#).unwrap().needs_reference());
}

/// Methods that learn from demonstrations have noise on embeddings; nothing else reads its scale.
#[test]
fn noise_on_embeddings() {
    for method in [Method::Sft, Method::Dft] {
        let algorithm = resolve(method, r#"{"neftune_noise_alpha":5.0}"#).unwrap();
        assert_eq!(algorithm.neftune_noise_alpha, Some(5.0));
        let again = Algorithm::resolve(method, &algorithm.to_settings(), 0).unwrap();
        assert_eq!(again, algorithm);
        for wrong in ["0.0", "-1.0"] {
            let error = resolve(method, &format!("{{\"neftune_noise_alpha\":{wrong}}}"));
            assert_eq!(error.unwrap_err().keys(), ["neftune_noise_alpha"], "{wrong}");
        }
    }
    for method in [Method::Grpo, Method::Dpo, Method::Kto] {
        let error = resolve(method, r#"{"neftune_noise_alpha":5.0}"#).unwrap_err();
        assert_eq!(error.keys(), ["neftune_noise_alpha"]);
        assert!(error.to_string().contains("learn from demonstrations"), "{error}");
    }
}
