//! Results and reports of each estimator on small examples.

use proptest::prelude::*;
use rloom_algo::estimators::{Gae, Gdpo, Gigpo, Gpg, MaxAtG, Opo, Prime, RaftPp, Remax, Rloo, Topr};
use rloom_algo::{
    AdvantageSpec, Advantages, AlgoError, EpisodeRewards, Estimator, GroupRewards, Keep, RunningMoments,
    StatesFrom, StatisticFrom, StepReward, advantages,
};
use rloom_core::{Role, metric};

use crate::groups::{Episode, normalized, view};

fn plain(estimator: Estimator) -> AdvantageSpec {
    AdvantageSpec { estimator, kl_coef: 0.0, whiten: false }
}

fn get(estimator: Estimator, groups: &[GroupRewards<'_>]) -> Advantages {
    advantages(&plain(estimator), &RunningMoments::default(), groups).unwrap()
}

/// Groups of episodes with reward and length.
fn groups(of: &[&[(f64, usize)]]) -> Vec<GroupRewards<'static>> {
    let group = |g: &&[(f64, usize)]| GroupRewards {
        episodes: g.iter().map(|&(r, tokens)| EpisodeRewards::new(Some(r), tokens)).collect(),
    };
    of.iter().map(group).collect()
}

fn greedy(reward: Option<f64>) -> EpisodeRewards<'static> {
    EpisodeRewards { role: Role::Baseline, ..EpisodeRewards::new(reward, 3) }
}

fn first(got: &Advantages, group: usize) -> Vec<f32> {
    got.episodes[group].iter().map(|e| e.at(0)).collect()
}

#[test]
fn normalized_from_different_places() {
    use StatisticFrom::{Batch, Group, None, Running};
    // Group means 2 and 6; the batch has mean 4 and Σ(R − 4)² = 9 + 1 + 1 + 9, so std √(20/3).
    let batch = groups(&[&[(1.0, 1), (3.0, 1)], &[(5.0, 1), (7.0, 1)]]);
    let all = (20.0f64 / 3.0).sqrt() + 1e-4;
    let pair = 2.0f64.sqrt() + 1e-4;
    for (mean, std, wanted) in [
        (Group, Batch, [-1.0 / all, 1.0 / all, -1.0 / all, 1.0 / all]),
        (Batch, Group, [-3.0 / pair, -1.0 / pair, 1.0 / pair, 3.0 / pair]),
        (Batch, None, [-3.0, -1.0, 1.0, 3.0]),
        (None, Batch, [1.0 / all, 3.0 / all, 5.0 / all, 7.0 / all]),
        (None, None, [1.0, 3.0, 5.0, 7.0]),
        (Running, None, [-3.0, -1.0, 1.0, 3.0]),
    ] {
        let got = get(normalized(mean, std), &batch);
        let flat: Vec<f32> = [first(&got, 0), first(&got, 1)].concat();
        for (&got, wanted) in flat.iter().zip(wanted) {
            assert!((f64::from(got) - wanted).abs() < 1e-6, "{mean:?}, {std:?}: {flat:?}");
        }
    }
    // With statistics of the batch, a group of one is compared with the batch.
    let alone = groups(&[&[(1.0, 1)], &[(3.0, 1)]]);
    assert_eq!(first(&get(normalized(Batch, None), &alone), 0), [-1.0]);
    assert_eq!(get(normalized(Batch, None), &alone).report.groups_of_one, 0);
}

/// Equal values of a statistic give 0: dividing only by ε would amplify rounding to thousands.
#[test]
fn a_statistic_without_spread_gives_nothing() {
    use StatisticFrom::{Batch, Group, None, Running};
    let level = groups(&[&[(1.0, 1), (1.0, 1)], &[(1.0, 1), (1.0, 1)]]);
    for mean in [Group, Batch, Running, None] {
        for std in [Group, Batch, Running] {
            let before = RunningMoments { count: 2, mean: 1.0, m2: 0.0, low: 1.0, high: 1.0 };
            let got = advantages(&plain(normalized(mean, std)), &before, &level).unwrap();
            assert_eq!(first(&got, 0), [0.0, 0.0], "{mean:?}, {std:?}");
        }
    }
}

