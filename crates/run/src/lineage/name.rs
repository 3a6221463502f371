//! Names of samples, and errors of samples that cannot be found.

use std::fmt;
use std::str::FromStr;

use crate::RunError;

/// Name of a group, or of one of its samples: `TICKET`, `TICKET/SAMPLE`, `STAGE/TICKET` or `STAGE/TICKET/SAMPLE`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SampleName {
    /// The stage; required if several stages have the ticket.
    pub stage: Option<String>,
    /// The group.
    pub ticket: u64,
    /// Index of the sample in its group; `None` for all.
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
        let invalid = || LineageError::Name { text: text.to_owned() };
        let parts: Vec<&str> = text.split('/').collect();
        let number = |part: &str| part.parse::<u64>().map_err(|_| invalid());
        let sample = |part: &str| part.parse::<u32>().map(Some).map_err(|_| invalid());
        let (stage, ticket, sample) = match *parts.as_slice() {
            [ticket] => (None, number(ticket)?, None),
            [ticket, index] if number(ticket).is_ok() => (None, number(ticket)?, sample(index)?),
            [stage, ticket] => (Some(stage), number(ticket)?, None),
            [stage, ticket, index] => (Some(stage), number(ticket)?, sample(index)?),
            _ => return Err(invalid()),
        };
        if stage.is_some_and(str::is_empty) {
            return Err(invalid());
        }
        Ok(Self { stage: stage.map(str::to_owned), ticket, sample })
    }
}

/// Failure to find a sample.
#[derive(Debug, miette::Diagnostic, thiserror::Error)]
#[non_exhaustive]
pub enum LineageError {
    /// Not the name of a sample.
    #[error("`{text}` is not the name of a sample")]
    #[diagnostic(help(
        "use a ticket (`12`) or a sample of it (`12/3`), optionally with the stage (`rl/12/3`)"
    ))]
    Name {
        /// The text.
        text: String,
    },
    /// The run has no such stage.
    #[error("the run has no sampling stage `{stage}`")]
    #[diagnostic(help("{}", stages_hint(stages)))]
    Stage {
        /// The requested stage.
        stage: String,
        /// Stages that sample.
        stages: Vec<String>,
    },
    /// Several stages have the ticket.
    #[error("ticket {ticket} exists in the stages {}", stages.join(" and "))]
    #[diagnostic(help("add the stage: `{}/{ticket}`", stages[0]))]
    Ambiguous {
        /// The ticket.
        ticket: u64,
        /// The stages that have it, at least two.
        stages: Vec<String>,
    },
    /// No stage has the ticket.
    #[error("ticket {ticket} does not exist")]
    #[diagnostic(help("{}", tickets_hint(known)))]
    Ticket {
        /// The ticket.
        ticket: u64,
        /// Tickets of each searched stage.
        known: Vec<(String, Vec<u64>)>,
    },
    /// The group does not have the sample.
    #[error("ticket {ticket} has no sample {sample}")]
    #[diagnostic(help("it has the samples {}", ranges(known)))]
    Sample {
        /// The ticket.
        ticket: u64,
        /// The requested sample.
        sample: u32,
        /// Samples of the group.
        known: Vec<u64>,
    },
    /// The run's files cannot be read.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Run(#[from] RunError),
    /// The event stream or the rollouts cannot be read.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Telemetry(#[from] rloom_telemetry::TelemetryError),
}

fn stages_hint(stages: &[String]) -> String {
    match stages {
        [] => "no sampling stage has started".to_owned(),
        stages => format!("sampling stages: {}", stages.join(", ")),
    }
}

fn tickets_hint(known: &[(String, Vec<u64>)]) -> String {
    let lists: Vec<String> = known
        .iter()
        .filter(|(_, tickets)| !tickets.is_empty())
        .map(|(stage, tickets)| format!("stage {stage} has the tickets {}", ranges(tickets)))
        .collect();
    if lists.is_empty() { "the run has no groups yet".to_owned() } else { lists.join("; ") }
}

/// Formats ascending numbers as `0-31, 40, 42-44`.
pub(crate) fn ranges(numbers: &[u64]) -> String {
    let runs = numbers.chunk_by(|a, b| a + 1 == *b);
    let text = |run: &[u64]| match run {
        [first, .., last] => format!("{first}-{last}"),
        run => run.first().map(u64::to_string).unwrap_or_default(),
    };
    runs.map(text).collect::<Vec<_>>().join(", ")
}
