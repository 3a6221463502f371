//! The path at which agents lease episodes.

use std::sync::Arc;
use std::time::Duration;

use hyper::body::Bytes;
use hyper::{Method, StatusCode};
use rloom_serve::{ApiKey, Extension, ExtensionAnswer, ExtensionFuture, ExtensionRequest, ExtensionRoute};
use serde_json::{Map, Value, json};

use crate::lease::Offers;

/// Path at which agents lease.
pub(crate) const LEASE_PATH: &str = "/rl/lease";
/// Seconds that a request for a lease waits, and the longest such time.
const DEFAULT_WAIT: f64 = 20.0;
const MAX_WAIT: f64 = 60.0;

/// Answers requests for leases, each of which waits for an episode as long as it says.
#[derive(Debug)]
pub(crate) struct LeaseEndpoint {
    offers: Arc<Offers>,
    key: ApiKey,
}

impl LeaseEndpoint {
    pub(crate) fn new(offers: Arc<Offers>, key: ApiKey) -> Self {
        Self { offers, key }
    }
}

impl Extension for LeaseEndpoint {
    fn route(&self, _: &Method, path: &str) -> Option<ExtensionRoute> {
        (path == LEASE_PATH).then_some(ExtensionRoute { name: "POST /rl/lease", is_frequent: true })
    }

    fn key(&self) -> Option<&ApiKey> {
        Some(&self.key)
    }

    fn answer(self: Arc<Self>, request: ExtensionRequest) -> ExtensionFuture {
        Box::pin(async move {
            if request.method != Method::POST {
                return refused(StatusCode::METHOD_NOT_ALLOWED, "this path is only served for POST");
            }
            let Ok(fields) = serde_json::from_slice::<Map<String, Value>>(&request.body) else {
                return refused(StatusCode::BAD_REQUEST, "the body is not a JSON object");
            };
            let wait = fields.get("wait_seconds").and_then(Value::as_f64).unwrap_or(DEFAULT_WAIT);
            let wait = if wait > 0.0 { wait.min(MAX_WAIT) } else { 0.0 };
            match self.offers.lease(Duration::from_secs_f64(wait)).await {
                Some(lease) => answered(StatusCode::OK, lease.to_string()),
                None => answered(StatusCode::NO_CONTENT, String::new()),
            }
        })
    }
}

fn answered(status: StatusCode, body: String) -> ExtensionAnswer {
    let body = Bytes::from(body);
    ExtensionAnswer { status, content_type: "application/json", body, outcome: String::new() }
}

fn refused(status: StatusCode, message: &str) -> ExtensionAnswer {
    let body = json!({ "error": { "message": message, "type": "invalid_request_error" } });
    ExtensionAnswer { outcome: message.to_owned(), ..answered(status, body.to_string()) }
}
