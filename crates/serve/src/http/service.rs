//! Answers one request.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use hyper::{HeaderMap, Request, Response, StatusCode};
use serde_json::{Value, json};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::answer::Answering;
use super::body::{self, AnswerBody};
use super::exchange::{Log, Logged};
use super::extension::{Extension, ExtensionRequest, ExtensionRoute};
use super::key::ApiKey;
use super::origin::is_local;
use super::route::{Route, vendor};
use super::server::Phase;
use crate::ask::Ask;
use crate::model::ServedModel;
use crate::problem::{self, Problem, ProblemKind, Vendor};
use crate::prompt::Prompt;
use crate::running::{Prepared, Running};
use crate::sampler::Sampler;
use crate::settings::ServeSettings;
use crate::wire::{self, Chat, Completions, Head, Messages, Responses, Wire};

/// Longest wait for the engine's answer to a check.
const CHECK_TIMEOUT: Duration = Duration::from_secs(5);

/// Place of a request among those that are in flight.
pub(super) type Place = OwnedSemaphorePermit;

/// What all requests share.
pub(super) struct Service {
    pub(super) model: Arc<ServedModel>,
    pub(super) sampler: Arc<dyn Sampler>,
    pub(super) settings: ServeSettings,
    pub(super) key: Option<ApiKey>,
    pub(super) log: Arc<Log>,
    /// Places for requests in flight.
    pub(super) places: Arc<Semaphore>,
    pub(super) phase: watch::Receiver<Phase>,
    /// Seconds since 1970 when the server was created.
    pub(super) created: u64,
    /// Requests so far.
    pub(super) number: AtomicU64,
    /// Another API on this server.
    pub(super) extension: Option<Arc<dyn Extension>>,
}

impl Service {
    /// Answers a request. Dropping the future, or the body of the answer, cancels it.
    pub(super) async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Response<AnswerBody> {
        if let Some(extension) = &self.extension
            && let Some(route) = extension.route(request.method(), request.uri().path())
        {
            return self.extended(route, Arc::clone(extension), request).await;
        }
        let vendor = vendor(request.uri().path());
        let route = match Route::of(request.method(), request.uri().path()) {
            Ok(route) => route,
            Err(problem) => {
                let logged = Logged::begin(&self.log, "unknown path or method");
                return refused(&problem, vendor, logged);
            }
        };
        let mut logged = Logged::begin(&self.log, route.name());
        if route == Route::Health {
            return self.health(logged).await;
        }
        if let Err(problem) = self.admit(request.headers()) {
            return refused(&problem, vendor, logged);
        }
        let (name, created, context) = (&self.model.name, self.created, self.model.context);
        match &route {
            Route::Models => return done(&wire::models(name, created, context), &mut logged),
            // Requests may name any model, too.
            Route::Model(_) => return done(&wire::model(name, created, context), &mut logged),
            _ => {}
        }
        let place = match self.place() {
            Ok(place) => place,
            Err(problem) => return refused(&problem, vendor, logged),
        };
        let (parts, body) = request.into_parts();
        let ServeSettings { max_body, body_timeout, .. } = self.settings;
        match body::read(&parts.headers, body, max_body, body_timeout).await {
            Ok(bytes) => self.complete(&route, bytes, place, logged, vendor).await,
            Err(problem) => refused(&problem, vendor, logged),
        }
    }

    /// Answers a request of the extension. It has a place only until its body has been read: what it waits for is bounded by
    /// the extension.
    async fn extended(
        &self,
        route: ExtensionRoute,
        extension: Arc<dyn Extension>,
        request: Request<Incoming>,
    ) -> Response<AnswerBody> {
        let mut logged = Logged::begin(&self.log, route.name);
        if route.is_frequent {
            logged.only_failures();
        }
        let place = match self.admit(request.headers()).and_then(|()| self.place()) {
            Ok(place) => place,
            Err(problem) => return refused(&problem, Vendor::OpenAi, logged),
        };
        let (parts, body) = request.into_parts();
        let ServeSettings { max_body, body_timeout, .. } = self.settings;
        let body = match body::read(&parts.headers, body, max_body, body_timeout).await {
            Ok(body) => body,
            Err(problem) => return refused(&problem, Vendor::OpenAi, logged),
        };
        drop(place);
        let path = parts.uri.path().to_owned();
        let request = ExtensionRequest { method: parts.method, path, headers: parts.headers, body };
        let answer = extension.answer(request).await;
        logged.status(answer.status.as_u16());
        logged.end(answer.outcome.as_str());
        answer.into_response()
    }

    async fn health(&self, mut logged: Logged) -> Response<AnswerBody> {
        if *self.phase.borrow() != Phase::Serving {
            return refused(&stopping(), Vendor::OpenAi, logged);
        }
        match Arc::clone(&self.sampler).check(CHECK_TIMEOUT).await {
            Ok(()) => done(&json!({"status": "ok"}), &mut logged),
            Err(error) => {
                let problem = Problem::new(ProblemKind::Unavailable, error.to_string());
                refused(&problem, Vendor::OpenAi, logged)
            }
        }
    }

    /// Checks the key. Without one, requests have to come from programs of this machine.
    fn admit(&self, headers: &HeaderMap) -> Result<(), Problem> {
        match &self.key {
            Some(key) if !key.is_in(headers) => {
                Err(Problem::new(ProblemKind::Unauthorized, "the API key is missing or wrong"))
            }
            None if !is_local(headers) => Err(Problem::new(
                ProblemKind::Forbidden,
                "a server without a key serves neither web pages nor other names of this machine than localhost",
            )),
            _ => Ok(()),
        }
    }

