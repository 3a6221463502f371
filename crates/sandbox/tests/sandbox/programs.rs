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
