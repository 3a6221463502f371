//! Replaced groups, masked episodes and the overlong penalty.

use proptest::prelude::*;
use rloom_algo::{EpisodeRewards, FilterReason, Filters, GroupRewards, Keep, MaskReason, Overlong};
use rloom_core::Role;

const DYNAMIC: Filters = Filters { dynamic_sampling: true, ..NONE };
const NONE: Filters = Filters {
    dynamic_sampling: false,
    keep: None,
    pairs: false,
    function: None,
    max_draws: 10,
    mask_truncated: false,
    mask_zero_variance: false,
    min_tokens: None,
    max_tokens: None,
};

#[test]
fn groups_with_equal_outcomes_are_replaced() {
    let verdict = |outcomes: &[Option<f64>]| DYNAMIC.verdict(outcomes, outcomes);
    assert_eq!(verdict(&[Some(1.0), Some(0.0)]), None);
    assert_eq!(verdict(&[Some(1.0), None, Some(1.0)]), Some(FilterReason::EqualOutcomes));
    assert_eq!(verdict(&[Some(0.1 + 0.2), Some(0.3)]), Some(FilterReason::EqualOutcomes));
    assert_eq!(verdict(&[Some(0.3), Some(0.3 + 1e-6)]), None);
    assert_eq!(verdict(&[Some(0.3), None]), Some(FilterReason::EqualOutcomes), "one is nothing to compare");
    assert_eq!(verdict(&[None, None]), Some(FilterReason::NoOutcome));
    assert_eq!(verdict(&[]), Some(FilterReason::NoOutcome));
    for outcomes in [&[Some(1.0), Some(1.0)][..], &[None], &[]] {
        assert_eq!(NONE.verdict(outcomes, outcomes), None);
    }
}

#[test]
fn groups_without_a_pair_are_replaced() {
    let pairs = Filters { pairs: true, ..NONE };
    let verdict = |rewards: &[Option<f64>]| pairs.verdict(&vec![None; rewards.len()], rewards);
    assert_eq!(verdict(&[Some(1.0), Some(0.0)]), None, "rewards are compared, not outcomes");
    assert_eq!(verdict(&[Some(1.0), Some(1.0)]), Some(FilterReason::TiedRewards));
    assert_eq!(verdict(&[Some(1.0), Some(0.5), Some(1.0)]), None);
    assert_eq!(verdict(&[Some(1.0), None]), Some(FilterReason::TiedRewards));
    assert_eq!(verdict(&[None, None]), Some(FilterReason::NoOutcome));
    let both = Filters { pairs: true, ..DYNAMIC };
    let shaped = both.verdict(&[Some(1.0), Some(1.0)], &[Some(1.0), Some(0.5)]);
    assert_eq!(shaped, Some(FilterReason::EqualOutcomes));
    assert!(pairs.replaces_groups());
}

#[test]
fn groups_without_kept_episodes_are_replaced() {
    let positive = Filters { keep: Some(Keep::Positive), ..NONE };
    assert_eq!(
        positive.verdict(&[Some(0.0), Some(-1.0)], &[Some(0.0), Some(-1.0)]),
        Some(FilterReason::NoneKept)
    );
    assert_eq!(positive.verdict(&[None, Some(1.0)], &[None, Some(1.0)]), None);
    assert_eq!(
        positive.verdict(&[Some(1.0), Some(1.0)], &[Some(1.0), Some(1.0)]),
        None,
        "equal outcomes are kept unless dynamic sampling is on"
    );
    let both = Filters { keep: Some(Keep::Positive), ..DYNAMIC };
    assert_eq!(
        both.verdict(&[Some(1.0), Some(1.0)], &[Some(1.0), Some(1.0)]),
        Some(FilterReason::EqualOutcomes)
    );
    assert_eq!(both.verdict(&[Some(0.0), Some(0.0)], &[Some(0.0), Some(0.0)]), Some(FilterReason::NoneKept));
    let best = Filters { keep: Some(Keep::Best), ..NONE };
    assert_eq!(best.verdict(&[Some(0.0), Some(-1.0)], &[Some(0.0), Some(-1.0)]), None);
    assert_eq!(best.verdict(&[Some(0.0), None], &[Some(0.0), None]), Some(FilterReason::NoneKept));
    assert_eq!(best.verdict(&[None], &[None]), Some(FilterReason::NoOutcome));
    // `keep` depends on the rewards, like the advantage; dynamic sampling depends on the outcomes.
    assert_eq!(positive.verdict(&[Some(0.0), Some(0.0)], &[Some(0.2), Some(0.0)]), None);
    assert_eq!(
        positive.verdict(&[Some(1.0), Some(1.0)], &[Some(-0.5), Some(0.0)]),
        Some(FilterReason::NoneKept)
    );
    assert_eq!(
        both.verdict(&[Some(1.0), Some(1.0)], &[Some(0.5), Some(1.0)]),
        Some(FilterReason::EqualOutcomes)
    );
    assert!(best.replaces_groups() && DYNAMIC.replaces_groups() && !NONE.replaces_groups());
}

