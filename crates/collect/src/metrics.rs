//! Metrics of a batch of groups.

use std::collections::{BTreeMap, BTreeSet};

use rloom_core::{Episode, Group, PolicyId, PolicyVersion, Role, metric};
use rloom_reward::Scorer;
use rloom_telemetry::Metrics;

/// Returns rewards, completion lengths and staleness of a batch that is trained from `version`. The weights of `frozen`
/// policies do not change.
pub fn batch_metrics(groups: &[Group], version: PolicyVersion, frozen: &[PolicyId]) -> Metrics {
    let mut metrics = Metrics::new();
    // Greedy baseline episodes are not samples of the policy.
    let trained = |e: &&Episode| e.role == Role::Train;
    let episodes: Vec<&Episode> = groups.iter().flat_map(|g| &g.episodes).filter(trained).collect();
    let rewards: Vec<f64> = episodes.iter().filter_map(|e| e.rewards.total()).collect();
    if let Some((mean, std)) = mean_and_std(&rewards) {
        metrics.insert(metric::REWARD.into(), mean);
        metrics.insert(metric::REWARD_STD.into(), std);
    }
    let mut components: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for component in episodes.iter().flat_map(|e| &e.rewards.components) {
        if let Some(value) = component.value() {
            components.entry(&component.name).or_default().push(value);
        }
    }
    for (name, values) in components {
        if let Some((mean, _)) = mean_and_std(&values) {
            metrics.insert(format!("{}{name}", metric::REWARD_PREFIX), mean);
        }
    }
    metrics.extend(means(metric::AGENT_REWARD_PREFIX, episodes.iter().flat_map(|e| &e.rewards.agents)));
    metrics.extend(means(metric::ENVIRONMENT_PREFIX, episodes.iter().flat_map(|e| &e.rewards.metrics)));
    let lengths: Vec<f64> = episodes.iter().map(|e| e.policy_tokens() as f64).collect();
    if let Some((mean, _)) = mean_and_std(&lengths) {
        metrics.insert(metric::MEAN_LENGTH.into(), mean);
        metrics.insert(metric::MIN_LENGTH.into(), lengths.iter().copied().fold(f64::INFINITY, f64::min));
        metrics.insert(metric::MAX_LENGTH.into(), lengths.iter().copied().fold(0.0, f64::max));
        let truncated = episodes.iter().filter(|e| e.segments.iter().any(|s| s.stop.is_truncated())).count();
        metrics.insert(metric::CLIPPED_RATIO.into(), truncated as f64 / episodes.len() as f64);
    }
    if episodes.iter().any(|episode| episode.segments.len() > 1) {
        let segments: usize = episodes.iter().map(|episode| episode.segments.len()).sum();
        metrics.insert(metric::SEGMENTS.into(), segments as f64 / episodes.len() as f64);
    }
    metrics.extend(staleness_metrics(groups, version, frozen));
    metrics
}

/// Means of named numbers.
fn means<'a>(prefix: &str, numbers: impl Iterator<Item = (&'a String, &'a f64)>) -> Metrics {
    let mut named: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for (name, &value) in numbers {
        named.entry(name).or_default().push(value);
    }
    let mean = |(name, values): (&str, Vec<f64>)| Some((format!("{prefix}{name}"), mean_and_std(&values)?.0));
    named.into_iter().filter_map(mean).collect()
}