/// Running moments of two batches equal those of one combined batch; other estimators do not change them.
#[test]
fn running_moments_are_carried_on() {
    use StatisticFrom::{Group, Running};
    let (a, b) = (groups(&[&[(1.0, 1), (0.0, 1)]]), groups(&[&[(0.5, 1), (4.0, 1)], &[(2.0, 1), (2.0, 1)]]));
    let both = [a.clone(), b.clone()].concat();
    let spec = plain(normalized(Running, Running));
    let one = advantages(&spec, &RunningMoments::default(), &a).unwrap();
    let two = advantages(&spec, &one.running, &b).unwrap();
    let at_once = advantages(&spec, &RunningMoments::default(), &both).unwrap();
    assert_eq!((two.running.count, two.running.low, two.running.high), (6, 0.0, 4.0));
    assert!((two.running.mean - at_once.running.mean).abs() < 1e-15);
    assert!((two.running.m2 - at_once.running.m2).abs() < 1e-14);
    for (x, y) in first(&two, 0).into_iter().zip(first(&at_once, 1)) {
        assert!((x - y).abs() < 1e-6);
    }
    let empty = advantages(&spec, &two.running, &[]).unwrap();
    assert_eq!(empty.running, two.running);
    let other = advantages(&plain(normalized(Group, Group)), &two.running, &a).unwrap();
    assert_eq!(other.running, two.running, "not read, not changed");
    // They are restored from a checkpoint.
    let json = serde_json::to_string(&two.running).unwrap();
    assert_eq!(serde_json::from_str::<RunningMoments>(&json).unwrap(), two.running);
}

#[test]
fn opo_weighs_by_length() {
    // Baseline (1·1 + 3·0)/4 = ¼.
    let got = get(Estimator::Opo(Opo {}), &groups(&[&[(1.0, 1), (0.0, 3)]]));
    assert_eq!(first(&got, 0), [0.75, -0.25]);
    // Without tokens there is no weight.
    assert_eq!(first(&get(Estimator::Opo(Opo {}), &groups(&[&[(1.0, 0), (0.0, 0)]])), 0), [0.5, -0.5]);
}

#[test]
fn gpg_compensates_for_groups_with_equal_rewards() {
    let got = get(Estimator::Gpg(Gpg {}), &groups(&[&[(1.0, 1), (0.0, 1)], &[(1.0, 1); 4]]));
    // α = 6/2.
    assert_eq!((first(&got, 0), first(&got, 1)), (vec![1.5, -1.5], vec![0.0; 4]));
    assert!(!got.report.no_contrast);
    let none = get(Estimator::Gpg(Gpg {}), &groups(&[&[(1.0, 1); 3], &[(0.0, 1); 2]]));
    assert!(none.episodes.iter().flatten().all(rloom_algo::EpisodeAdvantage::is_zero));
    assert!(none.report.no_contrast);
    assert!(none.report.named().contains(&(metric::BATCH_NO_CONTRAST, 1.0)));
    assert!(!get(Estimator::Rloo(Rloo {}), &groups(&[&[(1.0, 1); 3]])).report.no_contrast, "only GPG asks");
}

#[test]
fn max_at_g_rewards_the_lead() {
    let of = |estimator, rewards: &[(f64, usize)]| first(&get(estimator, &groups(&[rewards])), 0);
    let lead = Estimator::MaxAtG(MaxAtG { divide_by_std: false, std_epsilon: 1e-4 });
    assert_eq!(of(lead, &[(0.25, 1), (1.0, 1), (0.5, 1)]), [0.0, 0.5, 0.0]);
    assert_eq!(of(lead, &[(1.0, 1), (0.5, 1), (1.0, 1)]), [0.0; 3], "a tie has no lead");
    assert_eq!(of(lead, &[(0.3, 1), (0.1 + 0.2, 1), (0.0, 1)]), [0.0; 3], "nor has rounding");
    assert_eq!(of(lead, &[(-3.0, 1), (-1.0, 1)]), [0.0, 2.0]);
    // std of [0, 2] is √2.
    let by_std =
        of(Estimator::MaxAtG(MaxAtG { divide_by_std: true, std_epsilon: 0.0 }), &[(0.0, 1), (2.0, 1)]);
    assert!((by_std[1] - 2.0f32.sqrt()).abs() < 1e-6);
}

