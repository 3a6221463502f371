//! Draws a curve as one line of text.

const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Draws `values` in at most `width` characters, scaled from the lowest to the highest shown. If there are more values
/// than characters, each character shows a mean of consecutive values. Values that are not finite are left out.
pub(crate) fn sparkline(values: &[f64], width: usize) -> String {
    let finite: Vec<f64> = values.iter().copied().filter(|v| v.is_finite()).collect();
    let columns = finite.len().min(width);
    let means: Vec<f64> = (0..columns)
        .map(|c| {
            let part = &finite[c * finite.len() / columns..(c + 1) * finite.len() / columns];
            part.iter().sum::<f64>() / part.len() as f64
        })
        .collect();
    let low = means.iter().copied().fold(f64::INFINITY, f64::min);
    let high = means.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    means
        .iter()
        .map(|&v| {
            let share = if high > low { (v - low) / (high - low) } else { 0.5 };
            LEVELS[((share * LEVELS.len() as f64) as usize).min(LEVELS.len() - 1)]
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_rises_from_the_lowest_to_the_highest_level() {
        assert_eq!(sparkline(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], 8), "▁▂▃▄▅▆▇█");
        assert_eq!(sparkline(&[0.0, 0.0, 1.0, 1.0], 2), "▁█");
        assert_eq!(sparkline(&[2.0, 2.0], 8), "▅▅");
        assert_eq!(sparkline(&[], 8), "");
        assert_eq!(sparkline(&[f64::NAN, 1.0, 2.0], 8), "▁█");
    }
}
