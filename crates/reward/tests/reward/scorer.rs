//! Components and their verdicts.

#![expect(clippy::unwrap_used, reason = "test helpers may panic")]

use miette::Diagnostic;
use rloom_core::{
    Author, PromptSource, Rewards, SampleKey, Span, StepReward, StopReason, Task, Ticket, Trajectory,
};
use rloom_reward::{
    Countdown, CurrentComponent, EnvironmentReward, Exact, Extract, Judged, Kind, Math, Numeric, Random,
    RewardError, RewardSettings, Scorer, Truncated,
};

fn settings(json: &str) -> Result<RewardSettings, String> {
    serde_json::from_str(json).map_err(|e| e.to_string())
}

fn error_of(json: &str) -> String {
    match settings(json) {
        Ok(settings) => settings.validate().unwrap_err().to_string(),
        Err(error) => error,
    }
}

fn task(answer: &str) -> Task {
    Task {
        index: 7,
        prompt: PromptSource::Text("p".into()),
        answer: answer.into(),
        demonstration: None,
        domain: "d".into(),
        extra: std::sync::Arc::default(),
    }
}

/// A trajectory of three prompt tokens and `tokens` policy tokens.
fn trajectory(tokens: usize, stop: StopReason, sample: u32) -> Trajectory {
    let span = Span::new;
    Trajectory {
        key: SampleKey { ticket: Ticket(11), sample, segment: 0 },
        agent: None,
        tokens: vec![0; 3 + tokens],
        spans: vec![span(Author::Prompt, 0..3), span(Author::Policy, 3..3 + tokens)],
        logprobs: vec![-1.0; tokens],
        versions: Vec::new(),
        stop,
        attachments: Vec::new(),
    }
}

fn episode<'a>(task: &'a Task, trajectory: &'a Trajectory, text: &'a str) -> Judged<'a> {
    Judged { task, segments: std::slice::from_ref(trajectory), text, transcript: "", prompt: "" }
}

fn score(kind: Kind, answer: &str, text: &str) -> Rewards {
    let scorer = Scorer::new(&RewardSettings::single(kind), 1, 0).unwrap();
    scorer
        .score(
            &episode(&task(answer), &trajectory(5, StopReason::StopToken, 0), text),
            &CurrentComponent::default(),
        )
        .unwrap()
}

fn outcome(kind: Kind, answer: &str, text: &str) -> (Option<f64>, bool, bool) {
    let rewards = score(kind, answer, text);
    (rewards.total(), rewards.solved.unwrap(), rewards.parsed.unwrap())
}

#[test]
fn exact_answers() {
    let exact = || Kind::Exact(Exact::default());
    assert_eq!(outcome(exact(), "132", " 132\n"), (Some(1.0), true, true));
    assert_eq!(outcome(exact(), "132", "132.0"), (Some(0.0), false, true));
    assert_eq!(outcome(exact(), "132", ""), (Some(0.0), false, false));
    assert_eq!(outcome(exact(), "Yes", "yes"), (Some(0.0), false, true));
    let loose =
        Exact { ignore_case: true, extract: vec![Extract::Hashes, Extract::Whole], ..Exact::default() };
    assert_eq!(outcome(Kind::Exact(loose.clone()), "Yes", "so\n#### YES"), (Some(1.0), true, true));
    assert_eq!(outcome(Kind::Exact(loose), "Yes", "yes"), (Some(1.0), true, true));
}

