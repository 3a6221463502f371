//! Components that call functions.

#![expect(clippy::unwrap_used, reason = "test helpers may panic")]

use rloom_core::{
    Author, FailureKind, PromptSource, Rewards, SampleKey, Span, StopReason, Task, Ticket, Trajectory,
};
use rloom_reward::{CurrentComponent, Judged, RewardError, RewardSettings, Scorer};

/// A component that runs a shell fragment for each request, which may use `$id` and `$line`.
fn settings(keys: &str, answer: &str, on_error: &str) -> RewardSettings {
    let script = format!(
        r#"while read -r line; do
             id=${{line#*:}}; id=${{id%%,*}}
             case "$line" in
               *'"hello"'*) echo '{{"id":'$id',"ready":{{"v":1}}}}';;
               *) {answer};;
             esac
           done"#
    );
    let command = serde_json::json!(["sh", "-c", script]);
    let text = format!(
        r#"{{"on_error": "{on_error}", "components": [
             {{"kind": "exact"}}, {{"kind": "command", "name": "program", "command": {command}{keys}}}]}}"#
    );
    serde_json::from_str(&text).unwrap()
}

fn task() -> Task {
    Task {
        index: 7,
        prompt: PromptSource::Text("p".into()),
        answer: "1".into(),
        demonstration: None,
        domain: "d".into(),
        extra: std::sync::Arc::default(),
    }
}

fn trajectory(sample: u32) -> Trajectory {
    Trajectory {
        key: SampleKey { ticket: Ticket(11), sample, segment: 0 },
        agent: None,
        tokens: vec![0; 4],
        spans: vec![Span::new(Author::Prompt, 0..3), Span::new(Author::Policy, 3..4)],
        logprobs: vec![-1.0],
        versions: Vec::new(),
        stop: StopReason::StopToken,
        attachments: Vec::new(),
    }
}

fn scored(scorer: &Scorer, texts: &[&str]) -> Result<Vec<Rewards>, RewardError> {
    let (task, current) = (task(), CurrentComponent::default());
    let trajectories: Vec<Trajectory> = (0..texts.len()).map(|n| trajectory(n as u32)).collect();
    let judged: Vec<Judged<'_>> = trajectories
        .iter()
        .zip(texts)
        .map(|(trajectory, text)| Judged {
            task: &task,
            segments: std::slice::from_ref(trajectory),
            text,
            transcript: "1, answered by zz",
            prompt: "p",
        })
        .collect();
    let mut rewards = judged.iter().map(|one| scorer.score(one, &current)).collect::<Result<Vec<_>, _>>()?;
    if scorer.judges_groups() {
        assert!(rewards.iter().all(|rewards| rewards.pending && rewards.components[1].value().is_none()));
        scorer.score_group(&judged, &mut rewards, &current)?;
    }
    assert!(rewards.iter().all(|rewards| !rewards.pending));
    Ok(rewards)
}

fn values(rewards: &[Rewards]) -> Vec<Option<f64>> {
    rewards.iter().map(|rewards| rewards.components[1].value()).collect()
}

/// 0.5 and a metric, or null for a completion with zz.
const HALF: &str = r#"case "$line" in *zz*) v=null;; *) v=0.5;; esac; echo '{"id":'$id',"verdicts":['$v'],"metrics":{"m":2}}'"#;

#[test]
fn a_program_judges_completions_one_by_one() {
    let scorer = Scorer::new(&settings("", HALF, "fatal"), 0, 0).unwrap();
    scorer.prepare().unwrap();
    let rewards = scored(&scorer, &["1", "zz"]).unwrap();
    assert_eq!(values(&rewards), [Some(0.5), None]);
    assert_eq!((rewards[0].total(), rewards[1].total()), (Some(1.5), Some(0.0)));
    assert_eq!(scorer.take_metrics().into_iter().collect::<Vec<_>>(), [("m".to_owned(), 2.0)]);
    assert_eq!(scorer.take_metrics().len(), 0);
    scorer.close();
    let closed = scored(&scorer, &["1"]).unwrap_err();
    assert!(
        matches!(closed, RewardError::Failed { ref component, .. } if component == "program"),
        "{closed}"
    );
}

