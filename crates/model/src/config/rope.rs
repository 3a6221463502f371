//! Rotary frequencies: theta and the supported scalings.

use std::f64::consts::{PI, TAU};

use serde_json::{Map, Value, json};

use super::fields::Fields;
use super::{ConfigError, Inconsistency};

/// Scaling of the rotary frequencies for longer contexts.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum RopeScaling {
    /// No scaling.
    #[default]
    None,
    /// All frequencies divided by one factor (position interpolation; Chen et al., 2023, arXiv:2306.15595).
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// Llama 3.1: long wavelengths are divided by the factor, short ones are unchanged, those in between are
    /// interpolated.
    Llama3 {
        /// The divisor of long wavelengths.
        factor: f64,
        /// Wavelengths above `original_max_positions / low_freq_factor` are divided.
        low_freq_factor: f64,
        /// Wavelengths below `original_max_positions / high_freq_factor` are unchanged.
        high_freq_factor: f64,
        /// Context length of the original training.
        original_max_positions: usize,
    },
    /// YaRN (Peng et al., 2023, arXiv:2309.00071): low frequencies are divided by the factor, high ones are unchanged, those in
    /// between are interpolated by their index, and rotated queries and keys are multiplied by a factor.
    Yarn {
        /// The divisor of low frequencies.
        factor: f64,
        /// Frequencies with more rotations than this within the original context are unchanged.
        beta_fast: f64,
        /// Frequencies with fewer rotations than this are divided.
        beta_slow: f64,
        /// Context length of the original training.
        original_max_positions: usize,
        /// The bounds are rounded to whole indices, away from each other.
        truncate: bool,
        /// Factor of the rotated queries and keys.
        attention_factor: f64,
    },
}

impl RopeScaling {
    /// `[head_dim / 2]` radians per position.
    pub(super) fn inverse_frequencies(self, theta: f64, head_dim: usize) -> Vec<f32> {
        (0..head_dim / 2)
            .map(|i| {
                // Exponent and power are rounded to f32 where `transformers` has them in f32.
                let exponent = (2 * i) as f32 / head_dim as f32;
                let plain = 1.0 / theta.powf(f64::from(exponent)) as f32;
                match self.interpolated_indices(theta, head_dim) {
                    Some((factor, [low, high])) => {
                        let share = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
                        let plain = f64::from(plain);
                        (share * plain / factor + (1.0 - share) * plain) as f32
                    }
                    None => self.scaled(f64::from(plain)) as f32,
                }
            })
            .collect()
    }

    /// Factor of the rotated queries and of the rotated keys.
    pub(super) fn rotary_scale(self) -> f64 {
        match self {
            Self::Yarn { attention_factor, .. } => attention_factor,
            Self::None | Self::Linear { .. } | Self::Llama3 { .. } => 1.0,
        }
    }

    /// YaRN's factor, and the indices between which frequencies are interpolated.
    fn interpolated_indices(self, theta: f64, head_dim: usize) -> Option<(f64, [f64; 2])> {
        let Self::Yarn { factor, beta_fast, beta_slow, original_max_positions, truncate, .. } = self else {
            return None;
        };
        // Index of the frequency with this number of rotations within the original context.
        let index = |rotations: f64| {
            let positions = original_max_positions as f64;
            head_dim as f64 * (positions / (rotations * 2.0 * PI)).ln() / (2.0 * theta.ln())
        };
        let (mut low, mut high) = (index(beta_fast), index(beta_slow));
        if truncate {
            (low, high) = (low.floor(), high.ceil());
        }
        let last = head_dim as f64 - 1.0;
        (low, high) = (low.clamp(0.0, last), high.clamp(0.0, last));
        // The width that `transformers` uses in place of 0.
        Some((factor, [low, if low == high { high + 0.001 } else { high }]))
    }

    /// Divisor of the frequencies that are scaled.
    pub fn factor(self) -> f64 {
        match self {
            Self::None => 1.0,
            Self::Linear { factor } | Self::Llama3 { factor, .. } | Self::Yarn { factor, .. } => factor,
        }
    }

    fn scaled(self, frequency: f64) -> f64 {
        match self {
            Self::None | Self::Yarn { .. } => frequency,
            Self::Linear { factor } => frequency / factor,
            Self::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_positions } => {
                let original = original_max_positions as f64;
                let wavelength = TAU / frequency;
                if wavelength > original / low_freq_factor {
                    frequency / factor
                } else if wavelength < original / high_freq_factor {
                    frequency
                } else {
                    let share =
                        (original / wavelength - low_freq_factor) / (high_freq_factor - low_freq_factor);
                    (1.0 - share) * frequency / factor + share * frequency
                }
            }
        }
    }

    /// The `rope_scaling` object, without theta; `None` without scaling.
    pub(super) fn to_json(self) -> Option<Map<String, Value>> {
        let value = match self {
            Self::None => return None,
            Self::Linear { factor } => json!({ "rope_type": "linear", "factor": factor }),
            Self::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_positions } => json!({
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": low_freq_factor,
                "high_freq_factor": high_freq_factor,
                "original_max_position_embeddings": original_max_positions,
            }),
            Self::Yarn {
                factor,
                beta_fast,
                beta_slow,
                original_max_positions,
                truncate,
                attention_factor,
            } => json!({
                "rope_type": "yarn",
                "factor": factor,
                "beta_fast": beta_fast,
                "beta_slow": beta_slow,
                "original_max_position_embeddings": original_max_positions,
                "truncate": truncate,
                "attention_factor": attention_factor,
            }),
        };
        value.as_object().cloned()
    }
}

