use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rloom_core::{Program, SettingProblem, ValueRange};
use rloom_sandbox::code::{Case, CodeJudge, Language, cases};
use rloom_sandbox::{Choice, Executor, Limits, Sandbox, SandboxError, Server};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::fence::last_block;
use crate::verifier::Truncated;
use crate::{Assessment, Completion, ComponentError, JudgeError, Reward, Score};

/// Field of a row that names the language.
const LANGUAGE_FIELD: &str = "language";

/// Time of a test case by the clock, in limits of its processor time.
const WALL: u32 = 4;

/// Verifies a program by test cases, in a sandbox. The program is the last fenced code block of the completion.
///
/// The tests are a list in a field of the row. Each is a table: `stdin` and `stdout`; `call`, `arguments` and `expected`;
/// `assertion`; or `pytest`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Code {
    /// Language of the programs. Default: field `language` of the row, else Python.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub language: Option<Language>,
    /// Field of the row with the tests.
    pub tests: String,
    /// Value of a program that passes some of the tests.
    pub score: Score,
    /// Looks for a fenced code block; if false, the whole completion is the program.
    pub fenced: bool,
    /// Protection of the machine from the programs.
    pub sandbox: Choice,
    /// Address of a server with the HTTP interface of SandboxFusion, such as `http://127.0.0.1:8080/run_code`, that runs the
    /// programs instead of this machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Folders that programs can read in addition to those of the system, such as that of an interpreter; its `bin` is
    /// searched first.
    pub readable: Vec<PathBuf>,
    /// Processor time for one test case, in seconds. By the clock a case may take four times as long, so that a busy machine
    /// fails no program.
    pub case_seconds: f64,
    /// Memory of a program and its processes, in MiB.
    pub memory_mib: u64,
    /// Number of programs that run at a time. Default: the number of cores.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workers: Option<u32>,
    /// Treatment of truncated completions.
    pub truncated: Truncated,
}

impl Default for Code {
    fn default() -> Self {
        Self {
            language: None,
            tests: "tests".to_owned(),
            score: Score::All,
            fenced: true,
            sandbox: Choice::Auto,
            url: None,
            readable: Vec::new(),
            case_seconds: 10.0,
            memory_mib: 1024,
            workers: None,
            truncated: Truncated::Judge,
        }
    }
}

impl Code {
    pub(crate) fn validate(&self) -> Result<(), ComponentError> {
        ValueRange::between(0.1, 3600.0).check("case_seconds", self.case_seconds)?;
        ValueRange::between(64.0, 1_048_576.0).check("memory_mib", self.memory_mib as f64)?;
        if let Some(workers) = self.workers {
            ValueRange::between(1.0, 4096.0).check("workers", f64::from(workers))?;
        }
        if let Some(url) = &self.url {
            self.validate_server(url)?;
        }
        match self.readable.iter().find(|folder| !folder.is_absolute()) {
            Some(folder) => Err(ComponentError::RelativeFolder { folder: folder.display().to_string() }),
            None => Ok(()),
        }
    }

    fn validate_server(&self, url: &str) -> Result<(), ComponentError> {
        if !url.starts_with("http://") && !url.starts_with("https://") {
            let expected = "an address that begins with `http://` or `https://`";
            return Err(SettingProblem::Invalid { value: format!("{url:?}"), expected }.at("url").into());
        }
        let unread = [("sandbox", self.sandbox != Choice::Auto), ("readable", !self.readable.is_empty())];
        match unread.into_iter().find(|(_, is_given)| *is_given) {
            Some((key, _)) => Err(ComponentError::UnreadByServer { key }),
            None => Ok(()),
        }
    }

    /// Where programs run.
    fn executor(&self) -> Result<Executor, SandboxError> {
        match &self.url {
            None => Ok(Sandbox::detect(&Program::current(), self.sandbox)?.into()),
            Some(url) => Ok(Server::new(url).into()),
        }
    }

    /// Programs that run at a time.
    pub(crate) fn slots(&self) -> usize {
        let cores = || std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        self.workers.map_or_else(cores, |workers| workers as usize)
    }

    pub(crate) fn reward(&self, timeout: Duration) -> CodeReward {
        CodeReward { settings: self.clone(), timeout, judge: OnceLock::new() }
    }

