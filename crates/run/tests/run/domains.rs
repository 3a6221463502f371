//! Domains in whole runs: routing, quotas, filters, evaluation by domain, curricula.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::path::Path;

use rloom_config::Config;
use rloom_run::{ResumeOptions, RunError, StopFlag};
use rloom_telemetry::{Event, Metrics, read_events};
use tempfile::TempDir;

use crate::recipe;

const SOURCES: &str = "data.sources=[{generator='arithmetic',operations=['+'],max_digits=1,domain='easy',weight=3.0},\
                       {generator='arithmetic',operations=['+'],max_digits=2,domain='hard'}]";
/// One component for each domain, of which one fails always, and one for both.
const ROUTED: &str = "reward.components=[{kind='exact',name='of_easy',domains=['easy']},\
                      {kind='numeric',name='of_hard',domains=['hard'],weight=2.0},{kind='random',weight=0.5}]";

fn config(folder: &TempDir, overrides: &[&str]) -> Config {
    let common = ["stage.warmup.steps=2", "stage.rl.steps=5", "eval.tasks=8", SOURCES, ROUTED];
    let all: Vec<&str> = common.iter().chain(overrides).copied().collect();
    recipe::config(folder.path(), &all)
}

fn train(config: &Config) -> Result<(), RunError> {
    rloom_run::train(config, &mut (), &StopFlag::default()).map(|_| ())
}

fn refusal(overrides: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    train(&config(&folder, overrides)).unwrap_err().to_string()
}

/// Metrics of the steps of reinforcement learning, and of the evaluations.
fn metrics(run: &Path) -> (Vec<Metrics>, Vec<Metrics>) {
    let (mut steps, mut evaluations) = (Vec::new(), Vec::new());
    for line in read_events(&run.join("events.jsonl")).unwrap() {
        match line.event {
            Event::Step { metrics } if line.stage == "rl" => steps.push(metrics),
            Event::Evaluation { metrics, .. } => evaluations.push(metrics),
            _ => {}
        }
    }
    (steps, evaluations)
}

#[test]
fn rewards_follow_the_domain() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(&folder, &[]);
    train(&config).unwrap();
    let (steps, evaluations) = metrics(&config.run_directory());
    assert_eq!(steps.len(), 5);
    for step in &steps {
        // Sources take turns 3 to 1; a batch has 6 groups.
        let share = |domain: &str| step[&format!("domain/share/{domain}")];
        assert!((share("easy") - 0.75).abs() < 1.0 / 6.0 && share("easy") + share("hard") == 1.0);
        for domain in ["easy", "hard"] {
            assert!(step.contains_key(&format!("domain/reward/{domain}")));
            assert!(step.contains_key(&format!("domain/accuracy/{domain}")));
            assert!(step.contains_key(&format!("domain/mean_length/{domain}")));
        }
        // A component applies to its domain alone: its mean is the accuracy there.
        assert!((step["reward/of_easy"] - step["domain/accuracy/easy"]).abs() < 1e-12);
        assert!((step["reward/of_hard"] - step["domain/accuracy/hard"]).abs() < 1e-12);
    }
    for evaluation in &evaluations {
        // 8 tasks: 6 of the first source, 2 of the second.
        let [easy, hard] = ["easy", "hard"].map(|domain| evaluation[&format!("eval/accuracy/{domain}")]);
        assert!((evaluation["eval/accuracy"] - (0.75 * easy + 0.25 * hard)).abs() < 1e-12);
    }
}

#[test]
fn a_domain_without_a_reward_is_refused_by_name() {
    let only_easy = "reward.components=[{kind='exact',domains=['easy','other']}]";
    let error = refusal(&[only_easy]);
    assert_eq!(
        error,
        "rl source 2: no component of the reward judges the domain `hard`; they judge `easy`, `other`"
    );
    let unverified = "eval.reward.components=[{kind='exact',domains=['easy']},{kind='random'}]";
    let error = refusal(&[unverified]);
    assert!(error.starts_with("eval source 2: no verifier") && error.contains("`hard`"), "{error}");
    assert!(refusal(&["domains.quotas={easy=1.0}"]).contains("the domain `hard` of the data has no quota"));
    assert!(refusal(&["domains.quotas={easy=1.0,hard=1.0,odd=1.0}"]).contains("no task of the domain `odd`"));
    assert!(
        refusal(&["domains.filters={odd={std=0.0}}"]).contains("`domains.filters` names the domain `odd`")
    );
}

