//! Programs that take what they can: processes, memory, disk, time.

use std::time::Instant;

use super::*;

const SIGXFSZ: i32 = 25;

/// Processes of the machine whose command line contains a mark.
fn alive(mark: &str) -> usize {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = entries.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    lines.filter(|line| text(line).contains(mark)).count()
}

/// A number of seconds that no other test sleeps.
fn mark() -> String {
    static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let count = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    format!("{}.{count}", 5_000_000 + std::process::id())
}

#[test]
fn a_fork_bomb_is_stopped() {
    let bomb = r"
import os, time
count = 0
try:
    while count < 3000:
        if os.fork() == 0:
            time.sleep(300)
            os._exit(0)
        count += 1
except OSError:
    pass
print(count, flush=True)
";
    let Some(execution) = script(bomb) else { return };
    in_each_tier(|sandbox| {
        let outcome = sandbox.run(&execution).unwrap();
        match outcome.ending {
            Ending::ProcessLimit => {}
            ending => {
                assert_eq!(ending, Ending::Exited(0), "{}", text(&outcome.stderr));
                let count: u64 = text(&outcome.stdout).trim().parse().unwrap();
                assert!((30..=64).contains(&count), "{count} processes");
            }
        }
        assert!(outcome.wall < Duration::from_secs(30), "children were waited for");
    });
}

/// Each process starts another and ends, so that none of those seen is there when it is killed.
#[test]
fn a_chain_of_processes_is_stopped() {
    let mark = mark();
    let chain = format!(
        "import os\nif os.fork() == 0:\n  os.setsid()\n  while True:\n    if os.fork(): os._exit(0)\n#{mark}"
    );
    let Some(mut execution) = script("") else { return };
    execution.command = vec![python().unwrap().into(), "-I".into(), "-S".into(), "-c".into(), chain];
    in_each_tier(|sandbox| {
        let outcome = sandbox.run(&execution).unwrap();
        assert_eq!(outcome.ending, Ending::Exited(0));
        assert_eq!(alive(&mark), 0, "{}", sandbox.tier());
    });
}

#[test]
fn memory_is_limited_for_each_process_and_for_all_together() {
    let Some(one) = script("bytearray(3 << 30)") else { return };
    // 30 processes with 60 MiB each; the memory is written to, so that it exists.
    let many = "import os, time\nfor _ in range(29):\n  if os.fork() == 0: break\ndata = b'x' * (60 << 20)\ntime.sleep(300)";
    // Without a process that has mapped it for long.
    let shared = "import mmap\nm = mmap.mmap(-1, 3 << 30)\nfor i in range(0, 3 << 30, 4096): m[i] = 1";
    let many = script(many).unwrap();
    let shared = script(shared).unwrap();
    in_each_tier(|sandbox| {
        let outcome = sandbox.run(&one).unwrap();
        assert_eq!(outcome.ending, Ending::Exited(1), "one process");
        assert!(text(&outcome.stderr).contains("MemoryError"), "{}", text(&outcome.stderr));
        assert_eq!(sandbox.run(&many).unwrap().ending, Ending::MemoryLimit, "many processes");
        assert_eq!(sandbox.run(&shared).unwrap().ending, Ending::MemoryLimit, "shared memory");
    });
}

#[test]
fn pages_that_processes_share_count_once() {
    let text_of = "import os, time\ndata = b'x' * (100 << 20)\nfor _ in range(20):\n  if os.fork() == 0:\n    time.sleep(0.4)\n    os._exit(0)\ntime.sleep(0.6)\nprint('done')";
    let Some(execution) = script(text_of) else { return };
    in_each_tier(|sandbox| assert_eq!(stdout(sandbox, &execution), "done\n"));
}

