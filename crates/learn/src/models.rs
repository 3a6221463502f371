/// Train engines of the models that a batch updates.
#[derive(Debug)]
pub struct Models<E> {
    /// The policy.
    pub policy: E,
    /// The critic, if the learned value has a separate backbone.
    pub critic: Option<E>,
    /// The implicit process-reward model, whose reference are its initial weights.
    pub prm: Option<E>,
}