#[test]
fn numbers_in_the_arithmetic_recipe() {
    let numeric = || Kind::Numeric(Numeric { extract: vec![Extract::Whole], ..Numeric::default() });
    assert_eq!(outcome(numeric(), "132", "132"), (Some(1.0), true, true));
    assert_eq!(outcome(numeric(), "132", "133"), (Some(0.0), false, true));
    assert_eq!(outcome(numeric(), "132", "13+2"), (Some(0.0), false, false));
    assert_eq!(outcome(numeric(), "132", "100+32"), (Some(0.0), false, false));
    assert_eq!(outcome(numeric(), "132", "132=132"), (Some(1.0), true, true));
    assert_eq!(outcome(numeric(), "-38", "-38"), (Some(1.0), true, true));
    assert_eq!(outcome(numeric(), "132", "x"), (Some(0.0), false, false));
    let near = Kind::Numeric(Numeric { tolerance: 1e-3, ..Numeric::default() });
    assert_eq!(outcome(near.clone(), "3.14159", "#### 3.1416"), (Some(1.0), true, true));
    assert_eq!(outcome(near, "3.14159", "#### 3.15"), (Some(0.0), false, true));
}

#[test]
fn mathematical_answers() {
    let math = || Kind::Math(Math::default());
    assert_eq!(outcome(math(), r"\frac{1}{2}", r"so \boxed{0.5}"), (Some(1.0), true, true));
    assert_eq!(outcome(math(), r"\frac{1}{2}", r"so \boxed{2}"), (Some(0.0), false, true));
    assert_eq!(outcome(math(), r"\frac{1}{2}", "it is one half"), (Some(0.0), false, false));
}

#[test]
fn countdown_accepts_every_correct_expression() {
    let countdown = || Kind::Countdown(Countdown { partial: 0.1, ..Countdown::default() });
    for answer in ["(8-3)*7", "3, 7, 8 = 35", "3 7 8 = 35"] {
        for (text, value, solved, parsed) in [
            ("(8-3)*7", 1.0, true, true),
            ("7*(8-3)", 1.0, true, true),
            ("<think>8-3=5</think><answer>7 * (8 - 3)</answer>", 1.0, true, true),
            ("\\boxed{7 \\times (8-3)}", 1.0, true, true),
            ("7*(8-3) = 35", 1.0, true, true),
            // A wrong claimed value does not change the expression.
            ("7*(8-3) = 36", 1.0, true, true),
            // The target itself; missing, additional and repeated numbers.
            ("35", 0.0, false, true),
            ("5*7", 0.0, false, true),
            ("(8-3)*7*1", 0.0, false, true),
            ("(8-3)*7+3-3", 0.0, false, true),
            ("78-3", 0.0, false, true),
            ("8*7-3", 0.1, false, true),
            ("8/(3-3)", 0.0, false, true),
            ("(8-3)*7%", 0.0, false, false),
            ("(8-3)^7", 0.0, false, false),
            ("8x-3", 0.0, false, false),
            ("I give up", 0.0, false, false),
        ] {
            assert_eq!(
                outcome(countdown(), answer, text),
                (Some(value), solved, parsed),
                "{text} for {answer}"
            );
        }
    }
    // Exact arithmetic: thirds cancel to an integer.
    assert_eq!(outcome(countdown(), "8/(3-8/3)", "8/(3-8/3)"), (Some(1.0), true, true));
    assert_eq!(outcome(countdown(), "8/(3-8/3)", "(3-8/3)*8"), (Some(0.1), false, true));
}

