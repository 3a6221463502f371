//! The choice of a replica for a request.

use std::collections::{BTreeMap, VecDeque};

/// Load of a replica that has room for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) replica: u32,
    /// Tokens that its requests may still take.
    pub(super) outstanding: u64,
    /// Its devices.
    pub(super) devices: usize,
}

impl Candidate {
    /// Outstanding tokens per device with one more request, times the devices of both: a number to compare with that of the
    /// other one.
    fn load(&self, cost: u64, other: &Self) -> u128 {
        u128::from(self.outstanding + cost) * other.devices.max(1) as u128
    }
}

/// The replica for a request of `cost` tokens. Requests that share a prefix stay at `preferred`, whose cache has it, as long
/// as its load per device is at most 25 % over the mean of all `devices` with `total` outstanding tokens, or over the load of
/// the best other place; others go where the fewest per device are outstanding then.
pub(super) fn choose(
    candidates: &[Candidate],
    preferred: Option<u32>,
    cost: u64,
    (devices, total): (usize, u64),
) -> Option<u32> {
    let least = candidates.iter().min_by(|one, other| {
        let by_load = one.load(cost, other).cmp(&other.load(cost, one));
        by_load.then(one.replica.cmp(&other.replica))
    })?;
    let load =
        |candidate: &Candidate| (candidate.outstanding + cost) as f64 / candidate.devices.max(1) as f64;
    // With few requests the mean is lower than any load that the request could have.
    let mean = (total + cost) as f64 / devices.max(1) as f64;
    let most = 1.25 * mean.max(load(least));
    let at_preferred = candidates.iter().find(|candidate| Some(candidate.replica) == preferred);
    Some(at_preferred.filter(|candidate| load(candidate) <= most).unwrap_or(least).replica)
}

/// Replicas that hold the prefixes of recent groups and sessions.
#[derive(Debug, Default)]
pub(super) struct Affinity {
    replicas: BTreeMap<Prefix, u32>,
    order: VecDeque<Prefix>,
}

/// A prefix that several requests share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Prefix {
    /// The turns of an episode so far.
    Session(u64),
    /// The prompt of a group.
    Group(u64),
}

/// Number of prefixes that are remembered: caches hold fewer.
const REMEMBERED: usize = 4096;

impl Affinity {
    pub(super) fn get(&self, prefixes: &[Prefix]) -> Option<u32> {
        prefixes.iter().find_map(|prefix| self.replicas.get(prefix).copied())
    }

    pub(super) fn set(&mut self, prefixes: &[Prefix], replica: u32) {
        for &prefix in prefixes {
            if self.replicas.insert(prefix, replica).is_none() {
                self.order.push_back(prefix);
            }
        }
        while self.order.len() > REMEMBERED {
            if let Some(oldest) = self.order.pop_front() {
                self.replicas.remove(&oldest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(loads: &[u64]) -> Vec<Candidate> {
        (0..)
            .zip(loads)
            .map(|(replica, &outstanding)| Candidate { replica, outstanding, devices: 1 })
            .collect()
    }

    #[test]
    fn servers_with_more_devices_get_more() {
        let sized = |loads: &[(u64, usize)]| -> Vec<Candidate> {
            let candidate = |(replica, &(outstanding, devices))| Candidate { replica, outstanding, devices };
            (0..).zip(loads).map(candidate).collect()
        };
        assert_eq!(choose(&sized(&[(0, 1), (0, 2)]), None, 10, (3, 0)), Some(1));
        assert_eq!(choose(&sized(&[(100, 1), (180, 2)]), None, 10, (3, 280)), Some(1));
        assert_eq!(choose(&sized(&[(100, 1), (220, 2)]), None, 10, (3, 320)), Some(0));
        // 200 tokens are 100 per device, of a mean of 100.
        assert_eq!(choose(&sized(&[(90, 1), (190, 2)]), Some(1), 10, (3, 290)), Some(1));
        // Equal requests are divided by the number of devices.
        let mut candidates = sized(&[(0, 1), (0, 2), (0, 1)]);
        for _ in 0..40 {
            let total = candidates.iter().map(|candidate| candidate.outstanding).sum();
            let chosen = choose(&candidates, None, 10, (4, total)).unwrap();
            candidates[chosen as usize].outstanding += 10;
        }
        let outstanding: Vec<u64> = candidates.iter().map(|candidate| candidate.outstanding).collect();
        assert_eq!(outstanding, [100, 200, 100]);
    }

    #[test]
    fn requests_go_where_the_fewest_tokens_are_outstanding() {
        assert_eq!(choose(&[], None, 10, (0, 0)), None);
        assert_eq!(choose(&at(&[300, 100, 200]), None, 10, (3, 600)), Some(1));
        assert_eq!(choose(&at(&[100, 100]), None, 10, (2, 200)), Some(0));
    }

    #[test]
    fn a_group_stays_together_up_to_a_quarter_over_the_mean() {
        // The mean with the request is 105: 110 is within 25 %.
        assert_eq!(choose(&at(&[100, 100]), Some(1), 10, (2, 200)), Some(1));
        assert_eq!(choose(&at(&[100, 130]), Some(1), 10, (2, 230)), Some(1));
        assert_eq!(choose(&at(&[100, 160]), Some(1), 10, (2, 260)), Some(0));
        // Nowhere would it be less loaded: one request is more than the mean of two replicas.
        assert_eq!(choose(&at(&[0, 0]), Some(1), 10, (2, 0)), Some(1));
        assert_eq!(choose(&at(&[0, 10]), Some(1), 10, (2, 10)), Some(0));
        // The preferred replica has no room, or has left.
        assert_eq!(choose(&at(&[100]), Some(1), 10, (2, 200)), Some(0));
    }

    #[test]
    fn sessions_come_before_groups_and_old_prefixes_are_forgotten() {
        let mut affinity = Affinity::default();
        affinity.set(&[Prefix::Group(7)], 0);
        affinity.set(&[Prefix::Session(7)], 1);
        assert_eq!(affinity.get(&[Prefix::Session(7), Prefix::Group(7)]), Some(1));
        assert_eq!(affinity.get(&[Prefix::Session(8), Prefix::Group(7)]), Some(0));
        for group in 100..100 + REMEMBERED as u64 {
            affinity.set(&[Prefix::Group(group)], 2);
        }
        assert_eq!((affinity.get(&[Prefix::Group(7)]), affinity.replicas.len()), (None, REMEMBERED));
    }
}
