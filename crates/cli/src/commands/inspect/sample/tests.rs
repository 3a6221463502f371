use std::fmt::Write as _;

use rloom_core::{
    Failure, FailureKind, PolicyId, PolicyVersion, RewardComponent, StopReason, Verdict, VersionSpan,
};
use rloom_run::lineage::{Generated, Logprobs, StreamName, TaskLineage};

use super::*;

fn output() -> Output {
    Output::new(&crate::arguments::Global { json: false, no_color: true, quiet: false })
}

fn sample(place: u32) -> SampleLineage {
    let span =
        |version, range| VersionSpan { policy: PolicyId::MAIN, version: PolicyVersion(version), range };
    SampleLineage {
        random: StreamName { seed: 7, stage: 1, purpose: "rollout", ticket: 12, sample: place, segment: 0 },
        role: if place == 2 { Role::Baseline } else { Role::Train },
        tokens: 40,
        versions: vec![span(3, 12..30), span(5, 30..40)],
        age: Some(2),
        logprobs: Some(Logprobs { tokens: 28, mean: -0.521_43, lowest: -3.25, sum: -14.6 }),
        reward: (place != 1).then_some(1.1),
        components: vec![
            RewardComponent::new("exact", 1.0, Some(1.0)),
            RewardComponent::new("judge", 0.2, None),
            RewardComponent {
                verdict: Verdict::Failed(Failure {
                    kind: FailureKind::Infrastructure,
                    retryable: true,
                    message: "no answer from http://judge".into(),
                }),
                ..RewardComponent::new("style", 0.0, None)
            },
        ],
        solved: Some(place == 0),
        advantage: Some(0.702_71),
        stop: StopReason::StopToken,
        completion: "first I add\nthen I say 7\u{1b}[2J".into(),
    }
}

fn group(fate: Fate) -> Lineage {
    Lineage { stage: "rl".into(), ticket: 12, fate, generated: None, task: None, samples: Vec::new() }
}

#[test]
fn lineage_text() {
    let trained = Lineage {
        generated: Some(Generated { attempt: 2, start: 61.0, end: 64.25 }),
        task: Some(TaskLineage { index: Some(120), prompt: "3+4=".into(), answer: Some("7".into()) }),
        samples: vec![sample(0)],
        ..group(Fate::Trained { step: 6, version: PolicyVersion(5), age: 2 })
    };
    let several = Lineage { samples: vec![sample(0), sample(1), sample(2)], ..trained.clone() };
    let ended =
        |end: GroupEnd, reason: Option<&str>| group(Fate::Ended { end, reason: reason.map(str::to_owned) });
    let cases = [
        (trained, true),
        (Lineage { samples: vec![sample(2)], ..several.clone() }, true),
        (several, false),
        (ended(GroupEnd::Filtered, Some("equal_outcomes")), false),
        (ended(GroupEnd::Stale, None), false),
        (ended(GroupEnd::Failed, Some("the reward did not answer within 10 s")), true),
        (ended(GroupEnd::Surplus, None), false),
        (group(Fate::Deferred), false),
        (group(Fate::InFlight), false),
        (
            Lineage {
                task: Some(TaskLineage { index: None, prompt: "3+4=".into(), answer: None }),
                samples: vec![SampleLineage { age: None, advantage: None, ..sample(0) }],
                ..group(Fate::InFlight)
            },
            false,
        ),
        (group(Fate::Waiting), false),
        (group(Fate::InBatch { step: 7 }), false),
        (group(Fate::NotKept { steps: "1-90".into() }), false),
    ];
    let mut text = String::new();
    for (lineage, one) in cases {
        let _ = writeln!(text, "{}\n", lines_of(&lineage, one, output()).join("\n"));
    }
    insta::with_settings!({ prepend_module_to_snapshot => false, snapshot_path => "../../../../tests/snapshots" }, {
        insta::assert_snapshot!("lineage", text);
    });
}
