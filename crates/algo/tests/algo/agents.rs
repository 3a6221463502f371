//! Credit of several agents, by hand.

use std::f64::consts::FRAC_1_SQRT_2;

use rloom_algo::estimators::{Counterfactual, Gigpo, JointGae, Magrpo, Marti, PerAgent, RoleBaseline};
use rloom_algo::{
    AdvantageSpec, Advantages, AgentPart, AgentTurn, AlgoError, EpisodeRewards, Estimator, GroupRewards,
    Pairing, Recombination, RoleBaselines, RunningMoments, Shaping, ShapingHistory, StatesFrom, StepReward,
    advantages_of_roles,
};

/// Agents with their own reward and the rewards of their turns, of one token each.
type Part<'a> = (&'a str, Option<f64>, &'a [Option<f64>]);
type Agents<'a> = &'a [Part<'a>];

fn parts<'a>(agents: Agents<'a>) -> Vec<AgentPart<'a>> {
    let mut at = 0;
    let part = |&(name, reward, turns): &Part<'a>| {
        let start = at;
        let turn = |&reward: &Option<f64>| {
            at += 1;
            AgentTurn { tokens: (at - 1, at), reward, round: None }
        };
        let turns: Vec<AgentTurn> = turns.iter().map(turn).collect();
        AgentPart { name, tokens: (start, at), reward, recombined: None, turns }
    };
    agents.iter().map(part).collect()
}