#[test]
fn step_rewards_are_summed_and_success_in_the_last_turn_solves() {
    let scorer = Scorer::new(&RewardSettings::single(Kind::Environment(EnvironmentReward {})), 1, 0).unwrap();
    let judged = |rewards: &[f64]| {
        let mut trajectory = trajectory(5, StopReason::StopToken, 0);
        let steps = rewards.iter().enumerate().map(|(i, &reward)| {
            let end = if i + 1 == rewards.len() { 8 } else { 4 + i };
            let step = Some(StepReward { reward, state: None });
            Span { step, ..Span::new(Author::Policy, 3 + i..end) }
        });
        let steps: Vec<Span> = steps.collect();
        trajectory.spans.truncate(1);
        trajectory.spans.extend(steps);
        trajectory.validate().unwrap();
        let rewards =
            scorer.score(&episode(&task(""), &trajectory, "1 2"), &CurrentComponent::default()).unwrap();
        (rewards.total(), rewards.solved, rewards.parsed)
    };
    assert_eq!(judged(&[0.0, -0.25, 1.0]), (Some(0.75), Some(true), None));
    assert_eq!(judged(&[1.0]), (Some(1.0), Some(true), None));
    // Only a reward of at least 1 in the last turn solves the task.
    assert_eq!(judged(&[1.0, 0.0]), (Some(1.0), Some(false), None));
    assert_eq!(judged(&[0.5, 0.75]), (Some(1.25), Some(false), None));
    // Missing step rewards are an error, unless there was no turn.
    let error = scorer
        .score(
            &episode(&task(""), &trajectory(5, StopReason::StopToken, 0), "1"),
            &CurrentComponent::default(),
        )
        .unwrap_err();
    assert!(error.to_string().ends_with("the environment gave no step rewards"), "{error}");
    assert!(error.help().is_some());
    let aborted = scorer
        .score(&episode(&task(""), &trajectory(0, StopReason::Aborted, 0), ""), &CurrentComponent::default())
        .unwrap();
    assert_eq!((aborted.total(), aborted.solved), (Some(0.0), Some(false)));
}

#[test]
fn unreadable_references_are_errors() {
    let fails = |kind: Kind, answer: &str| {
        let scorer = Scorer::new(&RewardSettings::single(kind), 1, 0).unwrap();
        let error = scorer
            .score(
                &episode(&task(answer), &trajectory(5, StopReason::StopToken, 4), "18"),
                &CurrentComponent::default(),
            )
            .unwrap_err();
        assert!(matches!(error, RewardError::Failed { .. }));
        assert!(error.help().is_some(), "{error}");
        error.to_string()
    };
    let error = fails(Kind::Numeric(Numeric::default()), "eighteen");
    assert!(error.starts_with("reward `numeric` failed on sample 11/4: "), "{error}");
    assert!(error.contains("the reference answer \"eighteen\" of task 7 is not a number"), "{error}");
    assert!(fails(Kind::Exact(Exact::default()), " ").contains("task 7 has no reference answer"));
    assert!(
        fails(Kind::Countdown(Countdown::default()), "x+1").contains("is not an expression of numbers or")
    );
}

#[test]
fn sums_are_weighted_and_the_first_verifier_is_the_outcome() {
    let settings = settings(
        r#"{"components": [
            {"kind": "format", "pattern": "<answer>*</answer>", "weight": 0.25},
            {"kind": "numeric", "name": "correct", "weight": 2},
            {"kind": "exact", "name": "literal", "weight": 0}
        ]}"#,
    )
    .unwrap();
    let scorer = Scorer::new(&settings, 1, 0).unwrap();
    assert_eq!(scorer.names().collect::<Vec<_>>(), ["format", "correct", "literal"]);
    let rewards = scorer
        .score(
            &episode(&task("18"), &trajectory(5, StopReason::StopToken, 0), "<answer>18</answer>"),
            &CurrentComponent::default(),
        )
        .unwrap();
    let values: Vec<_> = rewards.components.iter().map(|c| (c.name.as_str(), c.weight, c.value())).collect();
    assert_eq!(
        values,
        [("format", 0.25, Some(1.0)), ("correct", 2.0, Some(1.0)), ("literal", 0.0, Some(0.0))]
    );
    assert_eq!((rewards.total(), rewards.solved, rewards.parsed), (Some(2.25), Some(true), Some(true)));
    // `outcome` selects another verifier; shaping alone has no outcome.
    let named = RewardSettings { outcome: Some("literal".into()), ..settings };
    let rewards = Scorer::new(&named, 1, 0).unwrap();
    let rewards = rewards
        .score(
            &episode(&task("18"), &trajectory(5, StopReason::StopToken, 0), "<answer>18</answer>"),
            &CurrentComponent::default(),
        )
        .unwrap();
    assert_eq!(rewards.solved, Some(false));
    let shaping = score(Kind::Random(Random::default()), "18", "18");
    assert_eq!((shaping.solved, shaping.parsed), (None, None));
}

