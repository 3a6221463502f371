//! Functions in processes of their own: rewards, environments and parts of algorithms written in Python and other languages.
//!
//! A [`Pool`] runs worker processes that exchange JSON lines over stdin and stdout, on this machine or on those of a
//! [`Host`], or connects to a process that serves functions on a Unix socket. A process serves one call at a time. One that crashes, hangs or answers nonsense is killed
//! with its process group, which fails its own call alone, and is restarted. [`Judge`] asks a pool or an HTTP server for
//! verdicts on samples; a [`Session`] is an episode of an environment in one of the processes; a [`MethodFunction`] is
//! part of an algorithm.

mod backoff;
mod error;
mod guard;
mod host;
mod http;
mod judge;
mod line_process;
mod lines;
mod method;
mod peer;
mod pool;
mod process;
mod protocol;
mod python;
mod session;
mod settings;
mod stderr;
mod tools;

pub use error::{FunctionError, Malformed, may_pass};
pub use guard::Guard;
pub use host::{Host, Hosted, HostedCommand, HostedProcess};
pub use http::{HttpClient, retry_after};
pub use judge::{Judge, Sample, SampleVerdict, Verdicts};
pub use line_process::LineProcess;
pub use method::{Completions, LossAnswer, LossCall, MethodFunction, absolute_function, function_file};
pub use peer::{CALLER_VARIABLE, Peer, Role};
pub use pool::{Limits, Pool};
pub use protocol::ToolResult;
pub use session::{Answer, Ask, Session};
pub use settings::{CommandFunction, HttpFunction, PythonEnvironment, PythonFunction};
pub use tools::ToolFunctions;
