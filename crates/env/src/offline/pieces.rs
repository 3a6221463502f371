//! Tokens with their authors, from which a trajectory is assembled.

use rloom_core::{Author, SampleKey, Span, StepReward, StopReason, Trajectory};
use rloom_text::{TextError, Tokenizer};

/// Tokens of one author each, in order.
#[derive(Debug, Default)]
pub(super) struct Pieces(Vec<Piece>);

#[derive(Debug)]
struct Piece {
    tokens: Vec<u32>,
    is_learned: bool,
    label: Option<bool>,
}

impl Pieces {
    /// Appends tokens that carry no loss.
    pub(super) fn push_given(&mut self, tokens: Vec<u32>) {
        self.push(Piece { tokens, is_learned: false, label: None });
    }

    /// Appends tokens that carry loss.
    pub(super) fn push_learned(&mut self, tokens: Vec<u32>) {
        self.push(Piece { tokens, is_learned: true, label: None });
    }

    /// Appends a step with its label.
    pub(super) fn push_step(&mut self, tokens: Vec<u32>, label: bool) {
        self.push(Piece { tokens, is_learned: true, label: Some(label) });
    }

    fn push(&mut self, mut piece: Piece) {
        if self.0.is_empty() && piece.is_learned && piece.label.is_none() && !piece.tokens.is_empty() {
            // The first token has no prefix to be predicted from.
            let rest = piece.tokens.split_off(1);
            self.0.push(Piece { is_learned: false, ..piece });
            piece = Piece { tokens: rest, is_learned: true, label: None };
        }
        if !piece.tokens.is_empty() {
            self.0.push(piece);
        }
    }

    /// Number of tokens.
    pub(super) fn len(&self) -> usize {
        self.0.iter().map(|piece| piece.tokens.len()).sum()
    }

    /// Number of tokens before the first that carries loss.
    pub(super) fn leading_prompt(&self) -> usize {
        self.0.iter().take_while(|piece| !piece.is_learned).map(|piece| piece.tokens.len()).sum()
    }

    /// The fewest tokens after the prompt that can be learned from: a whole step, or one token.
    pub(super) fn least_learned(&self) -> usize {
        let first = self.0.iter().find(|piece| piece.is_learned);
        first.map_or(0, |piece| if piece.label.is_some() { piece.tokens.len() } else { 1 })
    }

    /// The trajectory, which was not sampled: its log-probabilities are 0, and it has no policy versions.
    pub(super) fn trajectory(self, key: SampleKey) -> Trajectory {
        let (mut tokens, mut spans) = (Vec::new(), Vec::<Span>::new());
        for piece in self.0 {
            let author = match (piece.is_learned, spans.iter().any(|span| span.author == Author::Policy)) {
                (true, _) => Author::Policy,
                (false, false) => Author::Prompt,
                (false, true) => Author::Environment,
            };
            let range = tokens.len()..tokens.len() + piece.tokens.len();
            tokens.extend(piece.tokens);
            let step =
                piece.label.map(|label| StepReward { reward: f64::from(u8::from(label)), state: None });
            match spans.last_mut() {
                Some(last) if last.author == author && step.is_none() && last.step.is_none() => {
                    last.range.end = range.end;
                }
                _ => spans.push(Span { step, ..Span::new(author, range) }),
            }
        }
        let learned =
            spans.iter().filter(|span| span.author == Author::Policy).map(|span| span.range.len()).sum();
        Trajectory {
            key,
            agent: None,
            tokens,
            spans,
            logprobs: vec![0.0; learned],
            versions: Vec::new(),
            stop: StopReason::StopToken,
            attachments: Vec::new(),
        }
    }
}

/// A text that is learned as a whole, as the prompt of a trajectory that [`learn_all`] turns into policy tokens. It ends with
/// an end-of-text token; `None` if the tokenizer has none.
pub(super) fn of_text(tokenizer: &Tokenizer, text: &str) -> Result<Option<Pieces>, TextError> {
    let mut tokens = tokenizer.encode(text, true)?;
    let ends = tokenizer.eos_ids();
    if tokens.last().is_none_or(|last| !ends.contains(last)) {
        let Some(end) = tokenizer.eos_id().or(ends.first().copied()) else { return Ok(None) };
        tokens.push(end);
    }
    let mut pieces = Pieces::default();
    pieces.push_given(tokens);
    Ok(Some(pieces))
}

/// Makes the policy the author of everything but the first token.
pub(super) fn learn_all(trajectory: &mut Trajectory) {
    let length = trajectory.tokens.len();
    let first = 1.min(length);
    trajectory.spans = vec![Span::new(Author::Prompt, 0..first), Span::new(Author::Policy, first..length)];
    trajectory.logprobs = vec![0.0; length - first];
}
