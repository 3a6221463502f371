//! The turns of a session: a forest in which a path is a conversation, with the exact tokens of each part.
//!
//! A turn continues the branch of its parent if it is the first to follow it, and begins a branch otherwise. At the end each
//! branch is a segment: what it shares with an earlier branch is its prompt.

use rloom_core::{Author, SampleKey, Span, StepReward, StopReason, Trajectory, TrajectoryError, VersionSpan};
use rloom_engine::Generation;

use super::canonical::{Canonical, Digest, digest_of};

/// Index of a turn.
pub(super) type TurnId = usize;

/// What a request adds to the turns before it.
#[derive(Debug, Clone)]
pub(super) struct Extension {
    /// The turn that it follows; `None` begins a conversation.
    pub(super) parent: Option<TurnId>,
    /// Digest of what a conversation has besides its messages.
    pub(super) identity: Digest,
    /// The messages after the parent's answer.
    pub(super) said: Vec<Digest>,
    /// The tokens between the parent's tokens and the completion.
    pub(super) added: Vec<u32>,
}

/// A completion.
#[derive(Debug, Clone)]
pub(super) struct Sampled {
    pub(super) generation: Generation,
    pub(super) answer: Canonical,
    pub(super) reasoning: String,
    /// The completion ended inside of the reasoning.
    pub(super) reasons: bool,
    /// For plain text: the prompt with the answer.
    pub(super) whole: Option<String>,
    /// For plain text: what was sampled after the answer, a stop string.
    pub(super) tail: String,
    /// Identifier of the answer.
    pub(super) id: String,
}

#[derive(Debug)]
enum State {
    InFlight,
    Sampled(Box<Sampled>),
    Dropped,
}

#[derive(Debug)]
struct Turn {
    extension: Extension,
    branch: usize,
    children: Vec<TurnId>,
    state: State,
    /// Digest of the path up to the messages before the completion.
    path: Digest,
    step: Option<f64>,
    /// A prompt that continues this turn was too long.
    is_cut: bool,
}

#[derive(Debug)]
struct Branch {
    /// `segment` of its random stream.
    stream: u32,
    /// The last turn that it shares with another branch.
    fork: Option<TurnId>,
    /// Its own turns that were sampled.
    turns: Vec<TurnId>,
    /// Its turns in flight.
    in_flight: usize,
}

/// The turns of a session.
#[derive(Debug, Default)]
pub(super) struct Trie {
    turns: Vec<Turn>,
    /// Turns that begin a conversation.
    roots: Vec<TurnId>,
    branches: Vec<Branch>,
}

/// The longest known part of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Match {
    pub(super) turn: TurnId,
    /// Messages of the request that are known.
    pub(super) used: usize,
}

impl Trie {
    /// Finds the longest path of a conversation that ends in a completion. Of several with the same content, the identifiers of
    /// calls decide, then the order.
    pub(super) fn find(&self, identity: &Digest, messages: &[Canonical]) -> Option<Match> {
        let mut best: Option<(usize, usize, TurnId)> = None;
        let mut open: Vec<(Option<TurnId>, usize, usize)> = vec![(None, 0, 0)];
        while let Some((parent, used, ids)) = open.pop() {
            for (turn, sampled) in self.children(parent) {
                let extension = &self.turns[turn].extension;
                let rest = &messages[used..];
                let said = &extension.said;
                if extension.identity != *identity || rest.len() <= said.len() {
                    continue;
                }
                let is_same = said.iter().zip(rest).all(|(known, message)| *known == message.digest);
                let echo = &rest[said.len()];
                if !is_same || echo.digest != sampled.answer.digest {
                    continue;
                }
                let same_ids = usize::from(!echo.ids.is_empty() && echo.ids == sampled.answer.ids);
                let (used, ids) = (used + said.len() + 1, ids + same_ids);
                let is_better = |&(most, most_ids, first): &(usize, usize, TurnId)| {
                    (used, ids) > (most, most_ids) || ((used, ids) == (most, most_ids) && turn < first)
                };
                if best.as_ref().is_none_or(is_better) {
                    best = Some((used, ids, turn));
                }
                open.push((Some(turn), used, ids));
            }
        }
        best.map(|(used, _, turn)| Match { turn, used })
    }

    /// Finds the longest plain text that a prompt begins with, and returns its length in bytes.
    pub(super) fn find_text(&self, prompt: &str) -> Option<(TurnId, usize)> {
        let known = self.all_sampled().filter_map(|(turn, sampled)| {
            let whole = sampled.whole.as_ref()?;
            prompt.starts_with(whole.as_str()).then_some((turn, whole.len()))
        });
        known.max_by_key(|&(turn, length)| (length, std::cmp::Reverse(turn)))
    }

