# Starts a worker in an interpreter that has nothing installed: `python -c` runs this text, and the first line
# of stdin holds the modules of this package. Every Python that may be called `python3` has to read it.
import contextlib
import json
import os
import signal
import sys
import types

if sys.version_info < (3, 10):  # noqa: UP036
    found = "%d.%d" % sys.version_info[:2]  # noqa: UP031
    reason = "Python 3.10 or later is needed, but " + sys.executable + " is Python " + found
    print(json.dumps({"id": 1, "error": {"kind": "refused", "message": reason}}))
    sys.exit(0)

# The protocol keeps its own copies of stdin and stdout, which child processes do not inherit. What functions
# print goes to stderr, and what they read from stdin is empty.
requests = os.fdopen(os.dup(0), "rb")
answers = os.fdopen(os.dup(1), "wb")
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
os.dup2(2, 1)
sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
# An interrupt from the terminal is for the run, which ends its processes itself.
signal.signal(signal.SIGINT, signal.SIG_IGN)

package = types.ModuleType("rloom_functions")
package.__path__ = []
sys.modules["rloom_functions"] = package
for name, source in json.loads(requests.readline()).items():
    module = types.ModuleType("rloom_functions." + name)
    module.__package__ = "rloom_functions"
    sys.modules[module.__name__] = module
    exec(compile(source, "<rloom.functions." + name + ">", "exec"), module.__dict__)
serving, loading = sys.modules["rloom_functions.serving"], sys.modules["rloom_functions.loading"]
with contextlib.suppress(BrokenPipeError):
    serving.serve(requests, answers, loading.load)
sys.stdout.flush()
