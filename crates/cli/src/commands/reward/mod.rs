//! `rloom reward`: rewards without training.

mod calibrate;
mod test;
mod view;

use crate::arguments::Reward;
use crate::failure::Failure;
use crate::output::Output;

pub(crate) fn run(command: &Reward, output: Output) -> Result<(), Failure> {
    match command {
        Reward::Test(arguments) => test::run(arguments, output),
        Reward::Calibrate(arguments) => calibrate::run(arguments, output),
    }
}
