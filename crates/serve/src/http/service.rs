//! Answers one request.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hyper::body::{Bytes, Incoming};
use hyper::header::{
    ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE,
};
use hyper::{HeaderMap, Request, Response, StatusCode};
use serde_json::{Value, json};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::answer::{Answering, Replies, Source};
use super::body::{self, AnswerBody};
use super::exchange::{Log, Logged};
use super::extension::{Extension, ExtensionRequest, ExtensionRoute};
use super::key::ApiKey;
use super::origin::is_local;
use super::route::{self, Route, vendor};
use super::server::Phase;
use super::session;
use crate::ask::Ask;
use crate::model::ServedModel;
use crate::problem::{self, Problem, ProblemKind, Vendor};
use crate::prompt::Prompt;
use crate::running::{Prepared, Running, choice_id};
use crate::sampler::Sampler;
use crate::session::{Entered, Session, Sessions, choice_digest, request_digest};
use crate::settings::ServeSettings;
use crate::wire::{self, Chat, Completions, Head, Messages, Responses, Wire};

/// Longest wait for the engine's answer to a check.
const CHECK_TIMEOUT: Duration = Duration::from_secs(5);

/// Place of a request among those that are in flight.
pub(super) type Place = OwnedSemaphorePermit;

/// Header of a client's request that it repeats, with the number of repetitions.
const RETRY_COUNT: &str = "x-stainless-retry-count";
/// Header with the temperature of a session.
const TEMPERATURE: HeaderName = HeaderName::from_static("x-rloom-temperature");
/// Header that tells clients not to repeat a request.
const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

/// What requests outside of sessions are answered with.
pub(super) struct Plain {
    pub(super) model: Arc<ServedModel>,
    pub(super) sampler: Arc<dyn Sampler>,
}

/// Origin of the answers to a request.
#[derive(Clone)]
enum Answerer {
    Plain(Arc<ServedModel>, Arc<dyn Sampler>),
    Session(Arc<ServedModel>, Arc<Session>),
}

impl Answerer {
    fn model(&self) -> &Arc<ServedModel> {
        match self {
            Self::Plain(model, _) | Self::Session(model, _) => model,
        }
    }

    fn session(&self) -> Option<&Arc<Session>> {
        match self {
            Self::Plain(..) => None,
            Self::Session(_, session) => Some(session),
        }
    }
}

/// A request that has been read.
struct Asked {
    ask: Ask,
    wire: Box<dyn Wire>,
}

