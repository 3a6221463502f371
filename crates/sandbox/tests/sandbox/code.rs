//! Programs judged by test cases.

use std::time::{Duration, Instant};

use rloom_sandbox::code::{Case, CaseVerdict, CodeJudge, CodeVerdict, Language, cases};
use serde_json::json;

use super::*;

fn judge(sandbox: &Sandbox) -> CodeJudge {
    let limits = Limits { cpu: Duration::from_secs(30), wall: Duration::from_mins(1), ..Limits::default() };
    CodeJudge::new(sandbox.clone(), 4, limits, Vec::new())
}

pub(crate) fn verdict(
    sandbox: &Sandbox,
    language: Language,
    source: &str,
    tests: &serde_json::Value,
) -> CodeVerdict {
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

const LIBRARY: &str = r"
import collections, decimal, fractions
def twice(function, value): return function(function(value))
def count(text): return collections.Counter(text)
def half(): return fractions.Fraction(1, 2)
def tenth(): return decimal.Decimal('0.1')
def root(): return 1j
def numbers(n): yield from range(n)
def endless():
    n = 0
    while True:
        yield n
        n += 1
def recent(items): return collections.deque(items, 2)
def sum(a, b): return a + b
class Missing(KeyError): pass
class Gone(Missing): pass
def find(key): raise Gone(key)
class Node:
    def __init__(self, value, next=None): self.value, self.next = value, next
";

#[test]
fn tests_use_the_program_as_python_does() {
    if python().is_none() {
        return;
    }
    let tests = json!([
        {"assertion": "assert twice(lambda x: x * 3, 2) == 18 and twice(str, 1) == '1'"},
        {"assertion": "assert count('aab') == {'a': 2, 'b': 1}"},
        {"assertion": "from fractions import Fraction\nassert half() == Fraction(1, 2)"},
        {"assertion": "from decimal import Decimal\nassert tenth() == Decimal('0.1') and root() == 1j"},
        {"assertion": "import itertools\nassert list(numbers(3)) == [0, 1, 2]\nassert list(itertools.islice(endless(), 3)) == [0, 1, 2]\ng = numbers(2)\nassert next(g) == 0 and next(g) == 1 and next(g, 5) == 5"},
        {"call": "numbers", "arguments": [2], "expected": [0, 1]},
        {"assertion": "from collections import deque\nassert recent([1, 2, 3]) == deque([2, 3])"},
        {"assertion": "assert sum(1, 2) == 3"},
        {"pytest": "from solution import sum\ndef test():\n  assert abs(sum(1, 2)) == 3"},
        {"pytest": "import pytest\ndef test():\n  with pytest.raises(Gone, match='key'): find('key')\n  with pytest.raises(Missing): find(1)\n  with pytest.raises(KeyError): find(1)"},
        {"assertion": "try:\n  find(1)\n  assert False\nexcept Missing as error:\n  assert type(error).__name__ == 'Gone'"},
        {"assertion": "head = Node(1, Node(2))\nfound = []\nwhile head:\n  found.append(head.value)\n  head = head.next\nassert found == [1, 2]"},
        {"pytest": "class TestSum:\n  def setup_method(self): self.value = 2\n  def test_value(self): assert self.value == 2 and twice(lambda x: x + 1, 1) == 3"},
        {"pytest": "import unittest\nfrom solution import twice\nclass TestCases(unittest.TestCase):\n  def setUp(self): self.value = 1\n  def test(self): self.assertEqual(twice(lambda x: x, self.value), 1)"},
        {"pytest": "import unittest\nclass TestCases(unittest.TestCase):\n  def test(self):\n    with self.assertRaises(KeyError): find(1)"},
    ]);
    let wrong = json!([
        {"assertion": "assert numbers(2) == [0, 1]"},
        {"assertion": "assert count('aab') == {'a': 2}"},
        {"assertion": "twice(lambda x: 1 / 0, 2)"},
        {"pytest": "class TestSum:\n  def test_value(self): assert False"},
        {"pytest": "class TestSum:\n  pass"},
        {"pytest": "import unittest\nclass TestCases(unittest.TestCase):\n  def test(self): self.assertEqual(1, 2)"},
        {"pytest": "import unittest\nclass TestCases(unittest.TestCase):\n  pass"},
    ]);
    in_each_tier(|sandbox| {
        let found = verdict(sandbox, Language::Python, LIBRARY, &tests);
        assert!(found.is_solved(), "{:?}", found.cases);
        let found = verdict(sandbox, Language::Python, LIBRARY, &wrong);
        assert_eq!(found.passed(), 0, "{:?}", found.cases);
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

/// A wrapper that swallows an exception would pass where no output is expected.
#[test]
fn a_program_that_fails_passes_no_test_without_output() {
    if python().is_none() {
        return;
    }
    let tests = json!([{"stdout": ""}, {"assertion": "pass"}]);
    in_each_tier(|sandbox| {
        for source in ["raise ValueError", "import sys\nsys.exit(1)", "import os\nos.abort()", "1 +"] {
            let found = verdict(sandbox, Language::Python, source, &tests);
            assert_eq!(found.cases, [CaseVerdict::Failed; 2], "{source}");
        }
        assert!(verdict(sandbox, Language::Python, "x = 1", &tests).is_solved());
    });
}

#[test]
fn limits_are_told_from_wrong_results() {
    if python().is_none() {
        return;
    }
    in_each_tier(|sandbox| {
        let limits = Limits { wall: Duration::from_secs(1), ..Limits::default() };
        let judge = CodeJudge::new(sandbox.clone(), 4, limits, Vec::new());
        let list = cases(&json!([{"stdout": ""}])).unwrap();
        let soon = Instant::now() + Duration::from_mins(5);
        let found = judge.judge(Language::Python, "while True: input", &list, false, soon).unwrap();
        assert_eq!(found.cases, [CaseVerdict::Exceeded(Ending::TimedOut)]);
    });
}
