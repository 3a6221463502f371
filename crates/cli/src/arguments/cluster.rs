//! Arguments of `rloom cluster`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

#[derive(Debug, Subcommand)]
pub(crate) enum Cluster {
    /// Write a batch script or a Kubernetes manifest that runs a recipe.
    Manifest(Box<Manifest>),
    /// List the processes of a running run.
    Ps {
        /// Folder or name of the run.
        run: PathBuf,
    },
    /// Change the number of inference servers of a running run.
    ///
    /// New ones load the current weights before they get requests. Surplus ones finish their requests first.
    Scale {
        /// Folder or name of the run.
        run: PathBuf,
        /// Number of servers.
        replicas: usize,
    },
    /// End an inference server of a running run once its requests are finished.
    Drain {
        /// Folder or name of the run.
        run: PathBuf,
        /// Number of the server.
        replica: usize,
    },
    /// Show the output of the processes of a run.
    Logs(ClusterLogs),
}

/// Scheduler of a manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ManifestKind {
    // No doc comments: with help for its values, clap prints every option on two lines.
    Slurm,
    Rayjob,
    Jobset,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rloom cluster manifest slurm recipe.toml --nodes 2 --gpus-per-node 8 --output run.sh
  rloom cluster manifest rayjob recipe.toml --nodes 2 --image rloom:latest
  rloom cluster manifest jobset recipe.toml --nodes 2 --image rloom:latest --output run.yaml

A manifest for Kubernetes includes the configuration files; SLURM reads them where they are. The run
is resumed after an interruption.")]
pub(crate) struct Manifest {
    /// Scheduler: SLURM, KubeRay's RayJob, or Kubernetes' JobSet.
    #[arg(value_name = "SCHEDULER", value_enum)]
    pub(crate) kind: ManifestKind,
    /// Configuration files (TOML); later files override earlier ones.
    #[arg(value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,
    /// Override a setting; may be repeated. A stage is addressed by its name.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) overrides: Vec<String>,
    /// Number of nodes [default: `cluster.nodes`].
    #[arg(long, value_name = "N")]
    pub(crate) nodes: Option<usize>,
    /// Number of cores of a node [default: `cluster.cpus_per_node`, else 1].
    #[arg(long, value_name = "N")]
    pub(crate) cpus_per_node: Option<usize>,
    /// Number of GPUs of a node [default: `cluster.gpus_per_node`, else 0].
    #[arg(long, value_name = "N")]
    pub(crate) gpus_per_node: Option<usize>,
    /// Memory of a node in GiB [default: the scheduler's].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) memory_per_node: Option<u32>,
    /// Folder in the containers where the persistent volume is mounted and the run works, for Kubernetes.
    #[arg(long, value_name = "DIR", default_value = "/share")]
    pub(crate) share: String,
    /// Port of the controller.
    #[arg(long, value_name = "PORT", default_value_t = 29600, value_parser = clap::value_parser!(u16).range(1024..))]
    pub(crate) port: u16,
    /// Name of the job [default: that of the first file].
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Container image with rloom, for Kubernetes; `docker/Dockerfile` builds one.
    #[arg(long, value_name = "IMAGE", required_if_eq_any([("kind", "rayjob"), ("kind", "jobset")]))]
    pub(crate) image: Option<String>,
    /// Persistent volume claim of the shared folder, for Kubernetes.
    #[arg(long, value_name = "NAME", default_value = "rloom")]
    pub(crate) claim: String,
    /// Partition, for SLURM [default: the cluster's].
    #[arg(long, value_name = "NAME")]
    pub(crate) partition: Option<String>,
    /// Time limit, for SLURM, such as 24:00:00 [default: the partition's].
    #[arg(long, value_name = "TIME")]
    pub(crate) time: Option<String>,
    /// File to write [default: standard output].
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct ClusterLogs {
    /// Folder or name of the run.
    pub(crate) run: PathBuf,
    /// Process, such as `replica-0` or `policy-rank-1`. Default: all.
    pub(crate) process: Option<String>,
    /// Number of last lines of each process.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 20)]
    pub(crate) lines: usize,
    /// Show new output as it is written.
    #[arg(short, long)]
    pub(crate) follow: bool,
}
