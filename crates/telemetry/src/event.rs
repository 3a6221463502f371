//! The events of a run.

use std::collections::BTreeMap;

use rloom_core::Failure;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

/// Scalar values by metric name, in the order of names. The reference of metrics lists the names.
pub type Metrics = BTreeMap<String, f64>;

/// Name, method and length of a stage.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StageOutline {
    /// Name of the stage.
    pub name: String,
    /// Training method, such as `sft` or `grpo`.
    pub method: String,
    /// Number of steps.
    pub steps: u64,
    /// Policies besides the main one: names, with what they are if they are not trained.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub policies: Vec<String>,
    /// Number format of the weights that completions are sampled from, if it is not that of training.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quantize: Option<String>,
}

impl StageOutline {
    /// Number format of the rollouts, as the end of a sentence; empty if it is that of training.
    pub fn rollout_format(&self) -> String {
        self.quantize.as_ref().map_or_else(String::new, |format| format!(", rollouts in {format}"))
    }
}

/// A point of a calibration curve: judgements of a reward model of similar confidence. Of pairs, the predicted probability is that of
/// the completion with the higher reward being the chosen one; of steps, that of the step being right.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CalibrationBin {
    /// Mean predicted probability.
    pub predicted: f64,
    /// Fraction of the judgements for which it came true.
    pub observed: f64,
    /// Number of judgements.
    pub count: u64,
}

/// The unit of work that a progress event counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Machines whose node daemons have connected, before anything starts.
    Nodes,
    /// Prompts measured, before the first step.
    Prompts,
    /// Completions generated.
    Rollout,
    /// Completions scored.
    Reward,
    /// Optimiser steps.
    Train,
    /// Held-out completions.
    Evaluate,
}

/// One of the two concurrent activities of a run: generation and training.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Lane {
    /// Generates and scores completions.
    Rollout,
    /// Trains, publishes, evaluates and saves.
    Train,
}

/// The work of a lane, or the reason for which it waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Activity {
    /// A group, from its start to its last score. Groups overlap, and the engine may pause within one.
    Group,
    /// The engine generates.
    Generate,
    /// Generation waits for a newer policy: the limit on staleness permits no new groups.
    WaitForPolicy,
    /// The engine loads new weights.
    LoadWeights,
    /// Training waits for a complete batch.
    WaitForBatch,
    /// A batch is trained.
    Train,
    /// New weights are published.
    Publish,
    /// A version is evaluated.
    Evaluate,
    /// A checkpoint is written.
    Checkpoint,
}

impl Lane {
    /// All lanes, in display order.
    pub const ALL: [Self; 2] = [Self::Rollout, Self::Train];

    /// Returns `rollout` or `train`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rollout => "rollout",
            Self::Train => "train",
        }
    }
}

impl Activity {
    /// Returns the display name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Group => "group",
            Self::Generate => "generate",
            Self::WaitForPolicy => "wait for policy",
            Self::LoadWeights => "load weights",
            Self::WaitForBatch => "wait for batch",
            Self::Train => "train",
            Self::Publish => "publish",
            Self::Evaluate => "evaluate",
            Self::Checkpoint => "checkpoint",
        }
    }

    /// True for waiting, false for work.
    pub fn is_wait(self) -> bool {
        matches!(self, Self::WaitForPolicy | Self::WaitForBatch)
    }
}

/// End of a group that was not trained, or its deferral.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum GroupEnd {
    /// A filter replaced the group.
    Filtered,
    /// The group exceeded the limit on staleness.
    Stale,
    /// An episode failed and the group was replaced.
    Failed,
    /// The batch was complete without the group.
    Surplus,
    /// The group will be restarted.
    Deferred,
    /// An end that this version does not know. Never written.
    #[serde(other)]
    Unknown,
}

impl GroupEnd {
    /// Returns the name in the event stream.
    pub fn name(self) -> &'static str {
        match self {
            Self::Filtered => "filtered",
            Self::Stale => "stale",
            Self::Failed => "failed",
            Self::Surplus => "surplus",
            Self::Deferred => "deferred",
            Self::Unknown => "unknown",
        }
    }
}

