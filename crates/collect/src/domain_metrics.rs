//! Metrics of a batch by domain.

use std::collections::BTreeMap;

use rloom_core::{Episode, Group, Role, metric};
use rloom_telemetry::Metrics;

/// Numbers of one domain.
#[derive(Debug, Default)]
struct OfDomain {
    groups: u64,
    filtered: u64,
    rewards: Vec<f64>,
    verified: u64,
    solved: u64,
    episodes: u64,
    tokens: u64,
    truncated: u64,
}

impl OfDomain {
    fn add(&mut self, episode: &Episode) {
        self.episodes += 1;
        self.tokens += episode.policy_tokens() as u64;
        self.truncated += u64::from(episode.segments.iter().any(|segment| segment.stop.is_truncated()));
        self.rewards.extend(episode.rewards.total());
        self.verified += u64::from(episode.rewards.solved.is_some());
        self.solved += u64::from(episode.rewards.solved == Some(true));
    }
}

/// Returns shares, rewards, accuracies and lengths of the domains of a batch. `filtered` has the groups of each domain that
/// filters replaced since the last batch.
pub fn domain_metrics(groups: &[Group], filtered: &BTreeMap<String, u64>) -> Metrics {
    let mut domains: BTreeMap<&str, OfDomain> = BTreeMap::new();
    for (domain, groups) in filtered {
        domains.entry(domain).or_default().filtered = *groups;
    }
    for group in groups {
        let domain = domains.entry(&group.task.domain).or_default();
        domain.groups += 1;
        // Greedy baseline episodes are not samples of the policy.
        for episode in group.episodes.iter().filter(|episode| episode.role == Role::Train) {
            domain.add(episode);
        }
    }
    let mut metrics = Metrics::new();
    for (name, domain) in &domains {
        let mut report = |prefix: &str, part: f64, whole: u64| {
            if whole > 0 {
                metrics.insert(format!("{prefix}{name}"), part / whole as f64);
            }
        };
        report(metric::DOMAIN_SHARE_PREFIX, domain.groups as f64, groups.len() as u64);
        report(metric::DOMAIN_FILTERED_PREFIX, domain.filtered as f64, domain.filtered + domain.groups);
        let rewards = domain.rewards.iter().sum();
        report(metric::DOMAIN_REWARD_PREFIX, rewards, domain.rewards.len() as u64);
        report(metric::DOMAIN_ACCURACY_PREFIX, domain.solved as f64, domain.verified);
        report(metric::DOMAIN_MEAN_LENGTH_PREFIX, domain.tokens as f64, domain.episodes);
        report(metric::DOMAIN_CLIPPED_RATIO_PREFIX, domain.truncated as f64, domain.episodes);
    }
    metrics
}

#[cfg(test)]
mod tests {
    use rloom_core::{PromptSource, RewardComponent, Rewards, Task, Ticket};

    use super::*;

    fn group(domain: &str, episodes: &[(f64, Option<bool>)]) -> Group {
        let task = Task {
            index: 0,
            prompt: PromptSource::Text(String::new()),
            answer: String::new(),
            demonstration: None,
            domain: domain.to_owned(),
            extra: std::sync::Arc::default(),
        };
        let episode = |&(reward, solved): &(f64, Option<bool>)| Episode {
            role: Role::Train,
            segments: vec![],
            rewards: Rewards {
                components: vec![RewardComponent::new("exact", 1.0, Some(reward))],
                solved,
                ..Rewards::default()
            },
        };
        Group { ticket: Ticket(0), task, episodes: episodes.iter().map(episode).collect() }
    }

    #[test]
    fn domains_are_counted_apart() {
        let mut groups = vec![
            group("math", &[(1.0, Some(true)), (0.0, Some(false))]),
            group("math", &[(1.0, Some(true)), (1.0, Some(true))]),
            group("poems", &[(0.25, None)]),
        ];
        let greedy = Episode { role: Role::Baseline, ..groups[0].episodes[0].clone() };
        groups[0].episodes.push(greedy);
        let filtered = [("math".to_owned(), 2), ("code".to_owned(), 3)].into();
        let metrics = domain_metrics(&groups, &filtered);
        let named = |name: &str| metrics.get(name).copied();
        assert_eq!(named("domain/share/math"), Some(2.0 / 3.0));
        assert_eq!(named("domain/reward/math"), Some(0.75));
        assert_eq!(named("domain/accuracy/math"), Some(0.75));
        assert_eq!(named("domain/accuracy/poems"), None);
        assert_eq!(named("domain/reward/poems"), Some(0.25));
        assert_eq!((named("domain/filtered/math"), named("domain/filtered/code")), (Some(0.5), Some(1.0)));
        assert_eq!((named("domain/share/code"), named("domain/reward/code")), (Some(0.0), None));
    }
}
