use std::sync::Arc;

use rloom_core::StopReason;
use rloom_engine::SampledToken;
use rloom_text::TextError;
use rloom_text::calls::{CallAttempt, CallFormat, CallStatus, ToolDeclaration, Written};

use super::splitter::{CLOSE, Division, OPEN, Splitter};
use super::stopping::StoppingText;
use super::{Call, Finish, Part, ScoredToken};
use crate::model::ServedModel;

/// Reads a completion token by token.
#[derive(Debug)]
pub(crate) struct Reader {
    model: Arc<ServedModel>,
    /// Format of the turn's structure; `None` if it is plain text.
    format: Option<CallFormat>,
    tools: Vec<ToolDeclaration>,
    reasons: bool,
    text: StoppingText,
    splitter: Splitter,
    tokens: Vec<u32>,
    reasoning_tokens: usize,
    /// Distinguishes the calls of this answer from those of others.
    id: String,
}

impl Reader {
    /// `tools` are those of a conversation; `None` reads plain text, without reasoning and calls.
    pub(crate) fn new(
        model: &Arc<ServedModel>,
        tools: Option<Vec<ToolDeclaration>>,
        stops: Vec<String>,
        reasons: bool,
        id: String,
    ) -> Result<Self, TextError> {
        let thinks = tools.is_some();
        let tools = tools.unwrap_or_default();
        // A turn of Harmony is structured even if there are no tools.
        let is_structured = |format: &CallFormat| !tools.is_empty() || *format == CallFormat::Harmony;
        let format = model.format.filter(|format| thinks && is_structured(format));
        let division = match format {
            Some(format) => structured(format, &tools),
            None => Division { thinks, ..Division::default() },
        };
        Ok(Self {
            text: StoppingText::new(&model.tokenizer, stops)?,
            splitter: Splitter::new(division, reasons),
            model: Arc::clone(model),
            format,
            tools,
            reasons,
            tokens: Vec::new(),
            reasoning_tokens: 0,
            id,
        })
    }

    /// Number of tokens that were reasoning.
    pub(crate) fn reasoning_tokens(&self) -> usize {
        self.reasoning_tokens
    }

    /// True while the model reasons.
    pub(crate) fn is_reasoning(&self) -> bool {
        self.splitter.is_reasoning()
    }

    /// Text that was sampled after the answer, once it has ended: a stop string.
    pub(crate) fn tail(&self) -> &str {
        self.text.tail()
    }

    /// A token with its text alone.
    pub(crate) fn scored(&self, sampled: SampledToken) -> Result<ScoredToken, TextError> {
        let text = self.model.tokenizer.decode(&[sampled.token], false)?;
        Ok(ScoredToken { text, logprob: sampled.logprob })
    }

    /// Adds a token; appends the parts that it makes certain.
    pub(crate) fn push(&mut self, token: u32, parts: &mut Vec<Part>) -> Result<(), TextError> {
        self.tokens.push(token);
        if self.model.stop_tokens.contains(&token) {
            return Ok(());
        }
        let hidden = self.hidden(token)?;
        let text = self.text.push(token, hidden.as_deref())?;
        self.reasoning_tokens += usize::from(self.splitter.is_reasoning());
        self.splitter.push(&text, parts);
        Ok(())
    }

    /// Text of a token that is left out of the answer: special tokens are, unless they are marks of the turn's structure.
    fn hidden(&self, token: u32) -> Result<Option<String>, TextError> {
        if self.format.is_some() || !self.model.tokenizer.is_special(token) {
            return Ok(None);
        }
        let text = self.model.tokenizer.decode(&[token], false)?;
        Ok((text != OPEN && text != CLOSE).then_some(text))
    }

    /// Ends the answer: appends what is left.
    pub(crate) fn finish(&mut self, stop: StopReason, parts: &mut Vec<Part>) -> Result<Finish, TextError> {
        let text = self.text.finish()?;
        self.splitter.push(&text, parts);
        let finish = match (stop, self.text.stop_string()) {
            (_, Some(string)) => Finish::StopString(string.to_owned()),
            (StopReason::StopToken | StopReason::StopString, None) => Finish::Stop,
            (StopReason::Length | StopReason::Aborted, None) => Finish::Length,
        };
        let Some(format) = self.format else {
            self.splitter.finish_plain(parts);
            return Ok(finish);
        };
        let written = self.written(format, stop)?;
        let parsed = format.parse(&written, self.reasons, &self.tools);
        let reasoning = format.reasoning(&written, self.reasons);
        let (calls, malformed): (Vec<_>, Vec<_>) =
            parsed.calls.iter().enumerate().partition(|(_, call)| is_call(call));
        let mut content = parsed.content;
        for (_, attempt) in malformed {
            let separator = if content.is_empty() { "" } else { "\n" };
            content = content + separator + written.text().get(attempt.span.clone()).unwrap_or(&attempt.raw);
        }
        self.splitter.finish_with(&reasoning, &content, parts);
        let has_calls = !calls.is_empty();
        parts.extend(calls.into_iter().map(|(number, call)| Part::Call(self.call(format, call, number))));
        Ok(if has_calls && finish == Finish::Stop { Finish::Calls } else { finish })
    }

    /// The turn for the parser of its format.
    fn written(&self, format: CallFormat, stop: StopReason) -> Result<Written, TextError> {
        if self.text.stop_string().is_some() {
            return Ok(Written::plain(self.text.whole()));
        }
        let mut tokens = self.tokens.as_slice();
        // In Harmony the stop token ends the call.
        if stop == StopReason::StopToken && format != CallFormat::Harmony {
            tokens = tokens.split_last().map_or(tokens, |(_, rest)| rest);
        }
        format.written(&self.model.tokenizer, tokens)
    }

    fn call(&self, format: CallFormat, call: &CallAttempt, number: usize) -> Call {
        let id = match (format, &call.id) {
            // Templates of these families read the identifier.
            (CallFormat::KimiK2, _) | (CallFormat::Mistral, Some(_)) => format.call_id(call, number),
            // Nine letters or digits.
            (CallFormat::Mistral, None) => {
                let unique = format!("{}{number:02}", self.id);
                unique[unique.len() - 9..].to_owned()
            }
            _ => format!("call_{}{number:02}", self.id),
        };
        let arguments = if call.arguments.is_null() { "{}".to_owned() } else { call.arguments.to_string() };
        Call { id, name: call.name.clone().unwrap_or_default(), arguments }
    }
}

/// True for a call that the client can answer: also one of an unknown tool or with wrong arguments.
fn is_call(attempt: &CallAttempt) -> bool {
    matches!(attempt.status, CallStatus::Ok | CallStatus::UnknownTool | CallStatus::BadArguments)
}

fn structured(format: CallFormat, tools: &[ToolDeclaration]) -> Division {
    let is_plain = matches!(format, CallFormat::Llama3 | CallFormat::Mistral);
    Division {
        thinks: !is_plain,
        openings: format.openings(tools),
        only_at_start: format == CallFormat::Llama3,
        waits: format == CallFormat::Harmony,
        trims: true,
    }
}