/// Reads theta and scaling from `rope_theta`, `rope_scaling` and `rope_parameters`, which must agree.
pub(super) fn read(fields: Fields<'_>, max_positions: usize) -> Result<(f64, RopeScaling), ConfigError> {
    let mut theta = fields.number("rope_theta")?;
    let mut scaling = None;
    for (name, prefix) in [("rope_scaling", "rope_scaling."), ("rope_parameters", "rope_parameters.")] {
        let Some(map) = fields.object(name)? else { continue };
        let inner = Fields { map, path: fields.path, prefix };
        let found = read_scaling(inner, max_positions)?;
        let disagree = || ConfigError::Inconsistent {
            path: fields.path.to_owned(),
            problem: Inconsistency::RopeSpellings { field: name },
        };
        if scaling.is_some_and(|scaling| scaling != found) {
            return Err(disagree());
        }
        scaling = Some(found);
        if let Some(inner_theta) = inner.number("rope_theta")? {
            if theta.is_some_and(|theta| theta != inner_theta) {
                return Err(disagree());
            }
            theta = Some(inner_theta);
        }
    }
    Ok((theta.unwrap_or(10_000.0), scaling.unwrap_or_default()))
}

fn read_scaling(fields: Fields<'_>, max_positions: usize) -> Result<RopeScaling, ConfigError> {
    const KNOWN: [&str; 14] = [
        "rope_type",
        "type",
        "rope_theta",
        "factor",
        "low_freq_factor",
        "high_freq_factor",
        "original_max_position_embeddings",
        "partial_rotary_factor",
        "beta_fast",
        "beta_slow",
        "mscale",
        "mscale_all_dim",
        "truncate",
        "attention_factor",
    ];
    const HINT: &str = "supported are default, linear, llama3 and yarn";
    for (name, value) in fields.map {
        if !KNOWN.contains(&name.as_str()) && !value.is_null() {
            return Err(fields.unsupported(name, value, "it changes the rotary embedding", HINT));
        }
    }
    super::unsupported::check_partial_rotary(fields)?;
    let number = |name| positive(fields, name)?.ok_or_else(|| fields.missing(name));
    let kind = match fields.text("rope_type")? {
        Some(kind) => kind,
        None => fields.text("type")?.unwrap_or("default"),
    };
    match kind {
        "default" => Ok(RopeScaling::None),
        "linear" => Ok(RopeScaling::Linear { factor: number("factor")? }),
        "llama3" => {
            let scaling = RopeScaling::Llama3 {
                factor: number("factor")?,
                low_freq_factor: number("low_freq_factor")?,
                high_freq_factor: number("high_freq_factor")?,
                original_max_positions: fields
                    .count("original_max_position_embeddings")?
                    .unwrap_or(max_positions),
            };
            if number("high_freq_factor")? <= number("low_freq_factor")? {
                return Err(ConfigError::Inconsistent {
                    path: fields.path.to_owned(),
                    problem: Inconsistency::FrequencyFactors {
                        object: fields.prefix.trim_end_matches('.').to_owned(),
                    },
                });
            }
            Ok(scaling)
        }
        "yarn" => read_yarn(fields, max_positions),
        other => Err(fields.unsupported("rope_type", &json!(other), "the scaling is not supported", HINT)),
    }
}

/// A number above 0, if there is one.
fn positive(fields: Fields<'_>, name: &str) -> Result<Option<f64>, ConfigError> {
    match fields.number(name)? {
        Some(value) if !(value.is_finite() && value > 0.0) => {
            Err(fields.wrong(name, "a positive number", &json!(value)))
        }
        value => Ok(value),
    }
}

/// Settings of YaRN, with the defaults of `transformers`.
fn read_yarn(fields: Fields<'_>, max_positions: usize) -> Result<RopeScaling, ConfigError> {
    let original_max_positions =
        fields.count("original_max_position_embeddings")?.unwrap_or(max_positions).max(1);
    let factor = match positive(fields, "factor")? {
        Some(factor) => factor,
        None => max_positions as f64 / original_max_positions as f64,
    };
    let magnitude = |scale: f64| if factor <= 1.0 { 1.0 } else { 0.1 * scale * factor.ln() + 1.0 };
    let default_factor = match (positive(fields, "mscale")?, positive(fields, "mscale_all_dim")?) {
        (Some(own), Some(all)) => magnitude(own) / magnitude(all),
        _ => magnitude(1.0),
    };
    let beta_fast = positive(fields, "beta_fast")?.unwrap_or(32.0);
    let beta_slow = positive(fields, "beta_slow")?.unwrap_or(1.0);
    let attention_factor = positive(fields, "attention_factor")?.unwrap_or(default_factor);
    let inconsistent = |problem| Err(ConfigError::Inconsistent { path: fields.path.to_owned(), problem });
    if beta_fast <= beta_slow {
        let object = fields.prefix.trim_end_matches('.').to_owned();
        return inconsistent(Inconsistency::RotationBounds { object });
    }
    if !(attention_factor as f32).is_normal() {
        return inconsistent(Inconsistency::NotPositive {
            field: "attention_factor",
            value: attention_factor,
        });
    }
    let truncate = fields.flag("truncate")?.unwrap_or(true);
    Ok(RopeScaling::Yarn { factor, beta_fast, beta_slow, original_max_positions, truncate, attention_factor })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn llama3_scales_long_wavelengths_only() {
        let scaling = RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_positions: 8192,
        };
        let plain = RopeScaling::None.inverse_frequencies(500_000.0, 128);
        let scaled = scaling.inverse_frequencies(500_000.0, 128);
        assert_eq!(scaled[0], plain[0]);
        assert_eq!(scaled[63], plain[63] / 8.0);
        assert!(scaled.iter().zip(&plain).any(|(s, p)| *s < *p && *s > *p / 8.0), "some are interpolated");
    }
}
