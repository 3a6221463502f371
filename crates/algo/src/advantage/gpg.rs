//! GPG: groups with contrast make up for those without.

use super::group::{Group, Raw};

/// α = samples / samples in groups whose rewards are not all equal; 0 where there are none.
pub(super) fn alpha(groups: &[Group<'_>]) -> f64 {
    let samples =
        |groups: &mut dyn Iterator<Item = &Group<'_>>| -> usize { groups.map(|g| g.present().count()).sum() };
    let all = samples(&mut groups.iter());
    match samples(&mut groups.iter().filter(|g| !g.is_level())) {
        0 => 0.0,
        with_contrast => all as f64 / with_contrast as f64,
    }
}

/// α(R_i − mean).
pub(super) fn group(group: &Group<'_>, alpha: f64) -> Vec<Raw> {
    let of_group = group.moments();
    group.shared(|r| if of_group.no_spread() { 0.0 } else { alpha * (r - of_group.mean) })
}
