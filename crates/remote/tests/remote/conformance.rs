//! The conformance suite of rollout engines over pools of stand-ins.

use rloom_engine::conformance::RolloutSuite;

use crate::stand_in::{Protocol, StandIn};
use crate::support::{Trainer, pool_of, run, settings};

fn conforms(protocols: &[Protocol]) {
    let replicas = protocols.len();
    let stand_ins: Vec<StandIn> = protocols.iter().map(|&protocol| StandIn::at(0, protocol)).collect();
    let pool = pool_of(&stand_ins.iter().collect::<Vec<_>>(), &settings(replicas));
    let trainer = Trainer::new();
    assert_eq!(run(RolloutSuite::new(&pool, &trainer, 1e-4).run()), Ok(()));
    assert_eq!(pool.failures(), []);
}

#[test]
fn a_pool_of_one_replica_conforms() {
    conforms(&[Protocol::Vllm]);
}

#[test]
fn a_pool_of_two_replicas_conforms() {
    conforms(&[Protocol::Vllm; 2]);
}

#[test]
fn a_pool_of_another_server_conforms() {
    conforms(&[Protocol::Sglang]);
}

#[test]
fn a_pool_of_both_servers_conforms() {
    conforms(&[Protocol::Sglang, Protocol::Vllm]);
}