/// Returns the age of the policy tokens of a batch that is trained from `version`. Counts tokens: an episode sampled by
/// several versions counts with each of them. Those of frozen policies have no age.
pub fn staleness_metrics<'a>(
    groups: impl IntoIterator<Item = &'a Group>,
    version: PolicyVersion,
    frozen: &[PolicyId],
) -> Metrics {
    let mut tokens_by_age: BTreeMap<u64, u64> = BTreeMap::new();
    let mut versions_per_sample = Vec::new();
    let episodes = groups.into_iter().flat_map(|group| &group.episodes);
    for episode in episodes.filter(|episode| episode.role == Role::Train) {
        let all = || episode.segments.iter().flat_map(|trajectory| &trajectory.versions);
        let spans = || all().filter(|span| !frozen.contains(&span.policy));
        for span in spans() {
            let age = version.0.saturating_sub(span.version.0);
            *tokens_by_age.entry(age).or_default() += span.range.len() as u64;
        }
        let versions: BTreeSet<PolicyVersion> = spans().map(|span| span.version).collect();
        if !versions.is_empty() {
            versions_per_sample.push(versions.len() as f64);
        }
    }
    let tokens: u64 = tokens_by_age.values().sum();
    let mut metrics = Metrics::new();
    if tokens == 0 {
        return metrics;
    }
    let share = |tokens_of_age: u64| tokens_of_age as f64 / tokens as f64;
    let mean = tokens_by_age.iter().map(|(&age, &n)| age as f64 * share(n)).sum();
    let oldest = tokens_by_age.last_key_value().map_or(0, |(&age, _)| age);
    metrics.insert(metric::STALENESS_MEAN.into(), mean);
    metrics.insert(metric::STALENESS_MAX.into(), oldest as f64);
    metrics.insert(metric::FRESH_TOKENS.into(), share(tokens_by_age.get(&0).copied().unwrap_or(0)));
    if let Some((mean, _)) = mean_and_std(&versions_per_sample) {
        metrics.insert(metric::VERSIONS_PER_SAMPLE.into(), mean);
    }
    for (age, &n) in &tokens_by_age {
        metrics.insert(format!("{}{age}", metric::STALENESS_SHARE_PREFIX), share(n));
    }
    metrics
}

/// Mean and sample standard deviation (n − 1; 0 for a single value); `None` for an empty slice.
fn mean_and_std(values: &[f64]) -> Option<(f64, f64)> {
    if values.is_empty() {
        return None;
    }
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let squares = values.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>();
    Some((mean, if values.len() > 1 { (squares / (n - 1.0)).sqrt() } else { 0.0 }))
}

/// Unbiased estimate of pass@k from `n` samples of which `correct` solve the task:
/// 1 − C(n − c, k) / C(n, k) (Chen et al., arXiv 2107.03374, equation 1). `k ≤ n`.
pub(crate) fn pass_at_k(n: u64, correct: u64, k: u64) -> f64 {
    if n - correct < k {
        return 1.0;
    }
    let mut all_fail = 1.0;
    for i in (n - correct + 1)..=n {
        all_fail *= 1.0 - k as f64 / i as f64;
    }
    1.0 - all_fail
}

