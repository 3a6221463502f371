use miette::Diagnostic;
use rloom_core::{PolicyId, Ticket, Trajectory};
use rloom_store::journal::{Journal, LaterStages, Record};
use rloom_telemetry::{GroupEnd, Lane, LoggedAdvantages, StageOutline, rollout_log, synthetic};

use super::*;

fn line(stage: &str, step: u64, event: Event) -> EventLine {
    EventLine { attempt: 1, time: 0.0, elapsed: 0.0, stage: stage.into(), step, global_step: step, event }
}

/// Journal of stage `rl`: ticket 8 is in the batch of step 3, 9 waits, 10 is in flight with one complete sample, 11 was
/// filtered, 12 failed.
fn journal(run: &Path) {
    std::fs::create_dir(run.join("journal")).unwrap();
    let (mut journal, _) = Journal::open(&run.join("journal"), 1, 0, LaterStages::Keep).unwrap();
    for (ticket, episodes, complete) in [(8, 2, true), (9, 2, true), (10, 1, false), (11, 2, false)] {
        let group = synthetic::group(ticket, 2, 2);
        for (sample, episode) in (0..).zip(group.episodes).take(episodes) {
            journal.append(&Record::Episode { ticket: group.ticket, sample, episode }).unwrap();
        }
        if complete {
            let oldest = PolicyVersion(1);
            journal
                .append(&Record::Ready {
                    ticket: group.ticket,
                    task: group.task,
                    policy: PolicyId::MAIN,
                    oldest,
                })
                .unwrap();
        }
    }
    journal.append(&Record::Filtered { ticket: Ticket(11) }).unwrap();
    journal.append(&Record::Failed { ticket: Ticket(12), reason: "the reward is NaN".into() }).unwrap();
    journal
        .append(&Record::Cut { batch: 2, tickets: vec![Ticket(8)], reused: Vec::new(), advantages: None })
        .unwrap();
}

/// A run with stage `warmup` of demonstrations, `rl` with the steps 1 and 2 (tickets 0 to 3, and 6), and `more` with
/// ticket 0.
fn run() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir(directory.path().join("rollouts")).unwrap();
    let outline = |name: &str, method: &str| StageOutline {
        name: name.into(),
        method: method.into(),
        steps: 3,
        policies: Vec::new(),
        quantize: None,
    };
    let stages = vec![outline("warmup", "sft"), outline("rl", "grpo"), outline("more", "grpo")];
    let started = Event::RunStarted {
        name: "r".into(),
        version: String::new(),
        seed: 7,
        threads: 1,
        numeric_path: String::new(),
        parameters: 1,
        resumed_from: None,
        stages: stages.clone(),
    };
    let mut lines = vec![line("", 0, started)];
    lines.extend(stages.into_iter().map(|outline| {
        let name = outline.name.clone();
        line(&name, 0, Event::StageStarted { outline, from_step: 0 })
    }));
    for (stage, step, tickets) in
        [("rl", 1, &[0, 1][..]), ("rl", 2, &[2, 3, 6]), ("rl", 3, &[8]), ("more", 1, &[0])]
    {
        let groups: Vec<_> = tickets.iter().map(|&t| synthetic::group(t, step - 1, 2)).collect();
        let path = directory.path().join(format!("rollouts/{stage}-step-{step:06}.jsonl.zst"));
        let text = |t: &Trajectory| ("3+4=".to_owned(), format!("answer of {}", t.key.sample));
        let shown = vec![vec![0.5, -0.5]; groups.len()];
        let advantages = LoggedAdvantages { shown: &shown, given: &[] };
        rollout_log::write(&path, step, &groups, groups.len(), advantages, &text).unwrap();
        // Step 3 was killed after training, before its event.
        if step < 3 {
            lines.push(line(stage, step, Event::Step { metrics: [].into() }));
        }
    }
    let group = |ticket| Event::Activity {
        lane: Lane::Rollout,
        activity: Activity::Group,
        start: 1.0,
        end: 2.5,
        version: 0,
        ticket: Some(ticket),
    };
    let ended = |ticket, end: GroupEnd, reason: Option<&str>| Event::GroupEnded {
        ticket,
        end,
        reason: reason.map(str::to_owned),
    };
    for event in [
        group(2),
        ended(4, GroupEnd::Deferred, None),
        ended(4, GroupEnd::Filtered, Some("equal_outcomes")),
        ended(5, GroupEnd::Deferred, None),
        ended(7, GroupEnd::Deferred, None),
        group(7),
        ended(11, GroupEnd::Filtered, Some("equal_outcomes")),
    ] {
        lines.push(line("rl", 1, event));
    }
    journal(directory.path());
    let text: Vec<String> = lines.iter().map(|line| serde_json::to_string(line).unwrap()).collect();
    std::fs::write(directory.path().join("events.jsonl"), text.join("\n")).unwrap();
    directory
}

fn find(name: &str) -> Result<Lineage, LineageError> {
    let directory = run();
    lineage(directory.path(), &name.parse().unwrap())
}

