//! `rloom cluster`: runs on several machines.

mod manifest;

use crate::arguments::Cluster;
use crate::failure::Failure;
use crate::output::Output;

pub(crate) fn run(command: &Cluster, output: Output) -> Result<(), Failure> {
    match command {
        Cluster::Manifest(arguments) => manifest::run(arguments, output),
    }
}
