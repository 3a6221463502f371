//! Properties of every estimator, over random groups.

use proptest::prelude::*;
use rloom_algo::estimators::{Gae, Gpg, Opo, Prime, Rloo};
use rloom_algo::{
    AdvantageSpec, Advantages, AlgoError, EpisodeAdvantage, Estimator, RunningMoments, StatesFrom,
    StatisticFrom, StepReward, advantages,
};

use crate::groups::{Batch, EVERY, Episode, GROUP, GROUP_MEAN, batches, normalized, view};

fn spec(estimator: Estimator, kl_coef: f64, whiten: bool) -> AdvantageSpec {
    AdvantageSpec { estimator, kl_coef, whiten }
}

fn get(spec: &AdvantageSpec, batch: &[Vec<Episode>]) -> Advantages {
    advantages(spec, &RunningMoments::default(), &view(batch)).unwrap()
}

/// `[group][episode][token]`.
fn tokens(batch: &[Vec<Episode>], got: &Advantages) -> Vec<Vec<Vec<f32>>> {
    let episode = |(e, a): (&Episode, &EpisodeAdvantage)| (0..e.tokens).map(|t| a.at(t)).collect();
    batch.iter().zip(&got.episodes).map(|(g, row)| g.iter().zip(row).map(episode).collect()).collect()
}

fn close(a: f32, b: f32) -> bool {
    (a - b).abs() <= 1e-5 * a.abs().max(b.abs()).max(1.0)
}

fn all_close(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(&a, &b)| close(a, b))
}

/// True if an episode's advantage depends on other groups.
fn reads_batch(estimator: Estimator) -> bool {
    let beyond = [StatisticFrom::Batch, StatisticFrom::Running];
    match estimator {
        Estimator::Normalized(by) => beyond.contains(&by.mean_from) || beyond.contains(&by.std_from),
        Estimator::Gpg(_) => true,
        _ => false,
    }
}

/// The groups with their episodes in reverse order, except the last one (greedy).
fn episodes_reversed<T: Clone>(batch: &[Vec<T>]) -> Vec<Vec<T>> {
    let turn = |g: &Vec<T>| {
        let (last, rest) = g.split_last().unwrap();
        rest.iter().rev().chain([last]).cloned().collect()
    };
    batch.iter().map(turn).collect()
}

/// `best` keeps the first of several equal episodes, so it depends on the order.
fn without_ties(estimator: Estimator, mut batch: Batch) -> Batch {
    if matches!(estimator, Estimator::RaftPp { .. }) {
        for group in &mut batch {
            for (i, e) in group.iter_mut().enumerate() {
                e.reward = e.reward.map(|r| r + 0.01 * i as f64);
            }
        }
    }
    batch
}

