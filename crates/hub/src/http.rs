//! HTTP requests to a hub, with redirects and retries.

use std::time::Duration;

use ureq::http::Response;
use ureq::typestate::WithoutBody;
use ureq::{Agent, Body, RequestBuilder};

use crate::reference::Repository;
use crate::url::{Origin, join};
use crate::{HubError, HubOptions, TransferError};

/// Number of redirects that are followed.
const MAX_REDIRECTS: u32 = 10;

/// Connection to a hub.
pub(crate) struct Client {
    agent: Agent,
    /// Address of the hub, without a slash at its end.
    pub(crate) endpoint: String,
    origin: Option<Origin>,
    token: Option<String>,
    retries: u32,
    retry_wait: Duration,
}

/// Reason why one attempt failed.
pub(crate) enum AttemptError {
    /// The transfer failed; another attempt may succeed.
    Transfer(TransferError),
    /// Permanent.
    Permanent(HubError),
}

impl From<TransferError> for AttemptError {
    fn from(error: TransferError) -> Self {
        Self::Transfer(error)
    }
}

impl From<HubError> for AttemptError {
    fn from(error: HubError) -> Self {
        Self::Permanent(error)
    }
}

impl Client {
    pub(crate) fn new(options: &HubOptions) -> Self {
        let wait = Some(options.timeout);
        let config = Agent::config_builder()
            .http_status_as_error(false)
            // Redirects are followed here, because a token must not be sent to other servers.
            .max_redirects(0)
            .timeout_resolve(wait)
            .timeout_connect(wait)
            .timeout_send_request(wait)
            .timeout_recv_response(wait)
            // Applies to each read, not to the whole body: a large file may take long, a silent server may not.
            .timeout_per_read(wait)
            // Compressed responses could not be resumed by byte position.
            .accept_encoding("identity")
            .user_agent(concat!("rloom/", env!("CARGO_PKG_VERSION")))
            .build();
        let endpoint = options.endpoint.trim_end_matches('/').to_owned();
        Self {
            agent: Agent::new_with_config(config),
            origin: Origin::of(&endpoint),
            endpoint,
            token: options.token.clone(),
            retries: options.retries,
            retry_wait: options.retry_wait,
        }
    }

    /// Requests a file's contents from byte `from`. Follows redirects to any server.
    pub(crate) fn get(&self, url: &str, from: u64) -> Result<Response<Body>, TransferError> {
        self.send(url, Follow::Everywhere, |address| {
            let request = self.agent.get(address);
            if from > 0 { request.header("range", format!("bytes={from}-")) } else { request }
        })
    }

    /// Requests a file's description. Follows redirects of the hub to itself only: a redirect to another server is the
    /// response, because its headers describe the file.
    pub(crate) fn head(&self, url: &str) -> Result<Response<Body>, TransferError> {
        self.send(url, Follow::SameOrigin, |address| self.agent.head(address))
    }

    fn send(
        &self,
        url: &str,
        follow: Follow,
        request: impl Fn(&str) -> RequestBuilder<WithoutBody>,
    ) -> Result<Response<Body>, TransferError> {
        let mut address = url.to_owned();
        for _ in 0..=MAX_REDIRECTS {
            let mut request = request(&address);
            if let Some(token) = self.token.as_ref().filter(|_| self.is_own(&address)) {
                request = request.header("authorization", format!("Bearer {token}"));
            }
            let response = request.call()?;
            let Some(location) = header(&response, "location").filter(|_| response.status().is_redirection())
            else {
                return Ok(response);
            };
            let invalid = || TransferError::Location { location: location.to_owned() };
            let target = join(&address, location).ok_or_else(invalid)?;
            if follow == Follow::SameOrigin && !self.is_own(&target) {
                return Ok(response);
            }
            address = target;
        }
        Err(TransferError::Redirects { limit: MAX_REDIRECTS })
    }

    /// True for an address of the hub itself, to which the token may be sent.
    fn is_own(&self, address: &str) -> bool {
        self.origin.is_some() && Origin::of(address) == self.origin
    }

    /// Error for a response without the requested content.
    pub(crate) fn refusal(&self, repository: &Repository, id: String, response: &Response<Body>) -> HubError {
        let endpoint = self.endpoint.clone();
        let with_token = self.token.is_some();
        // The public hub does not tell anonymous users whether a repository is private or does not exist.
        let is_missing =
            matches!(header(response, "x-error-code"), Some("RepoNotFound" | "RevisionNotFound"));
        let kind = repository.kind;
        match response.status().as_u16() {
            404 => HubError::NotFound { kind, id, endpoint, with_token },
            401 if is_missing => HubError::NotFound { kind, id, endpoint, with_token },
            status @ (401 | 403) => HubError::Denied { id, endpoint, status, with_token },
            status => HubError::Status { id, endpoint, status },
        }
    }

    pub(crate) fn unreachable(&self, id: String, source: TransferError) -> HubError {
        HubError::Unreachable { id, endpoint: self.endpoint.clone(), source }
    }

    /// Retries `attempt` until it succeeds, or until `retries` attempts in a row made no progress.
    pub(crate) fn with_retries<T>(
        &self,
        mut attempt: impl FnMut() -> Result<T, AttemptError>,
        exhausted: impl Fn(TransferError, u32) -> HubError,
        progress: impl Fn() -> u64,
    ) -> Result<T, HubError> {
        let (mut stalled, mut attempts, mut best) = (0, 0, progress());
        loop {
            attempts += 1;
            match attempt() {
                Ok(value) => return Ok(value),
                Err(AttemptError::Permanent(error)) => return Err(error),
                Err(AttemptError::Transfer(cause)) => {
                    stalled = if progress() > best { 1 } else { stalled + 1 };
                    best = best.max(progress());
                    if stalled > self.retries || !cause.is_transient() {
                        return Err(exhausted(cause, attempts));
                    }
                    std::thread::sleep(self.wait(stalled));
                }
            }
        }
    }

    fn wait(&self, retry: u32) -> Duration {
        self.retry_wait.saturating_mul(1 << (retry - 1).min(6))
    }
}

/// Redirects that a request follows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Follow {
    Everywhere,
    SameOrigin,
}

/// True for statuses of a server that is temporarily unavailable.
pub(crate) fn is_transient(status: u16) -> bool {
    TransferError::Status { status }.is_transient()
}

/// A response's header as text.
pub(crate) fn header<'a>(response: &'a Response<Body>, name: &str) -> Option<&'a str> {
    response.headers().get(name)?.to_str().ok()
}
