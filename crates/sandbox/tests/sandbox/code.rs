//! Programs judged by test cases, among them programs that try to forge their verdict.

use std::time::{Duration, Instant};

use rloom_sandbox::code::{Case, CaseVerdict, CodeJudge, CodeVerdict, Language, cases};
use serde_json::json;

use super::*;

fn judge(sandbox: &Sandbox) -> CodeJudge {
    let limits = Limits { cpu: Duration::from_secs(30), wall: Duration::from_mins(1), ..Limits::default() };
    CodeJudge::new(sandbox.clone(), limits, Vec::new())
}

fn verdict(sandbox: &Sandbox, language: Language, source: &str, tests: &serde_json::Value) -> CodeVerdict {
    let deadline = Instant::now() + Duration::from_mins(5);
    judge(sandbox).judge(language, source, &cases(tests).unwrap(), false, deadline).unwrap()
}

fn is_installed(program: &str) -> bool {
    let found = ["/usr/local/bin", "/usr/bin", "/bin"]
        .iter()
        .any(|path| std::path::Path::new(path).join(program).exists());
    if !found {
        eprintln!("left out: no {program}");
    }
    found
}

#[test]
fn programs_in_every_language_read_and_write_text() {
    let double = [
        (Language::Python, "python3", "print(int(input()) * 2)"),
        (Language::Bash, "bash", "read n; echo $((n * 2))"),
        (Language::Javascript, "node", "console.log(Number(require('fs').readFileSync(0, 'utf8')) * 2)"),
        (
            Language::C,
            "gcc",
            "#include <stdio.h>\nint main(void) { int n; scanf(\"%d\", &n); printf(\"%d\\n\", n * 2); }",
        ),
        (
            Language::Cpp,
            "g++",
            "#include <iostream>\nint main() { int n; std::cin >> n; std::cout << n * 2 << std::endl; }",
        ),
    ];
    let tests = json!([{"stdin": "4\n", "stdout": "8"}, {"stdin": "4\n", "stdout": "9"}]);
    in_each_tier(|sandbox| {
        for (language, program, source) in double {
            if is_installed(program) {
                let found = verdict(sandbox, language, source, &tests);
                assert_eq!(found.cases, [CaseVerdict::Passed, CaseVerdict::Failed], "{language:?}");
            }
        }
        if is_installed("gcc") {
            let found = verdict(sandbox, Language::C, "int main( {", &tests);
            assert_eq!(found.cases, [CaseVerdict::NotCompiled; 2]);
        }
        if python().is_some() {
            let tests = json!([{"stdin": "create table t (a, b); insert into t values (1, 'x'), (2, null);", "stdout": "2|\n1|x"}]);
            let found =
                verdict(sandbox, Language::Sql, "select 1;\nselect a, b from t order by a desc", &tests);
            assert!(found.is_solved(), "{found:?}");
        }
    });
}

const SOLUTION: &str = r"
SIZE = 3
def add(a, b):
    return a + b
def pair(a):
    return (a, {a})
def sort(values):
    values.sort()
def fail():
    raise ValueError('no')
class Stack:
    def __init__(self): self.items = []
    def push(self, x): self.items.append(x)
    def pop(self): return self.items.pop()
    def __len__(self): return len(self.items)
";

#[test]
fn functions_are_called_and_asserted() {
    if python().is_none() {
        return;
    }
    let right = json!([
        {"call": "add", "arguments": [1, 2], "expected": 3},
        {"call": "add", "arguments": [0.1, 0.2], "expected": 0.3},
        {"call": "pair", "arguments": [1], "expected": [1, [1]]},
        {"assertion": "assert add(1, 2) == 3\nassert add('a', 'b') == 'ab' and SIZE == 3"},
        {"assertion": "assert pair(1) == (1, {1})"},
        {"assertion": "values = [3, 1]\nsort(values)\nassert values == [1, 3]"},
        {"assertion": "s = Stack()\ns.push(4)\nassert len(s) == 1 and s.pop() == 4"},
        {"pytest": "import pytest\nfrom solution import add, fail\ndef test_add():\n  assert add(1, 1) == 2\n  assert add(.1, .2) == pytest.approx(.3)\n@pytest.mark.parametrize('a,b', [(1, 2), (3, 4)])\ndef test_many(a, b):\n  assert add(a, 1) == b\ndef test_error():\n  with pytest.raises(ValueError, match='no'):\n    fail()"},
    ]);
    let wrong = json!([
        {"call": "add", "arguments": [1, 2], "expected": 4},
        {"call": "missing", "arguments": [], "expected": null},
        {"call": "Stack", "arguments": [], "expected": null},
        {"call": "fail", "arguments": [], "expected": null},
        {"assertion": "assert add(1, 2) == 4"},
        {"assertion": "fail()"},
        {"pytest": "from solution import add\ndef test_a():\n  pass\ndef test_b():\n  assert add(1, 1) == 3"},
        {"pytest": "pass"},
        {"pytest": "import pytest\ndef test():\n  with pytest.raises(ValueError):\n    add(1, 1)"},
    ]);
    in_each_tier(|sandbox| {
        let found = verdict(sandbox, Language::Python, SOLUTION, &right);
        assert!(found.is_solved(), "{:?}", found.cases);
        let found = verdict(sandbox, Language::Python, SOLUTION, &wrong);
        assert_eq!(found.passed(), 0, "{:?}", found.cases);
    });
}