/// Half of the groups of a domain have no spread, as the only reward is a random one: the filter replaces them, is counted,
/// and every prefix of batches has its quota.
#[test]
fn quotas_are_kept_through_filters() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(
        &folder,
        &[
            "reward.components=[{kind='random'},{kind='exact',weight=0.0}]",
            "stage.rl.algorithm.group_size=2",
            "domains.quotas={easy=0.45,hard=0.55}",
            "domains.filters={easy={std=0.0}}",
        ],
    );
    train(&config).unwrap();
    let (steps, _) = metrics(&config.run_directory());
    let mut counts: BTreeMap<&str, f64> = BTreeMap::new();
    let (mut filtered, mut replaced) = (0.0, 0.0);
    for (number, step) in (1..).zip(&steps) {
        for (domain, share) in [("easy", 0.45), ("hard", 0.55)] {
            let count = counts.entry(domain).or_default();
            *count += 6.0 * step.get(&format!("domain/share/{domain}")).copied().unwrap_or(0.0);
            assert!((*count - share * 6.0 * f64::from(number)).abs() < 1.0 + 1e-9, "{domain}: {count}");
        }
        let of_easy = step["domain/filtered/easy"];
        let groups = 6.0 * step["domain/share/easy"];
        filtered += step.get("filtered/low_spread").copied().unwrap_or(0.0);
        replaced += groups * of_easy / (1.0 - of_easy);
        assert_eq!(step["domain/filtered/hard"], 0.0);
        // Groups that are left have both rewards.
        assert!((step["domain/reward/easy"] - 0.5).abs() < 1e-12);
    }
    assert!(filtered > 0.0 && (filtered - replaced).abs() < 1e-9, "{filtered} {replaced}");
}

/// Attempts with equal rewards have no spread, although the penalty of the algorithm for overlong completions differs.
#[test]
fn filters_see_the_raw_reward() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(
        &folder,
        &[
            "reward.components=[{kind='random',name='of_easy',domains=['easy']},{kind='exact'}]",
            "stage.rl.algorithm.group_size=2",
            "stage.rl.algorithm.overlong={buffer=5,factor=1.0}",
            "domains.filters={easy={std=0.0},hard={mean=[-10.0,10.0]}}",
            "sampling.max_new_tokens=6",
        ],
    );
    train(&config).unwrap();
    let (steps, _) = metrics(&config.run_directory());
    let mut filtered = 0.0;
    for step in steps.iter().filter(|step| step.contains_key("reward/of_easy")) {
        filtered += step.get("filtered/low_spread").copied().unwrap_or(0.0);
        // Of two attempts, one has 1 and the other 0: groups with equal rewards were replaced.
        assert!((step["reward/of_easy"] - 0.5).abs() < 1e-12, "{}", step["reward/of_easy"]);
    }
    assert!(filtered > 0.0);
    assert!(steps.iter().any(|step| step["reward/overlong"] != 0.0));
}

#[test]
fn further_sets_are_evaluated_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let sets = "eval.sets=[{name='hard',tasks=4,data={generator='arithmetic',operations=['+'],max_digits=2}},\
                {name='both',data={sources=[{generator='arithmetic',max_digits=1,operations=['+'],domain='easy'},\
                {generator='arithmetic',max_digits=2,operations=['+'],domain='hard'}]},\
                reward={components=[{kind='numeric'}]}}]";
    let config = config(&folder, &[sets, "reward.components=[{kind='exact'}]"]);
    train(&config).unwrap();
    let (_, evaluations) = metrics(&config.run_directory());
    assert!(!evaluations.is_empty());
    for evaluation in &evaluations {
        for name in
            ["hard/accuracy", "hard/mean_length", "both/accuracy", "both/accuracy/easy", "both/accuracy/hard"]
        {
            assert!(evaluation.contains_key(&format!("eval_set/{name}")), "{name}: {evaluation:?}");
        }
        assert!(!evaluation.contains_key("eval_set/hard/accuracy/arithmetic"));
    }
    let text = config.to_toml();
    assert_eq!(Config::from_text("again.toml", &text, &[] as &[&str]).unwrap().to_toml(), text);
}

/// A band that any success leaves: the domain that is solved has less, and the metrics say so.
#[test]
fn a_curriculum_follows_the_measured_success() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(
        &folder,
        &[
            "stage.warmup.steps=150",
            "domains.quotas={easy=1.0,hard=1.0}",
            "domains.curriculum={band=[0.0,0.0],floor=0.4,window=4}",
        ],
    );
    train(&config).unwrap();
    let (steps, _) = metrics(&config.run_directory());
    for step in &steps {
        let [easy, hard] = ["easy", "hard"].map(|domain| 1.0 - step[&format!("domain/success/{domain}")]);
        let expected = easy.max(0.4) / (easy.max(0.4) + hard.max(0.4));
        assert!((step["domain/quota/easy"] - expected).abs() < 1e-12);
    }
    let last = steps.last().unwrap();
    assert!(last["domain/success/easy"] > last["domain/success/hard"], "{last:?}");
    assert!(last["domain/quota/easy"] < 0.5);
}

/// The order of the tasks is that of the run's sources: a resumed run with other weights is refused.
#[test]
fn a_resumed_run_has_the_same_sources() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(&folder, &[]);
    train(&config).unwrap();
    let weights = SOURCES.replace("3.0", "2.0");
    let other = self::config(&folder, &[&weights]);
    let run = config.run_directory();
    let error = rloom_run::resume(&run, &other, ResumeOptions::default(), &mut (), &StopFlag::default());
    let error = error.unwrap_err().to_string();
    assert!(
        error.contains("data.sources") && error.contains("the order of the tasks depends on it"),
        "{error}"
    );
}