#[test]
fn raft_pp_keeps() {
    let rewards = groups(&[&[(1.0, 1), (0.0, 1), (2.0, 1), (2.0, 1)], &[(0.0, 1), (-1.0, 1)]]);
    let positive = get(Estimator::RaftPp(RaftPp { keep: Keep::Positive }), &rewards);
    assert_eq!((first(&positive, 0), first(&positive, 1)), (vec![1.0, 0.0, 1.0, 1.0], vec![0.0, 0.0]));
    assert_eq!(positive.report.none_kept, 1);
    assert!(positive.report.named().contains(&(metric::GROUPS_NONE_KEPT, 1.0)));
    let best = get(Estimator::RaftPp(RaftPp { keep: Keep::Best }), &rewards);
    assert_eq!((first(&best, 0), first(&best, 1)), (vec![0.0, 0.0, 1.0, 0.0], vec![1.0, 0.0]));
    assert_eq!(best.report.none_kept, 0);
}

#[test]
fn remax_and_topr_subtract_their_baselines() {
    let mut group = groups(&[&[(1.0, 2), (0.0, 1)], &[(0.5, 2)]]);
    group[0].episodes.insert(1, greedy(Some(0.25)));
    group[1].episodes.push(greedy(None));
    let got = get(Estimator::Remax(Remax {}), &group);
    assert_eq!((first(&got, 0), first(&got, 1)), (vec![0.75, 0.0, -0.25], vec![0.0, 0.0]));
    assert_eq!((got.report.baselines_missing, got.report.groups_of_one), (1, 0));
    let topr = get(Estimator::Topr(Topr { baseline: 0.5 }), &group);
    assert_eq!((first(&topr, 0), first(&topr, 1)), (vec![0.5, 0.0, -0.5], vec![0.0, 0.0]));

    for (greedies, says) in [(0, "group 0 has 0 episodes"), (2, "group 0 has 2 episodes")] {
        let mut group = groups(&[&[(1.0, 2)]]);
        group[0].episodes.extend((0..greedies).map(|_| greedy(Some(0.0))));
        let error =
            advantages(&plain(Estimator::Remax(Remax {})), &RunningMoments::default(), &group).unwrap_err();
        assert!(matches!(error, AlgoError::BaselineEpisodes { group: 0, got } if got == greedies));
        assert!(error.to_string().starts_with(says), "{error}");
    }
}

#[test]
fn gdpo_normalises_each_reward_separately() {
    // The first reward differs, the second applies to two episodes, the third only to the last one.
    let components = [
        [(2.0, Some(1.0)), (1.0, None), (1.0, None)],
        [(2.0, Some(0.0)), (1.0, Some(5.0)), (1.0, None)],
        [(2.0, None), (1.0, Some(3.0)), (1.0, None)],
        [(2.0, None), (1.0, None), (1.0, Some(4.0))],
    ];
    let episode = |c, tokens| EpisodeRewards { components: c, ..EpisodeRewards::new(Some(1.0), tokens) };
    let group = GroupRewards {
        episodes: components.iter().zip(1..).map(|(c, tokens)| episode(&c[..], tokens)).collect(),
    };
    let spec = Estimator::Gdpo(Gdpo { std_epsilon: 0.0 });
    let got = first(&get(spec, std::slice::from_ref(&group)), 0);
    let (half, root) = (0.5f32.sqrt(), 2.0f32.sqrt());
    // ±½/√½ of the first name twice, ±1/√2 of the second.
    for (got, wanted) in got.into_iter().zip([root, -root + half, -half, 0.0]) {
        assert!((got - wanted).abs() < 1e-6);
    }
    // Whitening does not create an advantage for an episode without comparison.
    let whiten = AdvantageSpec { whiten: true, ..plain(spec) };
    let whitened = advantages(&whiten, &RunningMoments::default(), &[group]).unwrap();
    assert_eq!(first(&whitened, 0)[3], 0.0);

    let none = GroupRewards { episodes: vec![EpisodeRewards::new(Some(1.0), 1); 2] };
    let error = advantages(&plain(spec), &RunningMoments::default(), &[none]).unwrap_err();
    assert_eq!(error.to_string(), "group 0, episode 0: 0 named rewards where the advantage reads 1");
}

