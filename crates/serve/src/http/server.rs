//! Accepts connections until the server is stopped.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use hyper::server::conn::http1::Builder;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rloom_engine::RolloutEngine;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::exchange::{Exchange, Log};
use super::extension::Extension;
use super::key::ApiKey;
use super::patient::PatientStream;
use super::service::{Plain, Service, now};
use crate::model::ServedModel;
use crate::session::Sessions;
use crate::{ServeError, ServeSettings};

/// Pause after a connection could not be accepted, for example because there are no more file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Largest head of a request, and size of the read buffer, in bytes.
const MAX_HEAD: usize = 64 << 10;

/// Life of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Serving,
    /// No new requests; those in flight finish.
    Draining,
    /// Connections are closed.
    Stopped,
}

/// Stops a server.
#[derive(Debug, Clone)]
pub struct Stopper(watch::Sender<Phase>);

impl Stopper {
    /// Lets requests in flight finish, but no longer than the settings' `grace`.
    pub fn drain(&self) {
        self.0.send_if_modified(|phase| {
            let begins = *phase == Phase::Serving;
            *phase = if begins { Phase::Draining } else { *phase };
            begins
        });
    }

    /// Cancels requests in flight.
    pub fn stop(&self) {
        self.0.send_replace(Phase::Stopped);
    }
}

/// Listens on an address; port 0 takes any that is free.
pub async fn listen(host: &str, port: u16) -> Result<TcpListener, ServeError> {
    let failed = |source| ServeError::Listen { address: format!("{host} port {port}"), source };
    TcpListener::bind((host, port)).await.map_err(failed)
}

/// An HTTP server for one model.
pub struct Server {
    listener: TcpListener,
    service: Arc<Service>,
    stopper: Stopper,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("listener", &self.listener).finish_non_exhaustive()
    }
}

impl Server {
    /// A server for an engine with loaded weights. Without a key every client is served. `log` receives each request when it
    /// has ended.
    pub fn new<E: RolloutEngine + 'static>(
        listener: TcpListener,
        model: ServedModel,
        engine: Arc<E>,
        key: Option<ApiKey>,
        settings: ServeSettings,
        log: impl Fn(&Exchange) + Send + Sync + 'static,
    ) -> Self {
        let plain = Plain { model: Arc::new(model), sampler: engine };
        Self::of(listener, Some(plain), None, key, settings, Arc::new(log))
    }

    /// A server for sessions alone. Each is found by its token: there is no other key.
    pub fn for_sessions(
        listener: TcpListener,
        sessions: Sessions,
        settings: ServeSettings,
        log: impl Fn(&Exchange) + Send + Sync + 'static,
    ) -> Self {
        Self::of(listener, None, Some(sessions), None, settings, Arc::new(log))
    }

    fn of(
        listener: TcpListener,
        plain: Option<Plain>,
        sessions: Option<Sessions>,
        key: Option<ApiKey>,
        settings: ServeSettings,
        log: Arc<Log>,
    ) -> Self {
        let (sender, phase) = watch::channel(Phase::Serving);
        let places = Arc::new(Semaphore::new(settings.max_requests.min(Semaphore::MAX_PERMITS)));
        let (created, number) = (now(), AtomicU64::new(0));
        let extension = None;
        let service =
            Service { plain, sessions, settings, key, log, places, phase, created, number, extension };
        Self { listener, service: Arc::new(service), stopper: Stopper(sender) }
    }

    /// Serves sessions, too.
    #[must_use]
    pub fn with_sessions(mut self, sessions: Sessions) -> Self {
        if let Some(service) = Arc::get_mut(&mut self.service) {
            service.sessions = Some(sessions);
        }
        self
    }

    /// Also serves another API. Its paths come before the server's own.
    #[must_use]
    pub fn with_extension(mut self, extension: Arc<dyn Extension>) -> Self {
        // The service is not shared before the server runs.
        if let Some(service) = Arc::get_mut(&mut self.service) {
            service.extension = Some(extension);
        }
        self
    }

    /// Address that the server listens on.
    pub fn address(&self) -> Result<SocketAddr, ServeError> {
        let failed = |source| ServeError::Listen { address: "the socket".to_owned(), source };
        self.listener.local_addr().map_err(failed)
    }

    /// Handle that stops the server.
    pub fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }

    /// Serves until it is stopped. Returns the number of requests that were cancelled.
    pub async fn run(self) -> usize {
        let Self { listener, service, stopper } = self;
        let ServeSettings { max_connections, max_requests, grace, .. } = service.settings;
        let slots = Arc::new(Semaphore::new(max_connections.min(Semaphore::MAX_PERMITS)));
        let mut phase = stopper.0.subscribe();
        let mut connections = JoinSet::new();
        while *phase.borrow_and_update() == Phase::Serving {
            tokio::select! {
                _ = phase.changed() => {}
                Some(_) = connections.join_next(), if !connections.is_empty() => {}
                accepted = accept(&listener, &slots) => {
                    let Some((stream, slot)) = accepted else { continue };
                    let serving = connection(stream, Arc::clone(&service));
                    connections.spawn(async move {
                        serving.await;
                        drop(slot);
                    });
                }
            }
        }
        drop(listener);
        let all = async { while connections.join_next().await.is_some() {} };
        let stopped = async { drop(phase.wait_for(|phase| *phase == Phase::Stopped).await) };
        tokio::select! {
            () = all => {}
            () = stopped => {}
            () = sleep(grace) => {}
        }
        let cancelled = max_requests - service.places.available_permits().min(max_requests);
        stopper.stop();
        connections.shutdown().await;
        cancelled
    }
}

type Slot = tokio::sync::OwnedSemaphorePermit;

/// Accepts a connection once there is a slot for it.
async fn accept(listener: &TcpListener, slots: &Arc<Semaphore>) -> Option<(TcpStream, Slot)> {
    let slot = Arc::clone(slots).acquire_owned().await.ok()?;
    if let Ok((stream, _)) = listener.accept().await {
        return Some((stream, slot));
    }
    sleep(ACCEPT_PAUSE).await;
    None
}

/// Serves a connection until it ends. Once the server drains or stops, it ends after the request in flight.
async fn connection(stream: TcpStream, service: Arc<Service>) {
    // Streamed tokens are small packets.
    let _ = stream.set_nodelay(true);
    let ServeSettings { header_timeout, write_timeout, .. } = service.settings;
    let mut phase = service.phase.clone();
    let answer = service_fn(move |request| {
        let service = Arc::clone(&service);
        async move { Ok::<_, std::convert::Infallible>(service.answer(request).await) }
    });
    let io = TokioIo::new(PatientStream::new(stream, write_timeout));
    let serving = Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(header_timeout)
        .max_buf_size(MAX_HEAD)
        .serve_connection(io, answer);
    let mut serving = std::pin::pin!(serving);
    loop {
        tokio::select! {
            // An error is one of this connection alone.
            _ = serving.as_mut() => return,
            changed = phase.changed() => {
                if changed.is_err() {
                    return;
                }
                // The server counts the requests in flight before it cancels them.
                serving.as_mut().graceful_shutdown();
            }
        }
    }
}
