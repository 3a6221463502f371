//! System calls that programs may use. Others fail as on a kernel without them, so calls of newer kernels are refused as well.

use std::collections::BTreeMap;

use nix::libc;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch,
};

use super::{During, Failure};

/// Calls that are allowed with any arguments.
const ALLOWED: &[libc::c_long] = &[
    // Memory
    libc::SYS_brk,
    libc::SYS_madvise,
    libc::SYS_mincore,
    libc::SYS_mlock,
    libc::SYS_mlock2,
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_msync,
    libc::SYS_munlock,
    libc::SYS_munmap,
    libc::SYS_pkey_alloc,
    libc::SYS_pkey_free,
    libc::SYS_pkey_mprotect,
    // Files
    libc::SYS_chdir,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_copy_file_range,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_fadvise64,
    libc::SYS_fallocate,
    libc::SYS_fchdir,
    libc::SYS_fchmod,
    libc::SYS_fcntl,
    libc::SYS_fdatasync,
    libc::SYS_flock,
    libc::SYS_fstat,
    libc::SYS_fstatfs,
    libc::SYS_fsync,
    libc::SYS_ftruncate,
    libc::SYS_getcwd,
    libc::SYS_getdents64,
    libc::SYS_linkat,
    libc::SYS_lseek,
    libc::SYS_mkdirat,
    libc::SYS_mknodat,
    libc::SYS_newfstatat,
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_pipe2,
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_preadv2,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_pwritev2,
    libc::SYS_read,
    libc::SYS_readahead,
    libc::SYS_readlinkat,
    libc::SYS_readv,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_sendfile,
    libc::SYS_splice,
    libc::SYS_statfs,
    libc::SYS_statx,
    libc::SYS_symlinkat,
    libc::SYS_sync_file_range,
    libc::SYS_tee,
    libc::SYS_umask,
    libc::SYS_unlinkat,
    libc::SYS_write,
    libc::SYS_writev,
    // Waiting
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_eventfd2,
    libc::SYS_ppoll,
    libc::SYS_pselect6,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_gettime,
    libc::SYS_timerfd_settime,
    // Between processes of the program, which have no other sockets
    libc::SYS_getpeername,
    libc::SYS_getsockname,
    libc::SYS_getsockopt,
    libc::SYS_recvfrom,
    libc::SYS_recvmmsg,
    libc::SYS_recvmsg,
    libc::SYS_setsockopt,
    libc::SYS_shutdown,
    // Processes and threads
    libc::SYS_capget,
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_futex,
    libc::SYS_get_robust_list,
    libc::SYS_getcpu,
    libc::SYS_getegid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getgroups,
    libc::SYS_getpgid,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_getpriority,
    libc::SYS_getresgid,
    libc::SYS_getresuid,
    libc::SYS_getrusage,
    libc::SYS_getsid,
    libc::SYS_gettid,
    libc::SYS_getuid,
    libc::SYS_membarrier,
    libc::SYS_prctl,
    libc::SYS_rseq,
    libc::SYS_sched_get_priority_max,
    libc::SYS_sched_get_priority_min,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_getparam,
    libc::SYS_sched_getscheduler,
    libc::SYS_sched_yield,
    libc::SYS_set_robust_list,
    libc::SYS_set_tid_address,
    libc::SYS_setpgid,
    libc::SYS_setsid,
    libc::SYS_wait4,
    libc::SYS_waitid,
    // Signals
    libc::SYS_restart_syscall,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigpending,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigsuspend,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_sigaltstack,
    libc::SYS_signalfd4,
    // Time and the system
    libc::SYS_clock_getres,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_getitimer,
    libc::SYS_getrandom,
    libc::SYS_gettimeofday,
    libc::SYS_nanosleep,
    libc::SYS_setitimer,
    libc::SYS_sysinfo,
    libc::SYS_timer_create,
    libc::SYS_timer_delete,
    libc::SYS_timer_getoverrun,
    libc::SYS_timer_gettime,
    libc::SYS_timer_settime,
    libc::SYS_times,
    libc::SYS_uname,
];

/// Calls that only this processor has; newer ones have replaced them.
#[cfg(target_arch = "x86_64")]
const LEGACY: &[libc::c_long] = &[
    libc::SYS_access,
    libc::SYS_alarm,
    libc::SYS_arch_prctl,
    libc::SYS_creat,
    libc::SYS_dup2,
    libc::SYS_epoll_create,
    libc::SYS_epoll_wait,
    libc::SYS_eventfd,
    libc::SYS_fork,
    libc::SYS_getdents,
    libc::SYS_getpgrp,
    libc::SYS_link,
    libc::SYS_lstat,
    libc::SYS_mkdir,
    libc::SYS_mknod,
    libc::SYS_open,
    libc::SYS_pause,
    libc::SYS_pipe,
    libc::SYS_poll,
    libc::SYS_readlink,
    libc::SYS_rename,
    libc::SYS_rmdir,
    libc::SYS_select,
    libc::SYS_signalfd,
    libc::SYS_stat,
    libc::SYS_symlink,
    libc::SYS_time,
    libc::SYS_unlink,
    libc::SYS_vfork,
];
#[cfg(not(target_arch = "x86_64"))]
const LEGACY: &[libc::c_long] = &[];

/// Calls by number that reach a file by its name, or any process of the user. Without a user of its own a program may not use
/// them: Landlock does not restrict them.
const BY_NAME: &[libc::c_long] =
    &[libc::SYS_fchmodat, FCHMODAT2, libc::SYS_utimensat, libc::SYS_kill, libc::SYS_tgkill, libc::SYS_tkill];