/// Failures and repeated attempts of rewards. Of failures there are some only with `on_error = "drop"`: otherwise the first one
/// fails its group.
pub fn failure_metrics(scorer: &Scorer) -> Metrics {
    let named = |prefix, counts: Vec<(&str, u64)>| {
        let counted = counts.into_iter().filter(|(_, count)| *count > 0);
        counted.map(|(name, count)| (format!("{prefix}{name}"), count as f64)).collect::<Vec<_>>()
    };
    let kinds = scorer.failures_by_kind().map(|(kind, count)| (kind.name(), count)).collect();
    [
        named(metric::REWARD_FAILURES_PREFIX, scorer.failures().collect()),
        named(metric::REWARD_FAILURE_KIND_PREFIX, kinds),
        named(metric::REWARD_RETRIES_PREFIX, scorer.retries().collect()),
    ]
    .into_iter()
    .flatten()
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rloom_core::{
        Author, PolicyId, PromptSource, RewardComponent, Rewards, SampleKey, Span, StopReason, Task, Ticket,
        Trajectory, VersionSpan,
    };

    #[test]
    fn pass_at_k_counts_subsets() {
        // Of 5 samples 2 are right: C(3, 2) = 3 of C(5, 2) = 10 pairs are all wrong.
        assert!((pass_at_k(5, 2, 2) - 0.7).abs() < 1e-12);
        assert!((pass_at_k(5, 2, 1) - 0.4).abs() < 1e-12);
        assert_eq!((pass_at_k(5, 0, 3), pass_at_k(5, 3, 3), pass_at_k(1, 1, 1)), (0.0, 1.0, 1.0));
    }

    fn group(rewards: &[Option<f64>]) -> Group {
        let task = Task {
            index: 0,
            prompt: PromptSource::Text(String::new()),
            answer: String::new(),
            demonstration: None,
            domain: String::new(),
            extra: std::sync::Arc::default(),
        };
        let episodes = rewards
            .iter()
            .map(|&value| {
                let components = vec![RewardComponent::new("exact", 2.0, value)];
                let rewards = Rewards { components, ..Rewards::default() };
                Episode { role: Role::Train, segments: vec![], rewards }
            })
            .collect();
        Group { ticket: Ticket(0), task, episodes }
    }

    #[test]
    fn rewards_are_weighted_and_inapplicable_ones_skipped() {
        let mut groups = [group(&[Some(1.0), Some(0.0), None]), group(&[Some(1.0), Some(1.0)])];
        // Baseline episodes are not counted.
        let greedy = Episode { role: Role::Baseline, ..group(&[Some(9.0)]).episodes.remove(0) };
        groups[0].episodes.push(greedy);
        let m = batch_metrics(&groups, PolicyVersion(3), &[]);
        assert_eq!((m["reward"], m["reward/exact"]), (1.5, 0.75));
        assert!((m["reward_std"] - 1.0).abs() < 1e-12);
        assert!(!m.contains_key("off_policy/staleness_mean"));
    }

    /// A trajectory of one prompt token and the given number of policy tokens per version.
    fn sampled(parts: &[(u64, usize)]) -> Trajectory {
        let mut end = 1;
        let mut versions = Vec::new();
        for &(version, tokens) in parts {
            versions.push(VersionSpan {
                policy: PolicyId::MAIN,
                version: PolicyVersion(version),
                range: end..end + tokens,
            });
            end += tokens;
        }
        Trajectory {
            key: SampleKey::default(),
            agent: None,
            tokens: vec![0; end],
            spans: vec![Span::new(Author::Prompt, 0..1), Span::new(Author::Policy, 1..end)],
            logprobs: vec![0.0; end - 1],
            versions,
            stop: StopReason::StopToken,
            attachments: Vec::new(),
        }
    }

    #[test]
    fn staleness_counts_tokens_not_groups() {
        let mut groups = [group(&[Some(1.0), Some(0.0)])];
        // One episode has 2 tokens of version 5 and 6 of version 7, the other 8 of version 6.
        groups[0].episodes[0].segments = vec![sampled(&[(5, 2), (7, 6)])];
        groups[0].episodes[1].segments = vec![sampled(&[(6, 8)])];
        assert!(!batch_metrics(&groups, PolicyVersion(7), &[]).contains_key(metric::SEGMENTS));
        let mut divided = groups.clone();
        divided[0].episodes[1].segments.push(sampled(&[(6, 4)]));
        let metrics = batch_metrics(&divided, PolicyVersion(7), &[]);
        assert_eq!(metrics[metric::SEGMENTS], 3.0 / divided[0].episodes.len() as f64);
        let greedy = Episode { role: Role::Baseline, ..groups[0].episodes[0].clone() };
        groups[0].episodes.push(Episode { segments: vec![sampled(&[(0, 99)])], ..greedy });
        let m = batch_metrics(&groups, PolicyVersion(7), &[]);
        assert_eq!(m["off_policy/staleness_mean"], (2.0 * 2.0 + 8.0) / 16.0);
        assert_eq!((m["off_policy/staleness_max"], m["off_policy/fresh_tokens"]), (2.0, 6.0 / 16.0));
        assert_eq!(m["off_policy/versions_per_sample"], 1.5);
        let shares = ["0", "1", "2"].map(|age| m[&format!("off_policy/age/{age}")]);
        assert_eq!(shares, [6.0 / 16.0, 8.0 / 16.0, 2.0 / 16.0]);
    }
}
