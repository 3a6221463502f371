//! `rloom reward`: rewards before training.

mod calibrate;

use crate::arguments::Reward;
use crate::failure::Failure;
use crate::output::Output;

pub(crate) fn run(command: &Reward, output: Output) -> Result<(), Failure> {
    match command {
        Reward::Calibrate(arguments) => calibrate::run(arguments, output),
    }
}
