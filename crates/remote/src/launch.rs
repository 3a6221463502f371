//! Command lines of servers.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rloom_engine::ServerSettings;

use crate::pool::ModelLimits;

/// The worker extension, a module without other files.
const EXTENSION: &str = include_str!("../../../python/rloom/vllm/extension.py");
/// Its name where it is written.
const MODULE: &str = "rloom_vllm";

/// Tokens by which the longest prompt that `SGLang` accepts is shorter than its context.
const CONTEXT_MARGIN: usize = 6;

/// Ranks for which vLLM has kernels.
const LORA_RANKS: [usize; 8] = [8, 16, 32, 64, 128, 256, 320, 512];

/// The smallest of vLLM's limits for adapters of a rank; `None` if it serves none that large.
pub fn max_lora_rank(rank: usize) -> Option<usize> {
    LORA_RANKS.into_iter().find(|limit| rank <= *limit)
}

/// Adapters that a server has room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AdapterSlots {
    /// Their largest rank.
    pub rank: usize,
    /// Number of versions that requests use at a time; requests of others wait.
    pub versions: usize,
}

/// A program to start, with its arguments and what is added to its environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerCommand {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// Variables in addition to the inherited ones.
    pub environment: BTreeMap<String, String>,
}

/// Devices of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Slot {
    /// Indices of GPUs.
    Gpus(Vec<u32>),
    /// Processor cores, the first and the last one.
    Cores(usize, usize),
}

impl Slot {
    /// The variable that binds a server to the devices; `cores` is that of its program for cores.
    fn variable(&self, cores: &'static str) -> (&'static str, String) {
        match self {
            Self::Gpus(gpus) => {
                let gpus: Vec<String> = gpus.iter().map(u32::to_string).collect();
                ("CUDA_VISIBLE_DEVICES", gpus.join(","))
            }
            // Without it, every server takes the same cores.
            Self::Cores(first, last) => (cores, format!("{first}-{last}")),
        }
    }
}

impl ServerCommand {
    /// A vLLM server of the model in a folder. `modules` is a folder for the worker extension, which is written there.
    pub fn vllm(
        settings: &ServerSettings,
        limits: ModelLimits,
        slot: &Slot,
        model: &Path,
        port: u16,
        modules: &Path,
    ) -> std::io::Result<Self> {
        std::fs::create_dir_all(modules)?;
        std::fs::write(modules.join(MODULE).with_extension("py"), EXTENSION)?;
        let mut arguments: Vec<String> =
            ["-m", "vllm.entrypoints.cli.main", "serve"].map(str::to_owned).into();
        arguments.push(model.display().to_string());
        let options = [
            // Its control endpoints have no authentication.
            ("--host", "127.0.0.1".to_owned()),
            ("--port", port.to_string()),
            ("--max-model-len", limits.context.to_string()),
            // One more for the token by which the pool checks a server.
            ("--max-num-seqs", (settings.max_requests + 1).to_string()),
            ("--tensor-parallel-size", settings.tensor_parallel.of(0).to_string()),
            ("--gpu-memory-utilization", settings.memory_fraction(matches!(slot, Slot::Gpus(_))).to_string()),
            // Sampling settings come with each request, not from the model's folder.
            ("--generation-config", "vllm".to_owned()),
            ("--logprobs-mode", "processed_logprobs".to_owned()),
            ("--worker-extension-cls", format!("{MODULE}.Extension")),
            ("--weight-transfer-config", "{\"backend\": \"rloom_file\"}".to_owned()),
        ];
        arguments.extend(options.into_iter().flat_map(|(name, value)| [name.to_owned(), value]));
        arguments.push("--enable-scale-out".to_owned());
        if settings.sleep {
            arguments.push("--enable-sleep-mode".to_owned());
        }
        arguments.push("--disable-uvicorn-access-log".to_owned());
        // Later options win.
        arguments.extend(settings.args.iter().cloned());
        let environment = [
            // Updates, pauses and aborts are endpoints of the development mode.
            ("VLLM_SERVER_DEV_MODE", "1".to_owned()),
            ("VLLM_HOST_IP", "127.0.0.1".to_owned()),
            ("VLLM_NO_USAGE_STATS", "1".to_owned()),
            ("HF_HUB_OFFLINE", "1".to_owned()),
            ("PYTHONPATH", python_path(modules)),
            slot.variable("VLLM_CPU_OMP_THREADS_BIND"),
        ];
        let environment = environment.map(|(name, value)| (name.to_owned(), value)).into();
        Ok(Self { program: settings.python.clone(), arguments, environment })
    }