#[test]
fn names_of_samples() {
    let parsed = |text: &str| text.parse::<SampleName>().ok().map(|n| (n.stage, n.ticket, n.sample));
    assert_eq!(parsed("12"), Some((None, 12, None)));
    assert_eq!(parsed("12/3"), Some((None, 12, Some(3))));
    assert_eq!(parsed("rl/12"), Some((Some("rl".into()), 12, None)));
    assert_eq!(parsed("rl/12/3"), Some((Some("rl".into()), 12, Some(3))));
    for invalid in ["", "rl", "rl/x", "1/x", "/1", "a/b/c/d", "1/2/3/4", "-1"] {
        assert_eq!(parsed(invalid), None, "{invalid}");
    }
    assert_eq!("rl/12/3".parse::<SampleName>().unwrap().to_string(), "rl/12/3");
}

#[test]
fn a_trained_sample_has_its_task_and_its_step() {
    let found = find("2/1").unwrap();
    assert_eq!(found.fate, Fate::Trained { step: 2, version: PolicyVersion(1), age: 1 });
    assert_eq!(found.generated, Some(Generated { attempt: 1, start: 1.0, end: 2.5 }));
    assert_eq!(
        found.task,
        Some(TaskLineage { index: Some(20), prompt: "3+4=".into(), answer: Some("7".into()) })
    );
    let [sample] = &found.samples[..] else { panic!("{found:?}") };
    let random = StreamName { seed: 7, stage: 1, purpose: "rollout", ticket: 2, sample: 1, segment: 0 };
    assert_eq!(sample.random, random);
    let versions: Vec<(u64, std::ops::Range<usize>)> =
        sample.versions.iter().map(|v| (v.version.0, v.range.clone())).collect();
    assert_eq!((versions, sample.age), (vec![(0, 3..6), (1, 6..9)], Some(1)));
    let logprobs = Logprobs { tokens: 6, mean: -0.5, lowest: -1.5, sum: -3.0 };
    assert_eq!((sample.logprobs, sample.reward), (Some(logprobs), Some(0.5)));
    assert_eq!((sample.advantage, sample.completion.as_str()), (Some(-0.5), "answer of 1"));
    assert_eq!(find("rl/2").unwrap().samples.len(), 2);
}

#[test]
fn a_group_that_was_not_trained_on_has_its_end() {
    let fate = |name: &str| find(name).unwrap().fate;
    assert_eq!(fate("4"), Fate::Ended { end: GroupEnd::Filtered, reason: Some("equal_outcomes".into()) });
    assert_eq!((fate("5"), fate("7")), (Fate::Deferred, Fate::Waiting));
    assert!(find("4/1").unwrap().samples.is_empty());
}

#[test]
fn a_group_of_a_step_without_rollouts_says_so() {
    let directory = run();
    let fate = || lineage(directory.path(), &"rl/2".parse().unwrap()).unwrap().fate;
    assert!(matches!(fate(), Fate::Trained { step: 2, .. }));
    std::fs::remove_file(directory.path().join("rollouts/rl-step-000002.jsonl.zst")).unwrap();
    assert_eq!(fate(), Fate::NotKept { steps: "2".into() });
    let waiting = lineage(directory.path(), &"rl/9".parse().unwrap()).unwrap();
    assert_eq!(waiting.fate, Fate::Waiting, "the journal has it");
}

#[test]
fn a_group_of_the_journal_has_its_tokens() {
    let fate = |name: &str| find(name).unwrap().fate;
    assert_eq!(
        (fate("8"), fate("9"), fate("10")),
        (Fate::InBatch { step: 3 }, Fate::Waiting, Fate::InFlight)
    );
    let ended = |end: GroupEnd, reason: &str| Fate::Ended { end, reason: Some(reason.into()) };
    assert_eq!(fate("11"), ended(GroupEnd::Filtered, "equal_outcomes"));
    assert_eq!(fate("12"), ended(GroupEnd::Failed, "the reward is NaN"));
    let samples = |name: &str| find(name).unwrap().samples;
    assert_eq!((samples("9").len(), samples("10").len(), samples("11").len()), (2, 1, 2));
    let waiting = find("9/1").unwrap();
    let task = waiting.task.unwrap();
    assert_eq!((task.index, task.answer.as_deref()), (Some(90), Some("7")));
    let [sample] = &waiting.samples[..] else { panic!("one sample was requested") };
    assert_eq!((sample.random.ticket, sample.random.stage, sample.random.sample), (9, 1, 1));
    assert_eq!((sample.reward, sample.age, sample.advantage), (Some(0.5), None, None));
    // No tokenizer is available.
    assert!(sample.completion.starts_with("tokens ["), "{}", sample.completion);
    assert_eq!(samples("8")[0].age, Some(1), "relative to the version that its batch trains from");
    assert_eq!(find("11").unwrap().task.unwrap().index, None);
}

#[test]
fn errors_name_what_exists_instead() {
    // Message and hint: `message [hint]`.
    let message = |name: &str| {
        let error = find(name).unwrap_err();
        let hint = error.help().map(|hint| format!(" [{hint}]")).unwrap_or_default();
        format!("{error}{hint}")
    };
    assert_eq!(
        message("99"),
        "ticket 99 does not exist [stage rl has the tickets 0-12; stage more has the tickets 0]"
    );
    assert_eq!(message("0"), "ticket 0 exists in the stages rl and more [add the stage: `rl/0`]");
    assert_eq!(message("2/9"), "ticket 2 has no sample 9 [it has the samples 0-1]");
    assert_eq!(message("warmup/0"), "the run has no sampling stage `warmup` [sampling stages: rl, more]");
    assert_eq!(ranges(&[0, 1, 2, 5, 7, 8]), "0-2, 5, 7-8");
}
