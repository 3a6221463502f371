//! Restrictions of a thread that its programs inherit and cannot lift.

use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, NetPort, PathBeneath, PathFd, Ruleset,
    RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetStatus, Scope,
};

use super::{DEVICES, During, Failure, Place, SYSTEM, identity, syscalls};
use crate::{Execution, Tier};

/// Newest version whose rights are known here. Older kernels apply what they have.
const NEWEST: ABI = ABI::V6;

/// Restricts this thread for good.
pub(super) fn apply(place: &Place, execution: &Execution) -> Result<(), Failure> {
    if place.tier == Tier::None {
        return Ok(());
    }
    identity::drop_capabilities()?;
    restrict_access(place, execution)?;
    let shares_user = !place.has_own_user && place.tier == Tier::Landlock;
    syscalls::restrict(shares_user, execution.service.is_some())
}

/// Restricts signals of this process to itself and those that it starts. False if the kernel cannot.
pub(super) fn scope_signals() -> Result<bool, Failure> {
    let step = "scope signals with Landlock";
    let ruleset =
        Ruleset::default().set_compatibility(CompatLevel::BestEffort).scope(Scope::Signal).during(step)?;
    let status = ruleset.create().during(step)?.restrict_self().during(step)?;
    Ok(status.ruleset == RulesetStatus::FullyEnforced)
}

/// Version that restricts TCP connections.
const NETWORK: ABI = ABI::V4;

fn restrict_access(place: &Place, execution: &Execution) -> Result<(), Failure> {
    let step = "restrict files and network with Landlock";
    let service = execution.service.as_ref();
    let mut rules = Ruleset::default();
    if service.is_some() && place.tier == Tier::Landlock {
        // Nothing else keeps the program from other servers.
        let required = rules.set_compatibility(CompatLevel::HardRequirement);
        rules = required
            .handle_access(AccessNet::from_all(NETWORK))
            .during("restrict the network with Landlock")?;
    }
    let rules = rules
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(NEWEST))
        .and_then(|rules| rules.handle_access(AccessNet::from_all(NEWEST)))
        .and_then(|rules| rules.scope(Scope::AbstractUnixSocket | Scope::Signal))
        .and_then(Ruleset::create)
        .during(step)?;
    let rules = match service {
        Some(service) => {
            let rule = NetPort::new(service.port, AccessNet::ConnectTcp);
            rules.add_rule(rule).during("allow the server with Landlock")?
        }
        None => rules,
    };
    let rules = if place.tier == Tier::Namespaces {
        let rules = allow(rules, Path::new("/"), Right::Read)?;
        let rules = allow(rules, Path::new("/tmp"), Right::Write)?;
        allow(rules, Path::new("/dev/shm"), Right::Write)?
    } else {
        let mut rules = rules;
        for path in SYSTEM.iter().map(Path::new).chain(execution.readable.iter().map(PathBuf::as_path)) {
            rules = allow(rules, path, Right::Read)?;
        }
        rules
    };
    let mut rules = allow(rules, &place.folder, Right::Write)?;
    for device in DEVICES {
        rules = allow(rules, Path::new(device), Right::Device)?;
    }
    let status = rules.restrict_self().during(step)?;
    if place.tier == Tier::Landlock && status.ruleset == RulesetStatus::NotEnforced {
        return Err(Failure::Step("the kernel has no Landlock".to_owned()));
    }
    Ok(())
}

#[derive(Clone, Copy)]
enum Right {
    /// Reads and executes.
    Read,
    /// Reads, executes and writes.
    Write,
    /// Reads and writes, without folders.
    Device,
}

/// Allows access to a path, if it exists.
fn allow(rules: RulesetCreated, path: &Path, right: Right) -> Result<RulesetCreated, Failure> {
    let Ok(opened) = PathFd::new(path) else { return Ok(rules) };
    let mut access = match right {
        Right::Read => AccessFs::from_read(NEWEST),
        Right::Write => {
            AccessFs::from_all(NEWEST) & !AccessFs::MakeSock & !AccessFs::MakeChar & !AccessFs::MakeBlock
        }
        Right::Device => AccessFs::ReadFile | AccessFs::WriteFile,
    };
    if !path.is_dir() {
        access &= AccessFs::from_file(NEWEST);
    }
    let step = format!("allow {} with Landlock", path.display());
    rules.add_rule(PathBeneath::new(opened, access)).during(&step)
}
