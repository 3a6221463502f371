//! Reward models: what their losses read of a batch, and how well their judgements are calibrated.

use rloom_algo::{LossInputs, RewardLoss, RewardModelSpec, StepLabel, TokenScores};
use rloom_core::{Author, Group, MARGIN, Role, Trajectory};
use rloom_engine::TrainError;

use crate::preference::labels;
use crate::rows::{Member, members};
use crate::{BatchScores, BatchTrainer};

/// Bins of a calibration curve.
const BINS: usize = 10;

/// Judgements of similar confidence on held-out rows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CalibrationBin {
    /// Mean predicted probability.
    pub predicted: f64,
    /// Fraction of the judgements for which it came true.
    pub observed: f64,
    /// Number of judgements.
    pub count: u64,
}

/// Returns the margin of each trained trajectory; empty if the data has none.
pub(crate) fn margins(groups: &[Group]) -> Vec<f32> {
    let mut margins = Vec::new();
    let mut has_any = false;
    for episode in groups.iter().flat_map(|group| &group.episodes).filter(|e| e.role == Role::Train) {
        let margin = episode.rewards.metrics.get(MARGIN);
        has_any |= margin.is_some();
        let margin = margin.copied().unwrap_or_default() as f32;
        margins.extend(std::iter::repeat_n(margin, episode.segments.len()));
    }
    if has_any { margins } else { Vec::new() }
}

/// Returns the labelled steps of a trajectory.
pub(crate) fn step_labels(trajectory: &Trajectory) -> Vec<StepLabel> {
    let (mut end, mut labels) = (0, Vec::new());
    for span in trajectory.spans.iter().filter(|span| span.author == Author::Policy) {
        end += span.range.len();
        if let Some(step) = &span.step {
            labels.push(StepLabel { end, is_right: step.reward > 0.5 });
        }
    }
    labels
}

impl BatchTrainer {
    /// Adds what the loss of a reward model reads of the groups.
    pub(crate) fn add_reward_labels(
        &self,
        groups: &[Group],
        known: &mut BatchScores,
    ) -> Result<(), TrainError> {
        match self.algorithm.reward_model {
            None => {}
            Some(RewardModelSpec::Sequence { .. }) => {
                known.labels = labels(groups)?;
                known.margins = margins(groups);
            }
            Some(RewardModelSpec::Process) => {
                known.steps = members(groups).iter().map(|m| step_labels(m.trajectory)).collect();
            }
        }
        Ok(())
    }

