//! `rloom cluster manifest`: files for SLURM and Kubernetes.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::Command;

use yaml_rust2::{Yaml, YamlLoader};

use crate::support::{Sandbox, TINY, snapshot};

/// A file as the one of the recipe: it begins with spaces.
fn recipe() -> String {
    let named = TINY.replace("[run]\n", "[run]\nname = \"sums\"\n");
    format!("  # With 'quotes', \"both\" and a colon: x\n{named}")
}

const FILE: &str = "cluster.join_seconds = 60\n";
/// Settings of three further nodes without GPUs.
const CPU_NODES: [&str; 4] = ["--set", "cluster.cpu_nodes=3", "--set", "cluster.cpus_per_cpu_node=16"];

/// A manifest of two nodes with a GPU each, and the sandbox with the files.
fn manifest(kind: &str, more: &[&str]) -> (Sandbox, String) {
    let sandbox = Sandbox::new();
    sandbox.write("2 Sums.toml", &recipe());
    sandbox.write("two-nodes.toml", FILE);
    let arguments = ["cluster", "manifest", kind, "2 Sums.toml", "two-nodes.toml", "--nodes", "2"];
    let sizes = ["--cpus-per-node", "4", "--gpus-per-node", "1", "--set", "run.directory=it's $HOME"];
    let result = sandbox.run(&[&arguments[..], &sizes, more].concat());
    assert_eq!((result.code, result.stderr.as_str()), (Some(0), ""), "{}", result.text());
    (sandbox, result.stdout)
}

fn kubernetes(kind: &str, more: &[&str]) -> (String, Yaml, Yaml) {
    let (_, text) = manifest(kind, &[&["--image", "registry/rloom:1"], more].concat());
    let mut documents = YamlLoader::load_from_str(&text).unwrap();
    assert_eq!(documents.len(), 2);
    let run = documents.pop().unwrap();
    (text, documents.pop().unwrap(), run)
}

/// Fields that the published schema of a resource or the API server asks for.
fn assert_has(yaml: &Yaml, paths: &[&str]) {
    for path in paths {
        let found = path.split('.').fold(yaml, |yaml, key| match key.parse::<usize>() {
            Ok(index) => &yaml[index],
            Err(_) => &yaml[key],
        });
        assert!(!found.is_badvalue(), "{path} is missing");
    }
}

#[test]
fn a_batch_script_of_slurm() {
    let (sandbox, text) = manifest("slurm", &["--time", "1:00:00"]);
    snapshot("manifest_slurm", &text);
    sandbox.write("run.sh", &text);
    let checked = Command::new("bash").arg("-n").arg(sandbox.path("run.sh")).status().unwrap();
    assert!(checked.success());
}

#[test]
fn a_batch_script_of_nodes_with_and_without_gpus() {
    let (sandbox, text) = manifest("slurm", &CPU_NODES);
    snapshot("manifest_slurm_cpu_nodes", &text);
    sandbox.write("run.sh", &text);
    let checked = Command::new("bash").arg("-n").arg(sandbox.path("run.sh")).status().unwrap();
    assert!(checked.success());
    // Options of the second component come after the separator.
    let options: Vec<&str> = text.lines().filter(|line| line.starts_with("#SBATCH ")).collect();
    let at = options.iter().position(|line| *line == "#SBATCH hetjob").unwrap();
    let further = ["#SBATCH --nodes=3", "#SBATCH --ntasks-per-node=1", "#SBATCH --cpus-per-task=16"];
    assert_eq!(options[at + 1..], further);
    assert!(options[..at].contains(&"#SBATCH --gpus-per-node=1"));
}