#[test]
fn gigpo_compares_steps_from_one_state() {
    let step = |tokens, reward, state| StepReward { tokens, reward, state };
    // Token 3 of the first belongs to no step.
    let a = [step((0, 2), 0.0, Some("s")), step((2, 3), 1.0, Some("t"))];
    let b = [step((0, 1), 0.0, Some("s")), step((1, 2), 0.0, Some("u")), step((2, 3), 7.0, None)];
    let episode =
        |steps, reward, tokens| EpisodeRewards { steps, ..EpisodeRewards::new(Some(reward), tokens) };
    let group = GroupRewards {
        episodes: vec![episode(&a[..], 1.0, 4), episode(&b[..], 0.0, 3), EpisodeRewards::new(None, 2)],
    };
    let gigpo =
        Estimator::Gigpo(Gigpo { gamma: 0.5, step_weight: 2.0, divide_by_std: false, ..Gigpo::default() });
    let got = get(gigpo, std::slice::from_ref(&group));
    // Episodes ±½. From "s" the first returns 0 + ½·1 and the second 0 + ½·0 + ¼·7: mean 1.125, ∓0.625, twice.
    let tokens = |e: usize, n| -> Vec<f32> { (0..n).map(|t| got.episodes[0][e].at(t)).collect() };
    assert_eq!(tokens(0, 4), [0.5 - 1.25, 0.5 - 1.25, 0.5, 0.5]);
    assert_eq!(tokens(1, 3), [-0.5 + 1.25, -0.5, -0.5]);
    assert_eq!(tokens(2, 2), [0.0, 0.0]);
    assert_eq!((got.report.steps, got.report.states_seen_once), (5, 2));
    assert!(got.report.named().contains(&(metric::FRAC_STATES_SEEN_ONCE, 0.4)));
    // Both levels by their standard deviations: two values are ∓1/√2 from their mean.
    let by_std = get(
        Estimator::Gigpo(Gigpo { gamma: 0.5, step_weight: 2.0, std_epsilon: 0.0, ..Gigpo::default() }),
        &[group],
    );
    assert!((by_std.episodes[0][0].at(0) - (0.5f32.sqrt() - 2.0 * 0.5f32.sqrt())).abs() < 1e-6);
    // Without steps only the episode-level part remains.
    let got = get(gigpo, &groups(&[&[(1.0, 2), (0.0, 1)]]));
    assert_eq!((first(&got, 0), got.report.steps), (vec![0.5, -0.5], 0));
    // State keys are local to a group.
    let alone = |reward| GroupRewards {
        episodes: vec![episode(&a[..], reward, 4), EpisodeRewards::new(Some(reward), 1)],
    };
    let got = get(gigpo, &[alone(1.0), alone(2.0)]);
    assert_eq!(got.report.states_seen_once, 4);
    assert!(got.episodes.iter().flatten().all(rloom_algo::EpisodeAdvantage::is_zero));
    // Those of the batch are not; a group of one is compared then, unless its episode is to be compared, too.
    let with_steps = |steps, reward| GroupRewards { episodes: vec![episode(steps, reward, 4)] };
    let later = [step((0, 2), 0.0, Some("s")), step((2, 4), 4.0, Some("t"))];
    let batch = [with_steps(&a[..], 1.0), with_steps(&later[..], 4.0)];
    let settings = Gigpo {
        gamma: 0.5,
        episode_weight: 0.0,
        divide_by_std: false,
        states_from: StatesFrom::Batch,
        ..Gigpo::default()
    };
    let got = get(Estimator::Gigpo(settings), &batch);
    let tokens = |g: usize| -> Vec<f32> { (0..4).map(|t| got.episodes[g][0].at(t)).collect() };
    assert_eq!((tokens(0), tokens(1)), (vec![-0.75, -0.75, -1.5, 0.0], vec![0.75, 0.75, 1.5, 1.5]));
    assert_eq!((got.report.steps, got.report.states_seen_once, got.report.groups_of_one), (4, 0, 0));
    let got = get(Estimator::Gigpo(Gigpo { episode_weight: 1.0, ..settings }), &batch);
    assert!(got.episodes.iter().flatten().all(rloom_algo::EpisodeAdvantage::is_zero));
    assert_eq!(got.report.groups_of_one, 2);
}