proptest! {
    #[test]
    fn permuting_episodes_permutes_advantages(batch in batches(), kl_coef in prop_oneof![Just(0.0), Just(0.1)]) {
        for estimator in EVERY {
            for whiten in [false, true] {
                let spec = spec(estimator, kl_coef, whiten);
                let batch = without_ties(estimator, batch.clone());
                let turned = episodes_reversed(&batch);
                let straight = episodes_reversed(&tokens(&batch, &get(&spec, &batch)));
                let after = tokens(&turned, &get(&spec, &turned));
                for (a, b) in straight.iter().flatten().zip(after.iter().flatten()) {
                    prop_assert!(all_close(a, b), "{:?}: {:?} became {:?}", spec, a, b);
                }
            }
        }
    }

    /// Bitwise identical for estimators that only depend on the group.
    #[test]
    fn permuting_groups_permutes_advantages(batch in batches(), kl_coef in prop_oneof![Just(0.0), Just(0.1)]) {
        let turned: Batch = batch.iter().rev().cloned().collect();
        for estimator in EVERY {
            for whiten in [false, true] {
                let spec = spec(estimator, kl_coef, whiten);
                let straight = tokens(&batch, &get(&spec, &batch));
                let after = tokens(&turned, &get(&spec, &turned));
                for (a, b) in straight.iter().rev().flatten().zip(after.iter().flatten()) {
                    prop_assert!(all_close(a, b), "{:?}: {:?} became {:?}", spec, a, b);
                    prop_assert!(whiten || reads_batch(estimator) || a == b);
                }
            }
        }
    }

    /// An episode without an applicable reward does not affect the others.
    #[test]
    fn not_applicable_rewards_leave_everything(batch in batches(), whiten in any::<bool>()) {
        let applicable: Batch = batch
            .iter()
            .map(|g| g.iter().filter(|e| e.reward.is_some() || e.role != rloom_core::Role::Train).cloned().collect())
            .collect();
        for estimator in EVERY {
            let spec = spec(estimator, 0.1, whiten);
            let (all, some) = (get(&spec, &batch), get(&spec, &applicable));
            let all = tokens(&batch, &all);
            let mut some = tokens(&applicable, &some).into_iter();
            for (g, group) in batch.iter().enumerate() {
                let mut left = some.next().unwrap().into_iter();
                for (e, episode) in group.iter().enumerate() {
                    if episode.reward.is_none() || episode.role != rloom_core::Role::Train {
                        prop_assert!(all[g][e].iter().all(|&a| a == 0.0));
                    }
                    if episode.reward.is_some() || episode.role != rloom_core::Role::Train {
                        prop_assert_eq!(&all[g][e], &left.next().unwrap(), "{:?}", estimator);
                    }
                }
            }
        }
    }

    /// ΣA over a group is 0; for OPO, Σ|y|A; for PRIME, the sum for outcomes if the process rewards are 0.
    #[test]
    fn sums_over_a_group_are_zero(batch in batches()) {
        let mut batch = batch;
        for e in batch.iter_mut().flatten() {
            e.prm.clone_from(&e.prm_reference);
        }
        let zero_sum = [GROUP, GROUP_MEAN, normalized(StatisticFrom::Group, StatisticFrom::Batch), Estimator::Rloo(Rloo {})];
        let more = [Estimator::Gpg(Gpg {}), Estimator::Opo(Opo {}), Estimator::Prime(Prime { gamma: 1.0, beta: 0.05 })];
        for estimator in zero_sum.into_iter().chain(more) {
            let got = get(&spec(estimator, 0.0, false), &batch);
            for (group, row) in batch.iter().zip(&got.episodes) {
                if estimator == more[2] && group.iter().any(|e| e.tokens == 0) {
                    // Without tokens the advantage of an episode is not defined.
                    continue;
                }
                let weight = |e: &Episode| if estimator == Estimator::Opo(Opo {}) { e.tokens as f64 } else { 1.0 };
                let term = |(e, a): (&Episode, &EpisodeAdvantage)| weight(e) * f64::from(a.at(0));
                let terms: Vec<f64> = group.iter().zip(row).map(term).collect();
                let scale: f64 = terms.iter().map(|t| t.abs()).sum();
                prop_assert!(terms.iter().sum::<f64>().abs() <= 1e-6 * scale + 1e-12, "{:?}: {:?}", estimator, terms);
                let rewards: Vec<f64> = group[..group.len() - 1].iter().filter_map(|e| e.reward).collect();
                let contrast = rewards.iter().any(|&r| r != rewards[0]);
                prop_assert!(contrast || scale == 0.0, "{:?}", estimator);
                // The reward of an episode without tokens is not part of OPO's baseline.
                prop_assert!(!contrast || scale > 0.0 || estimator == Estimator::Opo(Opo {}), "{:?}", estimator);
            }
        }
    }

    /// Results are finite for any input; if whitened, their mean over the trained tokens is 0.
    #[test]
    fn finite_and_centred(batch in batches(), kl_coef in prop_oneof![Just(0.0), Just(0.1)]) {
        for estimator in EVERY {
            let whitened = get(&spec(estimator, kl_coef, true), &batch);
            let plain = get(&spec(estimator, kl_coef, false), &batch);
            prop_assert_eq!(&whitened.report, &plain.report);
            prop_assert_eq!(&whitened.returns, &plain.returns);
            let whitened = tokens(&batch, &whitened);
            let flat: Vec<f32> = whitened.iter().flatten().flatten().copied().collect();
            prop_assert!(flat.iter().all(|a| a.is_finite()), "{:?}", estimator);
            prop_assert!(tokens(&batch, &plain).iter().flatten().flatten().all(|a| a.is_finite()));
            let sum: f64 = flat.iter().map(|&a| f64::from(a)).sum();
            prop_assert!(sum.abs() <= 1e-5 * flat.len().max(1) as f64, "{:?}: {}", estimator, sum);
        }
    }

    /// A group with one comparable episode has no gradient if episodes are compared, and is counted.
    #[test]
    fn groups_of_one_are_counted(batch in batches()) {
        let mut batch = batch;
        for group in &mut batch {
            let last = group.len() - 1;
            for e in &mut group[1..last] {
                e.reward = None;
            }
            group[0].reward = Some(0.7);
        }
        for estimator in EVERY {
            let got = get(&spec(estimator, 0.1, true), &batch);
            prop_assert_eq!(got.report.groups, batch.len());
            prop_assert_eq!(got.report.episodes, batch.len());
            let expected = if estimator.needs_group() { batch.len() } else { 0 };
            prop_assert_eq!(got.report.groups_of_one, expected, "{:?}", estimator);
            if estimator.needs_group() {
                prop_assert!(got.episodes.iter().flatten().all(EpisodeAdvantage::is_zero), "{:?}", estimator);
            }
        }
    }

    /// Rewards that are equal up to rounding count as equal, also through `f32` and with other rewards in the batch.
    #[test]
    fn no_contrast_is_exactly_zero(batch in batches(), reward in -1e3f64..1e3) {
        let mut batch = batch;
        let train = batch[0].len() - 1;
        for (i, e) in batch[0][..train].iter_mut().enumerate() {
            let nearly = [reward, f64::from(reward as f32), reward * (1.0 + f64::EPSILON), reward];
            e.reward = Some(nearly[i % 4]);
            e.components = vec![(1.0, e.reward), (0.5, Some(0.3)), (2.0, None)];
            e.prm.clone_from(&e.prm_reference);
            for s in &mut e.steps {
                s.reward = 0.0;
            }
        }
        for e in batch[1..].iter_mut().flatten() {
            e.components.push((2.0, Some(1.0)));
        }
        for estimator in EVERY.into_iter().filter(Estimator::needs_group) {
            if matches!(estimator, Estimator::RaftPp { .. }) {
                continue; // of equal episodes the first is the best
            }
            if let Estimator::Gigpo(gigpo) = estimator
                && gigpo.states_from != StatesFrom::Group
            {
                continue; // steps are compared with those of other groups
            }
            let got = get(&spec(estimator, 0.0, false), &batch);
            prop_assert!(got.episodes[0].iter().all(EpisodeAdvantage::is_zero), "{:?}: {:?}", estimator, got.episodes[0]);
        }
    }
}

