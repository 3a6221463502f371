use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::cache::Cache;
use super::compare::{same_text, same_value};
use super::execution::QUERY;
use super::slots::Slots;
use super::{Case, Language};
use crate::nonce::nonce;
use crate::{Ending, Execution, Executor, InputFile, Limits, Outcome, SandboxError};

/// Runs one test against the program, which is in a process of its own.
const TESTER: &str = include_str!("tester.py");
/// Verdicts to remember.
const VERDICTS: usize = 1 << 16;
/// Compiled programs to remember.
const COMPILED: usize = 256;

/// Judges programs by test cases. Verdicts and compiled programs are remembered.
#[derive(Debug)]
pub struct CodeJudge {
    executor: Executor,
    slots: Slots,
    limits: Limits,
    readable: Vec<PathBuf>,
    verdicts: Cache<[u8; 32], CodeVerdict>,
    compiled: Cache<[u8; 32], Option<InputFile>>,
}

/// The verdict on a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CodeVerdict {
    /// Verdicts on the cases, in order. Those after the first failure are missing if one failure decides.
    pub cases: Vec<CaseVerdict>,
    /// Number of cases.
    pub total: usize,
}

/// The verdict on one case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CaseVerdict {
    /// It passed.
    Passed,
    /// The result differs, or the program failed.
    Failed,
    /// The program exceeded a limit.
    Exceeded(Ending),
    /// The program was not compiled.
    NotCompiled,
}

impl CodeVerdict {
    /// True if all cases passed.
    pub fn is_solved(&self) -> bool {
        self.passed() == self.total
    }

    /// Number of cases that passed.
    pub fn passed(&self) -> usize {
        self.cases.iter().filter(|case| **case == CaseVerdict::Passed).count()
    }
}

/// One judgement of a case.
struct Attempt {
    nonce: String,
    deadline: Instant,
}

/// The answer of the tester.
#[derive(Deserialize)]
struct Report {
    nonce: String,
    #[serde(default)]
    value: Value,
    error: Option<String>,
}

impl CodeJudge {
    /// A judge of which at most `workers` programs run at a time, which can read the given folders in addition to those of the
    /// system.
    pub fn new(
        executor: impl Into<Executor>,
        workers: usize,
        limits: Limits,
        readable: Vec<PathBuf>,
    ) -> Self {
        let (verdicts, compiled) = (Cache::new(VERDICTS), Cache::new(COMPILED));
        let (executor, slots) = (executor.into(), Slots::new(workers));
        Self { executor, slots, limits, readable, verdicts, compiled }
    }

    /// Where programs run.
    pub fn executor(&self) -> &Executor {
        &self.executor
    }

    /// Judges a program. `stops_early`: cases after the first failure are left out. Fails if the machine does, or at the
    /// deadline; a case that was not judged is never a failed one. Nothing is repeated.
    pub fn judge(
        &self,
        language: Language,
        source: &str,
        cases: &[Case],
        stops_early: bool,
        deadline: Instant,
    ) -> Result<CodeVerdict, SandboxError> {
        let key = digest(&[language.file(), source, &json!(cases).to_string(), &stops_early.to_string()]);
        if let Some(verdict) = self.verdicts.get(&key) {
            return Ok(verdict);
        }
        let total = cases.len();
        let mut verdict = CodeVerdict { cases: Vec::new(), total };
        let begun = Instant::now();
        let timeout = deadline.saturating_duration_since(begun);
        match self.compiled(language, source, deadline)? {
            None => verdict.cases = vec![CaseVerdict::NotCompiled; total],
            Some(program) => {
                for (index, case) in cases.iter().enumerate() {
                    if Instant::now() >= deadline {
                        return Err(SandboxError::TimedOut { timeout });
                    }
                    let passed = self.judge_case(
                        language,
                        &program,
                        case,
                        &Attempt { nonce: nonce(&key, index as u64), deadline },
                    )?;
                    verdict.cases.push(passed);
                    if stops_early && passed != CaseVerdict::Passed {
                        break;
                    }
                }
            }
        }
        self.verdicts.put(key, verdict.clone());
        Ok(verdict)
    }

