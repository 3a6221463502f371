//! How a sample is named, and what is said when it cannot be found.

use std::fmt;
use std::str::FromStr;

use crate::RunError;

/// Names a group, or one sample of it: `TICKET`, `TICKET/SAMPLE`, `STAGE/TICKET` or `STAGE/TICKET/SAMPLE`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SampleName {
    /// The stage; needed where several have such a ticket.
    pub stage: Option<String>,
    /// The group.
    pub ticket: u64,
    /// The episode's place in its group; `None` for all.
    pub sample: Option<u32>,
}

impl fmt::Display for SampleName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(stage) = &self.stage {
            write!(f, "{stage}/")?;
        }
        write!(f, "{}", self.ticket)?;
        self.sample.map_or(Ok(()), |sample| write!(f, "/{sample}"))
    }
}

impl FromStr for SampleName {
    type Err = LineageError;

    fn from_str(text: &str) -> Result<Self, LineageError> {
        let wrong = || LineageError::Name { text: text.to_owned() };
        let parts: Vec<&str> = text.split('/').collect();
        let number = |part: &str| part.parse::<u64>().map_err(|_| wrong());
        let sample = |part: &str| part.parse::<u32>().map(Some).map_err(|_| wrong());
        let (stage, ticket, sample) = match *parts.as_slice() {
            [ticket] => (None, number(ticket)?, None),
            [ticket, place] if number(ticket).is_ok() => (None, number(ticket)?, sample(place)?),
            [stage, ticket] => (Some(stage), number(ticket)?, None),
            [stage, ticket, place] => (Some(stage), number(ticket)?, sample(place)?),
            _ => return Err(wrong()),
        };
        if stage.is_some_and(str::is_empty) {
            return Err(wrong());
        }
        Ok(Self { stage: stage.map(str::to_owned), ticket, sample })
    }
}

/// Why a sample's lineage cannot be told.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LineageError {
    /// What was given is not the name of a sample.
    #[error(
        "`{text}` names no sample\nhint: give a ticket (`12`), one of its samples (`12/3`), or both with their stage (`rl/12/3`)"
    )]
    Name {
        /// What was given.
        text: String,
    },
    /// The run has no such stage.
    #[error("the run has no stage `{stage}` that samples\nhint: {}", stages_hint(stages))]
    Stage {
        /// What was asked for.
        stage: String,
        /// What there is.
        stages: Vec<String>,
    },
    /// Several stages have such a ticket.
    #[error("ticket {ticket} is in the stages {}\nhint: say which: `{}/{ticket}`", stages.join(" and "), stages[0])]
    Ambiguous {
        /// The ticket.
        ticket: u64,
        /// The stages that have it, at least two.
        stages: Vec<String>,
    },
    /// Nothing is known of the ticket.
    #[error("nothing is known of ticket {ticket}\nhint: {}", tickets_hint(known))]
    Ticket {
        /// The ticket.
        ticket: u64,
        /// The tickets of each stage that was looked at.
        known: Vec<(String, Vec<u64>)>,
    },
    /// The group has fewer samples.
    #[error("ticket {ticket} has no sample {sample}\nhint: it has the samples {}", ranges(known))]
    Sample {
        /// The ticket.
        ticket: u64,
        /// What was asked for.
        sample: u32,
        /// What there is.
        known: Vec<u64>,
    },
    /// The run's files cannot be read.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The event stream or the rollouts cannot be read.
    #[error(transparent)]
    Telemetry(#[from] rloom_telemetry::TelemetryError),
}

fn stages_hint(stages: &[String]) -> String {
    match stages {
        [] => "none of its stages does, or none has begun".to_owned(),
        stages => format!("these do: {}", stages.join(", ")),
    }
}

fn tickets_hint(known: &[(String, Vec<u64>)]) -> String {
    let told: Vec<String> = known
        .iter()
        .filter(|(_, tickets)| !tickets.is_empty())
        .map(|(stage, tickets)| format!("stage {stage} has the tickets {}", ranges(tickets)))
        .collect();
    if told.is_empty() { "the run has no groups yet".to_owned() } else { told.join("; ") }
}

/// Numbers in order as `0-31, 40, 42-44`.
pub(crate) fn ranges(numbers: &[u64]) -> String {
    let runs = numbers.chunk_by(|a, b| a + 1 == *b);
    let text = |run: &[u64]| match run {
        [first, .., last] => format!("{first}-{last}"),
        run => run.first().map(u64::to_string).unwrap_or_default(),
    };
    runs.map(text).collect::<Vec<_>>().join(", ")
}
