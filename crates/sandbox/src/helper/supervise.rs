//! Starts a program and watches it until its end.

use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::streams::{Input, Output};
use super::{During, Failure, Place, confine, limits, processes, spawn};
use crate::folder;
use crate::{Ending, Execution, InputFile, Limits, Outcome, Tier};

/// Interval of measurements, where they cost little.
const INTERVAL: Duration = Duration::from_millis(20);
/// Interval of measurements in times of their own duration, up to [`LONGEST_INTERVAL`].
const SHARE: u32 = 20;
/// Longest interval of measurements.
const LONGEST_INTERVAL: Duration = Duration::from_millis(200);
/// Wait for the rest of the output after the end of all processes.
const REST: Duration = Duration::from_secs(1);

/// Runs a program to its end.
pub(super) fn run(execution: &Execution, place: &Place, caller: &UnixStream) -> Result<Outcome, Failure> {
    let started = Instant::now();
    let mut watch = Watch::start(execution, place)?;
    let ending = watch.until_end(caller, started);
    let wall = started.elapsed();
    // A short program ends before its processes are counted.
    let left_too_many = matches!(ending, Ok(Ending::Exited(_)))
        && counts_processes(place)
        && processes::usage().processes > execution.limits.processes;
    // Also without a caller: what the program started would go on.
    if !processes::kill_all(place) {
        return Err(Failure::Step("processes of the program cannot be killed".to_owned()));
    }
    watch.drain_rest();
    let cpu = processor_time();
    let ending = match ending? {
        // The signal at the limit, or the one that follows if the program ignores the first.
        Ending::Signaled(signal) if signal == Signal::SIGXCPU as i32 => Ending::CpuLimit,
        Ending::Signaled(signal) if signal == Signal::SIGKILL as i32 && cpu >= execution.limits.cpu => {
            Ending::CpuLimit
        }
        _ if watch.stdout.is_over || watch.stderr.is_over || watch.report.is_over => Ending::OutputLimit,
        Ending::Exited(_) if left_too_many => Ending::ProcessLimit,
        // A short program ends before its files are measured.
        Ending::Exited(_) if exceeds_disk(&execution.limits, place) => Ending::DiskLimit,
        ending => ending,
    };
    let outputs =
        execution.outputs.iter().filter_map(|name| read_output(&place.folder, name, &execution.limits));
    let outputs = outputs.collect();
    let Watch { stdout, stderr, report, .. } = watch;
    Ok(Outcome {
        ending,
        stdout: stdout.bytes,
        stderr: stderr.bytes,
        report: report.bytes,
        outputs,
        wall,
        cpu,
    })
}

/// A running program.
struct Watch<'a> {
    execution: &'a Execution,
    place: &'a Place,
    pid: Pid,
    stdin: Input<'a>,
    stdout: Output,
    stderr: Output,
    report: Output,
    next_measure: Instant,
}

