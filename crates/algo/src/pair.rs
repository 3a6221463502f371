//! Preference pairs among the samples of a group.

use crate::advantage::no_spread;

/// Indices of the highest and of the lowest reward, of several equal ones the first; `None` if no two rewards differ by more
/// than the resolution of `f32`. Episodes to which no reward applies are not compared.
pub fn best_and_worst(rewards: &[Option<f64>]) -> Option<(usize, usize)> {
    let present = || rewards.iter().enumerate().filter_map(|(i, reward)| Some((i, (*reward)?)));
    if no_spread(present().map(|(_, reward)| reward)) {
        return None;
    }
    let (first, rest) = (present().next()?, present().skip(1));
    let (best, worst) = rest.fold((first, first), |(best, worst), one| {
        (if one.1 > best.1 { one } else { best }, if one.1 < worst.1 { one } else { worst })
    });
    Some((best.0, worst.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_equal_ones_is_taken() {
        let of = |rewards: &[f64]| best_and_worst(&rewards.iter().copied().map(Some).collect::<Vec<_>>());
        assert_eq!(of(&[0.2, 0.9]), Some((1, 0)));
        assert_eq!(of(&[0.9, 0.2]), Some((0, 1)));
        assert_eq!(of(&[0.5, 1.0, 0.0, 1.0, 0.0]), Some((1, 2)));
        assert_eq!(of(&[-1.0, -3.0, -2.0]), Some((0, 1)));
    }

    #[test]
    fn ties_are_no_pair() {
        assert_eq!(best_and_worst(&[Some(1.0), Some(1.0)]), None);
        assert_eq!(best_and_worst(&[Some(0.1 + 0.2), Some(0.3)]), None, "equal up to rounding");
        assert_eq!(best_and_worst(&[Some(1.0), None]), None);
        assert_eq!(best_and_worst(&[None, None]), None);
        assert_eq!(best_and_worst(&[]), None);
        assert_eq!(best_and_worst(&[None, Some(0.0), Some(1.0)]), Some((2, 1)));
    }
}
