//! `[cluster]`.

use rloom_cluster::{ClusterSettings, Launcher};

use super::values::out_of_range;
use crate::problem::{Code, Problem};
use crate::section::Section;

/// Checks the table; `None` if the run uses this machine alone.
pub(super) fn check(
    section: &Section<ClusterSettings>,
    problems: &mut Vec<Problem>,
) -> Option<ClusterSettings> {
    let cluster = &section.value;
    if let Err(invalid) = cluster.validate() {
        problems.push(out_of_range(section, invalid.key, &invalid.value, &invalid.expected));
    }
    for key in ClusterSettings::RAY_KEYS {
        if cluster.launcher != Launcher::Ray && section.is_set(key) {
            let problem = Problem::new(Code::Unread, format!("nothing reads `cluster.{key}`"));
            let problem =
                problem.at(section.key_origin(key).unwrap_or_else(|| section.origin_or_table(key)), "");
            problems.push(problem.hint("only `cluster.launcher = \"ray\"` reads it"));
        }
    }
    if cluster.cpu_nodes == 0 && section.is_set("cpus_per_cpu_node") {
        let problem = Problem::new(Code::Unread, "nothing reads `cluster.cpus_per_cpu_node`".to_owned());
        let origin = section.key_origin("cpus_per_cpu_node");
        let problem = problem.at(origin.unwrap_or_else(|| section.origin_or_table("cpus_per_cpu_node")), "");
        problems.push(problem.hint("only `cluster.cpu_nodes` above 0 reads it"));
    }
    (cluster.launcher != Launcher::Local).then(|| cluster.clone())
}