/// Reads metrics without those that are null: JSON has no other form for infinities and NaN.
fn finite_metrics<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Metrics, D::Error> {
    let metrics = BTreeMap::<String, Option<f64>>::deserialize(deserializer)?;
    Ok(metrics.into_iter().filter_map(|(name, value)| Some((name, value?))).collect())
}

/// A completion as text, with its reward.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Sample {
    /// Ticket of the group; in an evaluation, the index of the task.
    pub ticket: u64,
    /// Index of the completion in its group.
    pub sample: u32,
    /// Index of the task in its dataset.
    pub task: u64,
    /// The prompt as text.
    pub prompt: String,
    /// Everything after the prompt as text, including the environment's replies.
    pub completion: String,
    /// The reference answer.
    pub answer: String,
    /// Total reward; null if no component applies.
    pub reward: Option<f64>,
    /// Reward components by name; null where a component does not apply or has failed.
    pub components: BTreeMap<String, Option<f64>>,
    /// Failures of reward components by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub failures: BTreeMap<String, Failure>,
    /// Advantage; null in evaluations.
    pub advantage: Option<f64>,
    /// True if the task is solved; null if unknown.
    pub solved: Option<bool>,
    /// Number of policy tokens.
    pub tokens: usize,
    /// Stop reason.
    pub stop: String,
}

/// Lengths of the prompts of a stage or of the evaluation, measured before the first step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PromptSummary {
    /// Name of the stage; `eval` for the evaluation.
    pub used_by: String,
    /// Number of tasks, without those that were dropped.
    pub tasks: u64,
    /// Number of prompts that were measured; of generated tasks, a sample.
    pub measured: u64,
    /// Median length of the prompts in tokens.
    pub median: u64,
    /// Length of the longest prompt in tokens.
    pub longest: u64,
    /// Most tokens of a prompt that fits; in supervised stages together with its demonstration.
    pub room: u64,
    /// Number of prompts that were dropped because they are longer than `max_prompt_tokens`.
    pub dropped: u64,
    /// The rows of a stage that learns from them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows: Option<RowSummary>,
}

/// The rows of a stage that learns from them, measured before the first step; without those that were dropped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RowSummary {
    /// What the method learns from, such as `preference pairs`.
    pub kind: String,
    /// Length of the prompts in tokens that 95 % do not exceed.
    pub prompt_p95: u64,
    /// Median length of the completions in tokens; of a preference, the longer one counts.
    pub median: u64,
    /// Length of the completions in tokens that 95 % do not exceed.
    pub p95: u64,
    /// Length of the longest completion in tokens.
    pub longest: u64,
    /// Tokens of all measured rows, prompts included; of a preference, with the longer completion.
    pub tokens: u64,
    /// Number of rows that were dropped because they have too many tokens.
    pub long: u64,
    /// Number of rows that were dropped because nothing to learn from would be left of them.
    pub no_room: u64,
    /// Number of rows that are cut.
    pub cut: u64,
}

/// Times of rollout requests that inference servers answered. Element `i` of each list of requests belongs to the same one.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct RequestTimes {
    /// Number of servers that serve requests.
    pub replicas: u64,
    /// Maximum number of requests that a server computes at a time.
    pub max_requests: u64,
    /// Number of requests answered; the lists contain an even selection of at most 256.
    pub answered: u64,
    /// Tokens generated per request.
    pub tokens: Vec<u64>,
    /// Time between each request to a server and its answer, in seconds.
    pub seconds: Vec<f64>,
    /// Time for which each request waited for a server with room, in seconds.
    pub waited: Vec<f64>,
    /// Mean number of requests at the same server meanwhile, the request included.
    pub concurrency: Vec<f64>,
    /// Durations of the weight updates of single servers, in seconds, without the time in which requests in flight finish.
    pub updates: Vec<f64>,
}

