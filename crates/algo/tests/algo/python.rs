//! Advantages and losses that are computed elsewhere, in a function of Python.

use rloom_algo::{
    AlgoError, Algorithm, AlgorithmSettings, EpisodeAdvantage, EpisodeRewards, GivenLoss, GlobalCounts,
    GroupRewards, LossBatch, Method, RunningMoments, Text, TokenScores, advantages, policy_loss,
};
use rloom_core::Role;

fn resolve(json: &str) -> Result<Algorithm, AlgoError> {
    Algorithm::resolve(Method::Grpo, &serde_json::from_str(json).unwrap(), 0)
}

const LOSS: &str = r#""loss":{"kind":"python","function":"method.py:loss"}"#;
const ROWS: [std::ops::Range<usize>; 3] = [0..2, 2..3, 3..5];

fn given() -> GivenLoss {
    GivenLoss {
        value: -0.75,
        d_logprob: vec![0.1, -0.2, 0.3, 0.0, 0.0],
        d_entropy: vec![0.0, 0.25, 0.0, 0.0, 0.0],
    }
}

fn batch<'a>(given: Option<&'a GivenLoss>, masked: &'a [bool]) -> LossBatch<'a> {
    LossBatch {
        rows: &ROWS,
        masked,
        advantage: Some(&[1.0; 5]),
        old_logprob: Some(&[-1.0; 5]),
        behavior_logprob: Some(&[-1.0; 5]),
        reference_logprob: Some(&[-1.5; 5]),
        given,
        ..LossBatch::default()
    }
}

fn scores() -> TokenScores {
    TokenScores { logprob: vec![-1.0; 5], entropy: vec![2.0; 5], ..TokenScores::default() }
}

fn counts() -> GlobalCounts {
    GlobalCounts { tokens: 10, sequences: 5, further_segments: 0, completion_limit: 4 }
}

#[test]
fn given_coefficients_are_rounded_and_not_normalised_again() {
    let algorithm = resolve(&format!("{{{LOSS}}}")).unwrap();
    let given = given();
    let grad = policy_loss(&algorithm.loss, &batch(Some(&given), &[]), &scores(), &counts()).unwrap();
    assert_eq!(grad.d_logprob, [0.1, -0.2, 0.3, 0.0, 0.0]);
    assert_eq!(grad.d_entropy, [0.0, 0.25, 0.0, 0.0, 0.0]);
    let metrics = grad
        .terms
        .finish(&GlobalCounts { tokens: 5, sequences: 3, completion_limit: 4, ..GlobalCounts::default() })
        .unwrap();
    assert_eq!(metrics.loss, -0.75);
}

#[test]
fn kl_and_entropy_bonus_of_the_recipe_are_added() {
    let algorithm = resolve(&format!(
        r#"{{{LOSS},"entropy_coef":0.5,"loss_aggregation":"token_mean","kl":{{"coef":2,"estimator":"k2"}}}}"#
    ));
    let given = given();
    let grad =
        policy_loss(&algorithm.unwrap().loss, &batch(Some(&given), &[]), &scores(), &counts()).unwrap();
    // The gradient of k2 is lp − ref = 0.5, times 2, over 10 tokens; the bonus is −0.5 over 10 tokens.
    assert_eq!(grad.d_logprob, [0.2, -0.1, 0.4, 0.1, 0.1]);
    assert_eq!(grad.d_entropy, [-0.05, 0.2, -0.05, -0.05, -0.05]);
}