#[test]
fn prime_adds_process_to_outcome() {
    let reference = [-1.0f32; 2];
    let episode = |prm, reward| EpisodeRewards {
        prm_logprob: prm,
        prm_reference_logprob: &reference,
        ..EpisodeRewards::new(Some(reward), 2)
    };
    // q = [½, −1] and [1, 1]: token means −¼ and 1.
    let group = GroupRewards { episodes: vec![episode(&[0.0, -3.0], 1.0), episode(&[1.0, 1.0], 0.0)] };
    let got = get(Estimator::Prime(Prime { gamma: 0.5, beta: 0.5 }), &[group]);
    let [a, b] = &got.episodes[0][..] else { panic!("two episodes") };
    // Others' means 1 and −¼; outcome ±1.
    assert_eq!([a.at(0), a.at(1)], [(0.5 - 1.0) + 0.5 * (-1.0 - 1.0) + 1.0, (-1.0 - 1.0) + 1.0]);
    assert_eq!([b.at(0), b.at(1)], [(1.0 + 0.25) + 0.5 * (1.0 + 0.25) - 1.0, (1.0 + 0.25) - 1.0]);
}

/// Generalised advantages by their definition: the λ-weighted mean of all n-step advantages.
fn by_definition(rewards: &[f64], values: &[f64], last: f64, gamma: f64, lambda: f64) -> Vec<f64> {
    let end = rewards.len();
    let value = |t: usize| if t == end { last } else { values[t] };
    let n_step = |t: usize, n: usize| {
        let earned: f64 = (0..n).map(|k| gamma.powi(k as i32) * rewards[t + k]).sum();
        earned + gamma.powi(n as i32) * value(t + n) - values[t]
    };
    let weighted = |t: usize| {
        let longest = end - t;
        let shorter: f64 =
            (1..longest).map(|n| (1.0 - lambda) * lambda.powi(n as i32 - 1) * n_step(t, n)).sum();
        shorter + lambda.powi(longest as i32 - 1) * n_step(t, longest)
    };
    (0..end).map(weighted).collect()
}

