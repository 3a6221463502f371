use std::time::Duration;

/// Limits of a server.
#[derive(Debug, Clone)]
pub struct ServeSettings {
    /// Largest body of a request in bytes.
    pub max_body: usize,
    /// Connections that are open at the same time; more wait to be accepted.
    pub max_connections: usize,
    /// Requests that are read, wait or are computed at the same time; more are refused with status 429.
    pub max_requests: usize,
    /// Longest time for the head of a request, and between two requests of a connection.
    pub header_timeout: Duration,
    /// Longest time for the body of a request.
    pub body_timeout: Duration,
    /// Longest time for a client to read what was sent.
    pub write_timeout: Duration,
    /// Longest time for a completion, from its submission on.
    pub completion_timeout: Duration,
    /// Interval of the comments that keep a stream open while there is nothing to send.
    pub keep_alive: Duration,
    /// Time for requests in flight to finish after the server was asked to stop.
    pub grace: Duration,
    /// Number in the identifiers of answers, which tells the answers of several servers apart.
    pub nonce: u32,
}

impl Default for ServeSettings {
    fn default() -> Self {
        Self {
            max_body: 8 << 20,
            max_connections: 512,
            max_requests: 256,
            header_timeout: Duration::from_secs(30),
            body_timeout: Duration::from_mins(1),
            write_timeout: Duration::from_mins(1),
            completion_timeout: Duration::from_hours(1),
            keep_alive: Duration::from_secs(5),
            grace: Duration::from_secs(30),
            nonce: 0,
        }
    }
}