/// Programs that pass without solving their task.
const FORGERIES: &[(&str, &str)] = &[
    ("an early end", "import os\nos._exit(0)"),
    ("an early end by an exception", "raise SystemExit(0)"),
    ("output", "print('PASS'); print('{\"value\": null, \"nonce\": \"\"}')"),
    ("a report", "import os\nos.write(3, b'{\"value\": null, \"nonce\": \"\"}')"),
    (
        "any descriptor",
        "import os\nfor n in range(64):\n  try: os.write(n, b'{\"value\": {}}\\n' * 9)\n  except OSError: pass",
    ),
    (
        "an object that equals everything",
        "class All:\n  def __eq__(self, other): return True\n  def __ne__(self, other): return False\ndef f(x): return All()",
    ),
    (
        "a number that equals everything",
        "class All(int):\n  def __eq__(self, other): return True\ndef f(x): return All(0)",
    ),
    ("an end during the call", "import os\ndef f(x): os._exit(0)"),
    (
        "changed builtins",
        "import builtins\nbuiltins.AssertionError = None\nbuiltins.compile = lambda *a: ''\nbuiltins.exec = print",
    ),
    (
        "the tests in memory",
        r#"
import gc, sys
def f(x):
    frame = sys._getframe()
    while frame:
        for value in list(frame.f_locals.values()) + list(frame.f_globals.values()):
            if isinstance(value, dict) and "code" in value: return 4
        frame = frame.f_back
    for value in gc.get_objects():
        if isinstance(value, dict) and "nonce" in value: return 4
"#,
    ),
    (
        "the memory of the tester",
        r#"
import os
def f(x):
    for name in ("mem", "fd/3", "fd/0", "environ", "cwd", "root"):
        try:
            os.open(f"/proc/{os.getppid()}/{name}", os.O_RDWR if name in ("mem", "fd/3") else os.O_RDONLY)
            return 4
        except OSError: pass
"#,
    ),
    (
        "the tests in files",
        r#"
import os
def f(x):
    for folder in (".", "/tmp", "/work"):
        for name in os.listdir(folder):
            if name not in ("solution.py", "tester.py"): return 4
            if "f(" + "2)" in open(os.path.join(folder, name)).read(): return 4
"#,
    ),
    (
        "a changed tester",
        r#"
import os
with open("tester.py", "w") as f: f.write("import os; os.write(3, b'{}')")
import signal
os.kill(os.getppid(), signal.SIGKILL)
"#,
    ),
];

#[test]
fn verdicts_cannot_be_forged() {
    if python().is_none() {
        return;
    }
    let tests = json!([
        {"assertion": "assert f(2) == 4"},
        {"call": "f", "arguments": [2], "expected": 4},
        {"pytest": "from solution import f\ndef test():\n  assert f(2) == 4"},
        {"stdin": "2", "stdout": "4"},
    ]);
    in_each_tier(|sandbox| {
        for (name, source) in FORGERIES {
            let found = verdict(sandbox, Language::Python, source, &tests);
            assert_eq!((found.passed(), found.cases.len()), (0, 4), "{name}: {found:?}");
        }
        let found = verdict(sandbox, Language::Python, "def f(x): return x * x\nprint(4)", &tests);
        assert!(found.is_solved(), "{found:?}");
    });
}

#[test]
fn verdicts_are_remembered_and_stop_at_the_first_failure() {
    if python().is_none() {
        return;
    }
    let judge = judge(&sandboxes()[0]);
    let soon = Instant::now() + Duration::from_mins(5);
    let list: Vec<Case> = cases(&json!([{"stdout": "1"}, {"stdout": "2"}, {"stdout": "1"}])).unwrap();
    let source = "print(1)";
    let early = judge.judge(Language::Python, source, &list, true, soon).unwrap();
    assert_eq!((early.cases.len(), early.total, early.is_solved()), (2, 3, false));
    let all = judge.judge(Language::Python, source, &list, false, soon).unwrap();
    assert_eq!((all.passed(), all.total), (2, 3));
    // After the deadline only what is remembered is known.
    let now = Instant::now();
    assert_eq!(judge.judge(Language::Python, source, &list, false, now).unwrap(), all);
    let unknown = judge.judge(Language::Python, "print(2)", &list, false, now);
    assert!(matches!(unknown, Err(rloom_sandbox::SandboxError::TimedOut { .. })), "{unknown:?}");
}

#[test]
fn limits_are_told_from_wrong_results() {
    if python().is_none() {
        return;
    }
    in_each_tier(|sandbox| {
        let limits = Limits { wall: Duration::from_secs(1), ..Limits::default() };
        let judge = CodeJudge::new(sandbox.clone(), limits, Vec::new());
        let list = cases(&json!([{"stdout": ""}])).unwrap();
        let soon = Instant::now() + Duration::from_mins(5);
        let found = judge.judge(Language::Python, "while True: input", &list, false, soon).unwrap();
        assert_eq!(found.cases, [CaseVerdict::Exceeded(Ending::TimedOut)]);
    });
}
