//! An HTTP/1.1 client for one server: connections are reused, every call has a deadline, answers are bounded and read to
//! their end.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Method, Request, Uri};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};

/// Idle connections are closed before common servers close them (uvicorn: after 5 s), so that no request meets a
/// connection that is just being closed.
const MAX_IDLE: Duration = Duration::from_secs(2);

/// Failure of a call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HttpError {
    /// Not an address of the form `http://host:port`.
    #[error("`{url}` is not an address of the form http://host:port")]
    Url {
        /// The text.
        url: String,
    },
    /// The connection could not be established.
    #[error("cannot connect: {message}")]
    Connect {
        /// Explanation of the operating system.
        message: String,
    },
    /// The connection ended before the answer was complete.
    #[error("connection lost {phase}: {message}")]
    Lost {
        /// Phase of the call.
        phase: Phase,
        /// Explanation of the connection.
        message: String,
    },
    /// The deadline passed.
    #[error("no answer within {:.1} s ({phase})", after.as_secs_f64())]
    Timeout {
        /// Phase of the call.
        phase: Phase,
        /// Time since the call.
        after: Duration,
    },
    /// The answer exceeds the limit.
    #[error("the answer is longer than {limit} bytes")]
    TooLong {
        /// The limit.
        limit: usize,
    },
}

/// Phase of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// The connection is being established.
    Connecting,
    /// The request is sent; no answer has arrived.
    Waiting,
    /// The beginning of the answer has arrived.
    Reading,
}

impl std::fmt::Display for Phase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Connecting => "while connecting",
            Self::Waiting => "before the answer",
            Self::Reading => "within the answer",
        })
    }
}

/// A complete answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: Bytes,
}

type Sender = SendRequest<Full<Bytes>>;

/// Client of one server. Concurrent calls use connections of their own; cancelling a call closes its connection.
#[derive(Debug)]
pub(crate) struct HttpClient {
    url: String,
    host: String,
    port: u16,
    prefix: String,
    header: HeaderValue,
    max_body: usize,
    idle: Mutex<Vec<(Instant, Sender)>>,
}

impl HttpClient {
    /// A client for `http://host:port`, optionally with a path in front of all others.
    pub(crate) fn new(url: &str, max_body: usize) -> Result<Self, HttpError> {
        let invalid = || HttpError::Url { url: url.to_owned() };
        let uri: Uri = url.parse().map_err(|_| invalid())?;
        let authority = uri.authority().ok_or_else(invalid)?;
        if uri.scheme_str() != Some("http") || uri.query().is_some() || authority.as_str().contains('@') {
            return Err(invalid());
        }
        Ok(Self {
            url: url.trim_end_matches('/').to_owned(),
            host: authority.host().trim_matches(['[', ']']).to_owned(),
            port: authority.port_u16().unwrap_or(80),
            prefix: uri.path().trim_end_matches('/').to_owned(),
            header: HeaderValue::from_str(authority.as_str()).map_err(|_| invalid())?,
            max_body,
            idle: Mutex::new(Vec::new()),
        })
    }

    /// Address of the server.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Sends a request with an optional JSON body and reads the whole answer.
    pub(crate) async fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<Vec<u8>>,
        deadline: Instant,
    ) -> Result<Answer, HttpError> {
        let start = Instant::now();
        let mut phase = Phase::Connecting;
        match timeout_at(deadline, self.exchange(method, path, body, &mut phase)).await {
            Ok(answer) => answer,
            Err(_) => Err(HttpError::Timeout { phase, after: start.elapsed() }),
        }
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        body: Option<Vec<u8>>,
        phase: &mut Phase,
    ) -> Result<Answer, HttpError> {
        let mut sender = match self.take_idle() {
            Some(sender) => sender,
            None => self.connect().await?,
        };
        let mut request = Request::builder().method(method).uri(format!("{}{path}", self.prefix));
        request = request.header(HOST, self.header.clone());
        if body.is_some() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        let body = Full::new(Bytes::from(body.unwrap_or_default()));
        let request = request.body(body).map_err(|_| HttpError::Url { url: self.url.clone() })?;
        *phase = Phase::Waiting;
        let lost =
            |phase: Phase, error: &dyn std::error::Error| HttpError::Lost { phase, message: chain(error) };
        let response = sender.send_request(request).await.map_err(|error| lost(Phase::Waiting, &error))?;
        *phase = Phase::Reading;
        let status = response.status().as_u16();
        let body = Limited::new(response.into_body(), self.max_body).collect().await.map_err(|error| {
            match error.downcast_ref::<LengthLimitError>() {
                Some(_) => HttpError::TooLong { limit: self.max_body },
                None => lost(Phase::Reading, &*error),
            }
        })?;
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push((Instant::now(), sender));
        Ok(Answer { status, body: body.to_bytes() })
    }

    /// A connection that is open and was used recently.
    fn take_idle(&self) -> Option<Sender> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|(since, sender)| since.elapsed() < MAX_IDLE && !sender.is_closed());
        let ready = idle.iter().rposition(|(_, sender)| sender.is_ready())?;
        Some(idle.swap_remove(ready).1)
    }

    async fn connect(&self) -> Result<Sender, HttpError> {
        let failed = |error: &dyn std::error::Error| HttpError::Connect { message: chain(error) };
        let stream =
            TcpStream::connect((self.host.as_str(), self.port)).await.map_err(|error| failed(&error))?;
        // A request is one small packet; waiting for more would delay it.
        stream.set_nodelay(true).map_err(|error| failed(&error))?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(|error| failed(&error))?;
        // Its errors reach the call that uses the connection.
        tokio::spawn(async move { drop(connection.await) });
        Ok(sender)
    }
}

/// An error and its causes in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_checked() {
        let client = HttpClient::new("http://127.0.0.1:8000/replica/1/", 1).unwrap();
        assert_eq!(
            (client.host.as_str(), client.port, client.prefix.as_str()),
            ("127.0.0.1", 8000, "/replica/1")
        );
        assert_eq!(HttpClient::new("http://[::1]:80", 1).unwrap().host, "::1");
        for url in
            ["", "localhost:8000", "https://a:1", "http://", "http://a:1/?b", "http://u@a:1", "http://a b"]
        {
            assert!(matches!(HttpClient::new(url, 1), Err(HttpError::Url { .. })), "{url}");
        }
    }
}
