use std::path::PathBuf;
use std::time::Duration;

use rloom_core::PromptSource;
use rloom_function::{FunctionError, Judge, Limits, Sample, Verdicts};
use serde_json::{Map, Value};

/// A wait that no machine exceeds.
pub(crate) const LONG: Duration = Duration::from_mins(2);

pub(crate) fn limits(workers: usize, timeout: Duration) -> Limits {
    Limits { workers, timeout, recycle: None, memory: None }
}

/// Judges completions of one task in one call.
pub(crate) fn judge_all(judge: &Judge, completions: &[&str]) -> Result<Verdicts, FunctionError> {
    judge_row(judge, completions, &Map::new())
}

pub(crate) fn judge_row(
    judge: &Judge,
    completions: &[&str],
    row: &Map<String, Value>,
) -> Result<Verdicts, FunctionError> {
    let prompt = PromptSource::Text("1 + 1 =".to_owned());
    let sample = |(index, completion)| Sample {
        sample: format!("17/{index}"),
        stage: 0,
        task: 9,
        prompt: &prompt,
        prompt_text: "1 + 1 =",
        completion,
        tokens: &[5, 6],
        version: 3,
        answer: "2",
        domain: "sums",
        stop: "stop_token",
        truncated: false,
        steps: &[],
        row,
        seed: 1,
    };
    let samples: Vec<Sample<'_>> = completions.iter().copied().enumerate().map(sample).collect();
    judge.judge(&samples)
}

/// Judges one completion.
pub(crate) fn judge_one(judge: &Judge, completion: &str) -> Result<Option<f64>, FunctionError> {
    judge_all(judge, &[completion]).map(|verdicts| verdicts.verdicts[0].value)
}

/// A shell script that answers each request with the lines of `answer`, a shell fragment that may use `$id` and `$line`.
pub(crate) fn script(answer: &str) -> Vec<String> {
    let text = format!(
        r#"while IFS= read -r line; do
             id=${{line#*:}}; id=${{id%%,*}}
             case "$line" in
               *'"hello"'*) echo '{{"id":'$id',"ready":{{"v":1}}}}';;
               *) {answer};;
             esac
           done"#
    );
    ["sh", "-c", &text].map(str::to_owned).to_vec()
}

/// Processes `sleep SECONDS`; the number tells tests apart.
pub(crate) fn sleeps(seconds: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let is_sleep = |path: &PathBuf| {
        std::fs::read(path.join("cmdline"))
            .is_ok_and(|line| String::from_utf8_lossy(&line) == format!("sleep\0{seconds}\0"))
    };
    entries.map(|entry| entry.path()).filter(is_sleep).collect()
}

/// Waits until no such process is left.
pub(crate) fn wait_until_gone(seconds: &str) {
    let deadline = std::time::Instant::now() + LONG;
    while !sleeps(seconds).is_empty() {
        assert!(std::time::Instant::now() < deadline, "{:?}", sleeps(seconds));
        std::thread::sleep(Duration::from_millis(10));
    }
}