    /// A place for a request.
    fn place(&self) -> Result<Place, Problem> {
        if *self.phase.borrow() != Phase::Serving {
            return Err(stopping());
        }
        Arc::clone(&self.places).try_acquire_owned().map_err(|_| {
            let most = self.settings.max_requests;
            Problem::new(ProblemKind::Busy, format!("{most} requests are in flight, which is the limit"))
        })
    }

    async fn complete(
        self: Arc<Self>,
        route: &Route,
        bytes: Bytes,
        place: Place,
        mut logged: Logged,
        vendor: Vendor,
    ) -> Response<AnswerBody> {
        if *route == Route::CountTokens {
            let counted = Arc::clone(&self).aside(place, move |service| service.count(&bytes)).await;
            return match counted {
                Ok((count, _)) => done(&json!({"input_tokens": count}), &mut logged),
                Err(problem) => refused(&problem, vendor, logged),
            };
        }
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        let id = format!("{:08x}{number:08x}", self.settings.nonce);
        let (wanted, own) = (route.clone(), id.clone());
        let prepared = Arc::clone(&self)
            .aside(place, move |service| service.prepare(&wanted, &bytes, number, own))
            .await;
        let ((prepared, wire, stream), place) = match prepared {
            Ok(prepared) => prepared,
            Err(problem) => return refused(&problem, vendor, logged),
        };
        let running = Running::start(Arc::clone(&self.sampler), prepared);
        let prompt_tokens = running.prompt_tokens();
        let head = Head { id, created: now(), model: self.model.name.clone(), prompt_tokens };
        let keep_alive = self.settings.keep_alive;
        let answering = Answering { running, wire, head, keep_alive, logged, _place: place };
        if stream {
            return match answering.stream().await {
                Ok(first) => events(AnswerBody::Stream(Some(first))),
                Err((problem, logged)) => refused(&problem, vendor, logged),
            };
        }
        match answering.whole().await {
            Ok(body) => json_response(StatusCode::OK, &body),
            Err((problem, logged)) => refused(&problem, vendor, logged),
        }
    }

    /// Runs what may take long outside of the thread that serves connections.
    /// It keeps its place until it has ended, also if the client disconnects.
    async fn aside<T: Send + 'static>(
        self: Arc<Self>,
        place: Place,
        work: impl FnOnce(&Self) -> Result<T, Problem> + Send + 'static,
    ) -> Result<(T, Place), Problem> {
        let done = tokio::task::spawn_blocking(move || work(&self).map(|result| (result, place))).await;
        done.unwrap_or_else(|_| Err(Problem::new(ProblemKind::Failed, "the request could not be prepared")))
    }

    fn count(&self, bytes: &[u8]) -> Result<usize, Problem> {
        let ask = wire::read_count(bytes)?;
        Ok(Prompt::of(&self.model, &ask)?.tokens.len())
    }

    /// Reads a request and tokenises its prompt.
    fn prepare(
        &self,
        route: &Route,
        bytes: &[u8],
        number: u64,
        id: String,
    ) -> Result<(Prepared, Box<dyn Wire>, bool), Problem> {
        let (ask, wire): (Ask, Box<dyn Wire>) = match route {
            Route::Completions => boxed(Completions::read(bytes)?),
            Route::Responses => boxed(Responses::read(bytes)?),
            Route::Messages => boxed(Messages::read(bytes)?),
            _ => boxed(Chat::read(bytes)?),
        };
        let stream = ask.stream;
        let timeout = self.settings.completion_timeout;
        Ok((Prepared::new(&self.model, ask, number, id, timeout)?, wire, stream))
    }
}

fn boxed(read: (Ask, impl Wire + 'static)) -> (Ask, Box<dyn Wire>) {
    (read.0, Box::new(read.1))
}

fn stopping() -> Problem {
    Problem::new(ProblemKind::Unavailable, "the server is stopping")
}

/// Seconds since 1970.
pub(super) fn now() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

fn done(body: &Value, logged: &mut Logged) -> Response<AnswerBody> {
    logged.status(200);
    logged.end("");
    json_response(StatusCode::OK, body)
}

/// The answer to a request that failed.
fn refused(problem: &Problem, vendor: Vendor, mut logged: Logged) -> Response<AnswerBody> {
    logged.status(problem.status().as_u16());
    logged.end(problem.message.as_str());
    let mut response = json_response(problem.status(), &problem.body(vendor));
    let headers = response.headers_mut();
    if problem.is_temporary() {
        headers.insert(RETRY_AFTER, problem::RETRY_AFTER.into());
    }
    match problem.kind {
        ProblemKind::Unauthorized => {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        ProblemKind::Method => {
            let allowed = if problem.message.ends_with("GET") { "GET, HEAD" } else { "POST" };
            headers.insert(ALLOW, HeaderValue::from_static(allowed));
        }
        _ => {}
    }
    response
}

fn json_response(status: StatusCode, body: &Value) -> Response<AnswerBody> {
    let mut response = Response::new(AnswerBody::Whole(Some(body.to_string().into())));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn events(body: AnswerBody) -> Response<AnswerBody> {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}
