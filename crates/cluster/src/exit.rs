//! Ends of processes.

use std::fmt;
use std::path::{Path, PathBuf};

use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};

/// Lines of output that messages quote.
const QUOTED: usize = 20;

/// End of a process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    /// Exit code; absent after a signal.
    pub code: Option<i32>,
    /// Number of the signal that ended it.
    pub signal: Option<i32>,
    /// It was killed while the system killed processes for lack of memory.
    pub out_of_memory: bool,
    /// It was asked to stop.
    pub stopped: bool,
    /// End of its standard output and standard error.
    pub output: String,
    /// File with all of them.
    #[serde(default)]
    pub log: Option<PathBuf>,
}

impl Exit {
    /// True for exit code 0.
    pub fn is_success(&self) -> bool {
        self.code == Some(0)
    }

    /// Exit code or signal, as a message without the output.
    pub fn reason(&self) -> String {
        let mut reason = match (self.code, self.signal) {
            (Some(code), _) => format!("ended with exit code {code}"),
            (None, Some(number)) => match Signal::try_from(number) {
                Ok(signal) => format!("was ended by {signal}"),
                Err(_) => format!("was ended by signal {number}"),
            },
            (None, None) => "ended; its exit code is unknown".to_owned(),
        };
        if self.out_of_memory {
            reason.push_str(" while the system was out of memory");
        }
        reason
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.reason())?;
        quote(formatter, &self.output, self.log.as_deref())
    }
}

/// Appends the last lines of a process's output, and the file with all of it.
fn quote(formatter: &mut fmt::Formatter<'_>, output: &str, log: Option<&Path>) -> fmt::Result {
    let lines: Vec<&str> = output.lines().filter(|line| !line.trim().is_empty()).collect();
    if lines.is_empty() {
        return Ok(());
    }
    write!(formatter, "; end of its output")?;
    if let Some(log) = log {
        write!(formatter, ", all of which is in {}", log.display())?;
    }
    write!(formatter, ":")?;
    for line in &lines[lines.len().saturating_sub(QUOTED)..] {
        write!(formatter, "\n  | {line}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_code_signal_and_memory_and_quote_the_end() {
        let exit = Exit { code: Some(3), output: "a\n\nb\n".to_owned(), ..Exit::default() };
        assert_eq!(exit.to_string(), "ended with exit code 3; end of its output:\n  | a\n  | b");
        let exit = Exit { log: Some("logs/rank.log".into()), ..exit };
        let expected =
            "ended with exit code 3; end of its output, all of which is in logs/rank.log:\n  | a\n  | b";
        assert_eq!(exit.to_string(), expected);
        let exit = Exit { signal: Some(9), out_of_memory: true, ..Exit::default() };
        assert_eq!(exit.to_string(), "was ended by SIGKILL while the system was out of memory");
        let many: Vec<String> = (0..50).map(|line| format!("line {line}")).collect();
        let text = Exit { output: many.join("\n"), ..Exit::default() }.to_string();
        assert!(
            !text.contains("line 29\n") && text.contains("line 30\n") && text.ends_with("line 49"),
            "{text}"
        );
    }
}