fn computed(estimator: Estimator, roles: &RoleBaselines, groups: &[Vec<(f64, Agents<'_>)>]) -> Advantages {
    let parts: Vec<Vec<Vec<AgentPart<'_>>>> =
        groups.iter().map(|group| group.iter().map(|(_, agents)| parts(agents)).collect()).collect();
    let groups: Vec<GroupRewards<'_>> = groups
        .iter()
        .zip(&parts)
        .map(|(group, parts)| {
            let episode = |((reward, _), agents): (&(f64, Agents<'_>), &'_ Vec<AgentPart<'_>>)| {
                let tokens = agents.last().map_or(0, |agent| agent.tokens.1);
                (*reward, tokens)
            };
            let numbers: Vec<(f64, usize)> = group.iter().zip(parts).map(episode).collect();
            let episodes = numbers.into_iter().zip(parts).map(|((reward, tokens), agents)| EpisodeRewards {
                agents,
                ..EpisodeRewards::new(Some(reward), tokens)
            });
            GroupRewards { episodes: episodes.collect() }
        })
        .collect();
    let spec = AdvantageSpec { estimator, kl_coef: 0.0, whiten: false };
    advantages_of_roles(&spec, &RunningMoments::default(), roles, &groups).unwrap()
}

fn tokens(advantages: &Advantages, group: usize, episode: usize, count: usize) -> Vec<f64> {
    (0..count).map(|t| f64::from(advantages.episodes[group][episode].at(t))).collect()
}

fn assert_near(found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len());
    assert!(
        found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6),
        "{found:?}, expected {expected:?}"
    );
}

const ONE: &[Option<f64>] = &[None];

#[test]
fn each_agent_is_compared_with_itself() {
    let estimator = Estimator::PerAgent;
    let group = || {
        vec![
            (0.0, &[("a", Some(1.0), ONE), ("b", Some(10.0), ONE)][..]),
            (0.0, &[("a", Some(3.0), ONE), ("b", Some(10.0), ONE)]),
            // An agent that takes no turn is in no statistic.
            (0.0, &[("b", Some(40.0), ONE)]),
        ]
    };
    let mean = PerAgent { divide_by_std: false, ..PerAgent::default() };
    let found = computed(estimator(mean), &RoleBaselines::new(), &[group()]);
    assert_near(&tokens(&found, 0, 0, 2), &[-1.0, -10.0]);
    assert_near(&tokens(&found, 0, 1, 2), &[1.0, -10.0]);
    assert_near(&tokens(&found, 0, 2, 1), &[20.0]);
    // The standard deviation of 1 and 3 is √2, that of 10, 10 and 40 is √300.
    let found = computed(
        estimator(PerAgent { std_epsilon: 0.0, ..PerAgent::default() }),
        &RoleBaselines::new(),
        &[group()],
    );
    assert_near(&tokens(&found, 0, 0, 2), &[-FRAC_1_SQRT_2, -1.0 / 3.0_f64.sqrt()]);
    // A shared reward gives all agents the episode's.
    let shared = PerAgent { own_reward: false, ..mean };
    let group = vec![(1.0, &[("a", Some(5.0), ONE), ("b", None, ONE)][..]), (0.0, &[("a", None, ONE)])];
    let found = computed(estimator(shared), &RoleBaselines::new(), &[group]);
    assert_near(&tokens(&found, 0, 0, 2), &[0.5, 0.0]);
}

/// The baseline of each role is read before the reward updates it, over episodes, groups and batches.
#[test]
fn role_baselines_follow_the_rewards_of_a_role() {
    let estimator = Estimator::RoleBaseline(RoleBaseline { decay: 0.75 });
    let game = |reward: f64| -> (f64, Vec<Part<'_>>) {
        (0.0, vec![("x", Some(reward), ONE), ("o", Some(-reward), ONE)])
    };
    let (win, loss) = (game(1.0), game(-1.0));
    let first = computed(estimator, &RoleBaselines::new(), &[vec![(0.0, &win.1)], vec![(0.0, &win.1)]]);
    assert_near(&tokens(&first, 0, 0, 2), &[1.0, -1.0]);
    assert_near(&tokens(&first, 1, 0, 2), &[0.75, -0.75]);
    assert_near(&[first.roles["x"], first.roles["o"]], &[0.4375, -0.4375]);
    let second = computed(estimator, &first.roles, &[vec![(0.0, &loss.1)]]);
    assert_near(&tokens(&second, 0, 0, 2), &[-1.4375, 1.4375]);
    assert_near(&[second.roles["x"]], &[0.75 * 0.4375 - 0.25]);
}

/// In a game that the first player wins seven times of ten, the advantages of a role add up to nearly nothing against its own
/// baseline, and to ±4 in ten games without.
#[test]
fn a_role_baseline_takes_away_the_advantage_of_a_seat() {
    let won: Vec<Part<'_>> = vec![("first", Some(1.0), ONE), ("second", Some(-1.0), ONE)];
    let lost: Vec<Part<'_>> = vec![("first", Some(-1.0), ONE), ("second", Some(1.0), ONE)];
    let games: Vec<_> =
        (0..2000).map(|game| vec![(0.0, if game % 10 < 7 { &won[..] } else { &lost[..] })]).collect();
    let sum = |decay: f64| {
        let estimator = Estimator::RoleBaseline(RoleBaseline { decay });
        let found = computed(estimator, &RoleBaselines::new(), &games);
        let first = |game: usize| tokens(&found, game, 0, 2)[0];
        (1000..2000).map(first).sum::<f64>() / 1000.0
    };
    assert!(sum(0.95).abs() < 0.01, "{}", sum(0.95));
    let raw: f64 = games.iter().skip(1000).map(|game| game[0].1[0].1.unwrap()).sum::<f64>() / 1000.0;
    assert!((raw - 0.4).abs() < 1e-9);
}

/// Renaming agents, or exchanging them, changes nothing.
#[test]
fn names_of_agents_do_not_matter() {
    let rewards = [[1.0, 0.2], [0.0, 0.9], [0.5, 0.4]];
    for estimator in [
        Estimator::PerAgent(PerAgent::default()),
        Estimator::Marti(Marti::default()),
        Estimator::Magrpo(Magrpo::default()),
        Estimator::RoleBaseline(RoleBaseline::default()),
    ] {
        let of = |[a, b]: [&'static str; 2]| {
            let turns: Vec<[[Option<f64>; 2]; 2]> =
                rewards.iter().map(|[x, y]| [[Some(*x), Some(*y)], [Some(*y), Some(*x)]]).collect();
            let agents: Vec<_> = rewards
                .iter()
                .zip(&turns)
                .map(|([x, y], turns)| [(a, Some(*x), &turns[0][..]), (b, Some(*y), &turns[1][..])])
                .collect();
            let group = rewards.iter().zip(&agents).map(|([x, _], agents)| (*x, &agents[..])).collect();
            computed(estimator, &RoleBaselines::new(), &[group]).episodes
        };
        assert_eq!(of(["a", "b"]), of(["z", "c"]), "{estimator:?}");
    }
}

/// The tables of the reference: three turns of two agents.
#[test]
fn marti_shapes_rewards_by_earlier_turns() {
    let (a, b) = ([Some(0.0), Some(1.0), Some(1.0)], [Some(1.0), Some(0.0), Some(1.0)]);
    let agents = [("a", None, &a[..]), ("b", None, &b[..])];
    // Another episode without a reward, so that the difference of the advantages is that of the shaped rewards.
    let zero = [Some(0.0); 3];
    let nothing = [("a", None, &zero[..]), ("b", None, &zero[..])];
    let shaped = |settings: Marti| {
        let estimator = Estimator::Marti(Marti { divide_by_std: false, ..settings });
        let group = vec![(1.0, &agents[..]), (0.0, &nothing[..])];
        let found = computed(estimator, &RoleBaselines::new(), &[group]);
        (tokens(&found, 0, 0, 6), tokens(&found, 0, 1, 6))
    };
    let differences = |settings| {
        let (one, other) = shaped(settings);
        one.iter().zip(&other).map(|(a, b)| a - b).collect::<Vec<f64>>()
    };
    let all = ShapingHistory::All;
    // Margin: Q of turn 1 is 1/2 for both, of turn 2 (0 + 1 + 1 + 0)/4.
    let margin = Marti { shaping: Shaping::Margin, history: all, ..Marti::default() };
    assert_near(&differences(margin), &[0.0, 1.25, 1.25, 1.0, -0.25, 1.25]);
    // Quality: Q·R − (1 − Q)(1 − R) is ±1/2 there, and −1 where both Q and R are 0.
    let quality = Marti { shaping: Shaping::Quality, ..margin };
    assert_near(&differences(quality), &[0.0, 1.25 + 0.5, 1.25 + 0.5, 1.0, -0.25 + 0.5, 1.25 + 0.5]);
    // The agent's own history: Q of a is 0 and then 1/2; of b 1 and then 1/2.
    let own = Marti { history: ShapingHistory::Own, ..margin };
    assert_near(&differences(own), &[0.0, 1.5, 1.25, 1.0, -0.5, 1.25]);
    // β adds half of the last reward, 1 for both, to each turn.
    let outcome = Marti { beta: 0.5, ..margin };
    assert_near(&differences(outcome), &[0.5, 1.75, 1.75, 1.5, 0.25, 1.75]);
}

#[test]
fn magrpo_discounts_the_joint_reward_over_turns() {
    let estimator = Estimator::Magrpo(Magrpo { gamma: 0.5, ..Magrpo::default() });
    let two: &[Option<f64>] = &[None, None];
    let (full, short) = ([("a", None, two), ("b", None, two)], [("a", None, two), ("b", None, ONE)]);
    // An episode of one turn: its return from turn 0 is its reward.
    let single = [("a", None, ONE)];
    let group = vec![(1.0, &full[..]), (0.0, &short[..]), (0.5, &single[..])];
    let found = computed(estimator, &RoleBaselines::new(), &[group]);
    // Returns from turn 0: 1/2, 0, 1/2, their mean 1/3; from turn 1: 1 and 0.
    let third = 1.0 / 3.0;
    assert_near(&tokens(&found, 0, 0, 4), &[0.5 - third, 0.5, 0.5 - third, 0.5]);
    assert_near(&tokens(&found, 0, 1, 3), &[-third, -0.5, -third]);
    assert_near(&tokens(&found, 0, 2, 1), &[0.5 - third]);
}

/// The rewards of all combinations of two agents' turns in a group: that of turn i of `a` with turn j of `b`.
type Table = [[f64; 3]; 3];

/// Advantages of the two agents in each episode, whose tokens and mean rewards come from a table.
fn of_table(estimator: Estimator, table: &Table) -> Vec<(f64, f64)> {
    let mean = |values: Vec<f64>| values.iter().sum::<f64>() / values.len() as f64;
    let recombined = |episode: usize, agent: usize| {
        let with = |other: usize| if agent == 0 { table[episode][other] } else { table[other][episode] };
        let instead = |other: usize| if agent == 0 { table[other][episode] } else { table[episode][other] };
        let others = (0..3).filter(|other| *other != episode);
        match estimator.recombination() {
            Some(Recombination::Cross) => Some(mean((0..3).map(with).collect())),
            Some(Recombination::Replaced) => Some(mean(others.map(instead).collect())),
            None => None,
        }
    };
    let turns = [(0, 1), (1, 2)].map(|tokens| AgentTurn { tokens, ..AgentTurn::default() });
    let agents: Vec<Vec<AgentPart<'_>>> = (0..3)
        .map(|episode| {
            let part = |agent: usize| AgentPart {
                name: ["a", "b"][agent],
                tokens: turns[agent].tokens,
                recombined: recombined(episode, agent),
                turns: vec![turns[agent]],
                ..AgentPart::default()
            };
            vec![part(0), part(1)]
        })
        .collect();
    let episode = |(place, agents): (usize, _)| EpisodeRewards {
        agents,
        ..EpisodeRewards::new(Some(table[place][place]), 2)
    };
    let group = GroupRewards { episodes: agents.iter().map(|a| &a[..]).enumerate().map(episode).collect() };
    let spec = AdvantageSpec { estimator, kl_coef: 0.0, whiten: false };
    let found =
        advantages_of_roles(&spec, &RunningMoments::default(), &RoleBaselines::new(), &[group]).unwrap();
    (0..3).map(|e| (tokens(&found, 0, e, 2)[0], tokens(&found, 0, e, 2)[1])).collect()
}

const CROSS: Estimator = Estimator::Magrpo(Magrpo { gamma: 0.9, pairing: Pairing::Cross });
const COUNTERFACTUAL: Estimator = Estimator::Counterfactual(Counterfactual {});

#[test]
fn cross_pairing_compares_the_mean_rewards_of_turns() {
    let table = [[1.0, 0.0, 0.5], [0.0, 0.0, 1.0], [0.0, 1.0, 0.0]];
    // Means of the rows: 1/2, 1/3, 1/3, of the columns: 1/3, 1/3, 1/2; of all: 7/18.
    let (high, low) = (0.5 - 7.0 / 18.0, 1.0 / 3.0 - 7.0 / 18.0);
    let found = of_table(CROSS, &table);
    let expected = [(high, low), (low, low), (low, high)];
    for ((a, b), (c, d)) in found.iter().zip(expected) {
        assert_near(&[*a, *b], &[c, d]);
    }
    // Aligned pairing reads the diagonal alone: 1, 0, 0, for both agents.
    let aligned = of_table(Estimator::Magrpo(Magrpo::default()), &table);
    assert_near(&[aligned[0].0, aligned[0].1, aligned[2].1], &[2.0 / 3.0, 2.0 / 3.0, -1.0 / 3.0]);
}

#[test]
fn a_counterfactual_replaces_the_turn_of_one_agent() {
    let table = [[1.0, 0.0, 0.5], [0.0, 0.0, 1.0], [0.0, 1.0, 0.0]];
    // Episode 0: 1 − (0 + 0)/2 and 1 − (0 + ½)/2. Episode 1: 0 − (0 + 1)/2 and 0 − (0 + 1)/2. Episode 2: 0 − (½ + 1)/2 and
    // 0 − (0 + 1)/2.
    let found = of_table(COUNTERFACTUAL, &table);
    for ((a, b), (c, d)) in found.iter().zip([(1.0, 0.75), (-0.5, -0.5), (-0.75, -0.5)]) {
        assert_near(&[*a, *b], &[c, d]);
    }
}

/// If the reward depends on the turn of `b` alone, `a` has an advantage of exactly 0 where turns are combined, and that of `b`
/// otherwise.
#[test]
fn an_agent_that_changes_nothing_has_no_advantage_where_turns_are_combined() {
    let table = [[0.1, 0.7, 0.4]; 3];
    for estimator in [CROSS, COUNTERFACTUAL] {
        let found = of_table(estimator, &table);
        assert!(found.iter().all(|(a, _)| *a == 0.0), "{found:?}");
        assert!(found[0].1 < -0.2 && found[1].1 > 0.2, "{found:?}");
    }
    let aligned = of_table(Estimator::Magrpo(Magrpo::default()), &table);
    assert!(aligned.iter().all(|(a, b)| a == b) && aligned[1].0 > 0.2, "{aligned:?}");
}

/// The advantages that CoMLRL computes from a table of joint rewards, by `golden/from_comlrl.py`: there a turn's return is the
/// sum over its combinations, here the mean.
#[test]
fn cross_pairing_agrees_with_comlrl() {
    let golden: serde_json::Value = serde_json::from_str(include_str!("../golden/from_comlrl.json")).unwrap();
    for case in golden["cases"].as_array().unwrap() {
        let table: Table = serde_json::from_value(case["rewards"].clone()).unwrap();
        let found = of_table(CROSS, &table);
        let sums: [Vec<f64>; 2] = serde_json::from_value(case["advantages"].clone()).unwrap();
        for (episode, (a, b)) in found.iter().enumerate() {
            assert_near(&[3.0 * a, 3.0 * b], &[sums[0][episode], sums[1][episode]]);
        }
    }
}

/// Three rounds: both agents, then `b`, then both. V is 0.25, 0.5 and 0.75 before them, and the reward 1.
#[test]
fn rounds_have_the_advantage_of_what_agents_know_together() {
    let turn = |at: usize, round: u32| AgentTurn {
        tokens: (at, at + 1),
        round: Some(round),
        ..AgentTurn::default()
    };
    let a =
        AgentPart { name: "a", tokens: (0, 2), turns: vec![turn(0, 0), turn(1, 2)], ..AgentPart::default() };
    // A turn without a token makes no round.
    let nothing = AgentTurn { tokens: (5, 5), ..turn(4, 3) };
    let turns = vec![turn(2, 0), turn(3, 1), turn(4, 2), nothing];
    let b = AgentPart { name: "b", tokens: (2, 5), turns, ..AgentPart::default() };
    let agents = [a, b];
    let values = [0.25, 0.5, 0.75];
    let episode =
        EpisodeRewards { agents: &agents, round_values: &values, ..EpisodeRewards::new(Some(1.0), 5) };
    let unrewarded = EpisodeRewards { reward: None, ..episode };
    let found = |settings: JointGae, episodes: Vec<EpisodeRewards<'_>>| {
        let spec = AdvantageSpec { estimator: Estimator::JointGae(settings), kl_coef: 0.0, whiten: false };
        let group = GroupRewards { episodes };
        advantages_of_roles(&spec, &RunningMoments::default(), &RoleBaselines::new(), &[group])
    };
    // λ = 1: R − V. The tokens are those of `a` in rounds 0 and 2, then those of `b` in rounds 0, 1 and 2.
    let monte_carlo = found(JointGae::default(), vec![episode, unrewarded]).unwrap();
    assert_near(&tokens(&monte_carlo, 0, 0, 5), &[0.75, 0.25, 0.75, 0.5, 0.25]);
    assert_eq!(monte_carlo.round_returns, [[vec![1.0; 3], values.to_vec()]]);
    assert!(monte_carlo.episodes[0][1].is_zero());
    // γ = ½, λ = ½. δ: ¼ − ¼ = 0, ⅜ − ½ = −⅛, 1 − ¾ = ¼. A: ¼, −⅛ + ¼·¼ = −1/16, 0 − ¼·1/16 = −1/64.
    let both = JointGae { gamma: 0.5, lambda: 0.5 };
    let discounted = found(both, vec![episode]).unwrap();
    let [first, second, last] = [-1.0 / 64.0, -1.0 / 16.0, 0.25];
    assert_near(&tokens(&discounted, 0, 0, 5), &[first, last, first, second, last]);
    let returns: Vec<f64> = discounted.round_returns[0][0].iter().map(|&value| value.into()).collect();
    assert_near(&returns, &[0.25 + first, 0.5 + second, 0.75 + last]);
    // One value for each round.
    let short = EpisodeRewards { round_values: &values[..2], ..episode };
    assert!(matches!(found(both, vec![short]), Err(AlgoError::EpisodeLength { got: 2, expected: 3, .. })));
}

