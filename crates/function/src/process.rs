//! One worker: a child process, a process on another machine or a connection, with deadlines for what it reads and writes.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

use crate::guard::Guard;
use crate::host::Input;
use crate::lines::{Line, Lines};
use crate::peer::Transport;
use crate::stderr::{Stderr, quoted};
use crate::{FunctionError, Host, Hosted, HostedProcess, Malformed, Peer};

/// Time that a worker has to end by itself once its input is closed.
const GRACE: Duration = Duration::from_millis(500);
/// Time that the operating system has to remove a killed process.
const REMOVAL: Duration = Duration::from_secs(5);

/// A running worker.
#[derive(Debug)]
pub(crate) struct Process {
    /// `None` once the input is closed.
    input: Option<Sender<Vec<u8>>>,
    output: Receiver<Line>,
    stderr: Errors,
    end: End,
    /// The function in messages, with the machine of a hosted process.
    function: String,
    longest_line: usize,
}

/// Ends a worker from any thread.
#[derive(Debug, Clone)]
pub(crate) struct End(Arc<Mutex<Ended>>);

#[derive(Debug)]
enum Ended {
    Running(Child, Arc<Mutex<Guard>>),
    Hosted(Arc<dyn HostedProcess>),
    Connected(UnixStream),
    /// How it ended, if that is known.
    Over(Option<String>),
}

/// The end of what a worker wrote to stderr.
#[derive(Debug)]
enum Errors {
    Read(Stderr),
    Hosted(Arc<dyn HostedProcess>),
}

impl Errors {
    /// The last lines so far.
    fn tail(&self) -> String {
        match self {
            Self::Read(stderr) => stderr.tail(),
            Self::Hosted(process) => quoted(&process.stderr()),
        }
    }

