//! From a task to a scored group.
//!
//! An [`EpisodeRunner`] plays one episode: engine and environment take turns, then the reward judges the trajectory. A
//! [`GroupRunner`] creates the groups of a stage that samples, a [`DemonstrationSource`] those of a supervised one, a
//! [`RecordedSource`] reads those of another run, and an [`Evaluator`] measures a policy on held-out tasks. All of them are generic over the
//! [`RolloutEngine`](rloom_engine::RolloutEngine); nothing here trains or writes files. [`measure_prompts`] tokenises the
//! prompts of a run before it starts.

mod agent_policies;
mod bounded;
mod completion;
mod concurrency;
mod demonstrations;
mod domain_metrics;
mod episode;
mod error;
mod evaluate;
mod group;
mod hosted;
mod judge;
mod metrics;
mod outcome;
mod prompts;
mod recombination;
mod recorded;
mod row_limits;
mod stopping;
mod transcript;
mod turn_rewards;
mod turns;
mod waits;

pub use agent_policies::{AgentPolicies, Opponents};
pub use bounded::BoundedEngine;
pub use demonstrations::{DemonstrationReader, DemonstrationSource, SomeDemonstrations};
pub use domain_metrics::domain_metrics;
pub use episode::{
    EpisodeCounters, EpisodeOutcome, EpisodeRequest, EpisodeRunner, EpisodeSettings, ScoredEpisode,
};
pub use error::{CollectError, GroupFailure};
pub use evaluate::{EvaluationReport, Evaluator, SetReport};
pub use group::{GroupProgress, GroupRunner, GroupSettings, GroupUpdate};
pub use hosted::{AgentHost, HostedEpisode, HostedSampler};
pub use metrics::{batch_metrics, failure_metrics, staleness_metrics};
pub use outcome::OutcomeRule;
pub use prompts::{PromptError, PromptRoom, Selection, TaskLength, check_room, measure_prompts};
pub use recorded::RecordedSource;
pub use row_limits::{RowCounts, RowLimits};
pub use transcript::{completion_text, episode_text, prompt_text};
