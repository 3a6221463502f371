/// α of a token in the log-linear proximal policy old = beh + α(lp − beh): its position between the sampler and the
/// policy being trained, by version.
///
/// α = (v_prox − v_beh)/(v_θ − v_beh), and 0 if v_θ = v_beh. `v_prox` is the policy version at the start of
/// the batch, `v_beh` the one that sampled the token, and `v_theta` = v_prox + 1 in every optimiser step of the batch,
/// which produces the next version. A token of the newest version therefore has α = 0 (its proximal policy is its
/// sampler), and one that is k versions old has α = k/(k + 1).
pub fn interpolation(v_prox: f64, v_beh: f64, v_theta: f64) -> f64 {
    if v_theta == v_beh { 0.0 } else { (v_prox - v_beh) / (v_theta - v_beh) }
}

#[cfg(test)]
mod tests {
    use super::interpolation;

    #[test]
    fn position_depends_on_age() {
        assert_eq!(interpolation(7.0, 7.0, 8.0), 0.0);
        assert_eq!(interpolation(7.0, 6.0, 8.0), 0.5);
        assert_eq!(interpolation(7.0, 4.0, 8.0), 0.75);
        assert_eq!(interpolation(7.0, 7.0, 7.0), 0.0);
    }
}