/// Invalid inputs of an episode.
type Damage = (&'static str, fn(&mut Episode));

const DAMAGES: [Damage; 15] = [
    ("reward is NaN", |e| e.reward = Some(f64::NAN)),
    ("3 old log-probability entries for 2 policy tokens", |e| e.old.push(0.0)),
    ("old log-probability is -inf", |e| e.old[1] = f32::NEG_INFINITY),
    ("0 reference log-probability entries for 2 policy tokens", |e| e.reference.clear()),
    ("reference log-probability is NaN", |e| e.reference[0] = f32::NAN),
    ("1 value entries for 2 policy tokens", |e| e.values.truncate(1)),
    ("value is inf", |e| e.values[0] = f32::INFINITY),
    ("value after the last token is NaN", |e| e.last_value = Some(f32::NAN)),
    ("1 named rewards where the advantage reads 2", |e| e.components.truncate(1)),
    ("named reward or its weight is NaN", |e| e.components[0].1 = Some(f64::NAN)),
    ("reward of a step is NaN", |e| e.steps[0].reward = f64::NAN),
    ("step 0 is policy tokens 0..3 of 2", |e| e.steps[0].tokens = (0, 3)),
    ("step 1 is policy tokens 1..2 of 2", |e| {
        e.steps.truncate(1);
        e.steps[0].tokens = (0, 2);
        e.steps.push(StepReward { tokens: (1, 2), ..e.steps[0] });
    }),
    ("1 process-reward log-probability entries for 2 policy tokens", |e| e.prm.truncate(1)),
    ("process-reward reference log-probability is NaN", |e| e.prm_reference[1] = f32::NAN),
];

/// The entries of [`DAMAGES`] that an estimator detects.
fn meets(estimator: Estimator) -> Vec<usize> {
    let own = match estimator {
        Estimator::Gae { .. } => 5..8,
        Estimator::Gdpo { .. } => 8..10,
        Estimator::Gigpo { .. } => 10..13,
        Estimator::Prime { .. } => 13..15,
        _ => 0..0,
    };
    (0..5).chain(own).collect()
}

#[test]
fn errors_contain_input_and_position() {
    let episode = |i: u32| Episode::new(Some(f64::from(i)), 2, u64::from(i));
    let group = || vec![episode(0), episode(1), episode(2), Episode::greedy(Some(0.0))];
    for estimator in EVERY {
        for (i, (says, damage)) in DAMAGES.iter().enumerate() {
            let mut batch = vec![group(), group()];
            damage(&mut batch[1][2]);
            let got = advantages(&spec(estimator, 0.1, false), &RunningMoments::default(), &view(&batch));
            if !meets(estimator).contains(&i) {
                assert!(got.is_ok(), "{estimator:?} does not read it: {says}");
                continue;
            }
            let error = got.expect_err(says).to_string();
            assert!(error.contains(says), "{estimator:?}: {error}, wanted {says}");
            assert!(error.contains("group 1, episode 2"), "{error}");
        }
    }
}

/// Without an applicable reward the inputs of the estimator are not needed, except for values, which are always
/// trained.
#[test]
fn what_takes_no_part_is_not_read() {
    let mut batch =
        vec![vec![Episode::new(Some(1.0), 2, 1), Episode::new(Some(0.0), 2, 2), Episode::greedy(None)]];
    let mut empty = Episode::new(None, 2, 3);
    for array in [&mut empty.old, &mut empty.reference, &mut empty.prm, &mut empty.prm_reference] {
        array.clear();
    }
    empty.components.clear();
    empty.steps[0].tokens = (5, 7);
    batch[0].push(empty.clone());
    for estimator in EVERY {
        get(&spec(estimator, 0.1, false), &batch);
    }
    batch[0][3].values.clear();
    let gae = spec(Estimator::Gae(Gae { gamma: 1.0, lambda: 1.0 }), 0.0, false);
    let error = advantages(&gae, &RunningMoments::default(), &view(&batch)).unwrap_err();
    assert!(
        matches!(error, AlgoError::EpisodeLength { group: 0, episode: 3, got: 0, expected: 2, .. }),
        "{error}"
    );
}

#[test]
fn nothing_at_all() {
    for estimator in EVERY {
        for whiten in [false, true] {
            let spec = spec(estimator, 0.1, whiten);
            let none = get(&spec, &[]);
            assert_eq!((none.report.named(), none.report.frac_zero_spread()), (vec![], None));
            assert!(get(&spec, &[vec![]]).episodes == [vec![]]);
            let no_tokens = vec![Episode::new(Some(1.0), 0, 1), Episode::new(Some(0.0), 0, 2)];
            let greedy = Episode::greedy(Some(0.5));
            let got = get(&spec, &[[no_tokens, vec![greedy]].concat()]);
            assert!(got.episodes[0].iter().all(|a| a.at(0).is_finite()), "{estimator:?}");
        }
    }
}
