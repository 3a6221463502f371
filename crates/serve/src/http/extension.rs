//! Another API on the same server.

use std::pin::Pin;
use std::sync::Arc;

use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{HeaderMap, Method, Response, StatusCode};

use super::body::AnswerBody;
use super::key::ApiKey;

/// A route of an extension.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExtensionRoute {
    /// Method and path in the log.
    pub name: &'static str,
    /// Requests that clients repeat all the time; only their failures are logged.
    pub is_frequent: bool,
}

/// A request with a complete body, whose key and size have been checked.
#[derive(Debug, Clone)]
pub struct ExtensionRequest {
    /// The method.
    pub method: Method,
    /// Path without the query.
    pub path: String,
    /// The query, without `?`; empty if there is none.
    pub query: String,
    /// All headers.
    pub headers: HeaderMap,
    /// The body.
    pub body: Bytes,
}

/// The answer of an extension.
#[derive(Debug, Clone)]
pub struct ExtensionAnswer {
    /// The status.
    pub status: StatusCode,
    /// Type of the body.
    pub content_type: &'static str,
    /// The body.
    pub body: Bytes,
    /// What the log says about it; empty for nothing.
    pub outcome: String,
}

/// Future of an answer. It is dropped when the client disconnects.
pub type ExtensionFuture = Pin<Box<dyn Future<Output = ExtensionAnswer> + Send>>;

/// An API that shares a server's connections, keys and limits of bodies.
pub trait Extension: Send + Sync {
    /// The route of a request; `None` if the path is not one of this API.
    fn route(&self, method: &Method, path: &str) -> Option<ExtensionRoute>;

    /// The key of its requests, if they have one of their own in place of the server's.
    fn key(&self) -> Option<&ApiKey> {
        None
    }

    /// Answers a request. Answers that wait for something do not count as requests in flight.
    fn answer(self: Arc<Self>, request: ExtensionRequest) -> ExtensionFuture;
}

impl ExtensionAnswer {
    pub(super) fn into_response(self) -> Response<AnswerBody> {
        let mut response = Response::new(AnswerBody::Whole(Some(self.body)));
        *response.status_mut() = self.status;
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(self.content_type));
        response
    }
}
