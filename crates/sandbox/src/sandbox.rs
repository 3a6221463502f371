use std::io::{self, Read};

use rloom_core::Program;

use crate::{Choice, Execution, Outcome, SandboxError, Service, Stopper, Tier, Unavailable};

/// Name of the hidden command that runs a helper: it calls [`run_helper`].
pub const COMMAND: &str = "sandbox";

/// Reader of the output of a program.
type ReadOutput = Box<dyn FnOnce(&mut dyn Read) + Send>;

/// An execution that can be stopped, whose output is read while it runs.
pub(crate) struct Watched<'a> {
    pub(crate) stopper: &'a Stopper,
    pub(crate) output: ReadOutput,
}

/// Runs programs in the best available tier.
#[derive(Debug, Clone)]
pub struct Sandbox {
    program: Program,
    tier: Tier,
    unavailable: Vec<Unavailable>,
    #[cfg(target_os = "linux")]
    pool: std::sync::Arc<crate::helper::Pool>,
}

impl Sandbox {
    /// Finds the best tier of the machine that the choice permits, by running a program in it. `program` is the binary
    /// with the hidden command.
    pub fn detect(program: &Program, choice: Choice) -> Result<Self, SandboxError> {
        Self::detect_for(program, choice, None)
    }

    /// Finds the best tier in which a program can reach a server, and nothing else of the network.
    pub fn detect_with(program: &Program, choice: Choice, service: &Service) -> Result<Self, SandboxError> {
        Self::detect_for(program, choice, Some(service))
    }

    fn detect_for(
        program: &Program,
        choice: Choice,
        service: Option<&Service>,
    ) -> Result<Self, SandboxError> {
        let mut unavailable = Vec::new();
        for tier in choice.tiers() {
            let sandbox = Self {
                program: program.clone(),
                tier: *tier,
                unavailable: unavailable.clone(),
                #[cfg(target_os = "linux")]
                pool: std::sync::Arc::default(),
            };
            match sandbox.check(service) {
                Ok(()) => return Ok(sandbox.in_delegated_groups()),
                Err(reason) => unavailable.push(Unavailable { tier: *tier, reason }),
            }
        }
        Err(SandboxError::Unavailable { reasons: unavailable })
    }

    /// The same with control groups, where the machine delegates them and they work.
    #[cfg(target_os = "linux")]
    fn in_delegated_groups(self) -> Self {
        let Some(groups) = crate::group::Groups::find() else { return self };
        let sandbox =
            Self { pool: std::sync::Arc::new(crate::helper::Pool::new(Some(groups))), ..self.clone() };
        if sandbox.check(None).is_ok() { sandbox } else { self }
    }

    #[cfg(not(target_os = "linux"))]
    fn in_delegated_groups(self) -> Self {
        self
    }

    /// The same with control groups for executions in a folder: a delegated group of version 2.
    #[cfg(target_os = "linux")]
    pub fn in_groups(self, folder: &std::path::Path) -> io::Result<Self> {
        let groups = crate::group::Groups::at(folder)?;
        Ok(Self { pool: std::sync::Arc::new(crate::helper::Pool::new(Some(groups))), ..self })
    }

    /// The folder of the control groups of executions, if the machine delegates them.
    pub fn groups(&self) -> Option<&std::path::Path> {
        #[cfg(target_os = "linux")]
        return self.pool.groups().map(crate::group::Groups::folder);
        #[cfg(not(target_os = "linux"))]
        None
    }

    /// The tier.
    pub fn tier(&self) -> Tier {
        self.tier
    }

    /// Protection of the machine, for a record: the tier, and control groups if each program has one.
    pub fn protection(&self) -> &'static str {
        match (self.tier, self.groups().is_some()) {
            (Tier::Namespaces, true) => "namespaces and control groups",
            (Tier::Landlock, true) => "landlock and control groups",
            (tier, _) => tier.name(),
        }
    }

    /// Better tiers that the machine does not have.
    pub fn unavailable(&self) -> &[Unavailable] {
        &self.unavailable
    }

    /// Runs a program to its end.
    pub fn run(&self, execution: &Execution) -> Result<Outcome, SandboxError> {
        self.run_in_helper(execution, None)
    }

    /// Runs a program to its end, or until it is stopped. If the execution passes output on, `output` reads it in a thread of
    /// its own.
    pub fn run_until(
        &self,
        execution: &Execution,
        stopper: &Stopper,
        output: impl FnOnce(&mut dyn Read) + Send + 'static,
    ) -> Result<Outcome, SandboxError> {
        self.run_in_helper(execution, Some(Watched { stopper, output: Box::new(output) }))
    }

    fn check_names(execution: &Execution) -> Result<(), SandboxError> {
        let names = execution.files.iter().map(|file| &file.name).chain(&execution.outputs);
        for name in names {
            if !crate::execution::is_file_name(name) {
                return Err(SandboxError::FileName { name: name.clone() });
            }
        }
        Ok(())
    }

    fn check(&self, service: Option<&Service>) -> Result<(), String> {
        const CODE: i32 = 7;
        let command = ["/bin/sh", "-c", "exit 7"].map(str::to_owned).to_vec();
        let execution = Execution { command, service: service.cloned(), ..Execution::default() };
        match self.run(&execution) {
            Ok(outcome) if outcome.ending == crate::Ending::Exited(CODE) => Ok(()),
            Ok(outcome) => Err(format!("a test program ended with {:?}", outcome.ending)),
            Err(SandboxError::Failed { reason }) => Err(reason),
            Err(error) => Err(error.to_string()),
        }
    }

    #[cfg(target_os = "linux")]
    fn run_in_helper(
        &self,
        execution: &Execution,
        watched: Option<Watched<'_>>,
    ) -> Result<Outcome, SandboxError> {
        Self::check_names(execution)?;
        crate::helper::call(&self.program, self.tier, &self.pool, execution, watched)
    }

    #[cfg(not(target_os = "linux"))]
    fn run_in_helper(&self, execution: &Execution, _: Option<Watched<'_>>) -> Result<Outcome, SandboxError> {
        Self::check_names(execution)?;
        Err(SandboxError::Failed { reason: "Linux is required".to_owned() })
    }
}

/// Runs a helper process, whose standard input is its connection to the [`Sandbox`]. Must be called in a process with a
/// single thread, whose binary has the hidden command [`COMMAND`].
pub fn run_helper(program: &Program) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    return crate::helper::run(program);
    #[cfg(not(target_os = "linux"))]
    {
        let _ = program;
        Err(io::ErrorKind::Unsupported.into())
    }
}