    /// A vLLM server that also serves adapters of its model. Options of the recipe come later, and win.
    #[must_use]
    pub fn with_adapters(mut self, slots: AdapterSlots) -> Self {
        let rank = max_lora_rank(slots.rank).unwrap_or(slots.rank);
        let options = [("--max-lora-rank", rank), ("--max-loras", slots.versions)];
        let options = options.into_iter().flat_map(|(name, value)| [name.to_owned(), value.to_string()]);
        // After the model.
        self.arguments.splice(4..4, std::iter::once("--enable-lora".to_owned()).chain(options));
        self.environment.insert("VLLM_ALLOW_RUNTIME_LORA_UPDATING".to_owned(), "1".to_owned());
        self
    }

    /// An `SGLang` server of the model in a folder.
    pub fn sglang(
        settings: &ServerSettings,
        limits: ModelLimits,
        slot: &Slot,
        model: &Path,
        port: u16,
    ) -> Self {
        let mut arguments = vec!["-m".to_owned(), "sglang.launch_server".to_owned()];
        let options = [
            ("--model-path", model.display().to_string()),
            // Its control endpoints have no authentication.
            ("--host", "127.0.0.1".to_owned()),
            ("--port", port.to_string()),
            ("--context-length", (limits.context + CONTEXT_MARGIN).to_string()),
            // One more for the token by which the pool checks a server.
            ("--max-running-requests", (settings.max_requests + 1).to_string()),
            ("--tp-size", settings.tensor_parallel.of(0).to_string()),
            ("--mem-fraction-static", settings.memory_fraction(matches!(slot, Slot::Gpus(_))).to_string()),
            // Sampling settings come with each request, not from the model's folder.
            ("--sampling-defaults", "openai".to_owned()),
            ("--log-level-http", "warning".to_owned()),
        ];
        arguments.extend(options.into_iter().flat_map(|(name, value)| [name.to_owned(), value]));
        // Later options win.
        arguments.extend(settings.args.iter().cloned());
        let environment = [
            // For the margin of the context.
            ("SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN", "1".to_owned()),
            ("HF_HUB_OFFLINE", "1".to_owned()),
            slot.variable("SGLANG_CPU_OMP_THREADS_BIND"),
        ];
        let environment = environment.map(|(name, value)| (name.to_owned(), value)).into();
        Self { program: settings.python.clone(), arguments, environment }
    }
}