#[test]
fn turns_that_were_not_combined_are_refused() {
    let agents = [("a", None, ONE), ("b", None, ONE)];
    let parts = parts(&agents);
    let episode = EpisodeRewards { agents: &parts, ..EpisodeRewards::new(Some(1.0), 2) };
    let group = GroupRewards { episodes: vec![episode, episode] };
    for estimator in [CROSS, COUNTERFACTUAL] {
        let spec = AdvantageSpec { estimator, kl_coef: 0.0, whiten: false };
        let found = advantages_of_roles(
            &spec,
            &RunningMoments::default(),
            &RoleBaselines::new(),
            std::slice::from_ref(&group),
        );
        assert_eq!(found.unwrap_err(), AlgoError::NotRecombined { group: 0, episode: 0 });
    }
}

/// In a game of two agents the steps of one are not followed by those of the other, and each has its own reward.
#[test]
fn steps_of_an_agent_are_followed_by_its_own() {
    let step = |at: usize, reward: f64, state: &'static str| StepReward {
        tokens: (at, at + 1),
        reward,
        state: Some(state),
    };
    let won = [step(0, 0.0, "start"), step(1, 1.0, "x"), step(2, -0.5, "o")];
    let lost = [step(0, 0.0, "start"), step(1, -1.0, "y"), step(2, 0.25, "o")];
    let turns: [&[Option<f64>]; 2] = [&[None, None], ONE];
    let agents = |sign: f64| [("first", Some(sign), turns[0]), ("second", Some(-sign), turns[1])];
    let (of_won, of_lost) = (agents(1.0), agents(-1.0));
    let (win, loss) = (parts(&of_won), parts(&of_lost));
    let episode = |steps, agents| EpisodeRewards { steps, agents, ..EpisodeRewards::new(Some(0.0), 3) };
    let group = GroupRewards { episodes: vec![episode(&won, &win), episode(&lost, &loss)] };
    let settings = Gigpo { gamma: 0.5, divide_by_std: false, ..Gigpo::default() };
    let spec = AdvantageSpec { estimator: Estimator::Gigpo(settings), kl_coef: 0.0, whiten: false };
    let found =
        advantages_of_roles(&spec, &RunningMoments::default(), &RoleBaselines::new(), &[group]).unwrap();
    // Episode: ±1. Steps: ±0.5 from the start, none in states seen once, ∓0.375 in "o".
    assert_near(&tokens(&found, 0, 0, 3), &[1.5, 1.0, -1.375]);
    assert_near(&tokens(&found, 0, 1, 3), &[-1.5, -1.0, 1.375]);
}

