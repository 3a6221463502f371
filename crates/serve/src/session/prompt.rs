//! The prompt of a call: the tokens of the known conversation, and the rendering of what follows.

use rloom_core::{EarlierReasoning, StopReason};
use rloom_text::TextError;
use serde_json::Value;

use super::canonical::{Canonical, Digest, digest_of, identity};
use super::state::Session;
use super::trie::{Extension, Match, Sampled, Trie, TurnId};
use crate::ask::{Ask, Input};
use crate::conversation::Conversation;
use crate::problem::Problem;
use crate::prompt::{Rendering, opens_reasoning};

/// Ends reasoning that a completion left open.
const CLOSED_REASONING: &str = "\n</think>\n\n";

/// What a call adds to its session, and its prompt.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) extension: Extension,
    /// All tokens before the completion.
    pub(super) prompt: Vec<u32>,
    /// The prompt ends inside of the model's reasoning.
    pub(super) reasons: bool,
    /// The prompt, if it is plain text.
    pub(super) text: Option<String>,
}

impl Plan {
    /// The plan for a request.
    pub(super) fn new(session: &Session, ask: &Ask) -> Result<Self, Problem> {
        let plan = match &ask.input {
            Input::Conversation(conversation) => of_conversation(session, conversation, ask.input_field)?,
            Input::Text(text) => of_text(session, text).map_err(|error| unusable(ask.input_field, &error))?,
            Input::Tokens(tokens) => of_tokens(session, tokens),
        };
        if plan.prompt.is_empty() {
            return Err(Problem::field(ask.input_field, "has no tokens"));
        }
        Ok(plan)
    }
}

fn unusable(field: &str, error: &TextError) -> Problem {
    Problem::field(field, format_args!("cannot be used: {error}"))
}

fn of_conversation(session: &Session, conversation: &Conversation, field: &str) -> Result<Plan, Problem> {
    let tokenizer = &session.model.tokenizer;
    let rendering = Rendering::new(&session.model, conversation)?;
    let encode = |text: &str| tokenizer.encode(text, false).map_err(|error| unusable(field, &error));
    let identity = identity(conversation);
    let messages: Vec<Canonical> = conversation.messages.iter().map(Canonical::of).collect();
    let known = session.with_trie(|trie| Known::find(trie, &identity, &messages));
    let dropping = match &known {
        Some(known) if session.settings.earlier_reasoning == EarlierReasoning::NewSegment => {
            known.without_reasoning(&rendering, field)?
        }
        _ => None,
    };
    let (parent, used, mut prompt, text) = match (known, dropping) {
        (Some(known), None) => {
            let text = known.following(session, &rendering, field)?;
            (Some(known.place.turn), known.place.used, known.tokens, text)
        }
        (_, Some(text)) => (None, 0, Vec::new(), text),
        (None, None) => (None, 0, Vec::new(), rendering.whole(field)?),
    };
    let added = encode(&text)?;
    prompt.extend_from_slice(&added);
    let said = messages[used..].iter().map(|message| message.digest).collect();
    let extension = Extension { parent, identity, said, added };
    Ok(Plan { extension, prompt, reasons: opens_reasoning(&text), text: None })
}

/// The known part of a conversation.
struct Known {
    place: Match,
    last: Sampled,
    tokens: Vec<u32>,
    /// Places of the completions among the messages, with their reasoning.
    reasoning: Vec<(usize, String)>,
}

impl Known {
    fn find(trie: &Trie, identity: &Digest, messages: &[Canonical]) -> Option<Self> {
        let place = trie.find(identity, messages)?;
        let last = trie.sampled(place.turn)?.clone();
        let mut at = 0;
        let mut reasoning = Vec::new();
        for turn in trie.path(place.turn) {
            at += trie.said(turn);
            let own = trie.sampled(turn).map(|sampled| sampled.reasoning.trim().to_owned());
            reasoning.extend(own.filter(|own| !own.is_empty()).map(|own| (at, own)));
            at += 1;
        }
        Some(Self { last, tokens: trie.tokens(place.turn), reasoning, place })
    }

    /// The text after the known part. After a completion without a stop token it begins with the end of the turn.
    fn following(&self, session: &Session, rendering: &Rendering, field: &str) -> Result<String, Problem> {
        let generation = &self.last.generation;
        let end = match (generation.stop, generation.tokens.last()) {
            (StopReason::StopToken, Some(&token)) => {
                session.model.tokenizer.decode(&[token], false).map_err(|error| unusable(field, &error))?
            }
            _ => String::new(),
        };
        let text = rendering.following(self.place.used, &end, field)?;
        Ok(if self.last.reasons && end.is_empty() { CLOSED_REASONING.to_owned() + &text } else { text })
    }

    /// The text of the whole conversation, if the template drops reasoning of the known part.
    fn without_reasoning(&self, rendering: &Rendering, field: &str) -> Result<Option<String>, Problem> {
        if self.reasoning.is_empty() {
            return Ok(None);
        }
        let mut restored = rendering.clone();
        for (place, reasoning) in &self.reasoning {
            restored.messages[*place]
                .fields
                .insert("reasoning_content".to_owned(), Value::String(reasoning.clone()));
        }
        let text = restored.whole(field)?;
        let is_kept = self.reasoning.iter().all(|(_, reasoning)| text.contains(reasoning.as_str()));
        Ok((!is_kept).then_some(text))
    }
}

/// The identity of plain prompts.
fn plain() -> Digest {
    digest_of([b"plain".as_slice()])
}

fn of_text(session: &Session, text: &str) -> Result<Plan, TextError> {
    let known = session.with_trie(|trie| {
        let (turn, length) = trie.find_text(text)?;
        let tail = trie.sampled(turn)?.tail.clone();
        Some((turn, length, tail, trie.tokens(turn)))
    });
    let (parent, added, mut prompt) = match known {
        Some((turn, length, tail, tokens)) => {
            // The client repeats the stop string, which was sampled.
            let rest = &text[length..];
            let rest = rest.strip_prefix(tail.as_str()).unwrap_or(rest);
            let added =
                if rest.is_empty() { Vec::new() } else { session.model.tokenizer.encode(rest, false)? };
            (Some(turn), added, tokens)
        }
        None => (None, session.model.tokenizer.encode(text, true)?, Vec::new()),
    };
    prompt.extend_from_slice(&added);
    let said = vec![digest_of([text.as_bytes()])];
    let extension = Extension { parent, identity: plain(), said, added };
    Ok(Plan { extension, prompt, reasons: false, text: Some(text.to_owned()) })
}

fn of_tokens(session: &Session, tokens: &[u32]) -> Plan {
    let identity = plain();
    let known: Option<(TurnId, usize)> = session.with_trie(|trie| trie.find_tokens(&identity, tokens));
    let added = tokens[known.map_or(0, |(_, length)| length)..].to_vec();
    let bytes: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
    let said = vec![digest_of([bytes.as_slice()])];
    let extension = Extension { parent: known.map(|(turn, _)| turn), identity, said, added };
    Plan { extension, prompt: tokens.to_vec(), reasons: false, text: None }
}