    /// The program to run: compiled, or its source. `None` if it has errors.
    fn compiled(
        &self,
        language: Language,
        source: &str,
        deadline: Instant,
    ) -> Result<Option<InputFile>, SandboxError> {
        let file = InputFile::new(language.file(), source);
        let Some(compiler) = language.compiler() else { return Ok(Some(file)) };
        let key = digest(&[language.file(), source]);
        if let Some(compiled) = self.compiled.get(&key) {
            return Ok(compiled);
        }
        // A compiler takes more than most programs.
        let limits = Limits {
            wall: self.limits.wall.max(Duration::from_mins(1)),
            cpu: self.limits.cpu.max(Duration::from_mins(1)),
            memory: self.limits.memory.max(1 << 30),
            ..self.limits
        };
        let mut execution = self.execution(compiler, limits);
        execution.files = vec![file];
        execution.outputs = vec!["main".to_owned()];
        let mut outcome = self.run(&execution, deadline)?;
        let compiled = if outcome.ending.is_success() { outcome.outputs.pop() } else { None };
        self.compiled.put(key, compiled.clone());
        Ok(compiled)
    }

    fn judge_case(
        &self,
        language: Language,
        program: &InputFile,
        case: &Case,
        attempt: &Attempt,
    ) -> Result<CaseVerdict, SandboxError> {
        let nonce = &attempt.nonce;
        match case {
            Case::Text { stdin, stdout } => {
                let mut execution = self.execution(language.command(), self.limits);
                execution.files = vec![program.clone()];
                if language == Language::Sql {
                    execution.files.push(InputFile::new("query.py", QUERY));
                }
                execution.stdin = stdin.clone().into_bytes();
                let outcome = self.run(&execution, attempt.deadline)?;
                let is_same = || same_text(&String::from_utf8_lossy(&outcome.stdout), stdout);
                Ok(verdict_of(&outcome, is_same))
            }
            Case::Call { call, arguments, expected } => {
                let test = json!({ "nonce": nonce, "call": call, "arguments": arguments });
                self.tested(program, &test, attempt, |value| same_value(value, expected))
            }
            Case::Assertion { assertion } => {
                let test = json!({ "nonce": nonce, "code": assertion, "is_pytest": false });
                self.tested(program, &test, attempt, |_| true)
            }
            Case::Pytest { pytest } => {
                let test = json!({ "nonce": nonce, "code": pytest, "is_pytest": true });
                self.tested(program, &test, attempt, |_| true)
            }
        }
    }

    /// Runs a test of a Python program.
    fn tested(
        &self,
        program: &InputFile,
        test: &Value,
        attempt: &Attempt,
        is_right: impl FnOnce(&Value) -> bool,
    ) -> Result<CaseVerdict, SandboxError> {
        let mut execution = self.execution(&["python3", "-I", "-S", "tester.py"], self.limits);
        let solution = InputFile { name: "solution.py".to_owned(), ..program.clone() };
        execution.files = vec![solution, InputFile::new("tester.py", TESTER)];
        execution.stdin = test.to_string().into_bytes();
        execution.reports = true;
        let outcome = self.run(&execution, attempt.deadline)?;
        let report: Option<Report> = serde_json::from_slice(&outcome.report).ok();
        let has_passed = || {
            report.is_some_and(|report| {
                report.nonce == attempt.nonce && report.error.is_none() && is_right(&report.value)
            })
        };
        Ok(verdict_of(&outcome, has_passed))
    }

    fn execution(&self, command: &[&str], limits: Limits) -> Execution {
        let command = command.iter().map(|word| (*word).to_owned()).collect();
        Execution { command, limits, readable: self.readable.clone(), ..Execution::default() }
    }

    fn run(&self, execution: &Execution, deadline: Instant) -> Result<Outcome, SandboxError> {
        let begun = Instant::now();
        let timed_out = || SandboxError::TimedOut { timeout: deadline.saturating_duration_since(begun) };
        let _slot = self.slots.take(deadline).ok_or_else(timed_out)?;
        self.executor.run(execution, deadline)
    }
}

fn verdict_of(outcome: &Outcome, is_right: impl FnOnce() -> bool) -> CaseVerdict {
    match outcome.ending {
        Ending::Exited(0) if is_right() => CaseVerdict::Passed,
        Ending::Exited(_) | Ending::Signaled(_) => CaseVerdict::Failed,
        exceeded => CaseVerdict::Exceeded(exceeded),
    }
}

fn digest(parts: &[&str]) -> [u8; 32] {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}