    /// Finds the longest path with this identity whose tokens a prompt begins with, and returns their number.
    pub(super) fn find_tokens(&self, identity: &Digest, prompt: &[u32]) -> Option<(TurnId, usize)> {
        let known = self.all_sampled().filter(|(turn, _)| self.turns[*turn].extension.identity == *identity);
        let known = known.filter_map(|(turn, _)| {
            let tokens = self.tokens(turn);
            prompt.starts_with(&tokens).then_some((turn, tokens.len()))
        });
        known.max_by_key(|&(turn, length)| (length, std::cmp::Reverse(turn)))
    }

    /// A completion.
    pub(super) fn sampled(&self, turn: TurnId) -> Option<&Sampled> {
        match &self.turns.get(turn)?.state {
            State::Sampled(sampled) => Some(sampled),
            State::InFlight | State::Dropped => None,
        }
    }

    /// All tokens from the beginning of a conversation to the end of a turn.
    pub(super) fn tokens(&self, turn: TurnId) -> Vec<u32> {
        let mut tokens = Vec::new();
        for turn in self.path(turn) {
            tokens.extend_from_slice(&self.turns[turn].extension.added);
            if let Some(sampled) = self.sampled(turn) {
                tokens.extend_from_slice(&sampled.generation.tokens);
            }
        }
        tokens
    }

    /// The turns from the beginning of a conversation to this one.
    pub(super) fn path(&self, turn: TurnId) -> Vec<TurnId> {
        let mut path: Vec<TurnId> =
            std::iter::successors(Some(turn), |turn| self.turns[*turn].extension.parent).collect();
        path.reverse();
        path
    }

    /// Number of messages that a turn adds before its completion.
    pub(super) fn said(&self, turn: TurnId) -> usize {
        self.turns[turn].extension.said.len()
    }

    /// Adds a turn that is to be sampled; returns it and the `segment` of its random stream.
    pub(super) fn begin(&mut self, extension: Extension) -> (TurnId, u32) {
        let parent = extension.parent;
        let before = parent.map_or(&extension.identity, |parent| &self.turns[parent].path);
        let answer = parent.and_then(|parent| self.sampled(parent)).map(|sampled| &sampled.answer.digest);
        let parts = [Some(before), answer].into_iter().flatten().chain(&extension.said);
        let path = digest_of(parts.map(Digest::as_slice));
        let branch = self.continued(parent).unwrap_or_else(|| {
            let stream = self.new_stream(parent, &path);
            self.branches.push(Branch { stream, fork: parent, turns: Vec::new(), in_flight: 0 });
            self.branches.len() - 1
        });
        self.branches[branch].in_flight += 1;
        let turn = self.turns.len();
        match parent {
            Some(parent) => self.turns[parent].children.push(turn),
            None => self.roots.push(turn),
        }
        self.turns.push(Turn {
            extension,
            branch,
            children: Vec::new(),
            state: State::InFlight,
            path,
            step: None,
            is_cut: false,
        });
        (turn, self.branches[branch].stream)
    }

    /// The branch of a turn's first child: the parent's, unless another turn continues it.
    fn continued(&self, parent: Option<TurnId>) -> Option<usize> {
        let Turn { branch, children, .. } = &self.turns[parent?];
        let continues = |turn: &Turn| turn.branch == *branch && !matches!(turn.state, State::Dropped);
        let is_taken = children.iter().any(|child| continues(&self.turns[*child]));
        (!is_taken).then_some(*branch)
    }

    /// The stream of a new branch: 0 for the first conversation, else one that depends on the path alone, as far as it is free.
    fn new_stream(&self, parent: Option<TurnId>, path: &Digest) -> u32 {
        let live = |branch: &&Branch| branch.in_flight > 0 || !branch.turns.is_empty();
        let is_free = |stream: u32| !self.branches.iter().filter(live).any(|branch| branch.stream == stream);
        if parent.is_none() && is_free(0) {
            return 0;
        }
        let derived = |attempt: u32| {
            let digest = digest_of([path.as_slice(), &attempt.to_le_bytes()]);
            u32::from_le_bytes([digest[0], digest[1], digest[2], digest[3]])
        };
        (0..=u32::MAX).map(derived).find(|stream| *stream != 0 && is_free(*stream)).unwrap_or(u32::MAX)
    }

