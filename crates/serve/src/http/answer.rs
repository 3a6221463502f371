//! Answers to completions: at once, or as a stream.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

use hyper::body::Bytes;
use serde_json::Value;
use tokio::time::timeout;

use super::body::{NextBytes, NextStep};
use super::exchange::Logged;
use super::service::Place;
use crate::problem::Problem;
use crate::reply::{Finish, Reply, Update};
use crate::running::Running;
use crate::session::CallReader;
use crate::wire::{Frames, Head, Wire};

/// Origin of an answer.
pub(super) enum Source {
    /// A completion of its own, which is cancelled when this is dropped.
    Completion(Box<Running>),
    /// A call of a session.
    Call(CallReader),
}

impl Source {
    async fn next(&mut self) -> Result<Update, Problem> {
        match self {
            Self::Completion(running) => running.next().await,
            Self::Call(reader) => reader.next().await,
        }
    }

    /// Tokens of the prompt and sampled tokens.
    fn tokens(&self) -> (usize, usize) {
        match self {
            Self::Completion(running) => (running.prompt_tokens(), running.sampled_tokens()),
            Self::Call(reader) => reader.tokens(),
        }
    }

    /// Notes that a client receives a part of the answer.
    fn delivered(&self) {
        match self {
            Self::Completion(_) => {}
            Self::Call(reader) => reader.delivered(),
        }
    }
}

/// The next update of a reply, with the reply's index and the rest of its origin.
type NextUpdate = Pin<Box<dyn Future<Output = (usize, Source, Result<Update, Problem>)> + Send>>;

fn next_of(index: usize, mut source: Source) -> NextUpdate {
    Box::pin(async move {
        let update = source.next().await;
        (index, source, update)
    })
}

/// The replies of an answer while they are completed.
pub(super) struct Replies {
    pending: Vec<NextUpdate>,
    collected: Vec<Reply>,
    /// Tokens of the prompt, and sampled tokens of each reply.
    prompt_tokens: usize,
    sampled_tokens: Vec<usize>,
    /// A client receives each part at once.
    streams: bool,
}

impl Replies {
    pub(super) fn new(sources: Vec<Source>, streams: bool) -> Self {
        let number = sources.len();
        Self {
            prompt_tokens: sources.first().map_or(0, |source| source.tokens().0),
            pending: sources.into_iter().enumerate().map(|(index, source)| next_of(index, source)).collect(),
            collected: (0..number).map(|_| Reply::new()).collect(),
            sampled_tokens: vec![0; number],
            streams,
        }
    }

    /// Waits for more of a reply, and adds it. Cancel-safe. Not called again after an error, or once all replies are complete.
    async fn next(&mut self) -> Result<(usize, Update), Problem> {
        let (place, (index, source, update)) = poll_fn(|cx| {
            let ready =
                self.pending.iter_mut().enumerate().find_map(|(place, next)| match next.as_mut().poll(cx) {
                    Poll::Ready(update) => Some((place, update)),
                    Poll::Pending => None,
                });
            ready.map_or(Poll::Pending, Poll::Ready)
        })
        .await;
        drop(self.pending.swap_remove(place));
        let (prompt, sampled) = source.tokens();
        (self.prompt_tokens, self.sampled_tokens[index]) = (prompt, sampled);
        let update = update?;
        if self.streams {
            source.delivered();
        }
        if !self.collected[index].add(update.clone()) {
            self.pending.push(next_of(index, source));
        }
        Ok((index, update))
    }

    fn are_complete(&self) -> bool {
        self.pending.is_empty()
    }
}

/// Completions and the form of their answer.
pub(super) struct Answering {
    pub(super) replies: Replies,
    pub(super) wire: Box<dyn Wire>,
    pub(super) head: Head,
    pub(super) keep_alive: std::time::Duration,
    pub(super) logged: Logged,
    /// Held until the answer has ended.
    pub(super) _place: Place,
}

impl Answering {
    /// Waits for the complete answer.
    pub(super) async fn whole(mut self) -> Result<Value, (Problem, Logged)> {
        while !self.replies.are_complete() {
            if let Err(problem) = self.next().await {
                return Err((problem, self.logged));
            }
        }
        self.logged.status(200);
        self.end();
        let mut body = self.wire.whole(&self.head, &self.replies.collected);
        self.head.annotate(&mut body);
        Ok(body)
    }

    /// Waits for the first update, so that an early failure is an answer with its status, and begins the stream.
    pub(super) async fn stream(mut self) -> Result<NextBytes, (Problem, Logged)> {
        let first = match timeout(self.keep_alive, self.next()).await {
            Ok(Ok(update)) => Some(update),
            Ok(Err(problem)) => return Err((problem, self.logged)),
            Err(_) => None,
        };
        self.logged.status(200);
        Ok(Box::pin(async move {
            let mut frames = Frames::default();
            self.wire.begin(&self.head, &mut frames);
            Some(match first {
                Some((index, update)) => self.send(index, &update, frames),
                None => self.following(frames),
            })
        }))
    }

    async fn next(&mut self) -> Result<(usize, Update), Problem> {
        let update = self.replies.next().await;
        let Replies { prompt_tokens, sampled_tokens, .. } = &self.replies;
        self.head.prompt_tokens = *prompt_tokens;
        self.logged.tokens(*prompt_tokens, sampled_tokens.iter().sum());
        update
    }

    /// Bytes with these frames, and then the next ones.
    fn following(self, frames: Frames) -> (Bytes, NextStep) {
        (frames.into_text().into(), NextStep(Some(Box::pin(self.next_bytes()))))
    }

    async fn next_bytes(mut self) -> Option<(Bytes, NextStep)> {
        let mut frames = Frames::default();
        Some(match timeout(self.keep_alive, self.next()).await {
            Ok(Ok((index, update))) => self.send(index, &update, frames),
            Ok(Err(problem)) => {
                self.wire.error(&problem, &mut frames);
                self.logged.end(problem.message);
                (frames.into_text().into(), NextStep(None))
            }
            Err(_) => {
                frames.comment("keep-alive");
                self.following(frames)
            }
        })
    }

    /// Adds the frames of an update.
    fn send(mut self, index: usize, update: &Update, mut frames: Frames) -> (Bytes, NextStep) {
        let Self { wire, head, replies, .. } = &mut self;
        wire.update(head, index, update, &mut frames);
        if update.end.is_some() {
            wire.end_reply(head, index, &replies.collected[index], &mut frames);
        }
        if !replies.are_complete() {
            return self.following(frames);
        }
        wire.end(head, &replies.collected, &mut frames);
        self.end();
        (frames.into_text().into(), NextStep(None))
    }

    /// Notes the end in the log.
    fn end(&mut self) {
        let outcomes: Vec<&str> = self.replies.collected.iter().map(|reply| outcome(&reply.finish)).collect();
        self.logged.end(outcomes.join(", "));
    }
}

/// The end of a completion, for the log.
fn outcome(finish: &Finish) -> &'static str {
    match finish {
        Finish::Stop => "stop",
        Finish::StopString(_) => "stop string",
        Finish::Length => "length",
        Finish::Calls => "tool calls",
    }
}
