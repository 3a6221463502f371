/// Train engines of the models that a batch updates.
#[derive(Debug)]
pub struct Models<E> {
    /// The policy.
    pub policy: E,
    /// The critic, if the learned value has a backbone of its own.
    pub critic: Option<E>,
    /// The implicit process-reward model; its reference is what it started from.
    pub prm: Option<E>,
}
