//! Judges, against a server that does what the test says.

#![expect(clippy::unwrap_used, reason = "test helpers may panic")]

mod calibrating;
mod critics;
mod groups;
mod hostile;
mod requests;
mod server;
mod settings;

use rloom_core::{Author, PromptSource, Rewards, SampleKey, Span, StopReason, Task, Ticket, Trajectory};
use rloom_reward::judge::{JudgeModel, JudgeModels, ModelError};
use rloom_reward::{CurrentComponent, Judged, RewardError, RewardSettings, Scorer};
use serde_json::{Value, json};

/// A component for a server, with further keys.
fn component(url: &str, keys: &Value) -> Value {
    let mut component = json!({ "kind": "judge", "model": "m", "url": url });
    for (key, value) in keys.as_object().unwrap() {
        component[key] = value.clone();
    }
    component
}

fn settings(component: &Value) -> RewardSettings {
    let recipe = json!({ "components": [component], "retries": 1 });
    let settings: RewardSettings = serde_json::from_value(recipe).unwrap();
    settings.validate().unwrap();
    settings
}

fn scorer(component: &Value) -> Scorer {
    Scorer::new(&settings(component), 0, 0).unwrap()
}

fn task(answer: &str) -> Task {
    let extra = json!({ "guide": "Look at the units." });
    Task {
        index: 7,
        prompt: PromptSource::Text("What is 1+1?".into()),
        answer: answer.into(),
        demonstration: None,
        domain: "d".into(),
        extra: std::sync::Arc::new(extra.as_object().unwrap().clone()),
    }
}

fn trajectory(sample: u32) -> Trajectory {
    Trajectory {
        key: SampleKey { ticket: Ticket(11), sample, segment: 0 },
        agent: None,
        tokens: vec![0; 4],
        spans: vec![Span::new(Author::Prompt, 0..3), Span::new(Author::Policy, 3..4)],
        logprobs: vec![-1.0],
        versions: Vec::new(),
        stop: StopReason::StopToken,
        attachments: Vec::new(),
    }
}

/// The rewards of responses to one task.
fn rewards(scorer: &Scorer, answer: &str, texts: &[&str]) -> Result<Vec<Rewards>, RewardError> {
    let (task, current) = (task(answer), CurrentComponent::default());
    let trajectories: Vec<Trajectory> = (0..texts.len()).map(|n| trajectory(n as u32)).collect();
    let both = trajectories.iter().zip(texts);
    let judged: Vec<Judged<'_>> = both
        .map(|(trajectory, text)| Judged {
            task: &task,
            segments: std::slice::from_ref(trajectory),
            text,
            transcript: "",
            prompt: "",
        })
        .collect();
    let mut rewards = judged.iter().map(|one| scorer.score(one, &current)).collect::<Result<Vec<_>, _>>()?;
    if scorer.judges_groups() {
        scorer.score_group(&judged, &mut rewards, &current)?;
    }
    Ok(rewards)
}

fn values(scorer: &Scorer, answer: &str, texts: &[&str]) -> Result<Vec<Option<f64>>, String> {
    let rewards = rewards(scorer, answer, texts).map_err(|error| error.to_string())?;
    Ok(rewards.iter().map(|rewards| rewards.components[0].value()).collect())
}

/// No model of this process can be opened.
struct NoModels;

impl JudgeModels for NoModels {
    fn open(
        &self,
        model: &str,
        _timeout: std::time::Duration,
    ) -> Result<std::sync::Arc<dyn JudgeModel>, ModelError> {
        Err(ModelError::Embedded { model: model.to_owned(), reason: "there is none".to_owned() })
    }
}