#[test]
fn files_are_limited_in_size_and_number() {
    let big = script("f = open('big', 'wb')\nfor _ in range(1024): f.write(b'x' * (1 << 16))");
    let Some(big) = big else { return };
    let parts =
        script("for i in range(64):\n  with open(f'f{i}', 'wb') as f: f.write(b'x' * (1 << 20))").unwrap();
    let many = script("for i in range(1000000): open(f'f{i}', 'w').close()").unwrap();
    let hidden =
        "import os\nos.mkdir('d')\nos.chdir('d')\nfor i in range(1000000): open(f'f{i}', 'w').close()";
    let hidden = script(hidden).unwrap();
    in_each_tier(|sandbox| {
        for (what, execution) in
            [("one file", &big), ("bytes", &parts), ("number", &many), ("in a folder", &hidden)]
        {
            let mut execution = execution.clone();
            (execution.limits.files, execution.limits.disk) = (200, 4 << 20);
            let outcome = sandbox.run(&execution).unwrap();
            let is_refused = outcome.ending == Ending::Exited(1) && text(&outcome.stderr).contains("OSError");
            assert!(is_refused || outcome.ending == Ending::DiskLimit, "{what}: {outcome:?}");
        }
    });
    let left = std::fs::read_dir(std::env::temp_dir()).unwrap().flatten();
    let own = format!("rloom-sandbox-{}-", std::process::id());
    let left: Vec<_> = left.filter(|entry| entry.file_name().to_string_lossy().starts_with(&own)).collect();
    // Of tests that run at the same time.
    assert!(left.len() <= 8, "{left:?}");
}

#[test]
fn deep_folders_are_removed() {
    let text_of = "import os\nfor i in range(3000):\n  os.mkdir('d' * 100)\n  os.chdir('d' * 100)";
    let Some(execution) = script(text_of) else { return };
    in_each_tier(|sandbox| {
        sandbox.run(&execution).unwrap();
    });
}

#[test]
fn nothing_outlives_the_program() {
    let mark = mark();
    in_each_tier(|sandbox| {
        let daemon = format!("(setsid sleep {mark} >/dev/null 2>&1 &) ; sleep {mark} & exit 0");
        let outcome = sandbox.run(&shell(&daemon)).unwrap();
        assert_eq!(outcome.ending, Ending::Exited(0));
        assert!(outcome.wall < Duration::from_secs(30), "{:?}", outcome.wall);
        assert_eq!(alive(&mark), 0, "{}", sandbox.tier());
    });
}

/// A process that is a sibling of the one that started it, and one that holds the output open.
#[test]
fn processes_of_any_parent_end_with_the_program() {
    let mark = mark();
    let text_of = format!(
        r#"
import ctypes, os, platform
libc = ctypes.CDLL(None)
number = 56 if platform.machine() == "x86_64" else 220
CLONE_PARENT, SIGCHLD = 0x8000, 17
if libc.syscall(ctypes.c_long(number), ctypes.c_long(CLONE_PARENT | SIGCHLD), 0, 0, 0, 0) == 0:
    os.execv("/bin/sleep", ["sleep", "{mark}"])
if os.fork() == 0:
    if os.fork() == 0:
        os.setsid()
        os.execv("/bin/sleep", ["sleep", "{mark}"])
    os._exit(0)
print("end", flush=True)
"#
    );
    let Some(execution) = script(&text_of) else { return };
    in_each_tier(|sandbox| {
        assert_eq!(stdout(sandbox, &execution), "end\n");
        assert_eq!(alive(&mark), 0, "{}", sandbox.tier());
    });
}

#[test]
fn a_program_that_stops_its_group_or_its_parent_ends_in_time() {
    in_each_tier(|sandbox| {
        for script in ["kill -STOP 0", "kill -STOP $$", "kill -STOP $PPID; kill -STOP -1; sleep 300"] {
            let mut execution = shell(script);
            execution.limits.wall = Duration::from_millis(500);
            let outcome = sandbox.run(&execution).unwrap();
            // Without a user of its own, a program cannot send signals.
            assert!(matches!(outcome.ending, Ending::TimedOut | Ending::Exited(_)), "{script}: {outcome:?}");
        }
    });
}

