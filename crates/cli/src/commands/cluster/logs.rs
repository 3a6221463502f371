//! `rloom cluster logs`: the output of the processes of a run, from the files in its folder.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::arguments::ClusterLogs;
use crate::commands::train::find_run;
use crate::failure::Failure;
use crate::output::Output;

/// Folder of a run with the output of its processes.
const LOGS: &str = "logs";
/// Interval at which new output is looked for.
const LOOK: Duration = Duration::from_millis(300);
/// Largest part of a file that is searched for its last lines.
const TAIL: u64 = 1 << 20;

pub(super) fn run(arguments: &ClusterLogs, output: Output) -> Result<(), Failure> {
    let folder = find_run(&arguments.run)?.join(LOGS);
    let files = files(&folder, arguments.process.as_deref())?;
    let mut ends = Vec::new();
    for path in &files {
        let (text, end) = last_lines(path, arguments.lines).map_err(|error| unreadable(path, &error))?;
        write(path, &text, files.len() > 1, output)?;
        ends.push(end);
    }
    if !arguments.follow {
        return Ok(());
    }
    loop {
        std::thread::sleep(LOOK);
        for (path, end) in files.iter().zip(&mut ends) {
            let text = rest(path, end).map_err(|error| unreadable(path, &error))?;
            write(path, &text, files.len() > 1, output)?;
        }
    }
}

/// The log files of a run, or the one of a process such as `replica 0` or `policy-rank-1`.
fn files(folder: &Path, process: Option<&str>) -> Result<Vec<PathBuf>, Failure> {
    let entries =
        std::fs::read_dir(folder).map(|entries| entries.flatten().map(|entry| entry.path()).collect());
    let mut files: Vec<PathBuf> = entries.unwrap_or_default();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "log"));
    files.sort();
    let names: Vec<String> = files.iter().map(|path| name(path)).collect();
    if names.is_empty() {
        return Err(Failure::usage_text(format_args!(
            "{} has no logs: the run has started no processes",
            folder.display()
        )));
    }
    let Some(process) = process else { return Ok(files) };
    let wanted = process.replace(' ', "-");
    files.retain(|path| name(path) == wanted);
    if files.is_empty() {
        let message = format!("there is no log of {process}; the logs are {}", names.join(", "));
        return Err(Failure::usage_text(format_args!("{message}")));
    }
    Ok(files)
}

fn name(path: &Path) -> String {
    path.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned())
}

/// The last lines of a file, and its length.
fn last_lines(path: &Path, lines: usize) -> std::io::Result<(String, u64)> {
    let length = File::open(path)?.metadata()?.len();
    let mut start = length.saturating_sub(TAIL);
    let text = rest(path, &mut start)?;
    let first = text.lines().count().saturating_sub(lines);
    let kept: Vec<&str> = text.lines().skip(first).collect();
    Ok((kept.join("\n"), start))
}

/// What a file has from `end` on, which is moved on. A file that was replaced by a new one is read from its start.
fn rest(path: &Path, end: &mut u64) -> std::io::Result<String> {
    let mut file = File::open(path)?;
    if file.metadata()?.len() < *end {
        *end = 0;
    }
    file.seek(SeekFrom::Start(*end))?;
    let mut bytes = Vec::new();
    *end += file.read_to_end(&mut bytes)? as u64;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn write(path: &Path, text: &str, is_named: bool, output: Output) -> Result<(), Failure> {
    let name = name(path);
    for line in text.lines() {
        output.data(&if is_named { format!("{name}: {line}") } else { line.to_owned() })?;
    }
    Ok(())
}

fn unreadable(path: &Path, error: &std::io::Error) -> Failure {
    Failure::failed_text(format_args!("could not read {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_found_and_followed() {
        let folder = tempfile::tempdir().unwrap();
        assert!(files(folder.path(), None).is_err());
        let path = folder.path().join("replica-0.log");
        std::fs::write(&path, "one\ntwo\nthree\n").unwrap();
        std::fs::write(folder.path().join("replica-0.log.1"), "old").unwrap();
        std::fs::write(folder.path().join("policy-rank-1.log"), "rank").unwrap();
        assert_eq!(files(folder.path(), None).unwrap().len(), 2);
        assert_eq!(files(folder.path(), Some("replica 0")).unwrap(), std::slice::from_ref(&path));
        assert!(files(folder.path(), Some("replica 1")).is_err());
        let (text, mut end) = last_lines(&path, 2).unwrap();
        assert_eq!((text.as_str(), end), ("two\nthree", 14));
        std::fs::write(&path, "one\ntwo\nthree\nfour\n").unwrap();
        assert_eq!(rest(&path, &mut end).unwrap(), "four\n");
        std::fs::write(&path, "new\n").unwrap();
        assert_eq!(rest(&path, &mut end).unwrap(), "new\n");
    }
}
