//! Memory of answers: a question is asked once, also by judgements at the same time.

use std::collections::{BTreeMap, VecDeque};
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use super::error::ModelError;
use super::settings::CacheSettings;

/// Longest line of a file; longer ones are ignored.
const LONGEST_LINE: usize = 1 << 20;

/// A remembered answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Remembered {
    /// The text, from which the verdict is read again.
    pub(crate) text: String,
    /// p(yes) / (p(yes) + p(no)), or the value of a classifier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) number: Option<f64>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Entry {
    key: String,
    answer: Remembered,
}

/// A bounded memory of answers by the digest of their question.
#[derive(Debug)]
pub(crate) struct Cache {
    limit: usize,
    file: Option<PathBuf>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    answers: BTreeMap<String, Remembered>,
    /// Keys, oldest first.
    order: VecDeque<String>,
    /// Questions that are being asked.
    asked: BTreeMap<String, Arc<Pending>>,
    /// The file at its end, once it is open.
    log: Option<File>,
    /// Lines of the file.
    lines: usize,
    hits: u64,
    questions: u64,
}

impl State {
    fn insert(&mut self, key: &str, answer: Remembered, limit: usize) {
        if self.answers.insert(key.to_owned(), answer).is_none() {
            self.order.push_back(key.to_owned());
        }
        while self.order.len() > limit {
            if let Some(oldest) = self.order.pop_front() {
                self.answers.remove(&oldest);
            }
        }
    }
}

impl Cache {
    pub(crate) fn new(settings: &CacheSettings) -> Self {
        Self { limit: settings.entries, file: settings.file.clone(), state: Mutex::default() }
    }

    /// The answer to the question with this key: the remembered one, or else that of `ask`, which is asked once at a time.
    pub(crate) fn answer(
        &self,
        key: &str,
        ask: impl FnOnce() -> Result<Remembered, ModelError>,
    ) -> Result<Remembered, ModelError> {
        let mut state = self.state();
        self.open(&mut state)?;
        state.questions += 1;
        if let Some(answer) = state.answers.get(key).cloned() {
            state.hits += 1;
            return Ok(answer);
        }
        if let Some(pending) = state.asked.get(key).cloned() {
            state.hits += 1;
            drop(state);
            return pending.wait();
        }
        let asking = Asking { cache: self, key, pending: Arc::default() };
        state.asked.insert(key.to_owned(), Arc::clone(&asking.pending));
        drop(state);
        let answer = ask();
        asking.pending.set(answer.clone());
        let answer = answer?;
        if self.limit > 0 {
            let mut state = self.state();
            state.insert(key, answer.clone(), self.limit);
            self.write(&mut state, key, &answer)?;
        }
        Ok(answer)
    }

    /// Number of questions since the last call, and of those that were answered from memory.
    pub(crate) fn take_counts(&self) -> (u64, u64) {
        let mut state = self.state();
        (std::mem::take(&mut state.questions), std::mem::take(&mut state.hits))
    }

    /// Reads the file and opens it for appending.
    pub(crate) fn prepare(&self) -> Result<(), ModelError> {
        self.open(&mut self.state())
    }

    fn open(&self, state: &mut State) -> Result<(), ModelError> {
        let Some(file) = self.file.as_deref().filter(|_| state.log.is_none()) else { return Ok(()) };
        self.open_file(state, file).map_err(|error| failed(file, &error))
    }

    fn open_file(&self, state: &mut State, file: &Path) -> std::io::Result<()> {
        if let Some(folder) = file.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let log = OpenOptions::new().read(true).append(true).create(true).open(file)?;
        let mut reader = BufReader::new(&log);
        let mut line = Vec::new();
        let mut is_torn = false;
        while reader.read_until(b'\n', &mut line)? > 0 {
            is_torn = !line.ends_with(b"\n");
            state.lines += 1;
            // A line that was cut off is an answer less.
            if line.len() <= LONGEST_LINE
                && let Ok(Entry { key, answer }) = serde_json::from_slice(&line)
            {
                state.insert(&key, answer, self.limit);
            }
            line.clear();
        }
        if is_torn {
            (&log).write_all(b"\n")?;
        }
        state.log = Some(log);
        Ok(())
    }

