//! The Python interpreter of the comparison.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::failure::Failure;

/// Oldest version that runs the programs of `bench/`.
const OLDEST: (u32, u32) = (3, 10);
/// Names of interpreters, in the order in which they are tried.
const NAMES: [&str; 7] =
    ["python3", "python", "python3.14", "python3.13", "python3.12", "python3.11", "python3.10"];
/// Prints the version; fails without the modules that create environments.
const QUESTION: &str = "import sys; print('%d.%d' % sys.version_info[:2]); import venv, ensurepip";

/// Reason why an interpreter cannot be used.
#[derive(Debug, thiserror::Error)]
enum Unsuitable {
    #[error("could not be started: {0}")]
    Start(io::Error),
    #[error("is Python {0}.{1}")]
    TooOld(u32, u32),
    #[error("cannot create environments: {0}")]
    NoVenv(String),
    #[error("is not a Python interpreter")]
    NotPython,
}

/// The interpreter: the given one, or the first suitable one on the PATH.
pub(super) fn find(given: Option<&Path>) -> Result<OsString, Failure> {
    let mut reasons = Vec::new();
    let names: Vec<OsString> = match given {
        Some(path) => vec![path.into()],
        None => NAMES.iter().map(Into::into).collect(),
    };
    for name in names {
        match check(&name) {
            Ok(()) => return Ok(name),
            Err(Unsuitable::Start(error)) if given.is_none() && error.kind() == io::ErrorKind::NotFound => {}
            Err(reason) => reasons.push(format!("`{}` {reason}", Path::new(&name).display())),
        }
    }
    let found = if reasons.is_empty() { "none is on the PATH".to_owned() } else { reasons.join("; ") };
    let (major, minor) = OLDEST;
    Err(Failure::usage_text(format_args!("the comparison needs Python {major}.{minor} or newer: {found}"))
        .hint(
            "name an interpreter with --python; on Debian and Ubuntu it also needs the package python3-venv",
        ))
}

fn check(interpreter: &OsStr) -> Result<(), Unsuitable> {
    let answer = Command::new(interpreter).args(["-c", QUESTION]).stdin(Stdio::null()).output();
    let answer = answer.map_err(Unsuitable::Start)?;
    let text = String::from_utf8_lossy(&answer.stdout);
    let version = text
        .trim()
        .split_once('.')
        .and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
    match version {
        None => Err(Unsuitable::NotPython),
        Some(version) if version < OLDEST => Err(Unsuitable::TooOld(version.0, version.1)),
        Some(_) if !answer.status.success() => {
            let errors = String::from_utf8_lossy(&answer.stderr);
            Err(Unsuitable::NoVenv(errors.lines().last().unwrap_or_default().trim().to_owned()))
        }
        Some(_) => Ok(()),
    }
}