/// An event of a run. The field `event` contains its kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "event", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Event {
    /// A process started or resumed the run.
    RunStarted {
        /// Name of the run.
        name: String,
        /// Version of rloom.
        version: String,
        /// Seed of the run.
        seed: u64,
        /// Number of compute threads.
        threads: usize,
        /// Numeric path of the kernels (instruction set and dtype).
        numeric_path: String,
        /// Number of model parameters.
        parameters: u64,
        /// Name of the checkpoint that the run resumed from; null for a new run.
        resumed_from: Option<String>,
        /// All stages of the recipe.
        stages: Vec<StageOutline>,
    },
    /// The node daemon of a machine has connected.
    NodeJoined {
        /// Number of the machine.
        node: usize,
        /// Its name.
        hostname: String,
        /// Its address on the network of the run.
        address: String,
        /// Processor cores.
        cores: usize,
        /// GPUs.
        gpus: usize,
    },
    /// A reward that runs programs has found a sandbox.
    Sandbox {
        /// Name of the reward.
        reward: String,
        /// The tier in force: `namespaces` or `landlock`, each with ` and control groups` where every program has one, or `none`;
        /// `server` if a server runs the programs.
        tier: String,
    },
    /// The prompts of a stage or of the evaluation were measured.
    Prompts(PromptSummary),
    /// A stage started or resumed.
    StageStarted {
        /// The stage.
        outline: StageOutline,
        /// Number of steps already trained.
        from_step: u64,
    },
    /// Progress within a step. Shown live and not stored in `events.jsonl`.
    Progress {
        /// The unit that is counted.
        phase: Phase,
        /// Units completed.
        done: u64,
        /// Units in total.
        total: u64,
        /// Progress within the current unit, such as the micro-batch that is trained.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        detail: Option<String>,
    },
    /// A batch was trained and its weights published.
    Step {
        /// Metrics of the step.
        #[serde(deserialize_with = "finite_metrics")]
        metrics: Metrics,
    },
    /// Times of the requests that inference servers answered during a step, which `rloom plan --calibrate` reads.
    Requests(RequestTimes),
    /// A completion of the step's batch.
    Sample(Sample),
    /// A version was evaluated on held-out tasks.
    Evaluation {
        /// Metrics of the evaluation.
        #[serde(deserialize_with = "finite_metrics")]
        metrics: Metrics,
        /// Number of held-out tasks.
        tasks: u64,
        /// True if this is the best version so far.
        best: bool,
    },
    /// A held-out completion.
    EvaluationSample(Sample),
    /// The loss of a version on held-out rows was measured.
    Validation {
        /// Metrics of the validation.
        #[serde(deserialize_with = "finite_metrics")]
        metrics: Metrics,
        /// Number of held-out rows.
        rows: u64,
        /// True if this is the best version so far.
        best: bool,
        /// Calibration curve of a reward model, by ascending predicted probability.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        calibration: Vec<CalibrationBin>,
    },
    /// A checkpoint is durable.
    Checkpoint {
        /// Folder of the checkpoint, relative to the run directory.
        path: String,
        /// Total size of its files in bytes.
        bytes: u64,
    },
    /// A lane finished working or waiting.
    Activity {
        /// The lane.
        lane: Lane,
        /// The work, or the reason for waiting.
        activity: Activity,
        /// Start, in seconds since the process started.
        start: f64,
        /// End, in seconds since the process started.
        end: f64,
        /// For `group`, the oldest version that sampled any of its tokens; for `train`, the number of the batch;
        /// otherwise the policy version concerned.
        version: u64,
        /// Ticket of the group, for activities of a single group.
        ticket: Option<u64>,
    },
    /// A group ended without being trained, or was deferred.
    GroupEnded {
        /// Ticket of the group.
        ticket: u64,
        /// The kind of end.
        end: GroupEnd,
        /// Details, if any.
        reason: Option<String>,
    },
    /// A problem that does not stop the run.
    Warning {
        /// Description of the problem.
        message: String,
    },
    /// A stage finished.
    StageFinished {
        /// Name of the stage.
        name: String,
        /// Time spent in the stage by this attempt, in seconds.
        seconds: f64,
    },
    /// The run finished.
    RunFinished {
        /// Duration of this attempt in seconds.
        seconds: f64,
        /// Folder of the final model, relative to the run directory.
        model: String,
        /// Number of telemetry lines that could not be written.
        lost_lines: u64,
    },
    /// The run was interrupted. It can be resumed.
    RunInterrupted {
        /// Duration of this attempt in seconds.
        seconds: f64,
    },
    /// The run failed.
    RunFailed {
        /// The error message.
        error: String,
        /// Suggestions for the user.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        hints: Vec<String>,
    },
}