/// Compared with the others, a step from a state that occurs once is compared with all steps of its agent.
#[test]
fn steps_are_compared_with_the_others_of_their_agent() {
    let step = |at: usize, reward: f64, state: &'static str| StepReward {
        tokens: (at, at + 1),
        reward,
        state: Some(state),
    };
    let won = [step(0, 0.0, "start"), step(1, 1.0, "x"), step(2, -1.0, "o")];
    let lost = [step(0, 0.0, "start"), step(1, -1.0, "y"), step(2, 1.0, "o")];
    let drawn = [step(0, 0.0, "start"), step(1, 0.6, "x"), step(2, 0.0, "p")];
    let turns: [&[Option<f64>]; 2] = [&[None, None], ONE];
    let agents = |sign: f64| [("first", Some(sign), turns[0]), ("second", Some(-sign), turns[1])];
    let of = [agents(1.0), agents(-1.0), agents(0.0)];
    let parts: Vec<Vec<AgentPart<'_>>> = of.iter().map(|agents| parts(agents)).collect();
    let group = |e: usize, steps| GroupRewards {
        episodes: vec![EpisodeRewards { steps, agents: &parts[e], ..EpisodeRewards::new(Some(0.0), 3) }],
    };
    let batch = [group(0, &won), group(1, &lost), group(2, &drawn)];
    let settings = Gigpo {
        gamma: 1.0,
        divide_by_std: false,
        episode_weight: 0.0,
        states_from: StatesFrom::BatchOthers,
        ..Gigpo::default()
    };
    let spec = AdvantageSpec { estimator: Estimator::Gigpo(settings), kl_coef: 0.0, whiten: false };
    let found =
        advantages_of_roles(&spec, &RunningMoments::default(), &RoleBaselines::new(), &batch).unwrap();
    // The steps of the agents return 0.2 and 0 on average. "start": 1 − (−1 + 0.6 + 0.2)/3, "x": 1 − (0.6 + 0.2)/2,
    // "y": −1 − 0.2, "o": −1 − (1 + 0)/2.
    assert_near(&tokens(&found, 0, 0, 3), &[16.0 / 15.0, 0.6, -1.5]);
    assert_near(&tokens(&found, 1, 0, 3), &[-1.6, -1.2, 1.5]);
    assert_near(&tokens(&found, 2, 0, 3), &[8.0 / 15.0, 0.0, 0.0]);
    assert_eq!(found.report.states_seen_once, 2);
}