#[test]
fn masked_rows_get_no_given_coefficients() {
    let algorithm = resolve(&format!("{{{LOSS}}}")).unwrap();
    let given = given();
    let masked = [true, false, false];
    let grad = policy_loss(&algorithm.loss, &batch(Some(&given), &masked), &scores(), &counts()).unwrap();
    assert_eq!(grad.d_logprob, [0.0, 0.0, 0.3, 0.0, 0.0]);
    assert_eq!(grad.d_entropy, [0.0; 5]);
    assert_eq!(algorithm.loss.inert(&batch(Some(&given), &masked)), [true, false, true]);
    let with_kl = resolve(&format!(r#"{{{LOSS},"kl":{{"coef":2,"estimator":"k2"}}}}"#)).unwrap();
    assert_eq!(with_kl.loss.inert(&batch(Some(&given), &masked)), [true, false, false]);
}

#[test]
fn missing_and_odd_coefficients_are_errors() {
    let algorithm = resolve(&format!("{{{LOSS}}}")).unwrap();
    let error = |given: Option<&GivenLoss>| {
        policy_loss(&algorithm.loss, &batch(given, &[]), &scores(), &counts()).unwrap_err().to_string()
    };
    assert_eq!(error(None), "the loss reads the loss coefficient and none was given");
    let short = GivenLoss { d_entropy: vec![0.0; 4], ..given() };
    assert_eq!(error(Some(&short)), "loss coefficient has 4 entries for 5 policy tokens");
    let infinite = GivenLoss { d_logprob: vec![0.0, 0.0, f64::INFINITY, 0.0, 0.0], ..given() };
    assert_eq!(error(Some(&infinite)), "loss coefficient is inf at row 1, policy token 0");
}

#[test]
fn a_function_needs_a_file_and_a_name() {
    for (settings, key) in [
        (r#"{"loss":"python"}"#, "loss.function"),
        (r#"{"loss":{"kind":"python","function":"method.py"}}"#, "loss.function"),
        (r#"{"loss":{"kind":"python","function":"method:loss"}}"#, "loss.function"),
        (r#"{"advantage":{"kind":"python","function":"method.py:"}}"#, "advantage.function"),
    ] {
        let error = resolve(settings).unwrap_err();
        assert_eq!(error.keys(), [key], "{settings}");
    }
    for name in ["method.py:loss", "/a:b/method.py:Methods.loss", "caller:loss"] {
        assert!(resolve(&format!(r#"{{"loss":{{"kind":"python","function":"{name}"}}}}"#)).is_ok(), "{name}");
    }
}

#[test]
fn functions_keep_their_settings_and_are_renamed_in_all_of_them() {
    let json = r#"{"advantage":{"kind":"python","function":"a.py:f","python":"py","timeout_seconds":3},
                   "loss":{"kind":"python","function":"b.py:g","reference":true}}"#;
    let mut algorithm = resolve(json).unwrap();
    assert!(algorithm.needs_reference());
    algorithm.rename_functions(|name| format!("/x/{name}"));
    let advantage = algorithm.advantage_function().unwrap();
    assert_eq!((advantage.function.as_str(), advantage.python.as_str()), ("/x/a.py:f", "py"));
    assert_eq!(advantage.timeout_seconds, 3.0);
    let loss = algorithm.loss_function().unwrap();
    assert_eq!((loss.function.as_str(), loss.python.as_str()), ("/x/b.py:g", "python3"));
    let text = serde_json::to_string(&algorithm.to_settings()).unwrap();
    let settings: AlgorithmSettings = serde_json::from_str(&text).unwrap();
    assert_eq!(Algorithm::resolve(Method::Grpo, &settings, 0).unwrap(), algorithm);
    assert!(resolve("{}").unwrap().loss_function().is_none());
}

#[test]
fn equal_texts_are_one() {
    let (a, b) = (Text::new(&"ab".repeat(3)), Text::new("ababab"));
    assert!(std::ptr::eq(a.as_str(), b.as_str()));
}

const ADVANTAGE: &str = r#"{"advantage":{"kind":"python","function":"method.py:advantage"},"group_size":1}"#;

#[test]
fn given_advantages_are_one_for_an_episode_or_one_for_a_token() {
    let spec = resolve(ADVANTAGE).unwrap().advantage.unwrap();
    let episodes = vec![
        EpisodeRewards { given: &[0.1], ..EpisodeRewards::new(Some(1.0), 3) },
        EpisodeRewards { given: &[1.0, 2.0, -3.0], ..EpisodeRewards::new(Some(0.0), 3) },
        EpisodeRewards { given: &[9.0], ..EpisodeRewards::new(None, 3) },
        EpisodeRewards { role: Role::Baseline, ..EpisodeRewards::new(Some(1.0), 3) },
    ];
    let found = advantages(&spec, &RunningMoments::default(), &[GroupRewards { episodes }]).unwrap();
    assert_eq!(
        found.episodes,
        [vec![
            EpisodeAdvantage::Constant(0.1),
            EpisodeAdvantage::PerToken(vec![1.0, 2.0, -3.0]),
            EpisodeAdvantage::Constant(0.0),
            EpisodeAdvantage::Constant(0.0),
        ]]
    );
}

#[test]
fn given_advantages_fit_their_episode_and_are_finite() {
    let spec = resolve(ADVANTAGE).unwrap().advantage.unwrap();
    let error = |given: &[f64]| {
        let episodes = vec![EpisodeRewards { given, ..EpisodeRewards::new(Some(1.0), 3) }];
        let groups = [GroupRewards { episodes }];
        advantages(&spec, &RunningMoments::default(), &groups).unwrap_err().to_string()
    };
    assert_eq!(
        error(&[1.0, 2.0]),
        "group 0, episode 0: 2 advantage entries for 3 policy tokens, and the advantage reads them all"
    );
    assert_eq!(
        error(&[]),
        "group 0, episode 0: 0 advantage entries for 3 policy tokens, and the advantage reads them all"
    );
    assert_eq!(error(&[f64::NAN]), "advantage is NaN in group 0, episode 0");
}

#[test]
fn a_function_may_filter_groups() {
    let mut algorithm = resolve(r#"{"filter":{"function":"a.py:keep","timeout_seconds":2}}"#).unwrap();
    assert!(algorithm.filters.replaces_groups());
    assert_eq!(algorithm.filters.max_draws, 10);
    // Only the function decides: outcomes that are equal or missing replace nothing.
    assert_eq!(algorithm.filters.verdict(&[Some(1.0), Some(1.0)], &[None, None]), None);
    assert_eq!(algorithm.filters.verdict(&[None, None], &[None, None]), None);
    algorithm.rename_functions(|name| format!("/x/{name}"));
    let function = algorithm.filters.function.unwrap();
    assert_eq!((function.function.as_str(), function.timeout_seconds), ("/x/a.py:keep", 2.0));
    assert_eq!(Algorithm::resolve(Method::Grpo, &algorithm.to_settings(), 0).unwrap(), algorithm);
    assert_eq!(resolve(r#"{"filter":{"function":"a.py"}}"#).unwrap_err().keys(), ["filter.function"]);
    let unread = resolve(r#"{"filter":{"python":"python3.12"}}"#).unwrap_err();
    assert_eq!(unread.keys(), ["filter.python"]);
    assert!(unread.to_string().contains("filter.function is not set"), "{unread}");
}