#[test]
fn files_with_holes_are_limited_in_length() {
    let long = "import os\nf = os.open('hole', os.O_CREAT | os.O_RDWR)\ntry: os.ftruncate(f, 1 << 40)\nexcept OSError: print('refused')";
    let Some(mut long) = script(long) else { return };
    let within = "import os\nos.ftruncate(os.open('hole', os.O_CREAT | os.O_RDWR), 1 << 20)\nprint('made')";
    let mut within = script(within).unwrap();
    for execution in [&mut long, &mut within] {
        execution.limits.disk = 4 << 20;
        execution.outputs = vec!["hole".to_owned()];
    }
    in_each_tier(|sandbox| {
        let outcome = sandbox.run(&long).unwrap();
        let is_killed = outcome.ending == Ending::Signaled(SIGXFSZ);
        assert!(is_killed || text(&outcome.stdout) == "refused\n", "{outcome:?}");
        assert!(outcome.outputs.iter().all(|file| file.content.len() <= 4 << 20));
        let outcome = sandbox.run(&within).unwrap();
        assert_eq!(outcome.outputs[0].content.len(), 1 << 20);
    });
}

#[test]
fn time_is_limited_whatever_the_program_ignores() {
    let mark = mark();
    in_each_tier(|sandbox| {
        for script in
            [format!("sleep {mark}"), format!("trap '' TERM INT HUP XCPU; while true; do sleep {mark}; done")]
        {
            let mut execution = shell(&script);
            execution.limits.wall = Duration::from_millis(300);
            let outcome = sandbox.run(&execution).unwrap();
            assert_eq!(outcome.ending, Ending::TimedOut, "{script}");
            assert_eq!(alive(&mark), 0, "{}", sandbox.tier());
        }
        let mut execution = shell("trap '' XCPU; while :; do :; done");
        execution.limits.cpu = Duration::from_secs(1);
        execution.limits.wall = Duration::from_mins(2);
        let outcome = sandbox.run(&execution).unwrap();
        assert_eq!(outcome.ending, Ending::CpuLimit);
        assert!(outcome.cpu >= Duration::from_secs(1), "{:?}", outcome.cpu);
    });
}

#[test]
fn a_caller_that_is_killed_leaves_nothing() {
    let mark = mark();
    for sandbox in sandboxes() {
        let mut caller = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--ignored", "resources::sleeps"])
            .env("RLOOM_TEST_TIER", sandbox.tier().name())
            .env("RLOOM_TEST_MARK", &mark)
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        wait_until(|| alive(&format!("sleep\0{mark}")) > 0);
        caller.kill().unwrap();
        caller.wait().unwrap();
        wait_until(|| alive(&mark) == 0);
    }
}

/// Helpers are started before they are needed; those that have died since are not used.
#[test]
fn helpers_that_wait_and_die_are_replaced() {
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--ignored", "resources::kills_its_helpers"])
        .output()
        .unwrap();
    let said = text(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}{}", text(&output.stderr));
}

/// In a process of its own, whose children are helpers alone.
#[test]
#[ignore = "run by a test"]
fn kills_its_helpers() {
    let own = format!("PPid:\t{}\n", std::process::id());
    let children = || {
        let entries = std::fs::read_dir("/proc").unwrap().flatten();
        let is_child = |entry: &std::fs::DirEntry| {
            let status = std::fs::read_to_string(entry.path().join("status")).unwrap_or_default();
            status.contains(&own) && !status.contains("State:\tZ")
        };
        entries
            .filter(is_child)
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .collect::<Vec<i32>>()
    };
    in_each_tier(|sandbox| {
        for _ in 0..3 {
            assert_eq!(stdout(sandbox, &shell("echo x")), "x\n");
            wait_until(|| !children().is_empty());
            let found = children();
            for child in &found {
                let _ = std::process::Command::new("kill").args(["-9", &child.to_string()]).output();
            }
            wait_until(|| !children().iter().any(|child| found.contains(child)));
            assert_eq!(stdout(sandbox, &shell("echo x")), "x\n");
        }
    });
}

/// Fails in a hung test alone.
fn wait_until(condition: impl Fn() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < Duration::from_mins(1), "it did not happen");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
#[ignore = "run by a test"]
fn sleeps() {
    let (Ok(tier), Ok(mark)) = (std::env::var("RLOOM_TEST_TIER"), std::env::var("RLOOM_TEST_MARK")) else {
        return;
    };
    let sandbox = sandboxes().iter().find(|sandbox| sandbox.tier().name() == tier).unwrap();
    let mut execution = shell(&format!("sleep {mark}"));
    execution.limits.wall = Duration::from_mins(10);
    sandbox.run(&execution).unwrap();
}
