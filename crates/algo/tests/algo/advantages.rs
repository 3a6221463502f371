//! Sums, groups with equal rewards, rewards that do not apply.

use proptest::prelude::*;
use rloom_algo::estimators::{Gpg, MaxAtG, Opo, RaftPp, ReinforcePp, Rloo, Topr};
use rloom_algo::{
    AdvantageSpec, Advantages, AlgoError, Algorithm, EpisodeAdvantage, EpisodeRewards, Estimator,
    GroupRewards, Keep, Method, RunningMoments, Score, StatisticFrom,
};
use rloom_core::Role;

use crate::groups::{GROUP, GROUP_MEAN, normalized};

const RETURNS: Estimator = Estimator::ReinforcePp(ReinforcePp { gamma: 1.0 });
/// Estimators that only use rewards.
const ALL: [Estimator; 13] = [
    GROUP,
    GROUP_MEAN,
    normalized(StatisticFrom::Group, StatisticFrom::Batch),
    normalized(StatisticFrom::Batch, StatisticFrom::Group),
    normalized(StatisticFrom::Running, StatisticFrom::Running),
    Estimator::Rloo(Rloo {}),
    Estimator::Opo(Opo {}),
    Estimator::Gpg(Gpg {}),
    Estimator::MaxAtG(MaxAtG { divide_by_std: false, std_epsilon: 1e-4 }),
    Estimator::MaxAtG(MaxAtG { divide_by_std: true, std_epsilon: 1e-4 }),
    Estimator::RaftPp(RaftPp { keep: Keep::Positive }),
    Estimator::Topr(Topr { baseline: 0.5 }),
    RETURNS,
];

fn advantages(spec: &AdvantageSpec, groups: &[GroupRewards<'_>]) -> Result<Advantages, AlgoError> {
    rloom_algo::advantages(spec, &RunningMoments::default(), groups)
}

fn spec(estimator: Estimator, whiten: bool) -> AdvantageSpec {
    AdvantageSpec { estimator, kl_coef: 0.0, whiten }
}

fn groups(rewards: &[Vec<Option<f64>>], tokens: usize) -> Vec<GroupRewards<'static>> {
    rewards
        .iter()
        .map(|g| GroupRewards { episodes: g.iter().map(|&r| EpisodeRewards::new(r, tokens)).collect() })
        .collect()
}

fn one(estimator: Estimator, rewards: &[f64]) -> Vec<f32> {
    let rewards = vec![rewards.iter().map(|&r| Some(r)).collect()];
    constants(&advantages(&spec(estimator, false), &groups(&rewards, 1)).unwrap(), 0)
}

fn constants(advantages: &Advantages, group: usize) -> Vec<f32> {
    advantages.episodes[group].iter().map(|e| e.at(0)).collect()
}

proptest! {
    /// After whitening, mean 0 and variance 1 over tokens.
    #[test]
    fn whitened_over_tokens(
        batch in prop::collection::vec(prop::collection::vec((-5.0f64..5.0, 0usize..6), 2..5), 1..5),
    ) {
        for estimator in ALL {
            let groups: Vec<_> = batch
                .iter()
                .map(|g| GroupRewards { episodes: g.iter().map(|&(r, n)| EpisodeRewards::new(Some(r), n)).collect() })
                .collect();
            let moments = |whiten| {
                let a = advantages(&spec(estimator, whiten), &groups).unwrap();
                let mut flat = Vec::new();
                for (group, row) in batch.iter().zip(&a.episodes) {
                    for (&(_, tokens), episode) in group.iter().zip(row) {
                        episode.extend_into(0..tokens, &mut flat);
                    }
                }
                let n = flat.len() as f64;
                let mean = flat.iter().map(|&x| f64::from(x)).sum::<f64>() / n;
                let variance = flat.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / n;
                (mean, variance)
            };
            if moments(false).1 > 1e-7 {
                let (mean, variance) = moments(true);
                prop_assert!(mean.abs() < 1e-5, "mean {}", mean);
                prop_assert!((variance - 1.0).abs() < 1e-4, "variance {}", variance);
            }
        }
    }
}

#[test]
fn by_hand() {
    assert_eq!(one(GROUP_MEAN, &[1.0, 0.0, 0.0, 0.0]), [0.75, -0.25, -0.25, -0.25]);
    let rloo = one(Estimator::Rloo(Rloo {}), &[1.0, 0.0, 0.0, 0.0]);
    for (got, wanted) in rloo.iter().zip([1.0, -1.0 / 3.0, -1.0 / 3.0, -1.0 / 3.0]) {
        assert!((f64::from(*got) - wanted).abs() < 1e-7);
    }
    // std with n − 1 of [1, 0, 0, 0] is ½.
    assert!((one(GROUP, &[1.0, 0.0, 0.0, 0.0])[0] - 0.75 / 0.5001).abs() < 1e-6);
    assert_eq!(one(Estimator::Rloo(Rloo {}), &[3.0, 1.0]), [2.0, -2.0]);
}

