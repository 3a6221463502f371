//! The node of this machine, whose daemon is replaced when it is lost.

use std::sync::{Arc, Mutex, PoisonError};

use crate::error::ClusterError;
use crate::local::LocalOptions;
use crate::node::Node;

/// The node of this machine. Its daemon is launched when it is first needed, and again after it was lost. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct LocalNode {
    options: Arc<LocalOptions>,
    current: Arc<Mutex<Option<Node>>>,
}

impl LocalNode {
    /// A node that is not launched yet.
    pub(crate) fn new(options: LocalOptions) -> Self {
        Self { options: Arc::new(options), current: Arc::default() }
    }

    /// The node, if its daemon is launched and was not lost.
    pub(crate) fn current(&self) -> Option<Node> {
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        current.as_ref().filter(|node| !node.is_lost()).cloned()
    }

    /// The node with a daemon that was not lost so far.
    pub(crate) fn get(&self) -> Result<Node, ClusterError> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(node) = current.as_ref().filter(|node| !node.is_lost()) {
            return Ok(node.clone());
        }
        Ok(current.insert(Node::local(&self.options)?).clone())
    }
}