#[test]
fn truncated_completions_can_be_made_to_fail() {
    for (truncated, solved) in [(Truncated::Judge, true), (Truncated::Fail, false)] {
        let kind = Kind::Numeric(Numeric { truncated, ..Numeric::default() });
        let scorer = Scorer::new(&RewardSettings::single(kind), 1, 0).unwrap();
        for (stop, expected) in [(StopReason::Length, solved), (StopReason::StopToken, true)] {
            let rewards = scorer
                .score(
                    &episode(&task("18"), &trajectory(5, stop, 0), "#### 18"),
                    &CurrentComponent::default(),
                )
                .unwrap();
            assert_eq!((rewards.solved, rewards.parsed), (Some(expected), Some(true)));
            assert_eq!(rewards.total(), Some(f64::from(u8::from(expected))));
        }
    }
}

fn by_length(json: &str, lengths: &[usize]) -> Vec<f64> {
    let settings = settings(json).unwrap();
    let scorer = Scorer::new(&settings, 1, 0).unwrap();
    let value = |&n: &usize| {
        scorer
            .score(
                &episode(&task("1"), &trajectory(n, StopReason::Length, 0), "1"),
                &CurrentComponent::default(),
            )
            .unwrap()
            .total()
            .unwrap()
    };
    lengths.iter().map(value).collect()
}

#[test]
fn length_fades_on_both_sides() {
    let json = r#"{"components": [{"kind": "length", "min_tokens": 4, "max_tokens": 6, "fade": 1}]}"#;
    assert_eq!(by_length(json, &[2, 3, 4, 6, 7, 8, 100]), [0.0, 0.5, 1.0, 1.0, 0.5, 0.0, 0.0]);
    let json = r#"{"components": [{"kind": "length", "max_tokens": 6}]}"#;
    assert_eq!(by_length(json, &[1, 6, 7]), [1.0, 1.0, 0.0]);
}

#[test]
fn random_rewards_repeat_and_do_not_look_at_the_completion() {
    let draw = |seed: u64, stage: u32, text: &str| -> Vec<f64> {
        let scorer =
            Scorer::new(&RewardSettings::single(Kind::Random(Random::default())), seed, stage).unwrap();
        let value = |n: u32| {
            scorer
                .score(
                    &episode(&task("1"), &trajectory(2, StopReason::StopToken, n), text),
                    &CurrentComponent::default(),
                )
                .unwrap()
                .total()
                .unwrap()
        };
        (0..2000).map(value).collect()
    };
    let first = draw(1, 0, "right");
    assert_eq!(first, draw(1, 0, "wrong"));
    assert_ne!(first, draw(2, 0, "right"));
    assert_ne!(first, draw(1, 1, "right"));
    // Standard deviation of the mean: 0.011.
    let mean = first.iter().sum::<f64>() / 2000.0;
    assert!((mean - 0.5).abs() < 0.05, "{mean}");
    for (probability, value) in [(0.0, 0.0), (1.0, 1.0)] {
        assert_eq!(score(Kind::Random(Random { probability }), "1", "1").total(), Some(value));
    }
}

