//! Programs that mean no harm.

use super::*;

#[test]
fn input_files_and_output() {
    in_each_tier(|sandbox| {
        let mut execution = shell("cat; cat file; echo error >&2; echo made > made; exit 3");
        execution.stdin = b"input\n".to_vec();
        execution.files = vec![InputFile::new("file", "content\n")];
        execution.outputs = vec!["made".to_owned(), "missing".to_owned()];
        let outcome = sandbox.run(&execution).unwrap();
        assert_eq!(outcome.ending, Ending::Exited(3), "{}", text(&outcome.stderr));
        assert_eq!(text(&outcome.stdout), "input\ncontent\n");
        assert_eq!(text(&outcome.stderr), "error\n");
        let made: Vec<(&str, &[u8])> =
            outcome.outputs.iter().map(|file| (file.name.as_str(), file.content.as_slice())).collect();
        assert_eq!(made, [("made", b"made\n".as_slice())]);
    });
}

#[test]
fn programs_elsewhere_need_a_readable_folder() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let executable = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(folder.path(), executable.clone()).unwrap();
    std::fs::create_dir(folder.path().join("bin")).unwrap();
    let program = folder.path().join("bin/rloom-test-program");
    std::fs::write(&program, "#!/bin/sh\necho here\n").unwrap();
    std::fs::set_permissions(&program, executable).unwrap();
    in_each_tier(|sandbox| {
        let mut execution = command(&["rloom-test-program"]);
        let error = sandbox.run(&execution).unwrap_err();
        assert!(matches!(error, rloom_sandbox::SandboxError::NotStarted { .. }), "{error}");
        execution.readable = vec![folder.path().to_owned()];
        assert_eq!(stdout(sandbox, &execution), "here\n");
        execution.command =
            vec!["sh".into(), "-c".into(), format!("echo x > {}/file", folder.path().display())];
        assert!(!sandbox.run(&execution).unwrap().ending.is_success(), "it is written to");
    });
}