#[test]
fn reasons_have_names_for_metrics() {
    let names: Vec<&str> = FilterReason::ALL.iter().map(|r| r.name()).collect();
    assert_eq!(
        names,
        [
            "no_outcome",
            "equal_outcomes",
            "too_hard",
            "too_easy",
            "low_spread",
            "none_kept",
            "tied_rewards",
            "function"
        ]
    );
    let names: Vec<&str> = MaskReason::ALL.iter().map(|r| r.name()).collect();
    assert_eq!(names, ["truncated", "zero_variance", "too_short", "too_long"]);
}

#[test]
fn episodes_are_masked() {
    use MaskReason::{TooLong, TooShort, Truncated, ZeroVariance};
    let group = |rewards: [f64; 4]| {
        let mut episodes: Vec<EpisodeRewards<'_>> =
            rewards.into_iter().zip(2..).map(|(r, tokens)| EpisodeRewards::new(Some(r), tokens)).collect();
        episodes.push(EpisodeRewards { role: Role::Baseline, ..EpisodeRewards::new(Some(9.0), 100) });
        GroupRewards { episodes }
    };
    let (contrast, level) = (group([0.0, 1.0, 1.0, 0.0]), group([1.0; 4]));
    // The last one has no entry in `truncated`.
    let truncated = [false, true, false, true];
    assert_eq!(NONE.masks(&level, &truncated), [None; 5]);
    let cut = Filters { mask_truncated: true, ..NONE };
    assert_eq!(cut.masks(&level, &truncated), [None, Some(Truncated), None, Some(Truncated), None]);
    assert_eq!(cut.masks(&level, &[]), [None; 5]);
    let lengths = Filters { min_tokens: Some(3), max_tokens: Some(4), ..cut };
    let wanted = [Some(TooShort), Some(Truncated), None, Some(Truncated), None];
    assert_eq!(lengths.masks(&level, &truncated), wanted);
    let lengths = Filters { mask_truncated: false, ..lengths };
    assert_eq!(lengths.masks(&level, &truncated), [Some(TooShort), None, None, Some(TooLong), None]);
    let variance = Filters { mask_zero_variance: true, ..NONE };
    assert_eq!(variance.masks(&contrast, &truncated), [None; 5]);
    let all = Some(ZeroVariance);
    assert_eq!(variance.masks(&level, &truncated), [all, all, all, all, None]);
}

proptest! {
    /// 0 up to L − buffer, −factor from L on, falling in between by equal steps.
    #[test]
    fn overlong_falls_linearly(limit in 1u64..500, buffer in 1u64..800, factor in 0.1f64..3.0) {
        let overlong = Overlong { buffer: Some(buffer), factor };
        let buffer = buffer.min(limit); // a longer one is reduced to the limit
        let penalty = |tokens| overlong.penalty(tokens, limit);
        for tokens in 0..=limit - buffer {
            prop_assert_eq!(penalty(tokens).to_bits(), 0, "not -0 either");
        }
        let slope = factor / buffer as f64;
        for tokens in limit - buffer..limit {
            prop_assert!((penalty(tokens + 1) - penalty(tokens) + slope).abs() < 1e-12);
        }
        for past in [0, 1, 1000] {
            prop_assert_eq!(penalty(limit + past), -factor);
        }
    }

    #[test]
    fn overlong_buffer_is_a_fifth(limit in 1u64..500, tokens in 0u64..600) {
        let of = |buffer| Overlong { buffer, factor: 1.0 }.penalty(tokens, limit);
        prop_assert_eq!(of(None), of(Some((limit / 5).max(1))));
    }
}

/// DAPO's own numbers: 16,384 tokens and a buffer of 4,096 beyond them.
#[test]
fn overlong_as_dapo_has_it() {
    let overlong = Overlong { buffer: Some(4096), factor: 1.0 };
    for (tokens, wanted) in [(16_384, 0.0), (17_408, -0.25), (18_432, -0.5), (20_480, -1.0)] {
        assert_eq!(overlong.penalty(tokens, 20_480), wanted);
    }
    assert_eq!(Overlong { buffer: None, factor: 1.0 }.penalty(0, 0), 0.0);
}
