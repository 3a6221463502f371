//! Weights of one update on their way to a replica.

use std::sync::Arc;
use std::time::Duration;

use rloom_engine::{
    PolicyLabel, PublishedPolicy, PublishedWeights, ReceiverStep, SendError, WeightFolder, WeightReceiver,
    WeightSender,
};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;
use tokio::time::Instant;

use super::local::LocalFolder;
use crate::error::ServerError;
use crate::server::Server;

/// Place that a replica gets weights from.
pub(super) enum Source {
    Folder(LocalFolder),
    Live(Arc<dyn WeightSender>),
}

/// Weights as the trainer gives them.
pub(super) enum Published {
    Folder(Arc<WeightFolder>),
    Live(Arc<dyn WeightSender>),
}

impl Published {
    /// The weights of a publication. A replica that is loaded whole, or whose server knows nothing else, gets a folder, for
    /// which the trainer may have to finish what it does.
    pub(super) async fn of(published: &PublishedPolicy, needs_folder: bool) -> Result<Self, SendError> {
        match &published.weights {
            PublishedWeights::Folder(folder) | PublishedWeights::Adapter(folder) => {
                Ok(Self::Folder(Arc::clone(folder)))
            }
            PublishedWeights::Live(sender) if needs_folder => {
                let sender = Arc::clone(sender);
                let written = tokio::task::spawn_blocking(move || sender.folder()).await;
                let ended =
                    |error: tokio::task::JoinError| Err(SendError::Trainer { reason: error.to_string() });
                written.unwrap_or_else(ended).map(Self::Folder)
            }
            PublishedWeights::Live(sender) => Ok(Self::Live(Arc::clone(sender))),
            // Refused before they become a target.
            PublishedWeights::Memory(_) => Ok(Self::Folder(Arc::new(WeightFolder::kept("")))),
        }
    }
}

/// A server that takes weights from a trainer's memory.
pub(super) struct LiveReceiver {
    server: Arc<Server>,
    incarnation: u32,
    ranks: usize,
    label: PolicyLabel,
    /// Timeout of each step. Time in which the trainer sends to others does not count.
    timeout: Duration,
    handle: Handle,
    answer: Option<oneshot::Receiver<Result<(), ServerError>>>,
    result: Option<Result<(), String>>,
}

impl LiveReceiver {
    pub(super) fn new(
        server: Arc<Server>,
        incarnation: u32,
        ranks: usize,
        label: PolicyLabel,
        timeout: Duration,
    ) -> Self {
        let handle = Handle::current();
        Self { server, incarnation, ranks, label, timeout, handle, answer: None, result: None }
    }

    /// Takes all weights of an update that was started.
    pub(super) async fn take(mut self, sender: Arc<dyn WeightSender>) -> Result<(), SendError> {
        let sent = tokio::task::spawn_blocking(move || sender.send(&mut self)).await;
        sent.unwrap_or_else(|error| Err(SendError::Trainer { reason: error.to_string() }))
    }

    fn keep(&mut self, answer: Result<Result<(), ServerError>, impl std::error::Error>) {
        let answer = answer.map_err(|error| error.to_string());
        self.result = Some(answer.and_then(|answer| answer.map_err(|error| error.to_string())));
        self.answer = None;
    }
}

impl WeightReceiver for LiveReceiver {
    fn name(&self) -> &str {
        self.server.url()
    }

    fn incarnation(&self) -> u32 {
        self.incarnation
    }

    fn ranks(&self) -> usize {
        self.ranks
    }

    fn timeout(&self) -> Duration {
        self.timeout
    }

    fn begin(&mut self, step: ReceiverStep<'_>) {
        let (mut reply, answer) = oneshot::channel();
        (self.answer, self.result) = (Some(answer), None);
        let (server, label, deadline) = (Arc::clone(&self.server), self.label, Instant::now() + self.timeout);
        let (mut channel, mut chunk) = (None, None);
        match step {
            ReceiverStep::Join(given) => channel = Some(given.clone()),
            ReceiverStep::Receive(given) => chunk = Some(given.clone()),
        }
        self.handle.spawn(async move {
            let Some(live) = server.vllm_client() else { return };
            let answered = async {
                if let Some(channel) = &channel {
                    live.join(channel, deadline).await?;
                }
                if let Some(chunk) = &chunk {
                    live.receive(chunk, label, deadline).await?;
                }
                Ok(())
            };
            let answered = tokio::select! {
                answered = answered => answered,
                // The trainer has given up: the connection is closed.
                () = reply.closed() => return,
            };
            drop(reply.send(answered));
        });
    }

    fn has_failed(&mut self) -> bool {
        if let Some(answer) = &mut self.answer {
            match answer.try_recv() {
                Ok(answer) => self.keep(Ok::<_, TryRecvError>(answer)),
                Err(TryRecvError::Empty) => {}
                Err(error) => self.keep(Err(error)),
            }
        }
        matches!(self.result, Some(Err(_)))
    }

    fn finish(&mut self) -> Result<(), String> {
        if let Some(answer) = self.answer.take() {
            self.keep(answer.blocking_recv());
        }
        self.result.take().unwrap_or(Ok(()))
    }
}
