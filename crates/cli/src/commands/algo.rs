//! `rloom algo`: lists the algorithms and shows their equations and settings.

use rloom_algo::Algorithm;
use serde_json::json;

use crate::arguments::Algo;
use crate::failure::Failure;
use crate::output::{BOLD, Output};

pub(crate) fn run(command: &Algo, output: Output) -> Result<(), Failure> {
    match command {
        Algo::List => list(output),
        Algo::Show { name } => show(name, output),
    }
}

fn list(output: Output) -> Result<(), Failure> {
    let methods = Algorithm::list();
    if output.json {
        for info in methods {
            let line = json!({"method": info.method, "summary": info.summary, "paper": info.paper});
            output.json(&line)?;
        }
        return Ok(());
    }
    let width = methods.iter().map(|info| info.method.name().len()).max().unwrap_or(0);
    for info in methods {
        output.data(&format!("{:<width$}  {}", info.method, info.summary))?;
        output.data(&format!("{:<width$}  {}", "", info.paper))?;
    }
    output.info(&format!("\nEquations and settings of one: {}", output.paint(BOLD, "rloom algo show NAME")));
    Ok(())
}

fn show(name: &str, output: Output) -> Result<(), Failure> {
    let text = Algorithm::show(name).map_err(Failure::usage)?;
    if !output.json {
        return output.data(text.trim_end());
    }
    let algorithm = Algorithm::preset(name.parse().map_err(Failure::usage)?).map_err(Failure::failed)?;
    let info = algorithm.method.info();
    output.json(&json!({
        "method": info.method,
        "summary": info.summary,
        "paper": info.paper,
        "settings": algorithm.to_settings(),
        "text": text,
    }))
}
