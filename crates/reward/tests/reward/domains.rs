//! Routing of tasks to components by their domain.

#![expect(clippy::unwrap_used, reason = "test helpers may panic")]

use rloom_core::{
    Author, PromptSource, RewardComponent, Rewards, SampleKey, Span, StopReason, Task, Trajectory,
};
use rloom_reward::{CurrentComponent, DomainSet, Judged, RewardSettings, Scorer};

fn settings(json: &str) -> RewardSettings {
    serde_json::from_str(json).unwrap()
}

/// Text, numbers and lengths: `numeric` for two domains, `exact` for a third, `length` for all.
const ROUTED: &str = r#"{ "components": [
    { "kind": "numeric", "domains": ["math", "gsm8k"] },
    { "kind": "exact", "domains": ["words"], "weight": 3.0 },
    { "kind": "length", "weight": 0.5, "max_tokens": 100 }
] }"#;

fn score(settings: &RewardSettings, domain: &str, answer: &str, text: &str) -> Rewards {
    let task = Task {
        index: 0,
        prompt: PromptSource::Text("p".into()),
        answer: answer.into(),
        demonstration: None,
        domain: domain.into(),
        extra: std::sync::Arc::default(),
    };
    let trajectory = Trajectory {
        key: SampleKey::default(),
        agent: None,
        tokens: vec![0; 4],
        spans: vec![Span::new(Author::Prompt, 0..1), Span::new(Author::Policy, 1..4)],
        logprobs: vec![-1.0; 3],
        versions: Vec::new(),
        stop: StopReason::StopToken,
        attachments: Vec::new(),
    };
    let judged =
        Judged { task: &task, segments: std::slice::from_ref(&trajectory), text, transcript: "", prompt: "" };
    Scorer::new(settings, 1, 0).unwrap().score(&judged, &CurrentComponent::default()).unwrap()
}

fn values(rewards: &Rewards) -> Vec<Option<f64>> {
    rewards.components.iter().map(RewardComponent::value).collect()
}

#[test]
fn components_judge_their_domains_alone() {
    let settings = settings(ROUTED);
    settings.validate().unwrap();
    // "2.0" is the number, but not the text.
    let math = score(&settings, "gsm8k", "2", "2.0");
    assert_eq!((values(&math), math.solved), (vec![Some(1.0), None, Some(1.0)], Some(true)));
    assert_eq!(math.total(), Some(1.5));
    let words = score(&settings, "words", "2", "2.0");
    assert_eq!((values(&words), words.solved), (vec![None, Some(0.0), Some(1.0)], Some(false)));
    // Not applicable is not 0: the outcome is open.
    let poems = score(&settings, "poems", "2", "2.0");
    assert_eq!((values(&poems), poems.solved, poems.parsed), (vec![None, None, Some(1.0)], None, None));
}

#[test]
fn the_named_outcome_gives_way_where_it_does_not_apply() {
    let settings = settings(
        r#"{ "outcome": "words", "components": [
            { "kind": "numeric" }, { "kind": "exact", "name": "words", "domains": ["words"] }
        ] }"#,
    );
    assert_eq!(settings.outcome_of("words").unwrap().name, "words");
    assert_eq!(settings.outcome_of("math").unwrap().name, "numeric");
    assert_eq!(score(&settings, "words", "2", "2.0").solved, Some(false));
    assert_eq!(score(&settings, "math", "2", "2.0").solved, Some(true));
}

#[test]
fn domains_are_part_of_the_settings() {
    let settings = settings(ROUTED);
    let text = serde_json::to_string(&settings).unwrap();
    assert_eq!(serde_json::from_str::<RewardSettings>(&text).unwrap(), settings);
    assert!(text.matches("domains").count() == 2, "{text}");
    assert!(settings.judges("poems") && settings.verified().contains("words"));
    assert!(!settings.verified().contains("poems"));
    assert_eq!(settings.named_domains().into_iter().collect::<Vec<_>>(), ["gsm8k", "math", "words"]);
    assert_eq!((settings.answer_reader("math"), settings.answer_reader("poems")), (Some("numeric"), None));
    let mut none = settings;
    none.components[0].domains = DomainSet::none();
    assert!(none.validate().unwrap_err().to_string().contains("`domains` of `numeric`: the list is empty"));
}
