//! Control groups of version 2, where a part of their tree is delegated to this process.
//!
//! An execution has a group of its own next to that of this process, with the limits on the memory and the processes of all that it
//! starts. The kernel applies them at once, where they are measured a few times a second otherwise, and kills the whole group.
//!
//! A group is delegated if this process may make others in it and move processes there. A user may where the files of a group are
//! its own. Root may everywhere, so for it the group must be marked as delegated, as systemd does, or be the root that a
//! container sees. Processes are in the leaves of the tree alone, so the delegated group is the parent of that of this process:
//! systemd makes it with `Delegate=yes` and `DelegateSubgroup=rloom`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use nix::unistd::{AccessFlags, Uid, access};

use crate::{Ending, Limits, Tier};

/// Memory of the helper, without the output that it keeps.
const HELPER_MEMORY: u64 = 32 << 20;
/// Processes and threads of the helper.
const HELPER_PROCESSES: u64 = 4;
/// Controllers that limit executions.
const CONTROLLERS: [&str; 2] = ["memory", "pids"];

/// The delegated group.
#[derive(Debug, Clone)]
pub(crate) struct Groups {
    folder: PathBuf,
}

impl Groups {
    /// The delegated group of this process, if it has one.
    pub(crate) fn find() -> Option<Self> {
        let read = |path: &str| fs::read_to_string(path).ok();
        let own = own_group(&read("/proc/self/cgroup")?, &read("/proc/self/mountinfo")?)?;
        let folder = own.parent()?;
        // The group of this process, from which it moves others: the parent of both must be open as well.
        let is_group = fs::metadata(folder.join("cgroup.procs")).is_ok();
        let is_delegated = if Uid::effective().is_root() { is_marked(folder) } else { true };
        if is_group && is_delegated { Self::at(folder).ok() } else { None }
    }

    /// The group of a folder, whose controllers are given to the groups in it.
    pub(crate) fn at(folder: &Path) -> io::Result<Self> {
        for (name, flags) in
            [("", AccessFlags::W_OK | AccessFlags::X_OK), ("cgroup.procs", AccessFlags::W_OK)]
        {
            access(&folder.join(name), flags)?;
        }
        let given = |file: &str| -> io::Result<bool> {
            let text = fs::read_to_string(folder.join(file))?;
            Ok(CONTROLLERS.iter().all(|one| text.split_whitespace().any(|word| word == *one)))
        };
        if !given("cgroup.controllers")? {
            return Err(io::Error::other("it has no controllers of memory and processes"));
        }
        if !given("cgroup.subtree_control")? {
            let all = CONTROLLERS.map(|one| format!("+{one}")).join(" ");
            fs::write(folder.join("cgroup.subtree_control"), all)?;
        }
        Ok(Self { folder: folder.to_owned() })
    }

    /// The folder of the group.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// A new group with the limits of an execution.
    pub(crate) fn create(&self, limits: &Limits, tier: Tier) -> io::Result<Group> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let group = loop {
            let number = COUNT.fetch_add(1, Ordering::Relaxed);
            let path = self.folder.join(format!("rloom-sandbox-{}-{number}", std::process::id()));
            match fs::create_dir(&path) {
                Ok(()) => break Group { path },
                // Left by a process that had this number before.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        };
        // The files of the program are in memory in namespaces; the helper keeps output and report.
        let files = if tier == Tier::Namespaces { limits.disk } else { 0 };
        let kept = limits.output.saturating_mul(3);
        let memory =
            [files, kept, HELPER_MEMORY].iter().fold(limits.memory, |sum, more| sum.saturating_add(*more));
        group.write("memory.max", &memory.to_string())?;
        group.write("pids.max", &limits.processes.saturating_add(HELPER_PROCESSES).to_string())?;
        // Without memory on disk there is no such file.
        let _ = group.write("memory.swap.max", "0");
        Ok(group)
    }
}

/// The group of an execution. It is removed when this is dropped, with all processes in it.
#[derive(Debug)]
pub(crate) struct Group {
    path: PathBuf,
}

impl Group {
    fn write(&self, file: &str, value: &str) -> io::Result<()> {
        fs::write(self.path.join(file), value)
    }

    /// Moves a process and those that it has started into the group. What they start later is there as well.
    pub(crate) fn take(&self, process: u32) -> io::Result<()> {
        self.write("cgroup.procs", &process.to_string())?;
        // A process that it started before is its child by now; the next ones begin in the group.
        let children = fs::read_to_string(format!("/proc/{process}/task/{process}/children"))?;
        for child in children.split_whitespace() {
            self.write("cgroup.procs", child)?;
        }
        Ok(())
    }

