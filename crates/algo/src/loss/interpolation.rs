/// α of a token in the log-linear proximal policy old = beh + α(lp − beh): how far it lies on the way from the sampler to
/// the policy being trained, by their versions.
///
/// α = (v_prox − v_beh)/(v_θ − v_beh), and 0 where v_θ = v_beh. `v_prox` is the policy's version when the batch began to
/// train, `v_beh` the one that sampled the token. `v_theta` = v_prox + 1 while the batch trains: whatever the optimiser
/// step, what is trained is on its way to the next version. So a token of the newest version has α = 0 (its proximal
/// policy is its sampler), and one that is k versions old has α = k/(k + 1).
pub fn interpolation(v_prox: f64, v_beh: f64, v_theta: f64) -> f64 {
    if v_theta == v_beh { 0.0 } else { (v_prox - v_beh) / (v_theta - v_beh) }
}

#[cfg(test)]
mod tests {
    use super::interpolation;

    #[test]
    fn by_age() {
        assert_eq!(interpolation(7.0, 7.0, 8.0), 0.0);
        assert_eq!(interpolation(7.0, 6.0, 8.0), 0.5);
        assert_eq!(interpolation(7.0, 4.0, 8.0), 0.75);
        assert_eq!(interpolation(7.0, 7.0, 7.0), 0.0);
    }
}