/// A line of `events.jsonl`: an event and its position in the run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct EventLine {
    /// Attempt that recorded the event: 1 for the first process of the run, 2 after the first resume, and so on.
    pub attempt: u32,
    /// Unix time in seconds.
    pub time: f64,
    /// Seconds since the process started.
    pub elapsed: f64,
    /// Name of the stage; empty outside of stages.
    pub stage: String,
    /// Step within the stage.
    pub step: u64,
    /// Step over all stages.
    pub global_step: u64,
    /// The event.
    #[serde(flatten)]
    pub event: Event,
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use schemars::schema_for;
    use serde_json::Value;

    use super::*;

    /// Collects the properties without a description. The tag of an event's kind needs none.
    fn undocumented(schema: &Value, found: &mut Vec<String>) {
        match schema {
            Value::Object(object) => {
                if let Some(Value::Object(properties)) = object.get("properties") {
                    let missing = properties.iter().filter(|(name, property)| {
                        name.as_str() != "event" && property.get("description").is_none()
                    });
                    found.extend(missing.map(|(name, _)| name.clone()));
                }
                object.values().for_each(|value| undocumented(value, found));
            }
            Value::Array(values) => values.iter().for_each(|value| undocumented(value, found)),
            _ => {}
        }
    }

    fn ended(end: &str) -> EventLine {
        let line = format!(
            r#"{{"attempt":1,"time":0,"elapsed":0,"stage":"rl","step":1,"global_step":1,"event":"group_ended","ticket":3,"end":"{end}","reason":null}}"#
        );
        serde_json::from_str(&line).unwrap()
    }

    #[test]
    fn ends_of_groups_are_written_by_their_names() {
        use GroupEnd::{Deferred, Failed, Filtered, Stale, Surplus};
        for kind in [Filtered, Stale, Failed, Surplus, Deferred] {
            let line = ended(kind.name());
            assert!(matches!(line.event, Event::GroupEnded { end, .. } if end == kind), "{line:?}");
            assert_eq!(serde_json::to_value(&line).unwrap()["end"], kind.name());
        }
    }

    #[test]
    fn an_end_of_a_later_version_is_readable() {
        let line = ended("abandoned");
        assert!(
            matches!(line.event, Event::GroupEnded { end: GroupEnd::Unknown, ticket: 3, .. }),
            "{line:?}"
        );
    }

    #[test]
    fn an_evaluation_of_a_reward_model_by_an_earlier_version_is_readable() {
        let line = r#"{"attempt":1,"time":0,"elapsed":0,"stage":"reward","step":1,"global_step":1,"event":"evaluation",
            "metrics":{"eval/margin":0.5},"tasks":8,"best":false,"calibration":[{"predicted":0.6,"observed":0.5,"count":8}]}"#;
        let read: EventLine = serde_json::from_str(line).unwrap();
        let metrics = [("eval/margin".to_owned(), 0.5)].into();
        assert_eq!(read.event, Event::Evaluation { metrics, tasks: 8, best: false });
    }

    #[test]
    fn a_step_with_a_metric_that_is_not_finite_is_readable() {
        let metrics = [("loss".to_owned(), f64::NAN), ("reward".to_owned(), 0.5)].into();
        let line = EventLine { event: Event::Step { metrics }, ..ended("stale") };
        let read: EventLine = serde_json::from_slice(&serde_json::to_vec(&line).unwrap()).unwrap();
        assert_eq!(read.event, Event::Step { metrics: [("reward".to_owned(), 0.5)].into() });
    }

    #[test]
    fn every_event_and_field_has_a_description_in_the_schema() {
        let schema = serde_json::to_value(schema_for!(EventLine)).unwrap();
        let mut found = Vec::new();
        undocumented(&schema, &mut found);
        assert!(found.is_empty(), "{found:?} in {schema:#}");
        let kinds = schema["oneOf"].as_array().unwrap();
        assert!(kinds.iter().all(|kind| kind["description"].is_string()), "{schema:#}");
        let names: BTreeSet<&str> =
            kinds.iter().map(|kind| kind["properties"]["event"]["const"].as_str().unwrap()).collect();
        assert_eq!(names.len(), kinds.len(), "an event occurs twice in {names:?}");
        assert!(names.contains("run_started") && names.contains("group_ended"));
    }
}