    fn limits(&self) -> Limits {
        let time = Duration::from_secs_f64(self.case_seconds);
        Limits { cpu: time, wall: time * WALL, memory: self.memory_mib << 20, ..Limits::default() }
    }
}

/// A reward that runs programs.
#[derive(Debug)]
pub(crate) struct CodeReward {
    settings: Code,
    /// Time for one judgement.
    timeout: Duration,
    judge: OnceLock<Result<CodeJudge, SandboxError>>,
}

impl CodeReward {
    fn judge_of_machine(&self) -> Result<&CodeJudge, JudgeError> {
        let found = self.judge.get_or_init(|| {
            let settings = &self.settings;
            let executor = settings.executor()?;
            Ok(CodeJudge::new(executor, settings.slots(), settings.limits(), settings.readable.clone()))
        });
        found.as_ref().map_err(|error| JudgeError::Sandbox(Box::new(error.clone())))
    }

    fn cases(&self, completion: &Completion<'_>) -> Result<Vec<Case>, JudgeError> {
        let (task, field) = (completion.task.index, &self.settings.tests);
        let Some(tests) = completion.task.extra.get(field) else {
            return Err(JudgeError::NoTests { task, field: field.clone() });
        };
        cases(tests).map_err(|source| JudgeError::Tests { task, field: field.clone(), source })
    }

    fn language(&self, completion: &Completion<'_>, cases: &[Case]) -> Result<Language, JudgeError> {
        let task = completion.task.index;
        let language = match (self.settings.language, completion.task.extra.get(LANGUAGE_FIELD)) {
            (Some(language), _) => language,
            (None, None) => Language::Python,
            (None, Some(name)) => {
                let known = name.as_str().and_then(Language::named);
                known.ok_or_else(|| JudgeError::Language { task, name: name.to_string() })?
            }
        };
        let needs_python = cases.iter().any(|case| !matches!(case, Case::Text { .. }));
        if needs_python && language != Language::Python {
            return Err(JudgeError::PythonTests { task });
        }
        Ok(language)
    }
}

impl Reward for CodeReward {
    fn judge(&self, completion: &Completion<'_>) -> Result<Assessment, JudgeError> {
        let deadline = Instant::now() + self.timeout;
        let cases = self.cases(completion)?;
        let language = self.language(completion, &cases)?;
        let program = if self.settings.fenced { last_block(completion.text) } else { Some(completion.text) };
        let Some(program) = program else {
            return Ok(self.settings.truncated.apply(completion, Assessment::outcome(false, false)));
        };
        let stops_early = self.settings.score == Score::All;
        let found = self.judge_of_machine()?.judge(language, program, &cases, stops_early, deadline);
        let found = found.map_err(|error| JudgeError::Sandbox(Box::new(error)))?;
        let mut verdict = Assessment::outcome(found.is_solved(), true);
        if self.settings.score == Score::Fraction {
            verdict.value = Some(found.passed() as f64 / found.total as f64);
        }
        Ok(self.settings.truncated.apply(completion, verdict))
    }

    fn waiting_slots(&self) -> usize {
        self.settings.slots()
    }

    fn prepare(&self) -> Result<(), JudgeError> {
        match self.judge_of_machine()?.executor() {
            Executor::Machine(_) => Ok(()),
            Executor::Server(server) => server
                .check(Instant::now() + self.timeout)
                .map_err(|error| JudgeError::Sandbox(Box::new(error))),
        }
    }

    fn sandbox(&self) -> Option<&'static str> {
        Some(self.judge_of_machine().ok()?.executor().protection())
    }

    fn is_verifier(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_leaves_no_setting_of_the_sandbox_unread() {
        let url = Some("http://127.0.0.1:8080/run_code".to_owned());
        let server = Code { url, ..Code::default() };
        assert_eq!(server.validate(), Ok(()));
        let sandboxed = Code { sandbox: Choice::Landlock, ..server.clone() };
        let error = sandboxed.validate().unwrap_err();
        assert_eq!(error, ComponentError::UnreadByServer { key: "sandbox" });
        let readable = Code { readable: vec!["/opt/conda".into()], ..server.clone() };
        assert_eq!(readable.validate(), Err(ComponentError::UnreadByServer { key: "readable" }));
        let no_address = Code { url: Some("127.0.0.1".to_owned()), ..server };
        assert!(no_address.validate().unwrap_err().to_string().contains("`http://`"));
    }
}
