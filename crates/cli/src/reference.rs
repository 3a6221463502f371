//! The page of the commands, `docs/reference/commands.md`, generated from their arguments. A stale page fails the test;
//! `UPDATE_REFERENCE=1` rewrites it.

use std::fmt::Write as _;
use std::path::Path;

use clap::builder::StyledStr;
use clap::{Arg, Command, CommandFactory};

use crate::arguments::Cli;

const INTRODUCTION: &str = "\
# Commands

<!-- Generated from the arguments. To update: UPDATE_REFERENCE=1 cargo test -p rloom --bin rloom reference -->

Data goes to standard output, everything else to standard error.
";

/// Arguments that clap adds to every command.
const BUILT_IN: [&str; 2] = ["help", "version"];

#[test]
fn commands_page_is_current() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/commands.md");
    let page = page();
    if std::env::var_os("UPDATE_REFERENCE").is_some() {
        std::fs::write(&file, page).unwrap();
        return;
    }
    let present = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(
        present == page,
        "docs/reference/commands.md is stale; run UPDATE_REFERENCE=1 cargo test -p rloom --bin rloom reference"
    );
}

fn page() -> String {
    let mut cli = Cli::command();
    cli.build();
    let mut page = INTRODUCTION.to_owned();
    page.push_str("\n## Options of all commands\n");
    arguments(&mut page, cli.get_arguments().filter(|argument| argument.is_global_set()));
    for command in cli.get_subcommands_mut() {
        write_command(&mut page, command);
    }
    page
}

fn write_command(page: &mut String, command: &mut Command) {
    if command.get_name() == "help" || command.is_hide_set() {
        return;
    }
    let name = command.get_bin_name().unwrap_or_else(|| command.get_name()).to_owned();
    let about = command.get_long_about().or(command.get_about());
    let about = about.map(ToString::to_string).unwrap_or_default();
    let usage = command.render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ");
    let _ = writeln!(page, "\n## `{name}`\n\n{about}\n\n```text\n{usage}\n```");
    arguments(page, command.get_arguments().filter(|argument| !argument.is_global_set()));
    for command in command.get_subcommands_mut() {
        write_command(page, command);
    }
}

/// Writes the table of arguments.
fn arguments<'a>(page: &mut String, arguments: impl Iterator<Item = &'a Arg>) {
    let shown = |argument: &&Arg| !argument.is_hide_set() && !BUILT_IN.contains(&argument.get_id().as_str());
    let mut arguments = arguments.filter(shown).peekable();
    if arguments.peek().is_none() {
        return;
    }
    page.push_str("\n| argument | default | description |\n| --- | --- | --- |\n");
    for argument in arguments {
        let default = argument.get_default_values().iter().map(|value| format!("`{}`", value.display()));
        let default = default.collect::<Vec<_>>().join(", ");
        let _ = writeln!(page, "| `{}` | {default} | {} |", name(argument), help(argument));
    }
}

/// Syntax of an argument: `-m, --model <MODEL>`.
fn name(argument: &Arg) -> String {
    let takes_value = argument.get_action().takes_values();
    let names = argument.get_value_names().unwrap_or_default();
    let values = names.iter().map(|name| format!(" <{name}>")).collect::<Vec<_>>().concat();
    let flags = [
        argument.get_short().map(|short| format!("-{short}")),
        argument.get_long().map(|long| format!("--{long}")),
    ];
    let flags = flags.into_iter().flatten().collect::<Vec<_>>().join(", ");
    let values = if takes_value { values.as_str() } else { "" };
    format!("{flags}{values}").trim().replace('|', "\\|")
}

/// Description in one line, with the values of an enumeration.
fn help(argument: &Arg) -> String {
    let text = argument.get_long_help().or(argument.get_help()).map(StyledStr::to_string).unwrap_or_default();
    let mut text = text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|");
    if !argument.get_action().takes_values() {
        return text;
    }
    let values: Vec<_> = argument.get_possible_values();
    for value in values.iter().filter(|value| !value.is_hide_set()) {
        let help = value.get_help().map(|help| format!(": {help}")).unwrap_or_default();
        let _ = write!(text, "<br>`{}`{help}", value.get_name());
    }
    text
}