/// What all requests share.
pub(super) struct Service {
    pub(super) plain: Option<Plain>,
    /// Sessions, if it serves them.
    pub(super) sessions: Option<Sessions>,
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
        let path = request.uri().path();
        let vendor = vendor(path);
        let (token, rest) = route::session(path);
        let route = match Route::of(request.method(), rest, token.is_some()) {
            Ok(route) => route,
            Err(problem) => {
                let logged = Logged::begin(&self.log, "unknown path or method");
                return refused(&problem, vendor, logged);
            }
        };
        let mut logged = Logged::begin(&self.log, route.name(token.is_some()));
        if route == Route::Health {
            return self.health(logged).await;
        }
        let answerer = match self.answerer(token, request.headers()) {
            Ok(answerer) => answerer,
            Err(problem) => return refused(&problem, vendor, logged),
        };
        let model = answerer.model();
        let (name, created, context) = (&model.name, self.created, model.context);
        match (&route, answerer.session()) {
            (Route::Models, _) => return done(&wire::models(name, created, context), &mut logged),
            // Requests may name any model, too.
            (Route::Model(_), _) => return done(&wire::model(name, created, context), &mut logged),
            (Route::Session, Some(session)) => {
                return match session::answer(session, &route, b"") {
                    Ok(body) => done(&body, &mut logged),
                    Err(problem) => refused(&problem, vendor, logged),
                };
            }
            _ => {}
        }
        let place = match self.place() {
            Ok(place) => place,
            Err(problem) => return refused(&problem, vendor, logged),
        };
        let (parts, body) = request.into_parts();
        let ServeSettings { max_body, body_timeout, .. } = self.settings;
        let bytes = match body::read(&parts.headers, body, max_body, body_timeout).await {
            Ok(bytes) => bytes,
            Err(problem) => return refused(&problem, vendor, logged),
        };
        if let (Route::Reward | Route::Finish, Some(session)) = (&route, answerer.session()) {
            return match session::answer(session, &route, &bytes) {
                Ok(body) => done(&body, &mut logged),
                Err(problem) => refused(&problem, vendor, logged),
            };
        }
        let repeats = repeats(&parts.headers);
        let request = Completing { route, bytes, place, answerer, vendor, repeats };
        self.complete(request, logged).await
    }

    /// The session of a token, or the plain API.
    fn answerer(&self, token: Option<&str>, headers: &HeaderMap) -> Result<Answerer, Problem> {
        let nothing = || Problem::new(ProblemKind::NotFound, "there is nothing at this path");
        if let Some(token) = token {
            // The token is the key.
            let sessions = self.sessions.as_ref().ok_or_else(nothing)?;
            return Ok(Answerer::Session(Arc::clone(sessions.model()), sessions.find(token)?));
        }
        self.admit(headers)?;
        let Plain { model, sampler } = self.plain.as_ref().ok_or_else(nothing)?;
        Ok(Answerer::Plain(Arc::clone(model), Arc::clone(sampler)))
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
        let admitted = match extension.key() {
            Some(key) if key.is_in(request.headers()) => Ok(()),
            Some(_) => Err(Problem::new(ProblemKind::Unauthorized, "the key is missing or wrong")),
            None => self.admit(request.headers()),
        };
        let place = match admitted.and_then(|()| self.place()) {
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
        let query = parts.uri.query().unwrap_or_default().to_owned();
        let request = ExtensionRequest { method: parts.method, path, query, headers: parts.headers, body };
        let answer = extension.answer(request).await;
        logged.status(answer.status.as_u16());
        logged.end(answer.outcome.as_str());
        answer.into_response()
    }

    async fn health(&self, mut logged: Logged) -> Response<AnswerBody> {
        if *self.phase.borrow() != Phase::Serving {
            return refused(&stopping(), Vendor::OpenAi, logged);
        }
        let checked = match &self.plain {
            Some(plain) => Arc::clone(&plain.sampler).check(CHECK_TIMEOUT).await,
            None => Ok(()),
        };
        match checked {
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

    async fn complete(self: Arc<Self>, request: Completing, mut logged: Logged) -> Response<AnswerBody> {
        let Completing { route, bytes, place, answerer, vendor, repeats } = request;
        let model = Arc::clone(answerer.model());
        if route == Route::CountTokens {
            let counting = Arc::clone(&model);
            let counted = aside(place, move || count(&counting, &bytes)).await;
            return match counted {
                Ok((count, _)) => done(&json!({"input_tokens": count}), &mut logged),
                Err(problem) => refused(&problem, vendor, logged),
            };
        }
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        let id = format!("{:08x}{number:08x}", self.settings.nonce);
        let head = Head { id, created: now(), model: model.name.clone(), prompt_tokens: 0, overridden: None };
        let temperature = answerer.session().map(|session| session.temperature());
        let timeout = self.settings.completion_timeout;
        let prepared = aside(place, move || {
            let asked = read(&route, &bytes)?;
            match &answerer {
                Answerer::Plain(model, sampler) => {
                    complete_plain(model, sampler, asked, number, head, timeout)
                }
                Answerer::Session(_, session) => {
                    let digest = request_digest(route.name(true), &bytes);
                    complete_call(session, asked, digest, repeats, head, timeout)
                }
            }
        })
        .await;
        let (Begun { sources, wire, head, stream }, place) = match prepared {
            Ok(prepared) => prepared,
            Err(problem) => return refused(&problem, vendor, logged),
        };
        let keep_alive = self.settings.keep_alive;
        let answering = Answering {
            replies: Replies::new(sources, stream),
            wire,
            head,
            keep_alive,
            logged,
            _place: place,
        };
        let mut response = if stream {
            match answering.stream().await {
                Ok(first) => events(AnswerBody::Stream(Some(first))),
                Err((problem, logged)) => refused(&problem, vendor, logged),
            }
        } else {
            match answering.whole().await {
                Ok(body) => json_response(StatusCode::OK, &body),
                Err((problem, logged)) => refused(&problem, vendor, logged),
            }
        };
        if let Some(value) = temperature.and_then(|value| HeaderValue::from_str(&value.to_string()).ok()) {
            response.headers_mut().insert(TEMPERATURE, value);
        }
        response
    }
}

/// A request for a completion.
struct Completing {
    route: Route,
    bytes: Bytes,
    place: Place,
    answerer: Answerer,
    vendor: Vendor,
    /// The client says that it repeats a request.
    repeats: bool,
}

/// Completions that have begun.
struct Begun {
    sources: Vec<Source>,
    wire: Box<dyn Wire>,
    head: Head,
    stream: bool,
}

fn complete_plain(
    model: &Arc<ServedModel>,
    sampler: &Arc<dyn Sampler>,
    Asked { ask, wire }: Asked,
    number: u64,
    head: Head,
    timeout: Duration,
) -> Result<Begun, Problem> {
    let stream = ask.stream;
    let prepared = Prepared::new(model, ask, number, &head.id, timeout)?;
    let start = |prepared| Source::Completion(Box::new(Running::start(Arc::clone(sampler), prepared)));
    Ok(Begun { sources: prepared.into_iter().map(start).collect(), wire, head, stream })
}

/// Enters a call into its session, and starts it unless it is a repetition.
fn complete_call(
    session: &Arc<Session>,
    Asked { ask, wire }: Asked,
    digest: [u8; 32],
    repeats: bool,
    head: Head,
    timeout: Duration,
) -> Result<Begun, Problem> {
    let stream = ask.stream;
    let given = ask.sampling.temperature;
    let overridden = Some(session.temperature()).filter(|own| given.is_some_and(|given| given != *own));
    let mut sources = Vec::new();
    let mut origin = None;
    for choice in 0..ask.choices {
        let digest = choice_digest(digest, choice);
        let reader = match session.enter(digest, repeats, choice_id(&head.id, choice), head.created)? {
            Entered::Known(reader) => reader,
            Entered::New(reader, new) => {
                new.start(ask.clone(), timeout)?;
                reader
            }
        };
        // A repetition has the identifier of the first answer.
        origin.get_or_insert_with(|| (reader.call.id.clone(), reader.call.created));
        sources.push(Source::Call(reader));
    }
    let (id, created) = origin.unwrap_or((head.id, head.created));
    let head = Head { id, created, model: head.model, prompt_tokens: 0, overridden };
    Ok(Begun { sources, wire, head, stream })
}

/// True if a client says that it repeats a request.
fn repeats(headers: &HeaderMap) -> bool {
    let count = headers.get(RETRY_COUNT).and_then(|count| count.to_str().ok()?.trim().parse::<u64>().ok());
    count.is_some_and(|count| count > 0)
}

/// Runs what may take long outside of the thread that serves connections.
/// It keeps its place until it has ended, also if the client disconnects.
async fn aside<T: Send + 'static>(
    place: Place,
    work: impl FnOnce() -> Result<T, Problem> + Send + 'static,
) -> Result<(T, Place), Problem> {
    let done = tokio::task::spawn_blocking(move || work().map(|result| (result, place))).await;
    done.unwrap_or_else(|_| Err(Problem::new(ProblemKind::Failed, "the request could not be prepared")))
}

fn count(model: &ServedModel, bytes: &[u8]) -> Result<usize, Problem> {
    let ask = wire::read_count(bytes)?;
    Ok(Prompt::of(model, &ask)?.tokens.len())
}

/// Reads a request.
fn read(route: &Route, bytes: &[u8]) -> Result<Asked, Problem> {
    let (ask, wire): (Ask, Box<dyn Wire>) = match route {
        Route::Completions => boxed(Completions::read(bytes)?),
        Route::Responses => boxed(Responses::read(bytes)?),
        Route::Messages => boxed(Messages::read(bytes)?),
        _ => boxed(Chat::read(bytes)?),
    };
    Ok(Asked { ask, wire })
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
        ProblemKind::Gone => {
            headers.insert(SHOULD_RETRY, HeaderValue::from_static("false"));
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
