//! `rloom cluster manifest`: files that start a run under SLURM or on Kubernetes.

mod template;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use rloom_config::Config;
use serde_json::json;

use self::template::Template;
use crate::arguments::{Manifest, ManifestKind};
use crate::failure::Failure;
use crate::output::Output;

/// Version of Ray in the container image, which a RayJob names. That of `.ci/cluster.txt`.
const RAY: &str = "2.60.0";

/// Folder of the configuration files in a container.
const CONFIGURATION: &str = "/etc/rloom";

/// Longest name of a run in names of Kubernetes, which has room for suffixes within 63 characters.
const LONGEST_NAME: usize = 40;

/// Machines of a run: those of `[cluster]`, with what the command line changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ClusterShape {
    nodes: usize,
    cpus_per_node: usize,
    gpus_per_node: usize,
    /// Further nodes for rewards and environments, and the cores of each.
    cpu_nodes: usize,
    cpus_per_cpu_node: usize,
}

impl ClusterShape {
    /// Resolves the configuration as the job will, which also checks it.
    fn new(arguments: &Manifest) -> Result<Self, Failure> {
        let launcher = match arguments.kind {
            ManifestKind::Rayjob => "ray",
            ManifestKind::Slurm | ManifestKind::Jobset => "wait",
        };
        let mut overrides = arguments.overrides.clone();
        overrides.push(format!("cluster.launcher={launcher}"));
        overrides.push(format!("cluster.bind=0.0.0.0:{}", arguments.port));
        for (key, number) in [
            ("nodes", arguments.nodes),
            ("cpus_per_node", arguments.cpus_per_node),
            ("gpus_per_node", arguments.gpus_per_node),
        ] {
            overrides.extend(number.map(|number| format!("cluster.{key}={number}")));
        }
        let cluster = Config::load(&arguments.files, &overrides)?.cluster.unwrap_or_default();
        Ok(Self {
            nodes: cluster.nodes,
            cpus_per_node: cluster.cpus_per_node.unwrap_or(1),
            gpus_per_node: cluster.gpus_per_node.unwrap_or(0),
            cpu_nodes: cluster.cpu_nodes,
            cpus_per_cpu_node: cluster.cpus_per_cpu_node.unwrap_or(1),
        })
    }
}

pub(crate) fn run(arguments: &Manifest, output: Output) -> Result<(), Failure> {
    let shape = ClusterShape::new(arguments)?;
    let text = match arguments.kind {
        ManifestKind::Slurm => slurm(arguments, shape)?,
        ManifestKind::Rayjob => {
            let group = include_str!("manifest/rayjob_group.yaml");
            kubernetes(arguments, shape, include_str!("manifest/rayjob.yaml"), group)?
        }
        ManifestKind::Jobset => {
            let group = include_str!("manifest/jobset_group.yaml");
            kubernetes(arguments, shape, include_str!("manifest/jobset.yaml"), group)?
        }
    };
    let Some(file) = &arguments.output else {
        return if output.json {
            output.json(&json!({ "manifest": text }))
        } else {
            output.data(text.trim_end())
        };
    };
    let failed = |error| Failure::failed_text(format_args!("cannot write {}: {error}", file.display()));
    fs::write(file, text).map_err(failed)?;
    output.info(&format!("wrote {}", file.display()));
    Ok(())
}

/// Values that all templates have.
fn common(arguments: &Manifest, shape: ClusterShape) -> Result<Template, Failure> {
    let mut template = Template::default();
    template.set("name", run_name(arguments)?);
    template.set("port", arguments.port.to_string());
    template.set("nodes", shape.nodes.to_string());
    template.set("cpus", shape.cpus_per_node.to_string());
    let (gpus, memory) = (shape.gpus_per_node, arguments.memory_per_node);
    template.set("gpus", if gpus > 0 { gpus.to_string() } else { String::new() });
    template.set("memory", memory.map(|gigabytes| gigabytes.to_string()).unwrap_or_default());
    // Without further nodes, lines that mention them are left out.
    let of_cpu_nodes = |value: String| if shape.cpu_nodes > 0 { value } else { String::new() };
    template.set("cpu_nodes", of_cpu_nodes(shape.cpu_nodes.to_string()));
    template.set("cpu_cores", of_cpu_nodes(shape.cpus_per_cpu_node.to_string()));
    let overrides = arguments.overrides.iter().map(|setting| format!("--set {}", template::shell(setting)));
    template.set("overrides", overrides.collect::<Vec<_>>().join(" "));
    Ok(template)
}

