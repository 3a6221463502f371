//! The `rloom` binary: commands, progress, diagnostics.
//!
//! A command parses its arguments, calls the other crates and prints their results. Data goes to standard output and
//! everything else to standard error; exit codes are defined in [`failure`].

mod arguments;
mod commands;
mod failure;
mod memory;
mod open_files;
mod output;
mod plan;
mod progress;
#[cfg(test)]
mod reference;
mod signals;

use std::process::ExitCode;

use clap::Parser;

use arguments::{Cli, Command};
use failure::Failure;
use output::Output;

fn main() -> ExitCode {
    if std::env::args_os().nth(1).is_some_and(|command| command == rloom_sandbox::COMMAND) {
        // Runs twice for each program, so it does not wait for the parser.
        return commands::sandbox::run();
    }
    let cli = Cli::parse();
    let output = Output::new(&cli.global);
    match run(cli.command, output) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            failure.report(output);
            ExitCode::from(failure.code())
        }
    }
}

fn run(command: Command, output: Output) -> Result<(), Failure> {
    match command {
        Command::Train(arguments) => commands::train::run(&arguments, output),
        Command::Eval(arguments) => commands::eval::run(&arguments, output),
        Command::Generate(arguments) => commands::generate::run(&arguments, output),
        Command::Chat(arguments) => commands::chat::run(&arguments, output),
        Command::Serve(arguments) => commands::serve::run(&arguments, output),
        Command::Inspect(arguments) => commands::inspect::run(&arguments, output),
        Command::Report(arguments) => commands::report::run(&arguments, output),
        Command::Export(arguments) => commands::export::run(&arguments, output),
        Command::Track(arguments) => commands::track::run(&arguments, output),
        Command::Plan(arguments) => commands::plan::run(&arguments, output),
        Command::Replay(arguments) => commands::replay::run(&arguments, output),
        Command::Algo { command } => commands::algo::run(&command, output),
        Command::Env { command } => commands::play::run(&command, output),
        Command::Reward { command } => commands::reward::run(&command, output),
        Command::Bench(arguments) => commands::bench::run(&arguments, output),
        Command::Engines { command } => commands::engines::run(&command, output),
        Command::Cluster { command } => commands::cluster::run(&command, output),
        Command::Doctor(arguments) => commands::doctor::run(&arguments, output),
        Command::Node(arguments) => commands::node::run(arguments),
        Command::Guard(arguments) => commands::node::guard(&arguments),
    }
}