/// The folder in front of the inherited module path.
fn python_path(modules: &Path) -> String {
    let own = modules.display().to_string();
    match std::env::var("PYTHONPATH") {
        Ok(inherited) if !inherited.is_empty() => format!("{own}:{inherited}"),
        _ => own,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn native_arguments_come_last_and_the_extension_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let modules = folder.path().join("modules");
        let settings = ServerSettings {
            python: PathBuf::from("/venv/bin/python"),
            args: vec!["--dtype".to_owned(), "float32".to_owned()],
            max_requests: 8,
            ..ServerSettings::default()
        };
        let limits = ModelLimits { context: 512, vocabulary: 32 };
        let slot = Slot::Gpus(vec![2, 3]);
        let command =
            ServerCommand::vllm(&settings, limits, &slot, Path::new("/model"), 4711, &modules).unwrap();
        assert_eq!(command.program, settings.python);
        assert_eq!(command.arguments[2..4], ["serve", "/model"]);
        assert_eq!(command.arguments[command.arguments.len() - 2..], ["--dtype", "float32"]);
        let value = |name: &str| {
            let at = command.arguments.iter().position(|argument| argument == name).unwrap();
            command.arguments[at + 1].as_str()
        };
        assert_eq!((value("--host"), value("--port")), ("127.0.0.1", "4711"));
        assert_eq!((value("--max-model-len"), value("--max-num-seqs")), ("512", "9"));
        let module = std::fs::read_to_string(modules.join("rloom_vllm.py")).unwrap();
        assert!(module.contains("class Extension") && !module.contains("import rloom"));
        assert_eq!(command.environment["CUDA_VISIBLE_DEVICES"], "2,3");
        assert_eq!(value("--gpu-memory-utilization"), "0.9");
        let cores = Slot::Cores(0, 1);
        let two = ServerSettings { replicas: 2, ..settings };
        let shared = ServerCommand::vllm(&two, limits, &cores, Path::new("/model"), 4711, &modules).unwrap();
        let at = shared.arguments.iter().position(|argument| argument == "--gpu-memory-utilization").unwrap();
        assert_eq!(shared.arguments[at + 1], "0.2");
        let sleeps = ServerSettings { sleep: true, ..two.clone() };
        let asleep =
            ServerCommand::vllm(&sleeps, limits, &cores, Path::new("/model"), 4711, &modules).unwrap();
        let has = |command: &ServerCommand| command.arguments.contains(&"--enable-sleep-mode".to_owned());
        assert_eq!((has(&asleep), has(&shared)), (true, false));
        assert_eq!(Slot::Cores(4, 7).variable("CORES"), ("CORES", "4-7".to_owned()));
        assert!(command.environment["PYTHONPATH"].starts_with(modules.to_str().unwrap()));
    }

    #[test]
    fn servers_of_adapters_have_room_for_their_versions() {
        let folder = tempfile::tempdir().unwrap();
        let limits = ModelLimits { context: 512, vocabulary: 32 };
        let args = ["--max-loras", "9"].map(str::to_owned).into();
        let settings = ServerSettings { args, ..ServerSettings::default() };
        let (model, slot) = (Path::new("/model"), Slot::Cores(0, 1));
        let plain = ServerCommand::vllm(&settings, limits, &slot, model, 4711, folder.path()).unwrap();
        let served = plain.clone().with_adapters(AdapterSlots { rank: 12, versions: 3 });
        let options = ["serve", "/model", "--enable-lora", "--max-lora-rank", "16", "--max-loras", "3"];
        assert_eq!(served.arguments[2..9], options);
        // The recipe's own options come last, and win.
        assert_eq!(served.arguments[9..], plain.arguments[4..]);
        assert_eq!(served.environment["VLLM_ALLOW_RUNTIME_LORA_UPDATING"], "1");
        assert_eq!([1, 8, 9, 200, 512].map(max_lora_rank), [8, 8, 16, 256, 512].map(Some));
        assert_eq!(max_lora_rank(513), None);
    }

    #[test]
    fn sglang_has_room_for_the_longest_prompt() {
        let settings = ServerSettings {
            tensor_parallel: rloom_engine::TensorParallel::Equal(2),
            args: vec!["--dtype".to_owned(), "bfloat16".to_owned()],
            ..ServerSettings::default()
        };
        let limits = ModelLimits { context: 512, vocabulary: 32 };
        let slot = Slot::Gpus(vec![0, 1]);
        let command = ServerCommand::sglang(&settings, limits, &slot, Path::new("/model"), 4711);
        let value = |name: &str| {
            let at = command.arguments.iter().position(|argument| argument == name).unwrap();
            command.arguments[at + 1].as_str()
        };
        assert_eq!((value("--host"), value("--port"), value("--tp-size")), ("127.0.0.1", "4711", "2"));
        assert_eq!((value("--context-length"), value("--max-running-requests")), ("518", "129"));
        assert_eq!(command.environment["SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"], "1");
        assert_eq!(command.environment["CUDA_VISIBLE_DEVICES"], "0,1");
        assert_eq!(command.arguments[command.arguments.len() - 2..], ["--dtype", "bfloat16"]);
    }
}
