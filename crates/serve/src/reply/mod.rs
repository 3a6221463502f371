//! What a completion says: reasoning, text and calls of tools, read from its tokens while they are sampled.

mod reader;
mod splitter;
mod stopping;

pub(crate) use reader::Reader;

/// A part of an answer, in order. Adjacent parts of one kind belong together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Part {
    Reasoning(String),
    Text(String),
    Call(Call),
}

/// A call of a tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) id: String,
    pub(crate) name: String,
    /// JSON.
    pub(crate) arguments: String,
}

/// Reason for the end of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Finish {
    /// The model ended its turn.
    Stop,
    /// A stop string, which is not part of the answer.
    StopString(String),
    /// The limit of tokens.
    Length,
    /// The model called tools.
    Calls,
}

/// A sampled token with its log-probability.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ScoredToken {
    /// Text of the token alone.
    pub(crate) text: String,
    pub(crate) logprob: f32,
}

/// Tokens of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Usage {
    pub(crate) prompt: usize,
    /// Those of the prompt that the engine did not compute, because it had their keys and values.
    pub(crate) cached: usize,
    pub(crate) completion: usize,
    /// Those of the completion that are reasoning.
    pub(crate) reasoning: usize,
}

impl Usage {
    /// The tokens of several replies to one prompt.
    pub(crate) fn of(replies: &[Reply]) -> Self {
        // Later replies may find the prompt that the first one has computed.
        let cached = replies.iter().map(|reply| reply.usage.cached).min().unwrap_or(0);
        let mut sum = Self { cached, ..Self::default() };
        for Reply { usage, .. } in replies {
            sum.prompt = usage.prompt;
            sum.completion += usage.completion;
            sum.reasoning += usage.reasoning;
        }
        sum
    }
}

/// What has been added to an answer.
#[derive(Debug, Clone, Default)]
pub(crate) struct Update {
    pub(crate) parts: Vec<Part>,
    /// Empty unless the request asks for log-probabilities.
    pub(crate) scored: Vec<ScoredToken>,
    /// Set in the last update.
    pub(crate) end: Option<(Finish, Usage)>,
}

/// A complete answer.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) reasoning: String,
    pub(crate) text: String,
    pub(crate) calls: Vec<Call>,
    pub(crate) scored: Vec<ScoredToken>,
    pub(crate) finish: Finish,
    pub(crate) usage: Usage,
}

impl Reply {
    /// An answer without content.
    pub(crate) fn new() -> Self {
        Self {
            reasoning: String::new(),
            text: String::new(),
            calls: Vec::new(),
            scored: Vec::new(),
            finish: Finish::Stop,
            usage: Usage::default(),
        }
    }

    /// Adds an update; true after the last one.
    pub(crate) fn add(&mut self, update: Update) -> bool {
        for part in update.parts {
            match part {
                Part::Reasoning(text) => self.reasoning.push_str(&text),
                Part::Text(text) => self.text.push_str(&text),
                Part::Call(call) => self.calls.push(call),
            }
        }
        self.scored.extend(update.scored);
        let Some((finish, usage)) = update.end else { return false };
        (self.finish, self.usage) = (finish, usage);
        true
    }
}
