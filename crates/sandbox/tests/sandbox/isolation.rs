//! What a program must not reach: each attempt works without protection and fails in every tier.

use std::fs;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener};
use std::process::Command;

use super::*;

/// An attempt in Python. It raises an exception if it fails.
struct Attempt {
    name: &'static str,
    code: &'static str,
    /// False if it fails for other reasons on some machines.
    works_unprotected: bool,
}

const PREAMBLE: &str = r#"
import ctypes, os, platform, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
INTEL = platform.machine() == "x86_64"
def check(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
def call(intel, arm, *arguments):
    whole = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    return check(libc.syscall(ctypes.c_long(intel if INTEL else arm), *whole))
def reaches(*arguments):
    # The kernel takes the call, whatever it says about its arguments.
    try:
        call(*arguments)
    except OSError as error:
        if error.errno in (1, 38):
            raise
"#;

const ATTEMPTS: &[Attempt] = &[
    Attempt { name: "read accounts", code: "open('/etc/passwd').read()", works_unprotected: true },
    Attempt { name: "list the home of root", code: "os.listdir('/root')", works_unprotected: false },
    Attempt { name: "read the host's name", code: "open('/etc/hostname').read()", works_unprotected: true },
    Attempt {
        name: "list the temporary files of others",
        code: "assert 'SECRET' in os.listdir('/tmp')",
        works_unprotected: true,
    },
    Attempt {
        name: "read a file of the user",
        code: "open('/tmp/SECRET/file').read()",
        works_unprotected: true,
    },
    Attempt {
        name: "change the mode of a file of the user",
        code: "os.chmod('/tmp/SECRET/file', 0o600)",
        works_unprotected: true,
    },
    Attempt {
        name: "truncate a file of the user",
        code: "os.truncate('/tmp/SECRET/file', 6)",
        works_unprotected: true,
    },
    Attempt {
        name: "change the times of a file of the user",
        code: "os.utime('/tmp/SECRET/file', (1, 1))",
        works_unprotected: true,
    },
    Attempt { name: "write to the system", code: "open('/usr/rloom-probe', 'w')", works_unprotected: false },
    Attempt {
        name: "memory of the parent",
        code: "open(f'/proc/{os.getppid()}/mem', 'rb').read(0)",
        works_unprotected: true,
    },
    Attempt {
        name: "environment of the parent",
        code: "assert b'SECRET' in open(f'/proc/{os.getppid()}/environ', 'rb').read()",
        works_unprotected: false,
    },
    Attempt {
        name: "trace the parent",
        code: "call(101, 117, 16, os.getppid(), 0, 0)",
        works_unprotected: false,
    },
    Attempt {
        name: "read memory of the parent",
        code: "call(310, 270, os.getppid(), None, 0, None, 0, 0)",
        works_unprotected: true,
    },
    Attempt {
        name: "write memory of the parent",
        code: "call(311, 271, os.getppid(), None, 0, None, 0, 0)",
        works_unprotected: true,
    },
    Attempt {
        name: "write memory of process 1",
        code: "open('/proc/1/mem', 'r+b').read(0)",
        works_unprotected: false,
    },
    Attempt {
        name: "descriptors of the parent",
        code: "[open(f'/proc/{os.getppid()}/fd/{n}') for n in os.listdir(f'/proc/{os.getppid()}/fd')][0]",
        works_unprotected: false,
    },
    Attempt {
        name: "binary of the parent",
        code: "open(f'/proc/{os.getppid()}/exe', 'r+b')",
        works_unprotected: false,
    },
    Attempt {
        name: "maps of the parent",
        code: "assert open(f'/proc/{os.getppid()}/maps').read()",
        works_unprotected: true,
    },
    Attempt { name: "a handle of the caller", code: "call(434, 434, CALLER, 0)", works_unprotected: true },
    Attempt {
        name: "take a descriptor of a process",
        code: "call(438, 438, os.pidfd_open(os.getppid()), 0, 0)",
        works_unprotected: true,
    },
    Attempt {
        name: "compare processes",
        code: "call(312, 272, os.getpid(), CALLER, 1, 0, 0)",
        works_unprotected: false,
    },
    Attempt {
        name: "scheduler of the caller",
        code: "os.sched_setscheduler(CALLER, os.SCHED_OTHER, os.sched_param(0))",
        works_unprotected: true,
    },
    Attempt { name: "signal the caller", code: "os.kill(CALLER, 0)", works_unprotected: true },
    Attempt {
        name: "limit the caller",
        code: "import resource; resource.prlimit(CALLER, resource.RLIMIT_CORE)",
        works_unprotected: true,
    },
    Attempt {
        name: "schedule the caller",
        code: "os.sched_setaffinity(CALLER, os.sched_getaffinity(0))",
        works_unprotected: true,
    },
    Attempt {
        name: "priority of the caller",
        code: "os.setpriority(os.PRIO_PROCESS, CALLER, os.getpriority(os.PRIO_PROCESS, 0))",
        works_unprotected: true,
    },
    Attempt {
        name: "connect to the loopback",
        code: "socket.create_connection(('127.0.0.1', PORT), 5)",
        works_unprotected: true,
    },
    Attempt { name: "listen", code: "socket.create_server(('127.0.0.1', 0))", works_unprotected: true },
    Attempt {
        name: "ask a name server",
        code: "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', 53))",
        works_unprotected: true,
    },
    Attempt {
        name: "abstract Unix socket",
        code: "socket.socket(socket.AF_UNIX).connect('\\0rloom-probe-' + str(CALLER))",
        works_unprotected: true,
    },
    Attempt {
        name: "Unix socket in a folder",
        code: "socket.socket(socket.AF_UNIX).connect('/tmp/SECRET/socket')",
        works_unprotected: true,
    },
    Attempt {
        name: "datagrams to a Unix socket in a folder",
        code: "socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0].sendto(b'x', '/tmp/SECRET/datagrams')",
        works_unprotected: true,
    },
    Attempt {
        name: "raw network",
        code: "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)",
        works_unprotected: true,
    },
    Attempt { name: "nested user namespace", code: "call(272, 97, 0x10000000)", works_unprotected: false },
    Attempt { name: "mount namespace", code: "call(272, 97, 0x20000)", works_unprotected: false },
    Attempt { name: "enter a namespace", code: "reaches(308, 268, -1, 0)", works_unprotected: true },
    Attempt { name: "load a kernel", code: "reaches(246, 104, 0, 0, 0, 0)", works_unprotected: false },
    Attempt { name: "load a module", code: "reaches(313, 273, -1, b'', 0)", works_unprotected: false },
    Attempt { name: "remove a module", code: "reaches(176, 106, b'none', 0)", works_unprotected: false },
    Attempt {
        name: "clone into a user namespace",
        code: "pid = call(56, 220, 0x10000000 | 17, 0, 0, 0, 0); pid or os._exit(0)",
        works_unprotected: false,
    },
    Attempt { name: "clone3", code: "call(435, 435, 0, 0)", works_unprotected: false },
    Attempt {
        name: "mount",
        code: "check(libc.mount(b'none', b'.', b'tmpfs', 0, None))",
        works_unprotected: false,
    },
    Attempt { name: "unmount", code: "check(libc.umount2(b'/proc', 2))", works_unprotected: false },
    Attempt { name: "new root", code: "os.chroot('.')", works_unprotected: false },
    Attempt { name: "key ring", code: "call(250, 219, 0, -3, 0)", works_unprotected: true },
    Attempt {
        name: "add a key",
        code: "call(248, 217, b'user', b'rloom', b'x', 1, -1)",
        works_unprotected: true,
    },
    Attempt {
        name: "io_uring",
        code: "call(425, 425, 1, ctypes.create_string_buffer(120))",
        works_unprotected: false,
    },
    Attempt { name: "bpf", code: "call(321, 280, 0, 0, 0)", works_unprotected: false },
    Attempt {
        name: "perf",
        code: "call(298, 241, ctypes.create_string_buffer(128), 0, -1, -1, 0)",
        works_unprotected: false,
    },
    Attempt { name: "userfaultfd", code: "call(323, 282, 1)", works_unprotected: false },
    Attempt { name: "handle of a file", code: "call(304, 265, 0, 0, 0)", works_unprotected: false },
    Attempt { name: "memory without a file system", code: "os.memfd_create('x')", works_unprotected: true },
    Attempt {
        name: "shared memory of System V",
        code: "call(29, 194, 0, 4096, 0o1600)",
        works_unprotected: true,
    },
    Attempt {
        name: "message queue",
        code: "call(240, 180, b'rloom-probe', 0o102, 0o600, 0)",
        works_unprotected: false,
    },
    Attempt { name: "watch files", code: "call(294, 26, 0)", works_unprotected: true },
    Attempt { name: "personality", code: "call(135, 92, 0)", works_unprotected: true },
    Attempt {
        name: "hand a core dump to a program of the machine",
        code: "import resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0))",
        works_unprotected: true,
    },
    Attempt {
        name: "a large core dump",
        code: "import resource; resource.setrlimit(resource.RLIMIT_CORE, (1 << 20, 1 << 20))",
        works_unprotected: false,
    },
    Attempt {
        name: "the core pattern",
        code: "open('/proc/sys/kernel/core_pattern', 'w')",
        works_unprotected: false,
    },
    Attempt {
        name: "restart the machine",
        code: "open('/proc/sysrq-trigger', 'w')",
        works_unprotected: false,
    },
    Attempt { name: "reboot", code: "call(169, 142, 0, 0, 0, 0)", works_unprotected: false },
    Attempt { name: "name of the host", code: "socket.sethostname('rloom-probe')", works_unprotected: false },
    Attempt {
        name: "type into the terminal",
        code: "import fcntl; fcntl.ioctl(os.open('/dev/tty', os.O_RDWR | os.O_NONBLOCK), 0x5412, b'x')",
        works_unprotected: false,
    },
    Attempt {
        name: "new rights by a program of root",
        code: "assert libc.prctl(39, 0, 0, 0, 0) == 0",
        works_unprotected: true,
    },
    Attempt {
        name: "protection from the lack of memory",
        code: "open('/proc/self/oom_score_adj', 'w').write('-1000')",
        works_unprotected: false,
    },
    Attempt {
        name: "sockets of virtual machines",
        code: "socket.socket(40, socket.SOCK_STREAM)",
        works_unprotected: false,
    },
    Attempt {
        name: "kernel cryptography",
        code: "socket.socket(38, socket.SOCK_SEQPACKET)",
        works_unprotected: false,
    },
    Attempt { name: "become root", code: "os.setuid(0)", works_unprotected: false },
    Attempt {
        name: "raise the limit of open files",
        code: "import resource; more = resource.getrlimit(resource.RLIMIT_NOFILE)[1] + 1; resource.setrlimit(resource.RLIMIT_NOFILE, (more, more))",
        works_unprotected: false,
    },
    Attempt {
        name: "device",
        code: "os.mknod('device', 0o060600, os.makedev(254, 0))",
        works_unprotected: false,
    },
    Attempt { name: "disk", code: "open('/dev/vda', 'rb')", works_unprotected: false },
    Attempt { name: "terminal", code: "open('/dev/tty')", works_unprotected: false },
    Attempt { name: "kernel log", code: "call(103, 116, 10, 0, 0)", works_unprotected: false },
    Attempt {
        name: "other file system than its own",
        code: "open('/rloom-probe/../../../../../etc/passwd')",
        works_unprotected: false,
    },
    Attempt {
        name: "through the file system of process 1",
        code: "open('/proc/1/root/etc/passwd')",
        works_unprotected: false,
    },
    Attempt {
        name: "through the working folder of the parent",
        code: "open(f'/proc/{os.getppid()}/cwd/etc/passwd')",
        works_unprotected: false,
    },
    Attempt {
        name: "a second name for a file of the user",
        code: "os.link('/tmp/SECRET/file', 'second')",
        works_unprotected: true,
    },
    Attempt {
        name: "move a file of the user here",
        code: "os.replace('/tmp/SECRET/file', 'moved')",
        works_unprotected: false,
    },
    Attempt {
        name: "through a link",
        code: "os.symlink('/etc/passwd', 'link'); open('link').read()",
        works_unprotected: true,
    },
];

const FRAME: &str = r#"
for name, code in ATTEMPTS:
    try:
        exec(code)
        print(name, "ALLOWED")
    except BaseException as error:
        print(name, "blocked", type(error).__name__, error)
"#;

#[test]
fn attempts_that_work_without_protection_fail_in_every_tier() {
    let Some(_) = python() else { return };
    let secret = tempfile::tempdir_in("/tmp").unwrap();
    fs::write(secret.path().join("file"), "secret").unwrap();
    let name = secret.path().file_name().unwrap().to_str().unwrap();
    let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = server.local_addr().unwrap().port();
    let _socket = UnixListener::bind(secret.path().join("socket")).unwrap();
    let _datagrams = UnixDatagram::bind(secret.path().join("datagrams")).unwrap();
    let caller = std::process::id();
    let abstract_name = format!("rloom-probe-{caller}");
    let address = SocketAddr::from_abstract_name(&abstract_name).unwrap();
    let _abstract = UnixListener::bind_addr(&address).unwrap();
    let unprotected = Sandbox::detect(&helper(), Choice::None).unwrap();
    let program = |attempts: &[&Attempt]| {
        let list: Vec<String> = attempts
            .iter()
            .map(|attempt| format!("({:?}, {:?})", attempt.name, attempt.code.replace("SECRET", name)))
            .collect();
        let values = format!("PORT = {port}\nCALLER = {caller}\nATTEMPTS = [{}]\n", list.join(","));
        script(&format!("{PREAMBLE}{values}{FRAME}")).unwrap()
    };
    let working: Vec<&Attempt> = ATTEMPTS.iter().filter(|attempt| attempt.works_unprotected).collect();
    for line in stdout(&unprotected, &program(&working)).lines() {
        assert!(line.ends_with(" ALLOWED"), "a broken attempt: {line}");
    }
    let all: Vec<&Attempt> = ATTEMPTS.iter().collect();
    in_each_tier(|sandbox| {
        let said = stdout(sandbox, &program(&all));
        assert_eq!(said.lines().count(), ATTEMPTS.len(), "{said}");
        for line in said.lines() {
            assert!(line.contains(" blocked "), "{}: {line}", sandbox.tier());
            for broken in ["SyntaxError", "NameError", "AttributeError", "TypeError"] {
                assert!(!line.contains(broken), "a broken attempt: {line}");
            }
        }
    });
    assert_eq!(fs::read_to_string(secret.path().join("file")).unwrap(), "secret");
}

const SECRET: &str = "RLOOM_TEST_SECRET";

/// In a process that has a secret in its environment and open files.
#[test]
#[ignore = "run by a test"]
fn leaks() {
    let text_of = format!(
        r#"
import glob, os
for path in glob.glob("/proc/*/environ"):
    try:
        if b"{SECRET}" in open(path, "rb").read():
            print("environment", path)
    except OSError:
        pass
if "{SECRET}" in os.environ:
    print("own environment")
for number in range(3, 1024):
    try:
        os.fstat(number)
        print("descriptor", number)
    except OSError:
        pass
"#
    );
    let execution = script(&text_of).unwrap();
    in_each_tier(|sandbox| assert_eq!(stdout(sandbox, &execution), "", "{}", sandbox.tier()));
}

#[test]
fn neither_environment_nor_open_files_are_inherited() {
    let Some(_) = python() else { return };
    let file = tempfile::NamedTempFile::new().unwrap();
    let output = Command::new("bash")
        .args(["-c", r#"exec 10<"$1" 251<"$1"; shift; exec "$@""#, "bash"])
        .arg(file.path())
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "--ignored", "isolation::leaks"])
        .env(SECRET, "1")
        .output()
        .unwrap();
    let said = text(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}{}", text(&output.stderr));
}

#[test]
fn other_processes_are_not_seen() {
    in_each_tier(|sandbox| {
        let said = stdout(sandbox, &shell("ls /proc 2>/dev/null | grep -c '^[0-9]' || true"));
        // Its shell, `ls` and `grep`, and process 1.
        assert!(said.trim().parse::<u32>().unwrap() <= 4, "{}: {said}", sandbox.tier());
    });
}

#[test]
fn a_program_that_signals_everything_reaches_nothing_else() {
    let mut bystander = Command::new("sleep").arg("60").spawn().unwrap();
    in_each_tier(|sandbox| {
        sandbox.run(&shell("kill -9 -1; kill -9 0; sleep 0.1")).unwrap();
        sandbox.run(&shell(&format!("kill -9 {}; kill -9 $PPID; sleep 0.1", bystander.id()))).unwrap();
        std::thread::sleep(Duration::from_millis(20));
    });
    assert!(bystander.try_wait().unwrap().is_none(), "it was killed");
    bystander.kill().unwrap();
    bystander.wait().unwrap();
}

/// System calls of 32-bit programs have other numbers.
#[test]
#[cfg(target_arch = "x86_64")]
fn system_calls_of_other_architectures_are_refused() {
    const PROGRAM: &str = r#"
#include <stdio.h>
int main(void) {
    long result;
    /* getuid of i386 */
    __asm__ volatile("int $0x80" : "=a"(result) : "a"(199) : "memory");
    printf("ALLOWED %ld\n", result);
    return 0;
}
"#;
    if !std::path::Path::new("/usr/bin/gcc").exists() {
        eprintln!("left out: no gcc");
        return;
    }
    in_each_tier(|sandbox| {
        let mut compile = command(&["gcc", "-o", "main", "main.c"]);
        compile.files = vec![InputFile::new("main.c", PROGRAM)];
        compile.outputs = vec!["main".to_owned()];
        let compiled = sandbox.run(&compile).unwrap();
        assert!(compiled.ending.is_success(), "{}", text(&compiled.stderr));
        let mut execution = command(&["./main"]);
        execution.files = compiled.outputs;
        let outcome = sandbox.run(&execution).unwrap();
        assert!(!text(&outcome.stdout).contains("ALLOWED"), "{}", sandbox.tier());
        assert!(matches!(outcome.ending, Ending::Signaled(_)), "{:?}", outcome.ending);
    });
}
