//! Answers to completions: at once, or as a stream.

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

/// A completion and the form of its answer.
pub(super) struct Answering {
    pub(super) source: Source,
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
        let mut reply = Reply::new();
        loop {
            match self.next().await {
                Ok(update) => {
                    if reply.add(update) {
                        break;
                    }
                }
                Err(problem) => return Err((problem, self.logged)),
            }
        }
        self.logged.status(200);
        self.logged.end(outcome(&reply.finish));
        let mut body = self.wire.whole(&self.head, &reply);
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
            let stream = Streaming { answering: self, reply: Reply::new() };
            Some(match first {
                Some(update) => stream.send(update, frames),
                None => stream.following(frames),
            })
        }))
    }

    async fn next(&mut self) -> Result<Update, Problem> {
        let update = self.source.next().await;
        let (prompt, sampled) = self.source.tokens();
        self.head.prompt_tokens = prompt;
        self.logged.tokens(prompt, sampled);
        update
    }
}

/// A stream that has begun.
struct Streaming {
    answering: Answering,
    reply: Reply,
}

impl Streaming {
    /// Bytes with these frames, and then the next ones.
    fn following(self, frames: Frames) -> (Bytes, NextStep) {
        (frames.into_text().into(), NextStep(Some(Box::pin(self.next()))))
    }

    async fn next(mut self) -> Option<(Bytes, NextStep)> {
        let mut frames = Frames::default();
        let keep_alive = self.answering.keep_alive;
        Some(match timeout(keep_alive, self.answering.next()).await {
            Ok(Ok(update)) => self.send(update, frames),
            Ok(Err(problem)) => {
                self.answering.wire.error(&problem, &mut frames);
                self.answering.logged.end(problem.message);
                (frames.into_text().into(), NextStep(None))
            }
            Err(_) => {
                frames.comment("keep-alive");
                self.following(frames)
            }
        })
    }

    /// Adds the frames of an update.
    fn send(mut self, update: Update, mut frames: Frames) -> (Bytes, NextStep) {
        let Answering { wire, head, source, .. } = &mut self.answering;
        source.delivered();
        wire.update(head, &update, &mut frames);
        if !self.reply.add(update) {
            return self.following(frames);
        }
        wire.end(head, &self.reply, &mut frames);
        self.answering.logged.end(outcome(&self.reply.finish));
        (frames.into_text().into(), NextStep(None))
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