proptest! {
    #[test]
    fn gae_equals_its_definition(
        tokens in 1usize..8, seed: u64, reward in -2.0f64..2.0, cut_off: bool, gamma in 0.0f64..=1.0, lambda in 0.0f64..=1.0,
    ) {
        let mut e = Episode::new(Some(reward), tokens, seed);
        e.last_value = cut_off.then_some(0.75);
        let batch = [vec![e.clone()]];
        let spec = AdvantageSpec { kl_coef: 0.1, ..plain(Estimator::Gae(Gae { gamma, lambda })) };
        let got = advantages(&spec, &RunningMoments::default(), &view(&batch)).unwrap();
        let mut rewards: Vec<f64> =
            e.old.iter().zip(&e.reference).map(|(&o, &r)| -0.1 * (f64::from(o) - f64::from(r))).collect();
        rewards[tokens - 1] += reward;
        let values: Vec<f64> = e.values.iter().map(|&v| f64::from(v)).collect();
        let wanted = by_definition(&rewards, &values, if cut_off { 0.75 } else { 0.0 }, gamma, lambda);
        for (t, wanted) in wanted.into_iter().enumerate() {
            let a = f64::from(got.episodes[0][0].at(t));
            prop_assert!((a - wanted).abs() < 1e-6 * (1.0 + wanted.abs()), "{a} {wanted}");
            let r = f64::from(got.returns[0][0][t]);
            prop_assert!((r - (wanted + values[t])).abs() < 1e-6 * (1.0 + wanted.abs()));
        }
        let (whitened, kl) = (AdvantageSpec { whiten: true, ..spec }, got.report.kl.unwrap());
        let whitened = advantages(&whitened, &RunningMoments::default(), &view(&batch)).unwrap();
        prop_assert_eq!(whitened.returns, got.returns, "returns are taken before whitening");
        let k1: f64 = e.old.iter().zip(&e.reference).map(|(&o, &r)| f64::from(o) - f64::from(r)).sum();
        prop_assert!((kl - k1 / tokens as f64).abs() < 1e-12);
    }
}

#[test]
fn returns_are_the_targets_of_values() {
    let episode = |values, reward| EpisodeRewards { values, ..EpisodeRewards::new(reward, 2) };
    let episodes = vec![
        episode(&[0.5, 0.5][..], Some(1.0)),
        episode(&[0.0, 0.0][..], Some(0.0)),
        episode(&[9.0, 8.0][..], None),
        greedy(Some(1.0)),
    ];
    // γ = λ = 1: the returns are the rewards, 1 and 0.
    let gae = Estimator::Gae(Gae { gamma: 1.0, lambda: 1.0 });
    let got = get(gae, &[GroupRewards { episodes }]);
    assert_eq!(got.returns[0], [vec![1.0, 1.0], vec![0.0, 0.0], vec![9.0, 8.0], vec![]]);
    assert_eq!(got.report.value, Some(0.25), "of what is compared");
    assert!(got.report.named().contains(&(metric::VALUE_MEAN, 0.25)));
    assert_eq!(get(Estimator::Rloo(Rloo {}), &groups(&[&[(1.0, 1), (0.0, 1)]])).report.value, None);
}

#[test]
fn kl_in_the_reward_is_subtracted_before_the_baseline() {
    let (near, far) = ([-1.0f32, -1.0], [-3.0f32, -2.0]);
    let episode = |reference| EpisodeRewards {
        old_logprob: &near,
        reference_logprob: reference,
        ..EpisodeRewards::new(Some(1.0), 2)
    };
    let mut group = GroupRewards { episodes: vec![episode(&near[..]), episode(&far[..]), greedy(Some(0.5))] };
    let of = |estimator, group: &GroupRewards<'_>| {
        let spec = AdvantageSpec { kl_coef: 0.1, ..plain(estimator) };
        advantages(&spec, &RunningMoments::default(), std::slice::from_ref(group)).unwrap()
    };
    // The penalty of the second is 0.1·(2 + 1).
    for (estimator, wanted) in [
        (Estimator::Rloo(Rloo {}), [0.3, -0.3]),
        (Estimator::Remax(Remax {}), [0.5, 0.2]),
        (Estimator::MaxAtG(MaxAtG { divide_by_std: false, std_epsilon: 1e-4 }), [0.3, 0.0]),
        (Estimator::Gpg(Gpg {}), [0.15, -0.15]),
        (Estimator::Topr(Topr { baseline: 0.0 }), [1.0, 0.7]),
    ] {
        let got = of(estimator, &group);
        for (&got, wanted) in first(&got, 0).iter().zip(wanted) {
            assert!((got - wanted).abs() < 1e-6, "{estimator:?}: {got} {wanted}");
        }
        // The fraction of groups with equal rewards is measured before the penalty.
        assert_eq!((got.report.zero_spread_groups, got.report.kl), (1, Some(0.75)));
    }
    group.episodes.truncate(0);
    assert_eq!(of(Estimator::Rloo(Rloo {}), &group).report.kl, None, "no token, no divergence");
}
