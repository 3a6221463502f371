use std::io;

/// The server cannot start.
#[derive(Debug, miette::Diagnostic, thiserror::Error)]
pub enum ServeError {
    /// The address cannot be used.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// Host and port.
        address: String,
        /// Reason of the operating system.
        source: io::Error,
    },
    /// The operating system gave no random bytes for a key.
    #[error("cannot create a random key: {message}")]
    Random {
        /// Explanation.
        message: String,
    },
    /// A key that no client can send.
    #[error("the API key must consist of at least one visible ASCII character, without spaces")]
    Key,
    /// As many open sessions as the settings allow.
    #[error("{limit} sessions are open, which is the limit")]
    TooManySessions {
        /// The limit.
        limit: usize,
    },
}
