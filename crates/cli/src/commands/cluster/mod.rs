//! `rloom cluster`: the processes of a run on its machines.

mod logs;

use rloom_run::{ControlCommand, Processes, control, processes_of};
use serde_json::json;

use super::train::find_run;
use crate::arguments::Cluster;
use crate::failure::Failure;
use crate::output::{BOLD, Output};

pub(crate) fn run(command: &Cluster, output: Output) -> Result<(), Failure> {
    match command {
        Cluster::Ps { run } => {
            let processes = processes_of(&find_run(run)?).map_err(Failure::failed)?;
            if output.json { output.json(&processes) } else { list(&processes, output.on_stdout()) }
        }
        Cluster::Scale { run, replicas } => {
            send(&find_run(run)?, &ControlCommand::Scale { replicas: *replicas }, output)
        }
        Cluster::Drain { run, replica } => {
            send(&find_run(run)?, &ControlCommand::Drain { replica: *replica }, output)
        }
        Cluster::Logs(arguments) => logs::run(arguments, output),
    }
}

fn send(run: &std::path::Path, command: &ControlCommand, output: Output) -> Result<(), Failure> {
    let done = control(run, command).map_err(Failure::failed)?;
    if output.json { output.json(&json!({ "done": done })) } else { output.data(&done) }
}

/// A table of the processes.
fn list(processes: &Processes, output: Output) -> Result<(), Failure> {
    let Processes { controller, hostname, processes } = processes;
    let mut rows =
        vec![["NODE".to_owned(), "HOST".to_owned(), "PID".to_owned(), "ROLE".to_owned(), "NAME".to_owned()]];
    rows.push(["-".to_owned(), hostname.clone(), controller.to_string(), "run".to_owned(), String::new()]);
    rows.extend(processes.iter().map(|process| {
        let (node, pid) = (process.machine.to_string(), process.pid.to_string());
        [node, process.hostname.clone(), pid, process.role.clone(), process.name.clone()]
    }));
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths = [width(0), width(1), width(2), width(3), 0];
    for (index, row) in rows.iter().enumerate() {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
        let line = cells.collect::<Vec<_>>().join("  ");
        let line = line.trim_end();
        output.data(&if index == 0 { output.paint(BOLD, line) } else { line.to_owned() })?;
    }
    Ok(())
}
