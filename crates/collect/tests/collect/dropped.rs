//! Completions that failures of rewards leave out.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::{Arc, Mutex};

use rloom_collect::{
    BoundedEngine, CollectError, EvaluationReport, Evaluator, GroupFailure, GroupProgress, GroupRunner,
    GroupSettings, GroupUpdate,
};
use rloom_core::{Draw, Episode, FailureKind, SampleKey, Ticket};
use rloom_data::{Cursor, Dataset, Order, Split};
use rloom_reward::{Assessment, Completion, JudgeError, OnError, Reward};

use crate::bounded::{RoundEngine, data, in_rounds, judged_episodes, sampling};

const TASKS: u64 = 40;
const SAMPLES: u32 = 4;

/// A verifier that accepts every completion, and fails to judge some.
#[derive(Debug)]
struct Faulty {
    fails: fn(SampleKey) -> bool,
    judges_groups: bool,
}

impl Reward for Faulty {
    fn judge(&self, completion: &Completion<'_>) -> Result<Assessment, JudgeError> {
        if (self.fails)(completion.key) {
            return Err(JudgeError::NoReference { task: completion.task.index });
        }
        Ok(Assessment::outcome(true, true))
    }

    fn judges_groups(&self) -> bool {
        self.judges_groups
    }

    fn is_verifier(&self) -> bool {
        true
    }
}

fn evaluate(fails: fn(SampleKey) -> bool, on_error: OnError) -> Result<EvaluationReport, CollectError> {
    let engine = RoundEngine::new(1000);
    let bounded = Arc::new(BoundedEngine::new(Arc::clone(&engine)));
    let reward = Box::new(Faulty { fails, judges_groups: false });
    let dataset = Dataset::open(&data(), Split::Eval, 1).unwrap();
    let episodes = judged_episodes(&bounded, reward, on_error);
    in_rounds(&engine, Evaluator::new(episodes, dataset, TASKS, SAMPLES, sampling()).run(0))
}

/// Runs a group; returns its episodes as they were last reported.
fn group(fails: fn(SampleKey) -> bool, judges_groups: bool) -> Result<Vec<Episode>, GroupFailure> {
    let engine = RoundEngine::new(1000);
    let bounded = Arc::new(BoundedEngine::new(Arc::clone(&engine)));
    let dataset = Arc::new(Dataset::open(&data(), Split::Train, 1).unwrap());
    let cursor = Cursor::new(dataset.len(), Order::Sequential, 1, 0).unwrap();
    let settings = GroupSettings {
        group_size: SAMPLES,
        has_baseline: false,
        recombination: None,
        overlong: None,
        completion_limit: 2,
        sampling: sampling(),
        oldest_first: false,
        demonstrations: None,
    };
    let reward = Box::new(Faulty { fails, judges_groups });
    let runner =
        GroupRunner::new(judged_episodes(&bounded, reward, OnError::Drop), dataset, cursor, settings);
    let task = runner.task(Draw::default()).unwrap();
    let episodes = Mutex::new(vec![None; SAMPLES as usize]);
    let report = |update| {
        if let GroupUpdate::Episode { sample, episode, .. } | GroupUpdate::Judged { sample, episode, .. } =
            update
        {
            episodes.lock().unwrap()[sample as usize] = Some(episode);
        }
    };
    in_rounds(&engine, runner.run(Ticket(0), &task, GroupProgress::default(), &report))?;
    Ok(episodes.into_inner().unwrap().into_iter().flatten().collect())
}

#[test]
fn a_failure_is_neither_a_wrong_answer_nor_an_answer_in_an_evaluation() {
    let report = evaluate(|key| key.sample == 0 && key.ticket.0 % 4 == 0, OnError::Drop).unwrap();
    assert_eq!((report.accuracy, report.tasks), (1.0, TASKS));
    assert_eq!(report.metrics["eval/dropped"], 10.0);
    assert_eq!(report.metrics["eval/parsed"], 1.0);
    // Sampled attempts: of four, two are judged, which is too few for pass@4 and enough for pass@2.
    let report = evaluate(|key| key.sample > 2, OnError::Drop).unwrap();
    assert!(!report.metrics.contains_key("eval/dropped"), "{report:?}");
    assert_eq!((report.metrics["eval/pass@1"], report.metrics["eval/pass@2"]), (1.0, 1.0));
    assert!(!report.metrics.contains_key("eval/pass@4"), "{report:?}");
}

#[test]
fn an_evaluation_with_too_many_failures_fails() {
    let error = evaluate(|key| key.sample == 0 && key.ticket.0 % 4 != 0, OnError::Drop).unwrap_err();
    assert_eq!(
        error.to_string(),
        "rewards failed for 30 of 40 completions, more than `reward.max_dropped = 0.5` allows; the last failure: \
         reward `exact` failed on sample 39/0: task 39 has no reference answer"
    );
    let error = evaluate(|key| key.ticket.0 == 3, OnError::Fatal).unwrap_err();
    assert!(matches!(error, CollectError::Reward(_)), "{error}");
}

#[test]
fn completions_that_cannot_be_judged_have_no_reward_and_end_no_group() {
    for judges_groups in [false, true] {
        let episodes = group(|key| key.sample < 2, judges_groups);
        if judges_groups {
            // A group is judged by one call, which fails.
            let failure = episodes.unwrap_err().cause.to_string();
            assert!(failure.starts_with("rewards failed for 4 of 4 completions"), "{failure}");
            continue;
        }
        let episodes = episodes.unwrap();
        let totals: Vec<Option<f64>> = episodes.iter().map(|episode| episode.rewards.total()).collect();
        assert_eq!(totals, [None, None, Some(1.0), Some(1.0)]);
        let failure = episodes[1].rewards.failure().unwrap();
        assert!(failure.message.contains("on sample 0/1"), "{failure:?}");
        assert_eq!((failure.kind, failure.retryable), (FailureKind::Task, false));
    }
}

#[test]
fn a_group_with_too_many_failures_fails() {
    let failure = group(|key| key.sample < 3, false).unwrap_err();
    assert_eq!(failure.task, 0);
    let cause = failure.cause.to_string();
    assert!(cause.starts_with("rewards failed for 3 of 4 completions"), "{cause}");
}