#[test]
fn settings_round_trip_with_every_default() {
    let json = r#"{"components": [{"kind": "math"}, {"kind": "length", "max_tokens": 9}, {"kind": "format", "pattern": "*x"},
        {"kind": "exact"}, {"kind": "numeric"}, {"kind": "countdown"}, {"kind": "random", "weight": 0},
        {"kind": "environment"}], "on_error": "drop"}"#;
    let read = settings(json).unwrap();
    read.validate().unwrap();
    let written = serde_json::to_string(&read).unwrap();
    assert_eq!(settings(&written).unwrap(), read);
    assert!(!written.contains("null"));
    assert_eq!(
        serde_json::to_string(&settings(r#"{"components": [{"kind": "math"}]}"#).unwrap()).unwrap(),
        r#"{"components":[{"kind":"math","name":"math","weight":1.0,"extract":["boxed","hashes","answer_tag","answer_is","formula"],"tolerance":0.0,"truncated":"judge"}],"retries":3,"on_error":"fatal","timeout_seconds":60.0}"#
    );
}

#[test]
fn invalid_settings_are_errors() {
    for (json, expected) in [
        (r#"{"components": []}"#, "`components`: the list is empty"),
        (r#"{"components": [{"kind": "maths"}]}"#, "unknown variant `maths`, expected one of `exact`"),
        (
            r#"{"components": [{"kind": "math", "pattern": "x"}]}"#,
            "unknown field `pattern`, expected one of `extract`",
        ),
        (
            r#"{"components": [{"kind": "math", "wieght": 1}]}"#,
            "unknown field `wieght`, expected one of `kind`",
        ),
        (r#"{"components": [{"kind": "length"}]}"#, "missing field `max_tokens`"),
        (
            r#"{"components": [{"kind": "math"}, {"kind": "math"}]}"#,
            "`components`: the name `math` occurs more than once",
        ),
        (r#"{"components": [{"kind": "math", "name": "a b"}]}"#, "`name`: \"a b\" is not a valid name"),
        (
            r#"{"components": [{"kind": "math", "extract": []}]}"#,
            "component `math`: `extract`: the list is empty",
        ),
        (
            r#"{"components": [{"kind": "math", "extract": ["boxed", "boxed"]}]}"#,
            "component `math`: `extract`: lists `boxed` more than once",
        ),
        (
            r#"{"components": [{"kind": "math", "tolerance": 1}]}"#,
            "component `math`: `tolerance`: must be at least 0 and below 1, but is 1",
        ),
        (
            r#"{"components": [{"kind": "countdown", "partial": -0.1}]}"#,
            "component `countdown`: `partial`: must be at least 0 and below 1, but is -0.1",
        ),
        (
            r#"{"components": [{"kind": "format", "pattern": "*"}]}"#,
            "component `format`: `pattern`: \"*\" matches every",
        ),
        (
            r#"{"components": [{"kind": "length", "max_tokens": 2, "min_tokens": 3}]}"#,
            "component `length`: `max_tokens`: must be at least 3, but is 2",
        ),
        (
            r#"{"components": [{"kind": "random", "probability": 2}]}"#,
            "component `random`: `probability`: must be between 0 and 1, but is 2",
        ),
        (
            r#"{"components": [{"kind": "math"}], "max_dropped": 0.1}"#,
            "`max_dropped` has no effect with `on_error = \"fatal\"`",
        ),
        (
            r#"{"components": [{"kind": "math"}], "on_error": "drop", "max_dropped": 1}"#,
            "`max_dropped`: must be at least 0 and below 1, but is 1",
        ),
        (r#"{"components": [{"kind": "math"}], "outcome": "x"}"#, "`outcome`: no component is named `x`"),
        (
            r#"{"components": [{"kind": "random"}], "outcome": "random"}"#,
            "`outcome`: `random` is not a verifier",
        ),
    ] {
        let error = error_of(json);
        assert!(error.starts_with(expected), "{json}: {error}");
    }
}

#[test]
fn the_schema_documents_the_keys_of_every_kind() {
    let schema = serde_json::to_string(&schemars::schema_for!(RewardSettings)).unwrap();
    for key in
        ["timeout_seconds", "weight", "tolerance", "ignore_case", "pattern", "max_tokens", "probability"]
    {
        assert!(schema.contains(&format!("\"{key}\":")), "{key} is missing: {schema}");
    }
}
