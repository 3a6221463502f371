//! The policy loss and its own knobs.

use super::reader::{Reader, checked, read};
use crate::{
    AlgoError, Cispo, ClipCov, Divergence, Dppo, Gmpo, Gspo, KlCov, Level, LossKind, PpoClip, Reinforce,
    Sapo, Surrogate, Topr,
};

/// ε_low and ε_high of a ratio.
fn clip(r: &mut Reader, low: f64, high: f64) -> Result<(f64, f64), AlgoError> {
    let low = read!(r.clip_low or low);
    let low = checked(
        "clip_low",
        low,
        |v| v > 0.0 && v < 1.0,
        "between 0 and 1: the ratio's lower bound is 1 - clip_low",
        "0.2 is usual",
    )?;
    let high = read!(r.clip_high or high);
    let high = checked(
        "clip_high",
        high,
        |v| v > 0.0,
        "above 0: the ratio's upper bound is 1 + clip_high",
        "0.2 is usual, 0.28 for clip-higher",
    )?;
    Ok((low, high))
}

fn ppo_clip(r: &mut Reader) -> Result<PpoClip, AlgoError> {
    let (clip_low, clip_high) = clip(r, 0.2, 0.2)?;
    let dual_clip = read!(r.dual_clip?);
    if let Some(c) = dual_clip {
        checked(
            "dual_clip",
            c,
            |c| c > 1.0,
            "above 1: it bounds the ratio of tokens with a negative advantage, and that starts at 1",
            "3.0 is usual; leave it out for no dual clip",
        )?;
    }
    Ok(PpoClip { clip_low, clip_high, dual_clip })
}

fn gspo(r: &mut Reader, level: Level) -> Result<Gspo, AlgoError> {
    let (clip_low, clip_high) = clip(r, 3e-4, 4e-4)?;
    Ok(Gspo { level, clip_low, clip_high })
}

fn gmpo(r: &mut Reader) -> Result<Gmpo, AlgoError> {
    let bound =
        |key, value| checked(key, value, |v| v > 0.0, "above 0: it bounds a log-ratio", "0.4 is the paper's");
    Ok(Gmpo {
        clip_low: bound("clip_low", read!(r.clip_low or 0.4))?,
        clip_high: bound("clip_high", read!(r.clip_high or 0.4))?,
    })
}

fn cispo(r: &mut Reader) -> Result<Cispo, AlgoError> {
    let cap = read!(r.weight_cap or 5.0);
    let cap = checked("weight_cap", cap, |v| v > 0.0, "above 0", "5.0 is usual")?;
    let floor = read!(r.weight_floor or 0.0);
    let floor =
        checked("weight_floor", floor, |v| v >= 0.0 && v <= cap, "from 0 to weight_cap", "0 for no floor")?;
    Ok(Cispo { cap, floor })
}

fn sapo(r: &mut Reader) -> Result<Sapo, AlgoError> {
    let tau = |key, value| {
        checked(key, value, |v| v > 0.0, "above 0", "1.0 for A > 0 and 1.05 for A < 0 are the paper's")
    };
    Ok(Sapo {
        tau_positive: tau("tau_positive", read!(r.tau_positive or 1.0))?,
        tau_negative: tau("tau_negative", read!(r.tau_negative or 1.05))?,
    })
}

fn dppo(r: &mut Reader, divergence: Divergence, limit: f64) -> Result<Dppo, AlgoError> {
    let limit = read!(r.divergence_limit or limit);
    let limit = checked(
        "divergence_limit",
        limit,
        |v| v > 0.0,
        "above 0",
        "0.2 is usual for total variation, 0.05 for binary KL",
    )?;
    let cap = read!(r.weight_cap or 20.0);
    let cap = checked("weight_cap", cap, |v| v > 0.0, "above 0", "20 is usual")?;
    Ok(Dppo { divergence, limit, cap })
}

fn share(r: &mut Reader) -> Result<f64, AlgoError> {
    let share = read!(r.cov_share or 2e-4);
    checked("cov_share", share, |v| v > 0.0 && v < 1.0, "between 0 and 1", "2e-4 is the paper's")
}

fn clip_cov(r: &mut Reader) -> Result<ClipCov, AlgoError> {
    let clip = ppo_clip(r)?;
    let share = share(r)?;
    let low = checked("cov_low", read!(r.cov_low or 1.0), |_| true, "a number", "1 is the paper's")?;
    let high = read!(r.cov_high or 5.0);
    let high = checked("cov_high", high, |v| v > low, "above cov_low", "5 is the paper's")?;
    Ok(ClipCov { clip, share, low, high })
}

fn kl_cov(r: &mut Reader) -> Result<KlCov, AlgoError> {
    let share = share(r)?;
    let coef = read!(r.cov_coef or 1.0);
    Ok(KlCov { share, coef: checked("cov_coef", coef, |v| v > 0.0, "above 0", "1 is the paper's")? })
}

pub(super) fn surrogate(r: &mut Reader) -> Result<Surrogate, AlgoError> {
    Ok(match read!(r.loss or LossKind::PpoClip) {
        LossKind::PpoClip => Surrogate::PpoClip(ppo_clip(r)?),
        LossKind::Reinforce => Surrogate::Reinforce(Reinforce { level: read!(r.level or Level::Token) }),
        LossKind::Gspo => Surrogate::Gspo(gspo(r, Level::Sequence)?),
        LossKind::GspoToken => Surrogate::Gspo(gspo(r, Level::Token)?),
        LossKind::Gmpo => Surrogate::Gmpo(gmpo(r)?),
        LossKind::Cispo => Surrogate::Cispo(cispo(r)?),
        LossKind::Sapo => Surrogate::Sapo(sapo(r)?),
        LossKind::Topr => Surrogate::Topr(Topr { level: read!(r.level or Level::Sequence) }),
        LossKind::DppoTv => Surrogate::Dppo(dppo(r, Divergence::TotalVariation, 0.2)?),
        LossKind::DppoKl => Surrogate::Dppo(dppo(r, Divergence::BinaryKl, 0.05)?),
        LossKind::ClipCov => Surrogate::ClipCov(clip_cov(r)?),
        LossKind::KlCov => Surrogate::KlCov(kl_cov(r)?),
    })
}