    fn write(&self, state: &mut State, key: &str, answer: &Remembered) -> Result<(), ModelError> {
        let Some(file) = &self.file else { return Ok(()) };
        let is_full = state.lines >= 2 * self.limit;
        let written = if is_full { compact(state, file) } else { append(state, key, answer) };
        written.map_err(|error| failed(file, &error))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Replaces the file by one with the remembered answers only.
fn compact(state: &mut State, file: &Path) -> std::io::Result<()> {
    let draft = file.with_extension(format!("{}.tmp", std::process::id()));
    let mut text = Vec::new();
    for key in &state.order {
        if let Some(answer) = state.answers.get(key) {
            text.extend(line(key, answer)?);
        }
    }
    std::fs::write(&draft, &text)?;
    std::fs::rename(&draft, file)?;
    state.lines = state.order.len();
    state.log = Some(OpenOptions::new().append(true).open(file)?);
    Ok(())
}

fn append(state: &mut State, key: &str, answer: &Remembered) -> std::io::Result<()> {
    let text = line(key, answer)?;
    if let Some(log) = &mut state.log {
        log.write_all(&text)?;
        state.lines += 1;
    }
    Ok(())
}

fn line(key: &str, answer: &Remembered) -> std::io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(&Entry { key: key.to_owned(), answer: answer.clone() })?;
    line.push(b'\n');
    Ok(line)
}

fn failed(file: &Path, error: &std::io::Error) -> ModelError {
    ModelError::Cache { file: file.to_owned(), reason: error.to_string() }
}

/// The answer to a question that is being asked, or its failure. All who wait for it get the same.
#[derive(Debug, Default)]
struct Pending {
    answer: Mutex<Option<Result<Remembered, ModelError>>>,
    changed: Condvar,
}

impl Pending {
    fn set(&self, answer: Result<Remembered, ModelError>) {
        self.answer.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(answer);
        self.changed.notify_all();
    }

    fn wait(&self) -> Result<Remembered, ModelError> {
        let answer = self.answer.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_while(answer, |answer| answer.is_none());
        let answer = waited.unwrap_or_else(PoisonError::into_inner).clone();
        answer.unwrap_or(Err(ModelError::Closed))
    }
}

/// A question that is being asked. Ends the wait of others, whatever becomes of it.
struct Asking<'c> {
    cache: &'c Cache,
    key: &'c str,
    pending: Arc<Pending>,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.cache.state().asked.remove(self.key);
        // Without effect, unless asking panicked.
        self.pending.set(Err(ModelError::Closed));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    fn remembered(text: &str) -> Remembered {
        Remembered { text: text.to_owned(), number: None }
    }

    fn cache(entries: usize, file: Option<&Path>) -> Cache {
        Cache::new(&CacheSettings { entries, file: file.map(Path::to_owned) })
    }

    /// Asks for keys, and returns those that were not remembered.
    fn asked<'k>(cache: &Cache, keys: &[&'k str]) -> Vec<&'k str> {
        let mut asked = Vec::new();
        for &key in keys {
            let answer = cache.answer(key, || {
                asked.push(key);
                Ok(remembered(&format!("answer to {key}")))
            });
            assert_eq!(answer.unwrap().text, format!("answer to {key}"));
        }
        asked
    }

    #[test]
    fn a_question_is_asked_once_at_a_time() {
        let (cache, calls) = (cache(10, None), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let answer = cache.answer("key", || {
                        calls.fetch_add(1, Ordering::Relaxed);
                        std::thread::yield_now();
                        Ok(remembered("yes"))
                    });
                    assert_eq!(answer.unwrap().text, "yes");
                });
            }
        });
        assert_eq!(calls.load(Ordering::Relaxed), 1);
        assert_eq!((cache.take_counts(), cache.take_counts()), ((8, 7), (0, 0)));
    }

    /// Otherwise each of a group of equal completions would wait for a silent server in turn.
    #[test]
    fn all_who_wait_for_a_question_share_its_failure() {
        let (cache, calls) = (cache(10, None), AtomicU64::new(0));
        let waits = || cache.state().questions == 4;
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let answer = cache.answer("key", || {
                        calls.fetch_add(1, Ordering::Relaxed);
                        while !waits() {
                            std::thread::yield_now();
                        }
                        Err(ModelError::Closed)
                    });
                    assert_eq!(answer, Err(ModelError::Closed));
                });
            }
        });
        assert_eq!(calls.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn failures_are_not_remembered() {
        let cache = cache(10, None);
        for _ in 0..2 {
            assert_eq!(cache.answer("key", || Err(ModelError::Closed)), Err(ModelError::Closed));
        }
        assert_eq!(asked(&cache, &["key", "key"]), ["key"]);
    }

    #[test]
    fn the_oldest_answers_are_dropped() {
        let memory = cache(2, None);
        assert_eq!(asked(&memory, &["a", "b", "a", "c", "b", "a"]), ["a", "b", "c", "a"]);
        assert_eq!(asked(&cache(0, None), &["a", "a"]), ["a", "a"]);
    }

    #[test]
    fn a_file_keeps_answers() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("deep/verdicts.jsonl");
        assert_eq!(asked(&cache(3, Some(&file)), &["a", "b"]), ["a", "b"]);
        // The end of a process in the middle of a line.
        let mut text = std::fs::read(&file).unwrap();
        text.extend(br#"{"key":"c","answer":{"te"#);
        std::fs::write(&file, text).unwrap();
        let again = cache(3, Some(&file));
        assert_eq!(asked(&again, &["a", "b", "c", "d", "e", "f", "g", "h"]), ["c", "d", "e", "f", "g", "h"]);
        let lines = std::fs::read_to_string(&file).unwrap().lines().count();
        assert!(lines <= 6, "the file has {lines} lines");
        assert_eq!(asked(&cache(3, Some(&file)), &["h", "g", "f", "a"]), ["a"]);
        let folder_as_file = cache(3, Some(folder.path()));
        assert!(matches!(folder_as_file.prepare(), Err(ModelError::Cache { .. })));
    }
}