#[test]
fn jobs_of_kubernetes_with_and_without_gpus() {
    let (_, _, job) = kubernetes("rayjob", &CPU_NODES);
    let groups = job["spec"]["rayClusterSpec"]["workerGroupSpecs"].as_vec().unwrap();
    let counts: Vec<_> = groups.iter().map(|group| group["replicas"].as_i64().unwrap()).collect();
    let names: Vec<_> = groups.iter().map(|group| group["groupName"].as_str().unwrap()).collect();
    assert_eq!((names, counts), (vec!["nodes", "cpu-nodes"], vec![2, 3]));
    let limits = &groups[1]["template"]["spec"]["containers"][0]["resources"]["limits"];
    assert_eq!((limits["cpu"].as_str(), limits["nvidia.com/gpu"].is_badvalue()), (Some("16"), true));
    let entrypoint = job["spec"]["entrypoint"].as_str().unwrap();
    for setting in
        ["--set cluster.nodes=2", "--set cluster.cpu_nodes=3", "--set cluster.cpus_per_cpu_node=16"]
    {
        assert!(entrypoint.contains(setting), "{entrypoint}");
    }

    let (_, _, set) = kubernetes("jobset", &[&["--memory-per-node", "64"], &CPU_NODES[..]].concat());
    let jobs = set["spec"]["replicatedJobs"].as_vec().unwrap();
    assert_eq!((jobs.len(), jobs[2]["name"].as_str()), (3, Some("cpu-nodes")));
    let of_job = &jobs[2]["template"]["spec"];
    assert_has(of_job, &["template.spec.restartPolicy", "completionMode"]);
    assert_eq!((of_job["parallelism"].as_i64(), of_job["completions"].as_i64()), (Some(3), Some(3)));
    let container = &of_job["template"]["spec"]["containers"][0];
    assert_has(container, &["name", "image", "command", "env.0.valueFrom.secretKeyRef.key"]);
    assert!(container["resources"]["limits"]["nvidia.com/gpu"].is_badvalue());
    // The numbers of the daemons follow those of the first nodes. Kubernetes makes `$` of `$$`.
    let command = container["command"][2].as_str().unwrap().replace("$$", "$");
    let words = command.trim_start_matches("exec ").replacen("rloom", "echo", 1);
    let words = Command::new("bash").args(["-c", &words]).env("JOB_COMPLETION_INDEX", "1").output().unwrap();
    let expected = "node --controller sums-controller-0-0.sums:29600 --index 3\n";
    assert_eq!(String::from_utf8(words.stdout).unwrap(), expected);
}

#[test]
fn the_token_of_a_batch_script_is_made_where_it_runs() {
    let (_, text) = manifest("slurm", &[]);
    let (sandbox, line) =
        (Sandbox::new(), text.lines().find(|line| line.starts_with("RLOOM_TOKEN=")).unwrap());
    sandbox.write("token.sh", &format!("{line}\nprintf %s \"$RLOOM_TOKEN\""));
    let token = || Command::new("bash").arg(sandbox.path("token.sh")).output().unwrap().stdout;
    let (one, two) = (token(), token());
    assert_eq!((one.len(), two.len()), (64, 64));
    assert!(one.iter().all(u8::is_ascii_hexdigit) && one != two);
}

#[test]
fn a_job_of_kuberay() {
    let (text, configuration, job) = kubernetes("rayjob", &[]);
    snapshot("manifest_rayjob", &text);
    assert_eq!(configuration["data"]["2-Sums.toml"].as_str(), Some(recipe().as_str()));
    assert_eq!(configuration["data"]["two-nodes.toml"].as_str(), Some("cluster.join_seconds = 60\n"));
    assert_eq!((job["apiVersion"].as_str(), job["kind"].as_str()), (Some("ray.io/v1"), Some("RayJob")));
    let cluster = &job["spec"]["rayClusterSpec"];
    assert_has(&job, &["metadata.name", "spec.entrypoint", "spec.rayClusterSpec.headGroupSpec"]);
    assert_has(
        cluster,
        &["rayVersion", "headGroupSpec.rayStartParams", "headGroupSpec.template.spec.containers.0"],
    );
    let workers = &cluster["workerGroupSpecs"][0];
    assert_has(
        workers,
        &["groupName", "minReplicas", "maxReplicas", "rayStartParams", "template.spec.containers.0"],
    );
    assert_eq!(workers["replicas"].as_i64(), Some(2));
    let limits = &workers["template"]["spec"]["containers"][0]["resources"]["limits"];
    assert_eq!((limits["cpu"].as_str(), limits["nvidia.com/gpu"].as_str()), (Some("4"), Some("1")));
    assert_commands_agree(job["spec"]["entrypoint"].as_str().unwrap());
    // The image, the manifest and the tests have one version of Ray.
    let version = cluster["rayVersion"].as_str().unwrap();
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    for file in [".ci/cluster.txt", "docker/Dockerfile"] {
        let text = std::fs::read_to_string(format!("{root}/{file}")).unwrap();
        assert!(text.contains(&format!("ray[default]=={version}")), "{file}");
    }
}

