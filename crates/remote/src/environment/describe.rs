//! Questions to an interpreter, answered by a process of a node daemon.

use std::collections::BTreeMap;
use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use miette::Diagnostic;
use rloom_cluster::{ClusterError, Node, ProcessSpec};
use serde::{Deserialize, Serialize};

use super::EnvironmentKind;

/// The program that answers.
pub(super) const PROGRAM: &str = include_str!("describe.py");
/// Beginning of its answer.
const PREFIX: &str = "rloom-environment: ";
/// Listens on a port and greets one connection.
const LISTENER: &str = "import socket, sys
server = socket.create_server(('127.0.0.1', int(sys.argv[1])))
server.settimeout(300)
server.accept()[0].sendall(b'rloom')";
/// Its greeting.
const GREETING: &[u8] = b"rloom";

/// Longest wait for an answer: the first import of torch may read gigabytes.
const ANSWER: Duration = Duration::from_mins(5);
/// Pause between two attempts to connect.
const LOOK: Duration = Duration::from_millis(50);

/// Question to an interpreter.
#[derive(Debug, Default, Serialize)]
pub(super) struct Question<'a> {
    /// Packages whose versions are asked.
    pub(super) packages: Vec<&'a str>,
    /// Modules that shall be imported.
    pub(super) imports: Vec<&'a str>,
    /// Package whose requirements are asked.
    pub(super) requirements_of: Option<&'a str>,
    /// Asks for the devices that torch sees, if it is among `imports`.
    pub(super) devices: bool,
}

impl Question<'_> {
    /// Arguments of the interpreter.
    pub(super) fn arguments(&self) -> Result<Vec<String>, DescribeError> {
        let question =
            serde_json::to_string(self).map_err(|error| DescribeError::Answer(error.to_string()))?;
        Ok(vec!["-c".to_owned(), PROGRAM.to_owned(), question])
    }
}

/// Answer of an interpreter.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Description {
    /// Version of Python.
    pub python: String,
    /// Folder of its packages.
    pub modules: std::path::PathBuf,
    /// Versions of packages; none for those that are missing.
    pub packages: BTreeMap<String, Option<String>>,
    /// Errors of the imports that were tried; none for those that succeeded.
    pub failures: BTreeMap<String, Option<String>>,
    /// Requirements of a package.
    pub requirements: Vec<String>,
    /// Devices that torch sees.
    pub devices: Vec<String>,
}

/// An interpreter that gives no answer.
#[derive(Debug, thiserror::Error, Diagnostic)]
pub enum DescribeError {
    /// It could not be started, or did not end in time.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Cluster(#[from] ClusterError),
    /// Its output is not the answer.
    #[error("no description of its environment: {0}")]
    Answer(String),
    /// A port of a process cannot be reached.
    #[error("a process of the daemon listens on port {port} of loopback, which cannot be reached: {reason}")]
    Port {
        /// The port.
        port: u16,
        /// The cause.
        reason: String,
    },
}

/// The answer in the output of the program.
pub(super) fn parse(output: &str) -> Result<Description, DescribeError> {
    let answer = output.lines().rev().find_map(|line| line.strip_prefix(PREFIX));
    let answer = answer.ok_or_else(|| DescribeError::Answer(output.trim().to_owned()))?;
    serde_json::from_str(answer).map_err(|error| DescribeError::Answer(error.to_string()))
}

/// Describes the environment of an interpreter: versions of the packages that an engine needs, errors of its imports, and
/// the devices that torch sees.
pub fn describe(node: &Node, python: &Path, engine: EnvironmentKind) -> Result<Description, DescribeError> {
    let question = Question {
        packages: engine.tested().iter().map(|versions| versions.package).collect(),
        imports: engine.imports().to_vec(),
        devices: true,
        ..Question::default()
    };
    let deadline = Instant::now() + ANSWER;
    let process = node.start(&spec(python, question.arguments()?), deadline)?;
    let exit = process.wait(deadline)?;
    if exit.code == Some(0) {
        return parse(&exit.output);
    }
    Err(process.ended(exit).into())
}

/// Starts a process that listens on a free port of the node, and connects to it.
pub fn reach(node: &Node, python: &Path) -> Result<(), DescribeError> {
    let deadline = Instant::now() + ANSWER;
    let port = node.free_port(deadline)?;
    let arguments = vec!["-c".to_owned(), LISTENER.to_owned(), port.to_string()];
    let process = node.start(&spec(python, arguments), deadline)?;
    loop {
        let error = match greeting(port, deadline) {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        if let Some(exit) = process.exited()? {
            return Err(process.ended(exit).into());
        }
        if Instant::now() >= deadline {
            return Err(DescribeError::Port { port, reason: error.to_string() });
        }
        std::thread::sleep(LOOK);
    }
}

fn greeting(port: u16, deadline: Instant) -> std::io::Result<()> {
    let left = deadline.saturating_duration_since(Instant::now()).max(LOOK);
    let mut stream = TcpStream::connect_timeout(&SocketAddr::from((Ipv4Addr::LOCALHOST, port)), left)?;
    stream.set_read_timeout(Some(left))?;
    let mut greeting = [0; GREETING.len()];
    stream.read_exact(&mut greeting)?;
    if greeting == GREETING { Ok(()) } else { Err(std::io::Error::other("something else listens there")) }
}

fn spec(python: &Path, arguments: Vec<String>) -> ProcessSpec {
    ProcessSpec {
        name: python.display().to_string(),
        role: "check".to_owned(),
        program: python.display().to_string(),
        arguments,
        environment: BTreeMap::new(),
        directory: None,
        log: None,
    }
}