    /// The loss of an optimiser step on `members`.
    pub(crate) fn reward_loss(spec: RewardModelSpec, members: &[Member<'_>]) -> RewardLoss {
        let steps = |member: &Member<'_>| step_labels(member.trajectory).len() as u64;
        match spec {
            RewardModelSpec::Sequence { center } => RewardLoss::Pairs { center },
            RewardModelSpec::Process => RewardLoss::Steps { steps: members.iter().map(steps).sum() },
        }
    }
}

/// Predicted probabilities, and whether they came true: of pairs, that the completion with the higher reward is the chosen one;
/// of steps, that the step is right.
pub(crate) fn judgements(
    spec: RewardModelSpec,
    inputs: &[LossInputs],
    scores: &[TokenScores],
) -> Vec<(f64, bool)> {
    let mut judged = Vec::new();
    for (inputs, scores) in inputs.iter().zip(scores) {
        match spec {
            RewardModelSpec::Sequence { .. } => {
                for pair in scores.last_value.chunks_exact(2) {
                    let difference = f64::from(pair[0]) - f64::from(pair[1]);
                    judged.push((sigmoid(difference.abs()), difference > 0.0));
                }
            }
            RewardModelSpec::Process => {
                for (row, (range, labels)) in inputs.rows.iter().zip(&inputs.steps).enumerate() {
                    judged.extend(labels.iter().map(|label| {
                        let score = if label.end < range.len() {
                            scores.value[range.start + label.end]
                        } else {
                            scores.last_value[row]
                        };
                        (sigmoid(f64::from(score)), label.is_right)
                    }));
                }
            }
        }
    }
    judged
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// Judgements in bins of equal width over the range of their predictions: from 1/2 on for pairs, from 0 on for steps.
pub(crate) fn calibration(spec: RewardModelSpec, judged: &[(f64, bool)]) -> Vec<CalibrationBin> {
    let low = match spec {
        RewardModelSpec::Sequence { .. } => 0.5,
        RewardModelSpec::Process => 0.0,
    };
    let mut bins = [(0.0, 0u64, 0u64); BINS];
    for &(predicted, is_true) in judged {
        let place = ((predicted - low) / (1.0 - low) * BINS as f64) as usize;
        let (sum, observed, count) = &mut bins[place.min(BINS - 1)];
        *sum += predicted;
        *observed += u64::from(is_true);
        *count += 1;
    }
    let of_bin = |(sum, observed, count): (f64, u64, u64)| CalibrationBin {
        predicted: sum / count as f64,
        observed: observed as f64 / count as f64,
        count,
    };
    bins.into_iter().filter(|(_, _, count)| *count > 0).map(of_bin).collect()
}

/// Expected calibration error: the mean distance between predicted and observed, weighted by the number of judgements.
pub(crate) fn calibration_error(bins: &[CalibrationBin]) -> f64 {
    let count: u64 = bins.iter().map(|bin| bin.count).sum();
    let distance = |bin: &CalibrationBin| bin.count as f64 * (bin.predicted - bin.observed).abs();
    bins.iter().map(distance).sum::<f64>() / count.max(1) as f64
}

#[cfg(test)]
mod tests {
    use rloom_core::{Span, StepReward, StopReason};

    use super::*;
    use crate::batch_tests::{episode, group};

    /// One margin for each trained trajectory, so that those of other episodes shift none.
    #[test]
    fn margins_are_those_of_trained_trajectories() {
        let with = |role: Role, tokens: &[&[u32]], margin: Option<f64>| {
            let mut made = episode(role, tokens, 0.0, StopReason::StopToken);
            made.rewards.metrics.extend(margin.map(|margin| (MARGIN.to_owned(), margin)));
            made
        };
        let groups = [group(vec![
            with(Role::Baseline, &[&[9]], Some(4.0)),
            with(Role::Train, &[&[1], &[2]], Some(0.5)),
            with(Role::Train, &[&[3]], None),
        ])];
        assert_eq!(margins(&groups), [0.5, 0.5, 0.0]);
        assert_eq!(members(&groups).len(), 3);
        let without =
            [group(vec![with(Role::Baseline, &[&[9]], Some(4.0)), with(Role::Train, &[&[1]], None)])];
        assert!(margins(&without).is_empty());
    }

    /// A label's end counts policy tokens; a step is right if its reward is above one half.
    #[test]
    fn labels_count_the_tokens_of_the_policy() {
        let [made] =
            &episode(Role::Train, &[&[1, 2, 3, 4, 5, 6, 7]], 0.0, StopReason::StopToken).segments[..]
        else {
            panic!("one segment")
        };
        let turn = |range, reward: Option<f64>| Span {
            step: reward.map(|reward| StepReward { reward, state: None }),
            ..Span::new(Author::Policy, range)
        };
        let spans = vec![
            Span::new(Author::Prompt, 0..1),
            turn(1..3, Some(0.25)),
            Span::new(Author::Environment, 3..4),
            turn(4..5, None),
            turn(5..7, Some(0.75)),
            turn(7..8, Some(0.5)),
        ];
        let labels = step_labels(&Trajectory { spans, ..made.clone() });
        let wanted = [(2, false), (5, true), (6, false)].map(|(end, is_right)| StepLabel { end, is_right });
        assert_eq!(labels, wanted);
    }

    /// A pair is judged by the difference of its values, a step by the value after its last token.
    #[test]
    fn judgements_read_the_values_at_the_ends() {
        let last_value = vec![0.5, -1.5, 1.0, 4.0];
        let scores = TokenScores { value: vec![0.5, 7.0, -1.0, 7.0], last_value, ..TokenScores::default() };
        let pairs = judgements(
            RewardModelSpec::Sequence { center: 0.0 },
            &[LossInputs::default()],
            std::slice::from_ref(&scores),
        );
        assert_eq!(pairs, [(sigmoid(2.0), true), (sigmoid(3.0), false)]);
        let step = |end, is_right| StepLabel { end, is_right };
        let inputs = LossInputs {
            rows: vec![0..4, 4..4],
            steps: vec![vec![step(2, true), step(4, false)], Vec::new()],
            ..LossInputs::default()
        };
        let steps = judgements(RewardModelSpec::Process, &[inputs], &[scores]);
        assert_eq!(steps, [(sigmoid(-1.0), true), (sigmoid(0.5), false)]);
    }

    /// Pairs are judged with a confidence of at least one half, which has all ten bins; steps have five of them there. The error
    /// weighs bins by their judgements.
    #[test]
    fn bins_divide_the_range_of_the_predictions() {
        let pairs = [(0.52, false), (0.57, true), (0.57, true), (0.57, true)];
        let bins = calibration(RewardModelSpec::Sequence { center: 0.0 }, &pairs);
        assert_eq!(bins.iter().map(|bin| bin.count).collect::<Vec<_>>(), [1, 3]);
        assert!((calibration_error(&bins) - (0.52 + 3.0 * 0.43) / 4.0).abs() < 1e-12);
        let steps = calibration(RewardModelSpec::Process, &[&pairs[..], &[(0.1, false)]].concat());
        assert_eq!(steps.iter().map(|bin| bin.count).collect::<Vec<_>>(), [1, 4]);
    }

    #[test]
    fn the_curve_compares_predictions_with_what_came_true() {
        let judged = [(0.52, true), (0.54, false), (0.97, true), (1.0, true)];
        let bins = calibration(RewardModelSpec::Sequence { center: 0.0 }, &judged);
        assert_eq!(bins.len(), 2);
        assert!((bins[0].predicted - 0.53).abs() < 1e-12 && bins[0].observed == 0.5 && bins[0].count == 2);
        assert!((bins[1].predicted - 0.985).abs() < 1e-12 && bins[1].observed == 1.0);
        assert!((calibration_error(&bins) - 0.5 * (0.03 + 0.015)).abs() < 1e-12);
        let steps = calibration(RewardModelSpec::Process, &judged[..2]);
        assert_eq!((steps.len(), steps[0].count), (1, 2), "bins of steps are twice as wide");
        assert_eq!(calibration_error(&[]), 0.0);
    }
}