#[test]
fn a_job_set() {
    let (text, configuration, set) = kubernetes("jobset", &["--memory-per-node", "64"]);
    snapshot("manifest_jobset", &text);
    assert_eq!(configuration["data"]["2-Sums.toml"].as_str(), Some(recipe().as_str()));
    let kind = (set["apiVersion"].as_str(), set["kind"].as_str());
    assert_eq!(kind, (Some("jobset.x-k8s.io/v1alpha2"), Some("JobSet")));
    assert_has(&set, &["metadata.name", "spec.successPolicy.operator", "spec.replicatedJobs.1"]);
    for job in set["spec"]["replicatedJobs"].as_vec().unwrap() {
        assert_has(job, &["name", "template.spec.template.spec.restartPolicy"]);
        let container = &job["template"]["spec"]["template"]["spec"]["containers"][0];
        assert_has(container, &["name", "image", "command", "env.0.valueFrom.secretKeyRef.key"]);
    }
    let [controller, nodes] = [0, 1].map(|index| &set["spec"]["replicatedJobs"][index]["template"]["spec"]);
    assert_eq!(nodes["completionMode"].as_str(), Some("Indexed"));
    assert_eq!((nodes["parallelism"].as_i64(), nodes["completions"].as_i64()), (Some(2), Some(2)));
    let daemon = &nodes["template"]["spec"]["containers"][0]["command"];
    assert_eq!(daemon[3].as_str(), Some("sums-controller-0-0.sums:29600"));
    assert_commands_agree(controller["template"]["spec"]["containers"][0]["command"][2].as_str().unwrap());
}

/// The shell of the container reads the command as it was meant.
fn assert_commands_agree(command: &str) {
    let command = command.trim_start_matches("exec ").replacen("rloom", "printf '%s\\n'", 1);
    let words = Command::new("bash").args(["-c", &command]).output().unwrap();
    let words = String::from_utf8(words.stdout).unwrap();
    let words: Vec<_> = words.lines().collect();
    assert_eq!(words[..3], ["train", "/etc/rloom/2-Sums.toml", "/etc/rloom/two-nodes.toml"]);
    assert_eq!(words[3..5], ["--set", "run.directory=it's $HOME"]);
    assert!(words.contains(&"cluster.nodes=2") && words.contains(&"run.resume=auto"), "{words:?}");
}

#[test]
fn without_gpus_none_are_asked_for() {
    let sandbox = Sandbox::new();
    sandbox.write("recipe.toml", TINY);
    for kind in ["slurm", "rayjob", "jobset"] {
        let image: &[&str] = if kind == "slurm" { &[] } else { &["--image", "rloom"] };
        let written = sandbox.path(kind).display().to_string();
        let arguments = ["cluster", "manifest", kind, "recipe.toml", "--output", &written];
        let result = sandbox.run(&[&arguments[..], image].concat());
        assert_eq!((result.code, result.stdout.as_str()), (Some(0), ""), "{}", result.text());
        let text = std::fs::read_to_string(written).unwrap();
        assert!(!text.contains("gpu") && !text.contains("{{"), "{text}");
    }
}

#[test]
fn manifests_that_cannot_be_written_are_refused() {
    let sandbox = Sandbox::new();
    sandbox.write("recipe.toml", TINY);
    std::fs::create_dir(sandbox.path("other")).unwrap();
    sandbox.write("other/recipe.toml", "run.seed = 4\n");
    let refused = |arguments: &[&str], message: &str| {
        let result = sandbox.run(&[&["cluster", "manifest"], arguments].concat());
        assert_eq!(result.code, Some(2), "{}", result.text());
        assert!(result.stderr.contains(message), "{}", result.text());
    };
    refused(&["jobset", "recipe.toml"], "--image");
    refused(&["slurm", "recipe.toml", "--image", "x"], "--image is for");
    refused(&["jobset", "recipe.toml", "--image", "x", "--time", "1"], "are for `slurm`");
    refused(&["slurm", "missing.toml"], "missing.toml");
    refused(
        &["jobset", "recipe.toml", "other/recipe.toml", "--image", "x"],
        "two configuration files are called",
    );
    refused(&["slurm", "recipe.toml", "--name", "12"], "--name gives one");
    refused(&["slurm", "recipe.toml", "--nodes", "0"], "cluster.nodes");
}