impl<'a> Watch<'a> {
    fn start(execution: &'a Execution, place: &'a Place) -> Result<Self, Failure> {
        let pipe = || io::pipe().during("create pipes");
        let (for_stdin, stdin) = pipe()?;
        let (stdout, for_stdout) = pipe()?;
        let (stderr, for_stderr) = pipe()?;
        let (report, for_report) = pipe()?;
        let search = Place::search_path(&execution.readable);
        let path = find(&execution.command, &search, &place.folder)?;
        let environment = environment(execution, place, &search);
        let mut descriptors = vec![for_stdin.as_raw_fd(), for_stdout.as_raw_fd(), for_stderr.as_raw_fd()];
        if execution.reports {
            descriptors.push(for_report.as_raw_fd());
        }
        let open = spawn::open_descriptors().during("list open files")?;
        limits::apply(&execution.limits, place, &open, execution.service.is_some())?;
        let spawn = spawn::Spawn {
            path: &path,
            arguments: &execution.command,
            environment: &environment,
            descriptors: &descriptors,
            open: &open,
        };
        // Restrictions belong to a thread, and to the processes that it starts.
        let confined = || -> Result<Pid, Failure> {
            confine::apply(place, execution)?;
            spawn::spawn(&spawn).map_err(|error| Failure::NotStarted(error.to_string()))
        };
        let thread = std::thread::scope(|scope| scope.spawn(confined).join());
        let pid = thread.map_err(|_| Failure::Step("a thread panicked".to_owned()))??;
        // When memory runs out, the kernel kills it and what it starts before anything else.
        let _ = std::fs::write(format!("/proc/{pid}/oom_score_adj"), "1000");
        let output = execution.limits.output;
        let during = "read from pipes";
        Ok(Self {
            execution,
            place,
            pid,
            stdin: Input::new(stdin, &execution.stdin).during("write to pipes")?,
            stdout: Output::new(stdout, output, execution.passes_output).during(during)?,
            stderr: Output::new(stderr, output, execution.passes_output).during(during)?,
            report: Output::new(report, output, false).during(during)?,
            next_measure: Instant::now() + INTERVAL,
        })
    }

    /// Blocks until the program ends or exceeds a limit.
    fn until_end(&mut self, caller: &UnixStream, started: Instant) -> Result<Ending, Failure> {
        let limits = &self.execution.limits;
        let deadline = started + limits.wall;
        let target = rustix::process::Pid::from_raw(self.pid.as_raw());
        let target = target.ok_or_else(|| Failure::Step("a process without a number".to_owned()))?;
        let end = rustix::process::pidfd_open(target, rustix::process::PidfdFlags::empty());
        let end = end.during("watch the program")?;
        loop {
            let now = Instant::now();
            if now >= deadline {
                return Ok(Ending::TimedOut);
            }
            let has_caller = self.wait(end.as_fd(), caller.as_fd(), deadline.min(self.next_measure) - now);
            if !has_caller {
                return Err(Failure::Step("the caller has ended".to_owned()));
            }
            self.stdin.feed();
            for output in [&mut self.stdout, &mut self.stderr, &mut self.report] {
                output.drain();
                if output.is_over {
                    return Ok(Ending::OutputLimit);
                }
            }
            if let Some(ending) = self.reap() {
                return Ok(ending);
            }
            if Instant::now() >= self.next_measure
                && let Some(ending) = self.measure()
            {
                return Ok(ending);
            }
        }
    }

    /// Waits for an event. False if the caller is gone.
    fn wait(&self, end: BorrowedFd<'_>, caller: BorrowedFd<'_>, most: Duration) -> bool {
        let mut events = vec![PollFd::new(end, PollFlags::POLLIN), PollFd::new(caller, PollFlags::empty())];
        events.extend(self.stdin.pending().map(|pipe| PollFd::new(pipe, PollFlags::POLLOUT)));
        let outputs = [&self.stdout, &self.stderr, &self.report];
        let pending = outputs.into_iter().filter_map(Output::pending);
        events.extend(pending.map(|pipe| PollFd::new(pipe, PollFlags::POLLIN)));
        let timeout = most.as_millis().min(1000) as u16 + 1;
        let _ = poll(&mut events, PollTimeout::from(timeout));
        !events[1].any().unwrap_or(false)
    }

    /// Waits for processes that have ended; the end of the program if it is among them.
    fn reap(&self) -> Option<Ending> {
        loop {
            match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(pid, code)) if pid == self.pid => return Some(Ending::Exited(code)),
                Ok(WaitStatus::Signaled(pid, signal, _)) if pid == self.pid => {
                    return Some(Ending::Signaled(signal as i32));
                }
                Ok(WaitStatus::StillAlive) => return None,
                Ok(_) | Err(Errno::EINTR) => {}
                Err(_) => return Some(Ending::Signaled(Signal::SIGKILL as i32)),
            }
        }
    }

    /// Measures what the kernel does not limit.
    fn measure(&mut self) -> Option<Ending> {
        let begun = Instant::now();
        let exceeded = exceeded(&self.execution.limits, self.place);
        let now = Instant::now();
        self.next_measure = now + ((now - begun) * SHARE).clamp(INTERVAL, LONGEST_INTERVAL);
        exceeded
    }

    fn drain_rest(&mut self) {
        let deadline = Instant::now() + REST;
        for output in [&mut self.stdout, &mut self.stderr, &mut self.report] {
            while output.pending().is_some() && !output.is_over && Instant::now() < deadline {
                output.drain();
            }
        }
    }
}

