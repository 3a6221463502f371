//! Rewards that agents report, as step rewards of what they sampled.

use rloom_core::{Author, StepReward, Trajectory};
use rloom_serve::SessionReward;

/// Adds the rewards of a session to its last turn; those of its calls are step rewards already. With any reward, every turn has
/// a step reward.
pub(crate) fn add_rewards(segments: &mut [Trajectory], rewards: &[SessionReward]) {
    if rewards.is_empty() {
        return;
    }
    let spans = segments.iter_mut().flat_map(|segment| &mut segment.spans);
    let mut last = None;
    for span in spans.filter(|span| span.author == Author::Policy) {
        last = Some(span.step.get_or_insert(StepReward { reward: 0.0, state: None }));
    }
    if let Some(step) = last {
        let of_session = rewards.iter().filter(|reward| reward.call.is_none());
        step.reward += of_session.map(|reward| reward.value).sum::<f64>();
    }
}

#[cfg(test)]
mod tests {
    use rloom_core::{SampleKey, Span, StopReason};

    use super::*;

    fn segment(steps: [Option<f64>; 2]) -> Trajectory {
        let step = |reward: Option<f64>| reward.map(|reward| StepReward { reward, state: None });
        Trajectory {
            key: SampleKey::default(),
            tokens: vec![1, 2, 3, 4],
            spans: vec![
                Span::new(Author::Prompt, 0..1),
                Span { step: step(steps[0]), ..Span::new(Author::Policy, 1..2) },
                Span::new(Author::Environment, 2..3),
                Span { step: step(steps[1]), ..Span::new(Author::Policy, 3..4) },
            ],
            logprobs: vec![-1.0; 2],
            versions: Vec::new(),
            stop: StopReason::StopToken,
            attachments: Vec::new(),
            agent: None,
        }
    }

    fn reward(value: f64, call: Option<&str>) -> SessionReward {
        SessionReward { name: "reward".to_owned(), value, call: call.map(str::to_owned), agent: None }
    }

    fn steps(segments: &[Trajectory]) -> Vec<f64> {
        segments.iter().flat_map(Trajectory::steps).map(|step| step.reward).collect()
    }

    #[test]
    fn rewards_of_a_session_belong_to_its_last_turn() {
        let mut segments = [segment([None, Some(0.5)]), segment([None; 2])];
        add_rewards(&mut segments, &[reward(0.5, Some("call")), reward(1.0, None), reward(-0.25, None)]);
        assert_eq!(steps(&segments), [0.0, 0.5, 0.0, 0.75]);
    }

    #[test]
    fn a_session_without_rewards_has_no_step_rewards() {
        let mut segments = [segment([None; 2])];
        add_rewards(&mut segments, &[]);
        assert_eq!(steps(&segments), [0.0; 0]);
    }
}