fn slurm(arguments: &Manifest, shape: ClusterShape) -> Result<String, Failure> {
    if arguments.image.is_some() {
        return Err(Failure::usage_text("--image is for `rayjob` and `jobset`"));
    }
    let mut template = common(arguments, shape)?;
    let files = arguments.files.iter().map(|file| template::shell(&file.to_string_lossy()));
    template.set("files", files.collect::<Vec<_>>().join(" "));
    // A second component of the job, whose nodes are not counted with those of the first.
    let is_het = shape.cpu_nodes > 0;
    let of_het = |value: &str| if is_het { value.to_owned() } else { String::new() };
    template.set("hetjob", of_het("hetjob"));
    template.set("cpu_tasks", of_het("1"));
    template.set("cpu_first", of_het(&shape.nodes.to_string()));
    template.set("cpu_job", of_het("$!"));
    let counted = if is_het { shape.nodes.to_string() } else { "$SLURM_JOB_NUM_NODES".to_owned() };
    template.set("node_count", counted);
    template.set("partition", arguments.partition.clone().unwrap_or_default());
    template.set("time", arguments.time.clone().unwrap_or_default());
    Ok(template.fill(include_str!("manifest/slurm.sh")))
}

/// Fills a template, and that of a group of equal pods for each kind of node.
fn kubernetes(
    arguments: &Manifest,
    shape: ClusterShape,
    source: &str,
    group: &str,
) -> Result<String, Failure> {
    if arguments.partition.is_some() || arguments.time.is_some() {
        return Err(Failure::usage_text("--partition and --time are for `slurm`"));
    }
    let mut template = common(arguments, shape)?;
    let mut names = BTreeSet::new();
    let (mut contents, mut files) = (String::new(), Vec::new());
    for file in &arguments.files {
        let text = read(file)?;
        let name = key(file);
        if !names.insert(name.clone()) {
            return Err(Failure::usage_text(format_args!(
                "two configuration files are called `{name}`, which are in one folder of the container"
            )));
        }
        files.push(format!("{CONFIGURATION}/{name}"));
        contents.push_str(&template::block(&name, &text));
    }
    template.set("files", files.join(" "));
    template.set("contents", contents);
    template.set("share", template::yaml(&arguments.share));
    template.set("image", template::yaml(arguments.image.as_deref().unwrap_or_default()));
    template.set("claim", template::yaml(&arguments.claim));
    template.set("ray", RAY);
    template.set("group", "nodes");
    template.set("index", "JOB_COMPLETION_INDEX");
    let controller = format!("{name}-controller-0-0.{name}:{}", arguments.port, name = run_name(arguments)?);
    template.set("command", list(&["rloom", "node", "--controller", &controller]));
    let mut groups = template.fill(group);
    if shape.cpu_nodes > 0 {
        let first = shape.nodes;
        let mut further = template.clone();
        further.set("group", "cpu-nodes");
        further.set("index", format!("{first} + JOB_COMPLETION_INDEX"));
        // Kubernetes makes `$` of `$$`.
        let index = format!("$$(({first} + JOB_COMPLETION_INDEX))");
        let daemon = format!("exec rloom node --controller {controller} --index {index}");
        further.set("command", list(&["bash", "-c", &daemon]));
        further.set("nodes", shape.cpu_nodes.to_string());
        further.set("cpus", shape.cpus_per_cpu_node.to_string());
        further.set("gpus", "");
        further.set("memory", "");
        groups.push_str(&further.fill(group));
    }
    template.set("groups", groups);
    Ok(template.fill(source))
}

/// A command of a container.
fn list(words: &[&str]) -> String {
    let lines: Vec<String> = words.iter().map(|word| format!("                    - {word}")).collect();
    lines.join("\n")
}

/// Name of the run in names of SLURM and Kubernetes: lower-case letters, digits and hyphens.
fn run_name(arguments: &Manifest) -> Result<String, Failure> {
    let stem = arguments.files.first().and_then(|file| file.file_stem()).unwrap_or_default();
    let name = arguments.name.clone().unwrap_or_else(|| stem.to_string_lossy().into_owned());
    let allowed = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let mapped: String = name.chars().map(allowed).collect();
    // A name of Kubernetes begins with a letter.
    let cut: String =
        mapped.trim_start_matches(|c: char| !c.is_ascii_lowercase()).chars().take(LONGEST_NAME).collect();
    match cut.trim_end_matches('-') {
        "" => Err(Failure::usage_text(format_args!("`{name}` has no letters for a name; --name gives one"))),
        name => Ok(name.to_owned()),
    }
}

/// Key of a file in a ConfigMap.
fn key(file: &Path) -> String {
    let allowed = |c: char| if c.is_ascii_alphanumeric() || "-._".contains(c) { c } else { '-' };
    file.file_name().unwrap_or_default().to_string_lossy().chars().map(allowed).collect()
}

fn read(file: &Path) -> Result<String, Failure> {
    fs::read_to_string(file)
        .map_err(|error| Failure::usage_text(format_args!("cannot read {}: {error}", file.display())))
}
