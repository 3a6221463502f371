use rloom_core::PolicyId;

/// Train engines of the models that a batch updates.
#[derive(Debug)]
pub struct Models<E> {
    /// The policy; with several the main one.
    pub policy: E,
    /// The critic, if the learned value has a separate backbone.
    pub critic: Option<E>,
    /// The implicit process-reward model, whose reference are its initial weights.
    pub prm: Option<E>,
    /// Further policies that are trained. Frozen ones have no train engine.
    pub further: Vec<FurtherPolicy<E>>,
}

/// A further policy of a run, with an optimiser of its own.
#[derive(Debug)]
pub struct FurtherPolicy<E> {
    /// Its id in the trajectories that it has sampled.
    pub id: PolicyId,
    /// Its name in the configuration, in metrics and in checkpoints.
    pub name: String,
    /// Its train engine.
    pub engine: E,
    /// Its learning rate as a multiple of that of the main policy.
    pub learning_rate_scale: f64,
}

impl<E> Models<E> {
    /// One policy without further models.
    pub fn of_policy(policy: E) -> Self {
        Self { policy, critic: None, prm: None, further: Vec::new() }
    }
}