/// The same number on all processors.
const FCHMODAT2: libc::c_long = 452;
#[cfg(target_arch = "x86_64")]
const CHMOD: &[libc::c_long] = &[libc::SYS_chmod];
#[cfg(not(target_arch = "x86_64"))]
const CHMOD: &[libc::c_long] = &[];

/// Flags of `clone` that create namespaces.
const NEW_NAMESPACES: u64 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET) as u64;

/// Restricts the calls of this thread. `shares_user`: other processes of the machine have the user of the program. `has_service`: the
/// program can make TCP connections.
pub(super) fn restrict(shares_user: bool, has_service: bool) -> Result<(), Failure> {
    let step = "restrict system calls";
    let filter = filter(shares_user, has_service).during(step)?;
    seccompiler::apply_filter(&filter).during(step)
}

fn filter(shares_user: bool, has_service: bool) -> Result<BpfProgram, seccompiler::BackendError> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
    for call in ALLOWED.iter().chain(LEGACY) {
        rules.insert(*call, Vec::new());
    }
    if !shares_user {
        rules.extend(BY_NAME.iter().chain(CHMOD).map(|call| (*call, Vec::new())));
    }
    let no_namespaces = condition(0, SeccompCmpOp::MaskedEq(NEW_NAMESPACES), 0)?;
    rules.insert(libc::SYS_clone, vec![SeccompRule::new(vec![no_namespaces])?]);
    rules.insert(libc::SYS_socketpair, local_pairs()?);
    if has_service {
        rules.insert(libc::SYS_socket, tcp_sockets()?);
        rules.insert(libc::SYS_connect, Vec::new());
    }
    // This flag connects without a call of `connect`, which Landlock would check.
    for (call, flags) in [(libc::SYS_sendto, 3), (libc::SYS_sendmsg, 2), (libc::SYS_sendmmsg, 3)] {
        let connects_not = condition(flags, SeccompCmpOp::MaskedEq(libc::MSG_FASTOPEN as u64), 0)?;
        rules.insert(call, vec![SeccompRule::new(vec![connects_not])?]);
    }
    // Limits of this process alone; that of core dumps may be read, but not lowered to 0, which has another meaning.
    let is_own = || condition(0, SeccompCmpOp::Eq, 0);
    let is_other = condition(1, SeccompCmpOp::Ne, libc::RLIMIT_CORE.into())?;
    let no_value = SeccompCondition::new(2, SeccompCmpArgLen::Qword, SeccompCmpOp::Eq, 0)?;
    let limits =
        vec![SeccompRule::new(vec![is_own()?, is_other])?, SeccompRule::new(vec![is_own()?, no_value])?];
    rules.insert(libc::SYS_prlimit64, limits);
    // No characters for the terminal, as if they were typed there.
    let typed = [libc::TIOCSTI, libc::TIOCLINUX].map(|call| condition(1, SeccompCmpOp::Ne, call));
    rules.insert(libc::SYS_ioctl, vec![SeccompRule::new(typed.into_iter().collect::<Result<_, _>>()?)?]);
    let refuse = SeccompAction::Errno(libc::ENOSYS as u32);
    let arch = TargetArch::try_from(std::env::consts::ARCH)?;
    SeccompFilter::new(rules, refuse, SeccompAction::Allow, arch)?.try_into()
}

/// Flags that the type of a socket can contain.
const SOCKET_FLAGS: u64 = (libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) as u64;

/// The type of a socket without its flags.
fn socket_type(value: libc::c_int) -> Result<SeccompCondition, seccompiler::BackendError> {
    condition(1, SeccompCmpOp::MaskedEq(!SOCKET_FLAGS & u64::from(u32::MAX)), value as u64)
}

/// Pairs of connected sockets. Those of datagrams could be sent to other sockets of the machine by their paths.
fn local_pairs() -> Result<Vec<SeccompRule>, seccompiler::BackendError> {
    let rule = |kind| {
        let is_local = condition(0, SeccompCmpOp::Eq, libc::AF_UNIX as u64)?;
        SeccompRule::new(vec![is_local, socket_type(kind)?])
    };
    [libc::SOCK_STREAM, libc::SOCK_SEQPACKET].into_iter().map(rule).collect()
}

/// TCP over IPv4. Landlock does not check the connections of other protocols, such as Multipath TCP.
fn tcp_sockets() -> Result<Vec<SeccompRule>, seccompiler::BackendError> {
    let rule = |protocol: libc::c_int| {
        let is_internet = condition(0, SeccompCmpOp::Eq, libc::AF_INET as u64)?;
        let is_tcp = condition(2, SeccompCmpOp::Eq, protocol as u64)?;
        SeccompRule::new(vec![is_internet, socket_type(libc::SOCK_STREAM)?, is_tcp])
    };
    [0, libc::IPPROTO_TCP].into_iter().map(rule).collect()
}

fn condition(
    argument: u8,
    operator: SeccompCmpOp,
    value: u64,
) -> Result<SeccompCondition, seccompiler::BackendError> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_filter_compiles_for_this_processor() {
        let (own, shared) = (filter(false, false).unwrap(), filter(true, false).unwrap());
        assert!(own.len() > shared.len() && shared.len() > ALLOWED.len() && own.len() < 4096);
        assert!(filter(false, true).unwrap().len() > own.len());
    }
}