    /// The limit that the kernel has enforced by killing, if it has.
    pub(crate) fn exceeded(&self) -> Option<Ending> {
        let events = fs::read_to_string(self.path.join("memory.events")).ok()?;
        let killed = events.lines().find_map(|line| line.strip_prefix("oom_kill "))?.trim().parse::<u64>();
        killed.is_ok_and(|killed| killed > 0).then_some(Ending::MemoryLimit)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // On kernels before 5.14 the helper alone has killed them.
        let _ = self.write("cgroup.kill", "1");
        // The kernel takes a while to clean up after the processes.
        for _ in 0..50 {
            match fs::remove_dir(&self.path) {
                Err(error) if error.raw_os_error() == Some(nix::libc::EBUSY) => {
                    std::thread::sleep(std::time::Duration::from_millis(10));
                }
                _ => return,
            }
        }
    }
}

/// The folder of the group of this process, from `/proc/self/cgroup` and `/proc/self/mountinfo`.
fn own_group(groups: &str, mounts: &str) -> Option<PathBuf> {
    let own = Path::new(groups.lines().find_map(|line| line.strip_prefix("0::"))?);
    let found = mounts.lines().find_map(|line| {
        let (fields, kind) = line.split_once(" - ")?;
        let mut fields = fields.split(' ').skip(3);
        let (root, point) = (fields.next()?, fields.next()?);
        kind.starts_with("cgroup2 ").then(|| Some(Path::new(point).join(own.strip_prefix(root).ok()?)))
    });
    found.flatten()
}

/// True if a group is marked as delegated, or is the root that a container sees. The root of the machine has no type.
fn is_marked(folder: &Path) -> bool {
    let has_mark = ["user.delegate", "trusted.delegate"].iter().any(|name| {
        let mut value = [0; 1];
        rustix::fs::getxattr(folder, *name, &mut value[..]).is_ok_and(|length| length == 1) && value == *b"1"
    });
    let is_mount = || {
        let device =
            |path: &Path| fs::metadata(path).map(|found| std::os::unix::fs::MetadataExt::dev(&found)).ok();
        device(folder) != folder.parent().and_then(device)
    };
    has_mark || (folder.join("cgroup.type").exists() && is_mount())
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};

    use nix::sys::signal::Signal;
    use nix::unistd::Pid;

    use super::*;

    #[test]
    fn the_own_group_is_found_below_its_mount_point() {
        let mounts = "25 1 0:23 / /sys rw - sysfs sysfs rw\n30 25 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n";
        let of = |groups: &str, mounts: &str| own_group(groups, mounts);
        assert_eq!(of("0::/user.slice/a\n", mounts), Some("/sys/fs/cgroup/user.slice/a".into()));
        assert_eq!(of("4:memory:/x\n0::/\n", mounts), Some("/sys/fs/cgroup/".into()));
        // A container whose mount shows a part of the tree.
        let part = "30 25 0:26 /docker/1 /sys/fs/cgroup ro - cgroup2 cgroup ro\n";
        assert_eq!(of("0::/docker/1/main\n", part), Some("/sys/fs/cgroup/main".into()));
        assert_eq!(of("0::/elsewhere\n", part), None);
        assert_eq!(of("4:memory:/x\n", mounts), None);
        assert_eq!(of("0::/x\n", "30 25 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"), None);
    }

    /// A folder with the files that a delegated group has.
    fn stand_in(controllers: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (file, content) in
            [("cgroup.procs", ""), ("cgroup.controllers", controllers), ("cgroup.subtree_control", "")]
        {
            fs::write(folder.path().join(file), content).unwrap();
        }
        folder
    }

    #[test]
    fn controllers_are_given_to_groups_of_executions() {
        let folder = stand_in("cpuset cpu io memory pids\n");
        let groups = Groups::at(folder.path()).unwrap();
        let read = |file: &str| fs::read_to_string(folder.path().join(file)).unwrap();
        assert_eq!(read("cgroup.subtree_control"), "+memory +pids");
        let limits =
            Limits { memory: 1 << 30, disk: 1 << 20, output: 10, processes: 64, ..Limits::default() };
        let group = groups.create(&limits, Tier::Namespaces).unwrap();
        let path = group.path.clone();
        let of = |file: &str| fs::read_to_string(path.join(file)).unwrap();
        assert_eq!(of("memory.max"), ((1u64 << 30) + (1 << 20) + 30 + HELPER_MEMORY).to_string());
        assert_eq!((of("pids.max"), of("memory.swap.max")), ("68".to_owned(), "0".to_owned()));
        let mut parent = std::process::Command::new("sh")
            .args(["-c", "sleep 60 & echo $!; wait"])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut child = String::new();
        BufReader::new(parent.stdout.take().unwrap()).read_line(&mut child).unwrap();
        group.take(parent.id()).unwrap();
        // The last one that was written is the child.
        assert_eq!(of("cgroup.procs"), child.trim());
        nix::sys::signal::kill(Pid::from_raw(child.trim().parse().unwrap()), Signal::SIGKILL).unwrap();
        parent.wait().unwrap();
        assert_eq!(group.exceeded(), None);
        fs::write(path.join("memory.events"), "low 0\nhigh 0\nmax 9\noom 2\noom_kill 2\n").unwrap();
        assert_eq!(group.exceeded(), Some(Ending::MemoryLimit));
        fs::write(path.join("memory.events"), "low 0\noom 0\noom_kill 0\n").unwrap();
        assert_eq!(group.exceeded(), None);
        drop(group);
        assert_eq!(of("cgroup.kill"), "1");
    }

    #[test]
    fn groups_without_the_controllers_are_not_used() {
        assert!(Groups::at(stand_in("cpu io pids\n").path()).is_err());
        assert!(Groups::at(Path::new("/nowhere")).is_err());
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("cgroup.subtree_control")).unwrap();
        assert!(Groups::at(folder.path()).is_err());
    }
}