    /// The last lines of a worker that has ended.
    fn final_tail(&self) -> String {
        match self {
            Self::Read(stderr) => stderr.final_tail(),
            Self::Hosted(_) => self.tail(),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl End {
    fn new(ended: Ended) -> Self {
        Self(Arc::new(Mutex::new(ended)))
    }

    fn lock(&self) -> MutexGuard<'_, Ended> {
        lock(&self.0)
    }

    /// Kills the process with its group and removes it, or closes the connection.
    pub(crate) fn now(&self) {
        let mut ended = self.lock();
        match &mut *ended {
            Ended::Running(child, guard) => {
                // Before the child is waited for: until then its number, and that of its group, belong to no other.
                kill_group(child);
                lock(guard).remove(child.id());
                let status = removed(child).map(describe);
                *ended = Ended::Over(status);
            }
            Ended::Hosted(process) => {
                // A process that is ending keeps its own status.
                process.kill();
                let status = process.ended();
                *ended = Ended::Over(status);
            }
            Ended::Connected(stream) => {
                drop(stream.shutdown(std::net::Shutdown::Both));
                *ended = Ended::Over(None);
            }
            Ended::Over(_) => {}
        }
    }

    /// True until the process has exited; it is not removed.
    fn is_running(&self) -> bool {
        match &*self.lock() {
            Ended::Running(child, _) => Pid::from_raw(child.id() as i32).is_some_and(|id| {
                let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
                matches!(waitid(WaitId::Pid(id), options), Ok(None))
            }),
            Ended::Hosted(process) => process.ended().is_none(),
            Ended::Connected(_) | Ended::Over(_) => false,
        }
    }

    /// Resident memory in bytes, where the operating system tells it.
    fn resident(&self) -> Option<u64> {
        let id = match &*self.lock() {
            Ended::Running(child, _) => child.id(),
            Ended::Hosted(process) => return process.resident_memory(),
            Ended::Connected(_) | Ended::Over(_) => return None,
        };
        let status = std::fs::read_to_string(format!("/proc/{id}/status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
    }

    fn status(&self) -> String {
        match &*self.lock() {
            Ended::Over(Some(status)) => status.clone(),
            _ => "closed the connection".to_owned(),
        }
    }
}

fn kill_group(child: &mut Child) {
    if let Some(group) = Pid::from_raw(child.id() as i32) {
        let _ = kill_process_group(group, Signal::KILL);
    }
    drop(child.kill());
}

/// Waits for a killed process.
fn removed(child: &mut Child) -> Option<ExitStatus> {
    let deadline = Instant::now() + REMOVAL;
    loop {
        match child.try_wait() {
            Ok(None) if Instant::now() < deadline => thread::sleep(Duration::from_millis(1)),
            Ok(status) => return status,
            Err(_) => return None,
        }
    }
}

fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exited with status {code}"),
        (None, Some(9)) => "was killed (signal 9), possibly for lack of memory".to_owned(),
        (None, Some(signal)) => format!("was ended by signal {signal}"),
        (None, None) => "ended".to_owned(),
    }
}

impl Process {
    /// Starts a worker on one of the machines of `host`; `None` for functions of the caller's process.
    pub(crate) fn start_on(
        host: &dyn Host,
        peer: &Peer,
        worker: usize,
        longest_line: usize,
        goes_on: &dyn Fn() -> bool,
    ) -> Option<Result<Self, FunctionError>> {
        let (command, prelude) = peer.hosted(worker)?;
        let failed = |reason: String| FunctionError::Start {
            function: peer.name.clone(),
            program: command.program.clone(),
            reason,
        };
        let start = || {
            let Hosted { process, stream, machine } = host.start(&command, goes_on).map_err(&failed)?;
            let output = stream.try_clone().map_err(|error| failed(error.to_string()))?;
            let process = Self {
                input: Some(writer(Input(stream))),
                output: reader(Some(output), longest_line),
                stderr: Errors::Hosted(Arc::clone(&process)),
                end: End::new(Ended::Hosted(process)),
                function: format!("{} on {machine}", peer.name),
                longest_line,
            };
            process.begin(prelude);
            Ok(process)
        };
        Some(start())
    }

    /// Starts a worker on this machine, or connects to it.
    pub(crate) fn start(
        peer: &Peer,
        longest_line: usize,
        guard: &Arc<Mutex<Guard>>,
    ) -> Result<Self, FunctionError> {
        match &peer.transport {
            Transport::Process { program, arguments, prelude } => {
                let mut command = Command::new(program);
                command.args(arguments).process_group(0);
                command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
                let mut child = command.spawn().map_err(|error| FunctionError::Start {
                    function: peer.name.clone(),
                    program: program.to_string_lossy().into_owned(),
                    reason: error.to_string(),
                })?;
                let (input, output, errors) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
                lock(guard).add(child.id());
                let end = End::new(Ended::Running(child, Arc::clone(guard)));
                let stderr = Stderr::default();
                if let Some(errors) = errors {
                    let stderr = stderr.clone();
                    thread::spawn(move || stderr.collect(errors));
                }
                let process = Self {
                    input: input.map(writer),
                    output: reader(output, longest_line),
                    stderr: Errors::Read(stderr),
                    end,
                    function: peer.name.clone(),
                    longest_line,
                };
                process.begin(prelude.as_deref());
                Ok(process)
            }
            Transport::Socket(path) => {
                let connect_error = |error: std::io::Error| FunctionError::Connect {
                    function: peer.name.clone(),
                    reason: error.to_string(),
                };
                let stream = UnixStream::connect(path).map_err(connect_error)?;
                let input = stream.try_clone().map_err(connect_error)?;
                let output = stream.try_clone().map_err(connect_error)?;
                Ok(Self {
                    input: Some(writer(input)),
                    output: reader(Some(output), longest_line),
                    stderr: Errors::Read(Stderr::default()),
                    end: End::new(Ended::Connected(stream)),
                    function: peer.name.clone(),
                    longest_line,
                })
            }
        }
    }

    /// The function in messages.
    pub(crate) fn function(&self) -> &str {
        &self.function
    }

    /// Sends the line that precedes the first request.
    fn begin(&self, prelude: Option<&str>) {
        if let Some(prelude) = prelude {
            self.send(format!("{prelude}\n").into_bytes());
        }
    }

    /// Ends the worker from another thread.
    pub(crate) fn end(&self) -> End {
        self.end.clone()
    }

    /// Sends bytes without waiting for anything.
    pub(crate) fn send(&self, bytes: Vec<u8>) {
        // Without a reader the answer is missing, too, and that is reported.
        if let Some(input) = &self.input {
            drop(input.send(bytes));
        }
    }

    /// True if the worker wrote something that is no answer to a request, or has ended.
    pub(crate) fn is_out_of_step(&self) -> bool {
        !matches!(self.output.try_recv(), Err(TryRecvError::Empty))
    }

    /// Sends a line and waits for the next one. After an error the process is dead.
    pub(crate) fn exchange(&self, line: String, timeout: Duration) -> Result<Vec<u8>, FunctionError> {
        self.send(line.into_bytes());
        self.receive(timeout)
    }

    /// Waits for the next line. After an error the process is dead.
    pub(crate) fn receive(&self, timeout: Duration) -> Result<Vec<u8>, FunctionError> {
        match self.output.recv_timeout(timeout) {
            Ok(Line::Text(answer)) => Ok(answer),
            Ok(Line::TooLong) => Err(self.malformed(Malformed::TooLong { limit: self.longest_line })),
            Ok(Line::End) | Err(RecvTimeoutError::Disconnected) => Err(self.ended()),
            Err(RecvTimeoutError::Timeout) => {
                let stderr = self.stderr.tail();
                self.end.now();
                Err(FunctionError::TimedOut { function: self.function.clone(), timeout, stderr })
            }
        }
    }

    /// The error for a violation of the protocol; kills the process.
    pub(crate) fn malformed(&self, problem: Malformed) -> FunctionError {
        self.end.now();
        let stderr = self.stderr.final_tail();
        FunctionError::Malformed { function: self.function.clone(), problem, stderr }
    }

    /// The error for a worker that closed its output.
    fn ended(&self) -> FunctionError {
        // A process that only closed its output is killed; one that is ending keeps its own status.
        let deadline = Instant::now() + GRACE;
        while Instant::now() < deadline && self.end.is_running() {
            thread::sleep(Duration::from_millis(1));
        }
        self.end.now();
        let (status, stderr) = (self.end.status(), self.stderr.final_tail());
        FunctionError::Ended { function: self.function.clone(), status, stderr }
    }

    /// Resident memory in bytes, where the operating system tells it.
    pub(crate) fn resident(&self) -> Option<u64> {
        self.end.resident()
    }

    /// Closes the input, which asks the worker to end, and kills what remains.
    pub(crate) fn close(mut self) {
        self.input = None;
        while let Ok(Line::Text(_)) = self.output.recv_timeout(GRACE) {}
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end.now();
    }
}

/// Writes to a worker on a thread: one that reads nothing blocks it until the worker is killed.
fn writer(mut input: impl Write + Send + 'static) -> Sender<Vec<u8>> {
    let (sender, lines) = channel::<Vec<u8>>();
    thread::spawn(move || {
        for line in lines {
            if input.write_all(&line).and_then(|()| input.flush()).is_err() {
                return;
            }
        }
    });
    sender
}

/// Reads the lines of a worker on a thread.
fn reader(output: Option<impl Read + Send + 'static>, longest_line: usize) -> Receiver<Line> {
    // A worker that floods its output is stopped by the pipe.
    let (sender, lines) = std::sync::mpsc::sync_channel(2);
    if let Some(output) = output {
        thread::spawn(move || {
            let mut input = Lines::new(output, longest_line);
            loop {
                let line = input.next().unwrap_or(Line::End);
                let is_last = !matches!(line, Line::Text(_));
                if sender.send(line).is_err() || is_last {
                    return;
                }
            }
        });
    }
    lines
}