fn exceeded(limits: &Limits, place: &Place) -> Option<Ending> {
    let usage = processes::usage();
    if usage.memory > limits.memory && processes::exact_memory() > limits.memory {
        return Some(Ending::MemoryLimit);
    }
    if counts_processes(place) && usage.processes > limits.processes {
        return Some(Ending::ProcessLimit);
    }
    exceeds_disk(limits, place).then_some(Ending::DiskLimit)
}

/// True if the kernel does not limit the number of processes.
fn counts_processes(place: &Place) -> bool {
    !place.has_own_user && place.tier != Tier::Namespaces
}

/// True if the files of the program exceed a limit that its file system does not have.
fn exceeds_disk(limits: &Limits, place: &Place) -> bool {
    place.tier != Tier::Namespaces && folder::exceeds(&place.folder, limits.files, limits.disk)
}

/// Processor time of all processes that were waited for.
fn processor_time() -> Duration {
    let Ok(usage) = getrusage(UsageWho::RUSAGE_CHILDREN) else { return Duration::ZERO };
    let duration = |time: nix::sys::time::TimeVal| {
        Duration::from_secs(time.tv_sec() as u64) + Duration::from_micros(time.tv_usec() as u64)
    };
    duration(usage.user_time()) + duration(usage.system_time())
}

/// Path of the program.
fn find(command: &[String], search: &[PathBuf], folder: &Path) -> Result<PathBuf, Failure> {
    let name = command.first().filter(|name| !name.is_empty());
    let name = name.ok_or_else(|| Failure::NotStarted("the command is empty".to_owned()))?;
    let not_found = || Failure::NotStarted("it is not installed".to_owned());
    if name.contains('/') {
        let path = folder.join(name);
        return if path.is_file() { Ok(path) } else { Err(not_found()) };
    }
    search.iter().map(|folder| folder.join(name)).find(|path| path.is_file()).ok_or_else(not_found)
}

fn environment(execution: &Execution, place: &Place, search: &[PathBuf]) -> Vec<String> {
    let path = std::env::join_paths(search).unwrap_or_default();
    let given = |name: &str, value: &OsStr| format!("{name}={}", value.to_string_lossy());
    let mut variables = vec![
        given("PATH", &path),
        given("HOME", place.folder.as_os_str()),
        given("TMPDIR", place.temporary.as_os_str()),
        "LANG=C.UTF-8".to_owned(),
    ];
    variables.extend(execution.environment.iter().map(|(name, value)| format!("{name}={value}")));
    variables
}

/// Reads a file that the program made; `None` if it is not a plain file or too large.
fn read_output(folder: &Path, name: &str, limits: &Limits) -> Option<InputFile> {
    // A link would be followed with the rights of this process.
    let flags = nix::fcntl::OFlag::O_NOFOLLOW | nix::fcntl::OFlag::O_NONBLOCK;
    let file =
        std::fs::OpenOptions::new().read(true).custom_flags(flags.bits()).open(folder.join(name)).ok()?;
    let metadata =
        file.metadata().ok().filter(|metadata| metadata.is_file() && metadata.len() <= limits.disk)?;
    let mut content = Vec::new();
    file.take(metadata.len()).read_to_end(&mut content).ok()?;
    Some(InputFile { name: name.to_owned(), content, is_executable: true })
}
