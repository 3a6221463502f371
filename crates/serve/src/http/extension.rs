//! A path of the program that runs the server.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::key::ApiKey;

type Answer = Pin<Box<dyn Future<Output = Option<Value>> + Send>>;

/// A path that answers POST requests with a key of its own, with JSON objects in both directions.
#[derive(Clone)]
pub struct Extension {
    pub(super) path: &'static str,
    pub(super) key: ApiKey,
    pub(super) answer: Arc<dyn Fn(Map<String, Value>) -> Answer + Send + Sync>,
}

impl fmt::Debug for Extension {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Extension").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Extension {
    /// Answers requests to `path` that have the key. The status is 204 for `None`. A client that disconnects cancels the answer.
    pub fn new(
        path: &'static str,
        key: ApiKey,
        answer: impl Fn(Map<String, Value>) -> Answer + Send + Sync + 'static,
    ) -> Self {
        Self { path, key, answer: Arc::new(answer) }
    }
}
