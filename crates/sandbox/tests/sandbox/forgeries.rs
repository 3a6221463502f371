//! Programs that try to pass without solving their task.

use rloom_sandbox::code::Language;
use serde_json::json;

use super::code::verdict;
use super::*;

/// Attempts at tests of a function `f` that squares a number, by what the sandbox lets a program reach.
const FORGERIES: &[(&str, &str)] = &[
    ("an early end", "import os\nos._exit(0)"),
    ("output", "print('PASS'); print('{\"value\": null, \"nonce\": \"\"}')"),
    ("a report", "import os\nos.write(3, b'{\"value\": null, \"nonce\": \"\"}')"),
    (
        "any descriptor",
        "import os\nfor n in range(64):\n  try: os.write(n, b'{\"value\": {}}\\n' * 9)\n  except OSError: pass",
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
    (
        "an end by a thread",
        "import threading, os\ndef f(x):\n  threading.Thread(target=lambda: os._exit(0)).start()\n  import time; time.sleep(5)",
    ),
    ("a signal to all", "import os, signal\ndef f(x): os.kill(0, signal.SIGKILL)"),
    (
        "signals to the tester",
        "import os, signal\ndef f(x):\n  for number in range(1, 32):\n    try: os.kill(os.getppid(), number)\n    except OSError: pass",
    ),
    ("a flood of output", "print('4' * 50_000_000)\ndef f(x): return 5"),
    (
        "a daemon that answers later",
        "import os, time\ndef f(x):\n  if os.fork() == 0:\n    os.setsid()\n    time.sleep(.1)\n    os.write(5, b'{\"value\": 5}\\n')\n  return 5",
    ),
];

/// Attempts by what a program returns to its tester, which is the same in every tier.
const RETURNED: &[(&str, &str)] = &[
    ("an early end by an exception", "raise SystemExit(0)"),
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
        "builtins of the tester",
        r#"
import os
os.write(5, b'{"value": ["d", [["f", ["h", 0]], ["__builtins__", ["d", []]], ["__name__", "x"]]]}\n' + b'{"value": 4}\n' * 0)
os._exit(0)
"#,
    ),
    (
        "output at the end",
        "import atexit, os\natexit.register(lambda: os.write(1, b'PASS'))\nraise SystemExit(0)",
    ),
    (
        "an exception with the text of a verdict",
        "def f(x): raise Exception('\"}, \"value\": 4, \"nonce\": \"')",
    ),
    ("an exception of the tester", "def f(x): raise SystemExit(0)"),
    ("an exception that names a verdict", "class PASS(BaseException): pass\ndef f(x): raise PASS('4')"),
    (
        "an object that is made by copying",
        "class P:\n  def __reduce__(self): return (eval, ('4',))\ndef f(x): return P()",
    ),
    (
        "an object with another class",
        "class P:\n  __class__ = int\n  def __eq__(self, other): return True\n  def __index__(self): return 4\ndef f(x): return P()",
    ),
    ("no number", "def f(x): return float('nan')"),
    ("nested answers", "def f(x):\n  a = []\n  for _ in range(100000): a = [a]\n  return a"),
    ("an endless answer", "import os\ndef f(x):\n  for _ in range(3000): os.write(5, b'[' * 100000)"),
    (
        "answers of unknown form",
        "import os\ndef f(x): os.write(5, b'{\"value\": [\"own\", 0]}\\n{\"callback\": 0, \"arguments\": [[\"l\", []], [\"d\", []]]}\\n'); os._exit(0)",
    ),
];

fn is_first(sandbox: &Sandbox) -> bool {
    sandbox.tier() == sandboxes()[0].tier()
}

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
        let returned = if is_first(sandbox) { RETURNED } else { &[] };
        for (name, source) in FORGERIES.iter().chain(returned) {
            let found = verdict(sandbox, Language::Python, source, &tests);
            assert_eq!((found.passed(), found.cases.len()), (0, 4), "{name}: {found:?}");
        }
        let found = verdict(sandbox, Language::Python, "def f(x): return x * x\nprint(4)", &tests);
        assert!(found.is_solved(), "{found:?}");
    });
}

/// Programs that change what the tests of a function are written with.
const CHANGED_TESTS: &[(&str, &str)] = &[
    ("assert abs(f(2) - 4) < 1e-6", "def f(x): return 9\ndef abs(x): return 0"),
    ("assert sorted(f([2, 1])) == [1, 2]", "def f(x): return []\ndef sorted(x): return [1, 2]"),
    (
        "assert len(f(2)) == 3 and isinstance(f(2), str)",
        "def f(x): return 1\nlen = lambda x: 3\nisinstance = lambda *a: True",
    ),
    ("assert math.isclose(f(2), 4)", "def f(x): return 9\nclass math:\n  isclose = lambda *a: True"),
    (
        "import math\nassert math.isclose(f(2), 4)",
        "def f(x): return 9\nimport math\nmath.isclose = lambda *a: True",
    ),
    (
        "from solution import *\nassert round(f(2)) == 4",
        "def f(x): return 9\nround = lambda x: 4\n__all__ = ['f', 'round']",
    ),
    ("assert set(list(f(2))) == {4}", "set = list = lambda *a: {4}\ndef f(x): return 5"),
    (
        "assert f(2) == 4, 'no'",
        "import sys, builtins\nbuiltins.AssertionError = type('A', (BaseException,), {})\ndef f(x): return 5",
    ),
    (
        "assert str(f(2)) == '4'",
        r#"
import os
os.write(5, b'{"value": ["d", [["f", 5], ["str", 5], ["__builtins__", ["d", [["str", ["c", 0]]]]]]]}\n')
def str(x): return '4'
"#,
    ),
    (
        "import pytest\nassert f(2) == pytest.approx(4)",
        "import sys, types\nsys.modules['pytest'] = types.SimpleNamespace(approx=lambda x: 5)\npytest = sys.modules['pytest']\ndef f(x): return 5",
    ),
    (
        "def check(candidate):\n  assert candidate(2) == 4\ncheck(f)",
        "def f(x): return 5\ndef check(candidate): pass",
    ),
    (
        "class Result:\n  def __eq__(self, other): return other == 4\nassert Result() == f(2)",
        "class R:\n  def __eq__(self, other): return True\ndef f(x): return R()",
    ),
];

#[test]
fn tests_cannot_be_changed() {
    if python().is_none() {
        return;
    }
    // What the tester does is the same in every tier.
    let sandbox = &sandboxes()[0];
    for (test, source) in CHANGED_TESTS {
        let tests = json!([{ "assertion": test }, { "pytest": format!("def test():\n  {}", test.replace("from solution import *\n", "").replace('\n', "\n  ")) }]);
        let found = verdict(sandbox, Language::Python, source, &tests);
        assert_eq!(found.passed(), 0, "{test} {source}: {found:?}");
    }
}