    /// Records the completion of a turn.
    pub(super) fn commit(&mut self, turn: TurnId, sampled: Sampled) {
        let branch = &mut self.branches[self.turns[turn].branch];
        branch.in_flight -= 1;
        branch.turns.push(turn);
        self.turns[turn].state = State::Sampled(Box::new(sampled));
    }

    /// Removes a turn in flight.
    pub(super) fn release(&mut self, turn: TurnId) {
        if matches!(self.turns[turn].state, State::InFlight) {
            self.branches[self.turns[turn].branch].in_flight -= 1;
            self.turns[turn].state = State::Dropped;
            self.turns[turn].extension.added = Vec::new();
        }
    }

    /// Notes that a prompt which continues a turn was too long.
    pub(super) fn cut(&mut self, turn: TurnId) {
        self.turns[turn].is_cut = true;
    }

    /// The completion with an identifier: that of its answer, or of a call in it.
    pub(super) fn with_id(&self, id: &str) -> Option<TurnId> {
        // Each API has a prefix of its own.
        let own = id.split_once('_').or_else(|| id.split_once('-')).map_or(id, |(_, own)| own);
        let is_it = |sampled: &Sampled| sampled.id == own || sampled.answer.ids.iter().any(|call| call == id);
        self.all_sampled().find(|(_, sampled)| is_it(sampled)).map(|(turn, _)| turn)
    }

    /// Sets the step reward of a turn.
    pub(super) fn reward(&mut self, turn: TurnId, reward: f64) {
        self.turns[turn].step = Some(reward);
    }

    /// Number of completions.
    pub(super) fn completions(&self) -> usize {
        self.all_sampled().count()
    }

    /// Number of segments.
    pub(super) fn branches(&self) -> usize {
        self.branches.iter().filter(|branch| !branch.turns.is_empty()).count()
    }

    /// The segments, one for each branch in the order of their first requests, numbered from `key` on.
    pub(super) fn segments(&self, key: SampleKey) -> Result<Vec<Trajectory>, TrajectoryError> {
        let branches = self.branches.iter().filter(|branch| !branch.turns.is_empty());
        branches
            .enumerate()
            .map(|(number, branch)| {
                let segment = key.segment + u32::try_from(number).unwrap_or(u32::MAX);
                let segment = self.segment(branch, SampleKey { segment, ..key });
                segment.validate().map(|()| segment)
            })
            .collect()
    }

    fn segment(&self, branch: &Branch, key: SampleKey) -> Trajectory {
        let tokens = branch.fork.map_or_else(Vec::new, |fork| self.tokens(fork));
        let shared = Span::new(Author::Prompt, 0..tokens.len());
        let mut segment = Trajectory {
            key,
            tokens,
            spans: vec![shared],
            logprobs: Vec::new(),
            versions: Vec::new(),
            stop: StopReason::Aborted,
            attachments: Vec::new(),
            agent: None,
        };
        for &turn in &branch.turns {
            let Turn { extension, step, is_cut, .. } = &self.turns[turn];
            let author = if extension.parent.is_none() { Author::Prompt } else { Author::Environment };
            let from = segment.tokens.len();
            segment.tokens.extend_from_slice(&extension.added);
            let at = segment.tokens.len();
            segment.spans.push(Span::new(author, from..at));
            let Some(Sampled { generation, .. }) = self.sampled(turn) else { continue };
            segment.tokens.extend_from_slice(&generation.tokens);
            let span = Span::new(Author::Policy, at..segment.tokens.len());
            let step = step.map(|reward| StepReward { reward, state: None });
            segment.spans.push(Span { step, ..span.with_temperature(generation.temperature) });
            segment.logprobs.extend_from_slice(&generation.logprobs);
            segment.versions.extend(generation.versions.iter().map(|version| VersionSpan {
                range: version.range.start + at..version.range.end + at,
                ..version.clone()
            }));
            segment.stop = if *is_cut { StopReason::Length } else { generation.stop };
        }
        segment.spans.retain(|span| !span.range.is_empty());
        segment
    }

    fn children(&self, parent: Option<TurnId>) -> impl Iterator<Item = (TurnId, &Sampled)> {
        let children = parent.map_or(&self.roots, |parent| &self.turns[parent].children);
        children.iter().filter_map(|&turn| Some((turn, self.sampled(turn)?)))
    }

    fn all_sampled(&self) -> impl Iterator<Item = (TurnId, &Sampled)> {
        (0..self.turns.len()).filter_map(|turn| Some((turn, self.sampled(turn)?)))
    }
}

#[cfg(test)]
mod tests;
