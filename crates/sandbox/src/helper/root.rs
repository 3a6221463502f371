//! The file system of a program in namespaces: a small one in memory with the system's programs, read-only.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::statvfs::{FsFlags, statvfs};

use super::{DEVICES, During, Failure, Place, SYSTEM};
use crate::{Execution, Tier};

/// Folder that the new root covers while it is prepared; nothing below it is needed.
const COVERED: &str = "/sys";
/// Working folder.
const FOLDER: &str = "/work";
/// Files and folders of the root itself.
const OWN_FILES: u64 = 256;
/// Bytes of the root itself.
const OWN_BYTES: u64 = 1 << 20;

/// Makes the new root and enters it.
pub(super) fn enter(execution: &Execution) -> Result<Place, Failure> {
    let none = None::<&str>;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).during("make mounts private")?;
    let limits = &execution.limits;
    let options = format!(
        "mode=755,size={},nr_inodes={}",
        limits.disk.saturating_add(OWN_BYTES),
        limits.files.saturating_add(OWN_FILES)
    );
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    mount(Some("tmpfs"), COVERED, Some("tmpfs"), flags, Some(options.as_str())).during("mount a root")?;
    let root = Path::new(COVERED);
    for path in SYSTEM.iter().map(|path| Path::new(*path)) {
        show(root, path)?;
    }
    for path in &execution.readable {
        show(root, path)?;
    }
    for device in DEVICES {
        bind_file(root, Path::new(device))?;
    }
    for folder in ["work", "tmp", "dev/shm"] {
        let folder = root.join(folder);
        fs::create_dir_all(&folder).during("make folders")?;
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).during("make folders")?;
    }
    for (link, target) in [
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
    ] {
        std::os::unix::fs::symlink(target, root.join("dev").join(link)).during("make links")?;
    }
    fs::create_dir(root.join("proc")).during("make folders")?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some("proc"), &root.join("proc"), Some("proc"), flags, none).during("mount /proc")?;
    std::env::set_current_dir(root).during("enter the root")?;
    // The old root is stacked on the new one, and detached from there.
    nix::unistd::pivot_root(".", ".").during("change the root")?;
    umount2(".", MntFlags::MNT_DETACH).during("detach the old root")?;
    std::env::set_current_dir(FOLDER).during("enter the working folder")?;
    Ok(Place {
        tier: Tier::Namespaces,
        folder: PathBuf::from(FOLDER),
        temporary: PathBuf::from("/tmp"),
        has_own_user: true,
        is_scoped: true,
    })
}

/// Shows a file or folder of the machine at its path in the new root, read-only.
fn show(root: &Path, path: &Path) -> Result<(), Failure> {
    let step = format!("show {}", path.display());
    let Ok(metadata) = fs::symlink_metadata(path) else { return Ok(()) };
    let target = root.join(path.strip_prefix("/").during(&step)?);
    if let Some(parent) = target.parent() {
        fs::create_dir_all(parent).during(&step)?;
    }
    if metadata.is_symlink() {
        let link = fs::read_link(path).during(&step)?;
        return std::os::unix::fs::symlink(link, target).during(&step);
    }
    if metadata.is_file() {
        return bind_file(root, path);
    }
    if !target.is_dir() {
        fs::create_dir(&target).during(&step)?;
    }
    bind(path, &target, MsFlags::MS_REC).during(&step)?;
    for inner in mounts_below(path) {
        let covering = root.join(inner.strip_prefix("/").during(&step)?);
        make_read_only(&inner, &covering).during(&step)?;
    }
    make_read_only(path, &target).during(&step)
}

fn bind_file(root: &Path, path: &Path) -> Result<(), Failure> {
    let step = format!("show {}", path.display());
    let target = root.join(path.strip_prefix("/").during(&step)?);
    if let Some(parent) = target.parent() {
        fs::create_dir_all(parent).during(&step)?;
    }
    if !path.exists() {
        return Ok(());
    }
    fs::write(&target, "").during(&step)?;
    bind(path, &target, MsFlags::empty()).during(&step)?;
    if path.starts_with("/dev") { Ok(()) } else { make_read_only(path, &target).during(&step) }
}

fn bind(path: &Path, target: &Path, flags: MsFlags) -> nix::Result<()> {
    mount(Some(path), target, None::<&str>, MsFlags::MS_BIND | flags, None::<&str>)
}

/// Forbids to write through a bind mount. Flags of the mount that it repeats cannot be removed.
fn make_read_only(source: &Path, target: &Path) -> nix::Result<()> {
    let mut flags =
        MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY | MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    if statvfs(source)?.flags().contains(FsFlags::ST_NOEXEC) {
        flags |= MsFlags::MS_NOEXEC;
    }
    mount(None::<&str>, target, None::<&str>, flags, None::<&str>)
}

/// Mount points below a folder.
fn mounts_below(folder: &Path) -> BTreeSet<PathBuf> {
    let text = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let points =
        text.lines().filter_map(|line| line.split(' ').nth(4)).map(|point| PathBuf::from(unescape(point)));
    points.filter(|point| point.starts_with(folder) && point != folder).collect()
}

/// A path of mountinfo, in which white space and `\` are octal numbers.
fn unescape(path: &str) -> String {
    let mut parts = path.split('\\');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let code = part.get(..3).and_then(|code| u8::from_str_radix(code, 8).ok());
        if let Some(code) = code {
            plain.push(char::from(code));
            plain += &part[3..];
        } else {
            plain.push('\\');
            plain += part;
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::unescape;

    #[test]
    fn mount_points_may_contain_spaces() {
        assert_eq!(unescape("/usr/a\\040b\\134c"), "/usr/a b\\c");
        assert_eq!(unescape("/usr/\\9"), "/usr/\\9");
    }
}