#[test]
fn a_reward_from_which_on_tasks_count_as_solved_makes_a_verifier() {
    let plain = settings("", HALF, "fatal");
    assert!(!plain.components[1].kind.is_verifier());
    for (keys, solved) in [(r#", "solved_at": 0.5"#, true), (r#", "solved_at": 0.6"#, false)] {
        let mut settings = settings(keys, HALF, "fatal");
        assert!(settings.components[1].kind.is_verifier());
        settings.outcome = Some("program".to_owned());
        let rewards = scored(&Scorer::new(&settings, 0, 0).unwrap(), &["1", "zz"]).unwrap();
        assert_eq!((rewards[0].solved, rewards[1].solved), (Some(solved), None));
    }
}

#[test]
fn programs_see_observations_only_if_they_ask() {
    for (keys, value) in [
        ("", Some(0.5)),
        (r#", "observations": true"#, None),
        (r#", "group": true, "observations": true"#, None),
    ] {
        let scorer = Scorer::new(&settings(keys, HALF, "fatal"), 0, 0).unwrap();
        assert_eq!(values(&scored(&scorer, &["1"]).unwrap()), [value], "{keys}");
    }
}

#[test]
fn groups_are_judged_in_one_call() {
    let count = r#"n=$(echo "$line" | grep -o '"completion"' | wc -l); echo '{"id":'$id',"verdicts":['$n',null,'$n']}'"#;
    let scorer = Scorer::new(&settings(r#", "group": true"#, count, "fatal"), 0, 0).unwrap();
    assert_eq!(values(&scored(&scorer, &["1", "2", "3"]).unwrap()), [Some(3.0), None, Some(3.0)]);
    let wrong = scored(&scorer, &["1", "2"]).unwrap_err().to_string();
    assert!(wrong.contains("returned 3 values for 2 samples"), "{wrong}");
    let lenient = Scorer::new(&settings(r#", "group": true"#, count, "drop"), 0, 0).unwrap();
    assert_eq!(values(&scored(&lenient, &["1", "2"]).unwrap()), [None, None]);
    assert_eq!(lenient.failures().collect::<Vec<_>>(), [("exact", 0), ("program", 2)]);
}

#[test]
fn functions_that_cannot_be_used_end_the_preparation() {
    let refusing = settings("", "exit 1", "drop");
    let mut missing = refusing.clone();
    let rloom_reward::Kind::Command(command) = &mut missing.components[1].kind else { unreachable!() };
    command.command = vec!["/no/such/program".to_owned()];
    let error = Scorer::new(&missing, 0, 0).unwrap().prepare().unwrap_err().to_string();
    assert!(error.starts_with("reward `program`: cannot start \"/no/such/program\""), "{error}");
    assert!(Scorer::new(&refusing, 0, 0).unwrap().prepare().is_ok());
}

#[test]
fn settings_of_functions_are_checked() {
    let error = |component: &str| {
        let text = format!(r#"{{"components": [{component}]}}"#);
        let settings: Result<RewardSettings, _> = serde_json::from_str(&text);
        match settings {
            Ok(settings) => settings.validate().unwrap_err().to_string(),
            Err(error) => error.to_string(),
        }
    };
    for function in ["score", "a.py", "a.txt:f", "a.py:", "a.py:f.", ":f"] {
        let error = error(&format!(r#"{{"kind": "python", "function": "{function}"}}"#));
        assert!(error.contains("must be `file.py:name` or `caller:name`"), "{function}: {error}");
    }
    for (component, expected) in [
        (r#"{"kind": "python"}"#, "missing field `function`"),
        (r#"{"kind": "python", "function": "a.py:f", "workers": 0}"#, "`workers`: must be"),
        (r#"{"kind": "python", "function": "a.py:f", "command": ["x"]}"#, "unknown field `command`"),
        (r#"{"kind": "command", "command": []}"#, "`command`: the list is empty"),
        (r#"{"kind": "http", "url": "example.org"}"#, "begins with http:// or https://"),
    ] {
        let error = error(component);
        assert!(error.contains(expected), "{component}: {error}");
    }
}

/// Fails once, if the folder exists, else always.
fn recovering(folder: &std::path::Path, failure: &str) -> String {
    let seen = folder.join("seen");
    format!("if [ -e {0} ]; then {HALF}; else touch {0}; {failure}; fi", seen.display())
}

#[test]
fn failures_of_infrastructure_are_retried_and_counted() {
    let infrastructure = r#"echo '{"id":'$id',"error":{"kind":"infrastructure","message":"no disk"}}'"#;
    for failure in ["exit 3", infrastructure] {
        for keys in ["", r#", "group": true"#] {
            let folder = tempfile::tempdir().unwrap();
            let scorer =
                Scorer::new(&settings(keys, &recovering(folder.path(), failure), "drop"), 0, 0).unwrap();
            assert_eq!(values(&scored(&scorer, &["1"]).unwrap()), [Some(0.5)], "{failure}");
            assert_eq!(scorer.retries().collect::<Vec<_>>(), [("exact", 0), ("program", 1)]);
            assert_eq!(scorer.failures().map(|(_, count)| count).sum::<u64>(), 0);
            let mut once = settings(keys, &recovering(folder.path().join("no").as_path(), failure), "drop");
            once.retries = 0;
            let scorer = Scorer::new(&once, 0, 0).unwrap();
            let failed = scored(&scorer, &["1"]).unwrap();
            let failure = failed[0].components[1].failure().unwrap();
            assert_eq!((failure.kind, failure.retryable), (FailureKind::Infrastructure, true));
            let kinds: Vec<u64> = scorer.failures_by_kind().map(|(_, count)| count).collect();
            assert_eq!(kinds, [1, 0, 0]);
        }
    }
}

#[test]
fn other_failures_are_not_retried() {
    for (kind, expected) in [
        (r#""kind":"task","#, FailureKind::Task),
        (r#""kind":"function","#, FailureKind::Component),
        ("", FailureKind::Component),
    ] {
        let answer = format!(r#"echo '{{"id":'$id',"error":{{{kind}"message":"no"}}}}'"#);
        let scorer = Scorer::new(&settings("", &answer, "drop"), 0, 0).unwrap();
        let failed = scored(&scorer, &["1"]).unwrap();
        let failure = failed[0].components[1].failure().unwrap();
        assert_eq!((failure.kind, failure.retryable), (expected, false));
        assert_eq!(scorer.retries().map(|(_, count)| count).sum::<u64>(), 0);
    }
}