/// In f32, E[x²] − mean² gives thousands for this group; its advantages are of order one.
#[test]
fn near_equal_rewards_do_not_explode() {
    let reward = f64::from(0.95f32);
    let mut rewards = vec![reward; 8];
    rewards[0] = 0.0;
    let a = one(GROUP, &rewards);
    assert!((f64::from(a[0]) + 2.4748).abs() < 1e-2, "{a:?}");
    assert!(a[1..].iter().all(|x| (f64::from(*x) - 0.3535).abs() < 1e-2), "{a:?}");
    // Far from zero, one part in a million apart: still bounded by the group's size.
    for spread in [1e-5, 1e-6, 1e-7, 1e-9, 1e-14] {
        let mut rewards = [0.95; 8];
        rewards[3] += spread;
        for estimator in ALL {
            for whiten in [false, true] {
                let groups = groups(&[rewards.iter().map(|&r| Some(r)).collect()], 1);
                let a = advantages(&spec(estimator, whiten), &groups).unwrap();
                assert!(constants(&a, 0).iter().all(|x| x.abs() < 3.0), "{estimator:?} {spread} {a:?}");
            }
        }
    }
}

/// A batch with almost equal rewards is not whitened to variance 1.
#[test]
fn whitening_has_a_smallest_variance() {
    let group = groups(&[vec![Some(0.0), Some(1e-5)]], 3);
    let a = constants(&advantages(&spec(GROUP_MEAN, true), &group).unwrap(), 0);
    assert!((f64::from(a[1]) - 0.5e-5 / 1e-4).abs() < 1e-6 && a[0] == -a[1], "{a:?}");
}

#[test]
fn a_group_of_one_is_counted_and_has_no_advantage() {
    let rewards = [vec![Some(1.0), None, None], vec![Some(1.0), Some(0.0), None], vec![None, None, None]];
    for whiten in [false, true] {
        for estimator in [GROUP, GROUP_MEAN, Estimator::Rloo(Rloo {})] {
            let a = advantages(&spec(estimator, whiten), &groups(&rewards, 2)).unwrap();
            assert!(a.episodes[0].iter().all(EpisodeAdvantage::is_zero));
            assert!(!a.episodes[1][0].is_zero() && a.episodes[1][2].is_zero());
            assert!(a.episodes[2].iter().all(EpisodeAdvantage::is_zero));
            assert_eq!((a.report.groups, a.report.groups_of_one), (2, 1));
            assert_eq!((a.report.zero_spread_groups, a.report.not_applicable), (1, 6));
        }
    }
    // Returns involve no comparison.
    let a = advantages(&spec(RETURNS, false), &groups(&rewards, 2)).unwrap();
    assert_eq!(constants(&a, 0), [1.0, 0.0, 0.0]);
    assert_eq!(a.report.groups_of_one, 0);
}

#[test]
fn baseline_episodes_are_neither_compared_nor_trained() {
    let mut group = groups(&[vec![Some(1.0), Some(0.0), Some(100.0)]], 2);
    group[0].episodes[2].role = Role::Baseline;
    for estimator in ALL {
        let a = advantages(&spec(estimator, false), &group).unwrap();
        let alone = advantages(&spec(estimator, false), &groups(&[vec![Some(1.0), Some(0.0)]], 2)).unwrap();
        assert_eq!(a.episodes[0][..2], alone.episodes[0][..]);
        assert!(a.episodes[0][2].is_zero());
    }
}

/// Per token: the last token gets the reward, each token its own divergence, and later rewards are discounted.
#[test]
fn returns_by_hand() {
    let (old, reference) = ([-1.0f32, -2.0, -0.5], [-1.5f32, -1.0, -0.5]);
    let episode = EpisodeRewards {
        old_logprob: &old,
        reference_logprob: &reference,
        ..EpisodeRewards::new(Some(1.0), 3)
    };
    let spec = AdvantageSpec {
        estimator: Estimator::ReinforcePp(ReinforcePp { gamma: 0.5 }),
        kl_coef: 0.1,
        whiten: false,
    };
    let a = advantages(&spec, &[GroupRewards { episodes: vec![episode] }]).unwrap();
    // r = [−0.05, 0.1, 1.0]
    let wanted = [-0.05 + 0.5 * (0.1 + 0.5), 0.1 + 0.5, 1.0];
    for (t, wanted) in wanted.into_iter().enumerate() {
        assert!((f64::from(a.episodes[0][0].at(t)) - wanted).abs() < 1e-7);
    }
    assert_eq!(a.episodes[0][0].at(3), 0.0, "beyond the end");
}

#[test]
fn errors_name_the_episode() {
    let bad = groups(&[vec![Some(0.0), Some(1.0)], vec![Some(0.0), Some(f64::NAN)]], 2);
    let error = advantages(&spec(GROUP, false), &bad).unwrap_err();
    assert_eq!(error.to_string(), "reward is NaN in group 1, episode 1");

    let spec = Algorithm::preset(Method::Rloo).unwrap().advantage.unwrap();
    let missing = advantages(&spec, &groups(&[vec![Some(0.0), Some(1.0)]], 2)).unwrap_err();
    assert!(matches!(
        missing,
        AlgoError::EpisodeLength { what: Score::OldLogprob, group: 0, episode: 0, got: 0, expected: 2 }
    ));
    let (good, nan) = ([-1.0f32, -1.0], [-1.0f32, f32::NEG_INFINITY]);
    let mut group = groups(&[vec![Some(0.0), Some(1.0)]], 2);
    for e in &mut group[0].episodes {
        (e.old_logprob, e.reference_logprob) = (&good, &good);
    }
    group[0].episodes[1].reference_logprob = &nan;
    let error = advantages(&spec, &group).unwrap_err();
    assert_eq!(error.to_string(), "reference log-probability is -inf in group 0, episode 1");
}
